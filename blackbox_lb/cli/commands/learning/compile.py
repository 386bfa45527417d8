"""``blb compile``: a bias file for another provider or another limit, from the rollouts that are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from blackbox_lb.cli.completers import bias_files, known
from blackbox_lb.cli.grouped import command
from blackbox_lb.providers.names import profile_names


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of ``blb compile``.

    bias_file: the bias.
    provider: None: the bias's own.
    entries: most tokens; None: the provider's limit.
    integers: whole numbers only.
    store: rollout store; None: the one beside the bias.
    tokenizer: the model's vocabulary.
    out: where to write.
    plot: picture of the table.
    as_json: print the result as JSON.
    quiet: no remarks.
    """

    bias_file: Path
    provider: str | None
    entries: int | None
    integers: bool
    store: Path | None
    tokenizer: str | None
    out: Path | None
    plot: Path | None
    as_json: bool
    quiet: bool


@command("compile", CompileOptions)
@click.argument("bias_file", metavar="BIAS", type=click.Path(path_type=Path), shell_complete=bias_files)
@click.option(
    "--provider",
    shell_complete=known(profile_names),
    help=f"{', '.join(profile_names())}, or a path to your own TOML. [default: the bias's own]",
)
@click.option("--entries", type=click.IntRange(1), help="Most tokens in the bias. [default: the provider's limit]")
@click.option("--integers", is_flag=True, help="Whole numbers only, where the provider takes fractions too.")
@click.option("--store", type=click.Path(path_type=Path), help="Rollout store. [default: rollouts.db beside BIAS]")
@click.option("--tokenizer", help="The model's vocabulary, where its name does not tell: as in blb fit.")
@click.option("--out", type=click.Path(path_type=Path), help="Where to write. [default: as in learned-openai-300.json]")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the table into this .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="No remarks.")
def compile_command(options: CompileOptions) -> None:
    """Compile the bias file BIAS for a provider, at most so many entries, or whole numbers.

    Give learned.json, which blb fit wrote beside bias.json: the whole learned vector. Chosen and refitted are the values whose
    policy is closest to that of BIAS on the logged prefixes of the store's base completions; nothing is asked of any server.
    The table tells what share of the estimated gain more or fewer entries would keep: 1 less the KL divergence to the policy of
    BIAS, as a share of that from the base model to it. The result is another policy and UNVERIFIED until blb eval has judged it.
    """
    from blackbox_lb.cli.actions.compile import execute

    execute(options)
