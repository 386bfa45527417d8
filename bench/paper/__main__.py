"""``python -m bench.paper``: the paper's tables, ours beside its own numbers."""

from __future__ import annotations

from pathlib import Path

import click

from blackbox_lb.cli import Commands
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import TrialOptions
from blackbox_lb.jobs.plan.setting import HelpGroup, setting

__all__ = ["PaperOptions", "main"]

NAME = "bench.paper"


class PaperOptions(TrialOptions):
    """Options of ``python -m bench.paper``."""

    table: str = setting(
        ...,
        HelpGroup.FIRST,
        "Which of its tables.",
        type=click.Choice(["accuracy", "compression"]),
        required=True,
    )
    benchmark: tuple[str, ...] = setting(
        (),
        HelpGroup.FIRST,
        "Only this benchmark; repeatable. [default: all of the table]",
        type=click.Choice(["math", "gsm8k", "gpqa"]),
    )
    scale: float = setting(
        0.01,
        HelpGroup.FIRST,
        "Share of the paper's rollouts; problems and rollouts of each shrink by its square root.",
        type=click.FloatRange(0, 1, min_open=True),
    )
    dry_run: bool = setting(
        False, HelpGroup.FIRST, "Say what would be asked for at most, and ask nothing."
    )
    data_dir: Path | None = setting(
        None, HelpGroup.TASK, "Folder with the benchmark's data, for a machine without the hub."
    )
    data: Path | None = setting(
        None,
        HelpGroup.TASK,
        "JSONL or CSV of your own problems, with prompt and answer, in place of the benchmark's.",
    )
    top_logprobs: int | None = setting(
        None, HelpGroup.SAMPLING, "Alternatives listed a token. [default: 20, or the limit]", ge=1
    )


@command(NAME, PaperOptions)
def paper_command(options: PaperOptions) -> None:
    """Run a table of the paper on your model, scaled down, and print it beside the paper's own
    numbers.

    Rollouts, positions, token caps, the grids of alpha and tau and the rules of selection are the
    paper's; a row of projection from a tenth of the rollouts is added. Prints what it will ask for
    first. Writes reproduction.json, reproduction.md and every bias into --out; a second run resumes
    there, and a larger --scale goes on from a smaller one. Reads no blb.toml.
    """
    from bench.paper.action import execute

    execute(options)


class _Alone(Commands):
    """The manners of ``blb``, errors of one sentence and the exit codes, for one command whose name
    need not be given.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Everything on the command line is the command's."""
        return super().parse_args(ctx, [NAME, *args])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The one command."""
        return paper_command if cmd_name == NAME else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The one command, without what blb.toml says."""
        return click.Group.resolve_command(self, ctx, args)


main = _Alone(
    "python -m", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)

if __name__ == "__main__":
    main(prog_name="python -m")
