"""Options that several commands share beside the settings of ``jobs.plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blackbox_lb.cli.completing import bias_files
from blackbox_lb.cli.grouped import PATH, argument
from blackbox_lb.jobs.plan.setting import HelpGroup, Settings, setting
from blackbox_lb.jobs.plan.shared import (
    PROVIDER_HELP,
    FolderSettings,
    LimitSettings,
    QuietSettings,
    TrialSettings,
)

AT = "Another operating point of BIAS, as in precision=.9, recall=.8 or rate=.2: UNVERIFIED."
"""The help of --at."""


def provider(group: HelpGroup | None, unless: str, text: str = "", **more: Any) -> Any:
    """The option --provider; ``unless`` is shown as its default, ``text`` before what it takes."""
    return setting(None, group, f"{text}{PROVIDER_HELP.format(unless=unless)}", **more)


def bias_argument(metavar: str = "[BIAS]") -> Any:
    """The argument that names a bias file, or the folder of a run."""
    return argument(metavar=metavar, required=False, type=PATH, shell_complete=bias_files)


class LimitOptions(LimitSettings):
    """The limits, and whether a command asks first."""

    yes: bool = setting(
        False,
        HelpGroup.LIMITS,
        "Do not ask on a terminal before the first request that costs money.",
    )


class JsonOptions(Settings):
    """The form of the output."""

    as_json: bool = setting(
        False, HelpGroup.OUTPUT, "Print the result as JSON on stdout.", "--json"
    )


class PrintOptions(JsonOptions, QuietSettings):
    """The form and the amount of output."""


class VerboseOptions(Settings):
    """How much is printed."""

    verbose: bool = setting(
        False,
        HelpGroup.OUTPUT,
        "Print every step on the way, and the tables and facts of blb report, too.",
    )


class OutputOptions(PrintOptions, FolderSettings):
    """The place of results and the amount of output."""


class TrialOptions(TrialSettings, LimitOptions, OutputOptions):
    """All options for drawing completions, without the task."""


class BiasOptions(Settings):
    """A bias file, and the provider and the vocabulary of its model."""

    bias_file: Path | None = bias_argument()
    provider: str | None = provider(None, "the bias's own")
    tokenizer: str | None = setting(
        None, None, "The model's vocabulary, where its name is not enough: as in blb fit."
    )


class StoredBiasOptions(BiasOptions, PrintOptions):
    """A bias file, and the store that it was learned from."""

    store: Path | None = setting(None, None, "Rollout store. [default: rollouts.db beside BIAS]")
