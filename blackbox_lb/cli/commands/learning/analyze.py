"""``blb analyze``: the effect of a bias on each token that is generated under it."""

from __future__ import annotations

from pathlib import Path

from blackbox_lb.cli.completing import bias_files
from blackbox_lb.cli.grouped import COUNT, PATH, argument, command, option
from blackbox_lb.cli.options import provider
from blackbox_lb.jobs.plan.setting import Settings

ANALYSIS = "analysis.json"
"""The file that the command writes into the run's folder."""


class AnalyzeOptions(Settings):
    """Options of ``blb analyze``, which sends no request."""

    bias_file: Path = argument(metavar="BIAS", type=PATH, shell_complete=bias_files)
    provider: str | None = provider(None, "the bias's own")
    store: Path | None = option(None, "Rollout store. [default: rollouts.db beside BIAS]")
    tokenizer: str | None = option(
        None, "The model's vocabulary, for the texts of tokens that the store does not have."
    )
    top: int = option(None, "Rows of each table of tokens.", type=COUNT, default=15)
    out: Path | None = option(None, f"Folder that gets {ANALYSIS}. [default: the folder of BIAS]")
    as_json: bool = option(None, "Print the result as JSON on stdout.", "--json")
    quiet: bool = option(None, "No remarks.")


@command("analyze", AnalyzeOptions, example="blb analyze runs/train/bias.json")
def analyze_command(options: AnalyzeOptions) -> None:
    """Show the effect of the bias file BIAS on each token: its intervention score.

    S is the mean of log p(token | with the bias) - log p(token | without it), in nats, over the
    places where completions drawn with the bias have the token. It is read from the base model's
    lists along the completions at temperature 1 that blb fit and blb eval left in the store; no
    server is asked. Where the server listed its whole vocabulary (vLLM with --max-logprobs -1), the
    scores are exact.
    """
    from blackbox_lb.cli.actions.analyze import execute

    execute(options)
