"""``blb compile``: a bias file for another provider or another limit, from stored rollouts."""

from __future__ import annotations

from pathlib import Path

from blackbox_lb.cli.completing import bias_files
from blackbox_lb.cli.grouped import COUNT, PATH, argument, command, option
from blackbox_lb.cli.options import AT, VerboseOptions, provider

COMPILE = "blackbox_lb.jobs.compiling.compile:compile_bias"


class CompileOptions(VerboseOptions):
    bias_file: Path = argument(metavar="BIAS", type=PATH, shell_complete=bias_files)
    provider: str | None = provider(None, "the bias's own")
    entries: int | None = option(
        None, "Most tokens in the bias. [default: the provider's limit]", type=COUNT, sets=COMPILE
    )
    integers: bool = option(
        None, "Whole numbers only, where the provider takes fractions too.", sets=COMPILE
    )
    at: str | None = option(None, AT, metavar="POINT")
    store: Path | None = option(None, "Rollout store. [default: rollouts.db beside BIAS]")
    tokenizer: str | None = option(
        None, "The model's vocabulary, where its name is not enough: as in blb fit."
    )
    out: Path | None = option(None, "Where to write. [default: as in learned-openai-300.json]")
    as_json: bool = option(None, "Print the result as JSON on stdout.", "--json")
    quiet: bool = option(None, "No remarks.")


@command(
    "compile",
    CompileOptions,
    example="blb compile runs/train/learned.json --provider openai --entries 100",
)
def compile_command(options: CompileOptions) -> None:
    """Compile the bias file BIAS for a provider, at most so many entries, or whole numbers.

    Give learned.json, the whole learned vector that blb fit wrote beside bias.json. The values sent
    are those whose policy is closest to that of BIAS on the logged prefixes of the store's base
    completions, refitted; no server is asked. The table shows the share of the estimated gain that
    more or fewer entries would keep: 1 less the KL divergence to the policy of BIAS, as a share of
    that from the base model to it. The result is another policy and UNVERIFIED until blb eval has
    judged it.
    """
    from blackbox_lb.cli.actions.compile import execute

    execute(options)
