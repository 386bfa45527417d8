"""``blb doctor``: prove or disprove what a provider's profile claims."""

from __future__ import annotations

from pathlib import Path

import click

from blackbox_lb.cli.grouped import command, option
from blackbox_lb.cli.options import PrintOptions
from blackbox_lb.jobs.plan.setting import HelpGroup
from blackbox_lb.jobs.plan.shared import ModelSettings


class DoctorOptions(ModelSettings, PrintOptions):
    save: Path | None = option(
        HelpGroup.OUTPUT,
        "Write a profile of your own with what was found, for --provider.",
        type=click.Path(path_type=Path, dir_okay=False),
    )
    thorough: bool = option(
        HelpGroup.LIMITS,
        "Ask more, at most 269 requests, to see a temperature within 5 percent of 1.",
    )
    yes: bool = option(HelpGroup.LIMITS, "Do not ask before requests that cost money.")


@command(
    "doctor",
    DoctorOptions,
    example="blb doctor --provider vllm --base-url http://127.0.0.1:8000/v1",
)
def doctor_command(options: DoctorOptions) -> None:
    """Prove or disprove what a provider's profile claims, in at most 119 cheap requests (269 with
    --thorough).

    One row a claim: CONFIRMED, CONTRADICTED or NOT CHECKED, with the observation; MEASURED is a
    fact without a claim, or a limit that could be wider. Ends with exit code 1 where anything is
    contradicted, and 2 where nothing could be checked or --save could not be written.
    """
    from blackbox_lb.cli.actions.doctor import execute

    execute(options)
