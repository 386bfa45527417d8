"""``blb try``: one prompt, answered without a bias and with it."""

from __future__ import annotations

from pathlib import Path

import click

from blackbox_lb.cli.completing import bias_files
from blackbox_lb.cli.grouped import COUNT, PATH, argument, command, option
from blackbox_lb.cli.options import PrintOptions, provider
from blackbox_lb.jobs.plan.setting import HelpGroup
from blackbox_lb.jobs.plan.shared import ServerSettings

MOST_TOKENS = 128
"""Longest answer, where the bias file does not say with how many tokens it was learned."""


class TryOptions(ServerSettings, PrintOptions):
    bias_file: Path = argument(metavar="BIAS", type=PATH, shell_complete=bias_files)
    prompts: tuple[str, ...] = argument(metavar="[PROMPT]...", nargs=-1)
    provider: str | None = provider(HelpGroup.FIRST, "the bias's own")
    max_tokens: int | None = option(
        HelpGroup.FIRST,
        f"Longest answer, in tokens. [default: that of the fit, else {MOST_TOKENS}]",
        type=COUNT,
    )
    system: str | None = option(HelpGroup.TASK, "A system message before each prompt.")
    temperature: float = option(
        HelpGroup.SAMPLING, "0 is greedy.", type=click.FloatRange(0, 2), default=0.0
    )


@command("try", TryOptions, example='blb try runs/train/bias.json "What is the capital of Peru?"')
def try_command(options: TryOptions) -> None:
    """Answer each PROMPT without the bias file BIAS and with it, side by side; tokens that the bias
    moves stand in brackets.

    Without PROMPT, prompts are read line by line until the end of input.
    """
    from blackbox_lb.cli.actions.try_bias import execute

    execute(options)
