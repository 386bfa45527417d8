"""``blb analyze``: what a bias does to each token that is generated under it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from blackbox_lb.cli.completers import bias_files
from blackbox_lb.cli.grouped import HelpGroup, command, option
from blackbox_lb.cli.option_classes import LimitOptions, OutputOptions, PromptOptions, SamplingOptions, ServerOptions
from blackbox_lb.cli.options import POSITIONS, limit_options, model_options, sampling_options, task_options

ANALYSIS = "analysis.json"
"""The file that the command writes into the run's folder."""
SAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class AnalyzeOptions(PromptOptions, ServerOptions, SamplingOptions, LimitOptions, OutputOptions):
    """Options of ``blb analyze``.

    bias_file: the bias.
    provider: None: the bias's own.
    full_vocab: biased positions at which all logprobs are asked for; None: none.
    families: how tokens are grouped, surface or embedding.
    embedding: the embedding model; None: as in ``blb fit``.
    top: rows of each table.
    csv_file: file that gets all visited tokens.
    samples: completions a test prompt.
    reward, correct: not read; they are taken so that a settings file may give them to all commands.
    """

    bias_file: Path
    provider: str | None
    full_vocab: int | None
    families: str
    embedding: str | None
    top: int
    csv_file: Path | None
    samples: int
    reward: str | None
    correct: str | None


@command("analyze", AnalyzeOptions)
@click.argument("bias_file", metavar="BIAS", type=click.Path(path_type=Path), shell_complete=bias_files)
@option(
    HelpGroup.OUTPUT,
    "--store",
    type=click.Path(path_type=Path),
    help="Rollout store. [default: rollouts.db beside BIAS]",
)
@option(
    HelpGroup.FIRST,
    "--out",
    type=click.Path(path_type=Path),
    help=f"Folder that gets {ANALYSIS}. [default: the folder of BIAS]",
)
@option(
    HelpGroup.ANALYSIS,
    "--full-vocab",
    type=click.IntRange(2),
    is_flag=False,
    flag_value=POSITIONS,
    metavar="[POSITIONS]",
    help=f"Exact scores, from all logprobs at so many biased positions, {POSITIONS} unless told. vllm, llamacpp and local only.",
)
@option(
    HelpGroup.ANALYSIS,
    "--families",
    type=click.Choice(["surface", "embedding"]),
    default="surface",
    show_default=True,
    help="Families of tokens: by what they look like, or clusters of an embedding model (extra clusters).",
)
@option(HelpGroup.ANALYSIS, "--embedding", help="Embedding model: a folder or a hub name. [default: as in blb fit]")
@option(
    HelpGroup.ANALYSIS,
    "--top",
    type=click.IntRange(1),
    default=15,
    show_default=True,
    help="Rows of each table of tokens.",
)
@option(
    HelpGroup.OUTPUT,
    "--csv",
    "csv_file",
    type=click.Path(path_type=Path),
    help="Write all visited tokens into this file.",
)
@model_options(provider=None)
@task_options(reward=False)
@option(
    HelpGroup.SAMPLING,
    "--samples",
    type=click.IntRange(1),
    default=SAMPLES,
    show_default=True,
    help="Completions a test prompt to draw with --task or --data.",
)
@sampling_options()
@limit_options()
@option(HelpGroup.OUTPUT, "--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
@option(HelpGroup.OUTPUT, "--quiet", is_flag=True, help="No progress and no remarks.")
def analyze_command(options: AnalyzeOptions) -> None:
    """Tell what the bias file BIAS does to each token: its intervention score.

    S is the mean of log p(token | with the bias) - log p(token | without it), in nats, over the places where completions drawn with
    the bias have the token. Read are the completions at temperature 1 that blb fit and blb eval left in the store; with --task or
    --data, completions of its test prompts are drawn first.
    """
    from blackbox_lb.cli.actions.analyze import execute

    execute(options)
