"""``blb reproduce paper``: the paper's tables, ours beside its own numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from blackbox_lb.cli.grouped import HelpGroup, command, option
from blackbox_lb.cli.option_classes import TrialOptions
from blackbox_lb.cli.options import limit_options, model_options, output_options


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(TrialOptions):
    """Options of ``blb reproduce``.

    what: "paper".
    table: accuracy or compression.
    benchmark: only these; none: all of the table.
    scale: share of the paper's rollouts.
    data_dir: folder with the benchmark's data.
    data: file with problems of one's own.
    lora: results of a LoRA run.
    dry_run: print the plan and ask nothing.
    """

    what: str
    table: str
    benchmark: tuple[str, ...]
    scale: float
    data_dir: Path | None
    data: Path | None
    lora: tuple[Path, ...]
    dry_run: bool


@command("reproduce", ReproduceOptions)
@click.argument("what", metavar="paper", type=click.Choice(["paper"]))
@option(
    HelpGroup.FIRST,
    "--table",
    type=click.Choice(["accuracy", "compression"]),
    required=True,
    help="Which of its tables.",
)
@model_options()
@option(
    HelpGroup.FIRST,
    "--benchmark",
    type=click.Choice(["math", "gsm8k", "gpqa"]),
    multiple=True,
    help="Only this benchmark; repeatable. [default: all of the table]",
)
@option(
    HelpGroup.FIRST,
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.01,
    show_default=True,
    help="Share of the paper's rollouts; problems and rollouts of each shrink by its square root.",
)
@option(
    HelpGroup.TASK,
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Folder with the benchmark's data, for a machine without the hub.",
)
@option(
    HelpGroup.TASK,
    "--data",
    type=click.Path(path_type=Path),
    help="JSONL or CSV of your own problems, with prompt and answer, in place of the benchmark's.",
)
@option(
    HelpGroup.TASK,
    "--lora",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A result of bench/studies/lora_grpo.py for the row LoRA-GRPO; repeatable.",
)
@option(HelpGroup.FIRST, "--dry-run", is_flag=True, help="Say what would be asked for at most, and ask nothing.")
@option(
    HelpGroup.SAMPLING,
    "--top-logprobs",
    type=click.IntRange(1),
    help="Alternatives listed a token. [default: 20, or the limit]",
)
@option(
    HelpGroup.SAMPLING,
    "--seed",
    type=click.IntRange(0),
    help="Sent with every request, so that a run can be repeated.",
)
@limit_options()
@output_options()
def reproduce_command(options: ReproduceOptions) -> None:
    """Run a table of the paper on your model, scaled down, and print it beside the paper's own numbers.

    Rollouts, positions, token caps, the grids of alpha and tau and the rules of selection are the paper's; a row of projection from
    a tenth of the rollouts is added. Prints what it will ask for first. Writes reproduction.json, reproduction.md and every bias
    into --out; a second run resumes there, and a larger --scale goes on from a smaller one.
    """
    from blackbox_lb.cli.actions.reproduce import execute

    execute(options)
