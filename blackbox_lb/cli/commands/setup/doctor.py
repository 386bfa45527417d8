"""``blb doctor``: prove or disprove what a provider's profile claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from blackbox_lb.cli.options import model_options

__all__ = ["command"]


@click.command("doctor")
@model_options()
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a profile of your own with what was found, for --provider.",
)
@click.option("--yes", is_flag=True, help="Do not ask before requests that cost money.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON on stdout.")
def command(**options: Any) -> None:
    """Prove or disprove what a provider's profile claims, in under 100 cheap requests.

    One row a claim: CONFIRMED, CONTRADICTED or NOT CHECKED, with what was seen; MEASURED is a fact without a claim, or a limit that
    could be wider. Ends with exit code 1 where anything is contradicted, and 2 where nothing could be checked or --save could not
    be written.
    """
    from blackbox_lb.cli.actions.doctor import execute

    execute(**options)
