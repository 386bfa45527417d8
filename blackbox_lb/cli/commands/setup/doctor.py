"""``blb doctor``: prove or disprove what a provider's profile claims."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from blackbox_lb.cli.grouped import HelpGroup, command, option
from blackbox_lb.cli.option_classes import ModelOptions
from blackbox_lb.cli.options import model_options


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(ModelOptions):
    """Options of ``blb doctor``.

    save: file that gets a profile with the findings.
    yes: do not ask before requests that cost money.
    quiet: no progress.
    as_json: print the findings as JSON.
    """

    save: Path | None
    yes: bool
    quiet: bool
    as_json: bool


@command("doctor", DoctorOptions)
@model_options()
@option(
    HelpGroup.OUTPUT,
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a profile of your own with what was found, for --provider.",
)
@option(HelpGroup.LIMITS, "--yes", is_flag=True, help="Do not ask before requests that cost money.")
@option(HelpGroup.OUTPUT, "--quiet", is_flag=True, help="No progress on stderr.")
@option(HelpGroup.OUTPUT, "--json", "as_json", is_flag=True, help="Print the findings as JSON on stdout.")
def doctor_command(options: DoctorOptions) -> None:
    """Prove or disprove what a provider's profile claims, in under 100 cheap requests.

    One row a claim: CONFIRMED, CONTRADICTED or NOT CHECKED, with what was seen; MEASURED is a fact without a claim, or a limit that
    could be wider. Ends with exit code 1 where anything is contradicted, and 2 where nothing could be checked or --save could not
    be written.
    """
    from blackbox_lb.cli.actions.doctor import execute

    execute(options)
