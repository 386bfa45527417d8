"""``blb reproduce paper``: the paper's tables, ours beside its own numbers."""

from __future__ import annotations

from pathlib import Path

import click

from blackbox_lb.cli.grouped import COUNT, HelpGroup, argument, command, option, options
from blackbox_lb.cli.options import TrialOptions


@options
class ReproduceOptions(TrialOptions):
    """Options of ``blb reproduce``."""

    what: str = argument(metavar="paper", type=click.Choice(["paper"]))
    table: str = option(
        HelpGroup.FIRST, "Which of its tables.", type=click.Choice(["accuracy", "compression"]), required=True
    )
    benchmark: tuple[str, ...] = option(
        HelpGroup.FIRST,
        "Only this benchmark; repeatable. [default: all of the table]",
        type=click.Choice(["math", "gsm8k", "gpqa"]),
    )
    scale: float = option(
        HelpGroup.FIRST,
        "Share of the paper's rollouts; problems and rollouts of each shrink by its square root.",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.01,
    )
    dry_run: bool = option(HelpGroup.FIRST, "Say what would be asked for at most, and ask nothing.")
    data_dir: Path | None = option(HelpGroup.TASK, "Folder with the benchmark's data, for a machine without the hub.")
    data: Path | None = option(
        HelpGroup.TASK, "JSONL or CSV of your own problems, with prompt and answer, in place of the benchmark's."
    )
    lora: tuple[Path, ...] = option(
        HelpGroup.TASK, "A result of bench/studies/lora_grpo.py for the row LoRA-GRPO; repeatable."
    )
    top_logprobs: int | None = option(
        HelpGroup.SAMPLING, "Alternatives listed a token. [default: 20, or the limit]", type=COUNT
    )


@command("reproduce", ReproduceOptions)
def reproduce_command(options: ReproduceOptions) -> None:
    """Run a table of the paper on your model, scaled down, and print it beside the paper's own numbers.

    Rollouts, positions, token caps, the grids of alpha and tau and the rules of selection are the paper's; a row of projection from
    a tenth of the rollouts is added. Prints what it will ask for first. Writes reproduction.json, reproduction.md and every bias
    into --out; a second run resumes there, and a larger --scale goes on from a smaller one.
    """
    from blackbox_lb.cli.actions.reproduce import execute

    execute(options)
