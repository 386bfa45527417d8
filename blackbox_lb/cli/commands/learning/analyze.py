"""``blb analyze``: the effect of a bias on each token that is generated under it."""

from __future__ import annotations

from pathlib import Path

import click

from blackbox_lb.cli.grouped import COUNT, PATH, HelpGroup, argument, command, option, options
from blackbox_lb.cli.options import (
    POSITIONS,
    LimitOptions,
    OutputOptions,
    PromptOptions,
    SamplingOptions,
    ServerOptions,
    bias_files,
    provider,
)

ANALYSIS = "analysis.json"
"""The file that the command writes into the run's folder."""
SAMPLES = 4


@options
class AnalyzeOptions(PromptOptions, ServerOptions, SamplingOptions, LimitOptions, OutputOptions):
    """Options of ``blb analyze``; a settings file may give it the reward of other commands, which
    is not read.
    """

    bias_file: Path = argument(metavar="BIAS", type=PATH, shell_complete=bias_files)
    provider: str | None = provider(HelpGroup.FIRST, "the bias's own")
    store: Path | None = option(
        HelpGroup.OUTPUT, "Rollout store. [default: rollouts.db beside BIAS]"
    )
    out: Path | None = option(
        HelpGroup.FIRST, f"Folder that gets {ANALYSIS}. [default: the folder of BIAS]"
    )
    full_vocab: int | None = option(
        HelpGroup.ANALYSIS,
        f"Exact scores, from all logprobs at so many biased positions, {POSITIONS} by default."
        " vllm, llamacpp and local only.",
        type=click.IntRange(2),
        is_flag=False,
        flag_value=POSITIONS,
        metavar="[POSITIONS]",
    )
    top: int = option(HelpGroup.ANALYSIS, "Rows of each table of tokens.", type=COUNT, default=15)
    samples: int = option(
        HelpGroup.SAMPLING,
        "Completions a test prompt to draw with --task or --data.",
        type=COUNT,
        default=SAMPLES,
    )
    reward: str | None = option(None, "", hidden=True)
    correct: str | None = option(None, "", hidden=True)


@command("analyze", AnalyzeOptions, example="blb analyze runs/train/bias.json")
def analyze_command(options: AnalyzeOptions) -> None:
    """Show the effect of the bias file BIAS on each token: its intervention score.

    S is the mean of log p(token | with the bias) - log p(token | without it), in nats, over the
    places where completions drawn with the bias have the token. It is read from the completions at
    temperature 1 that blb fit and blb eval left in the store; with --task or --data, completions of
    its test prompts are drawn first.
    """
    from blackbox_lb.cli.actions.analyze import execute

    execute(options)
