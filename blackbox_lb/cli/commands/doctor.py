"""``blb doctor``: prove or disprove what a provider's profile claims."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from blackbox_lb.cli.completing import bias_files
from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import PATH, command
from blackbox_lb.cli.options import PrintOptions
from blackbox_lb.cli.resources import chosen_bias, connect_to, load_bias
from blackbox_lb.cli.terminal import print_table
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.plan.setting import HelpGroup, setting
from blackbox_lb.jobs.plan.shared import ModelSettings
from blackbox_lb.rollouts.progress import duration
from blackbox_lb.safety.printable import counted, shell_line

if TYPE_CHECKING:
    from blackbox_lb.extras.doctor.findings import Report, RowFinding
    from blackbox_lb.providers.profile import Profile
    from blackbox_lb.providers.schema import Json


EVERY = 5.0
"""Seconds between two lines of one check at least."""
TITLES = 23
"""Columns of a check's title."""


class DoctorOptions(ModelSettings, PrintOptions):
    bias: Path | None = setting(
        None,
        HelpGroup.FIRST,
        "Prove instead, with at most ten tokens, that this bias arrives through whatever stands"
        " between: a bias file or the folder of a run. Its provider and model are the default.",
        type=PATH,
        shell_complete=bias_files,
    )
    save: Path | None = setting(
        None,
        HelpGroup.OUTPUT,
        "Write a profile of your own with what was found, for --provider.",
        type=click.Path(path_type=Path, dir_okay=False),
    )
    yes: bool = setting(False, HelpGroup.LIMITS, "Do not ask before requests that cost money.")


@command(
    "doctor",
    DoctorOptions,
    example="blb doctor --provider vllm --base-url http://127.0.0.1:8000/v1",
)
def doctor_command(options: DoctorOptions) -> None:
    """Prove or disprove what a provider's profile claims, in at most 119 cheap requests.

    One row a claim: CONFIRMED, CONTRADICTED or NOT CHECKED, with the observation; MEASURED is a
    fact without a claim, or a limit that could be wider. Ends with exit code 1 where anything is
    contradicted, and 2 where nothing could be checked or --save could not be written.

    With --bias: ARRIVES, DROPPED, REFUSED or CANNOT BE TOLD, by greedy answers of one token with
    tokens of the bias raised as far as the host takes. Exit code 1 where requests would go without
    the bias or not at all, 2 where it cannot be told.
    """
    import asyncio

    if options.bias is not None:
        if options.save is not None:
            raise InputError(
                "``save`` writes what is found of the provider's profile, and ``bias`` asks about a"
                " bias alone; leave one of them out"
            )
        _prove_arrival(options, options.bias)
        return
    from blackbox_lb.extras.doctor.exam import MOST_REQUESTS
    from blackbox_lb.extras.doctor.run import IN_FLIGHT, examine, most_tokens
    from blackbox_lb.extras.doctor.save import check_target, save_profile
    from blackbox_lb.providers.credentials import Credentials
    from blackbox_lb.providers.profile import load_profile

    profile = load_profile(options.provider)
    # What can be refused is refused before the question whether to go on.
    if options.save is not None:
        check_target(options.save, options.provider)
    if options.endpoint is not None:
        profile.endpoint(options.endpoint)
    profile.check_model(options.model)
    Credentials(profile)
    echo(
        f"{profile.title}: at most {MOST_REQUESTS} requests and {most_tokens():,} completion"
        " tokens, with short prompts",
        err=True,
    )
    if profile.connection.api_key_required and not options.yes:
        _ask(profile)

    printed = time.monotonic()

    def watch(
        title: str, requests: int, left: float, findings: Sequence[RowFinding] | None
    ) -> None:
        nonlocal printed
        is_due = findings or time.monotonic() - printed >= EVERY
        if options.quiet or not is_due:
            return
        printed = time.monotonic()
        outcome = f"{requests}/{MOST_REQUESTS} requests, about {duration(left)} left"
        if findings:
            outcome = ", ".join(f"{finding.status} {finding.row}" for finding in findings)
        echo(f"  {title:<{TITLES}}  {outcome}", err=True)

    async def findings() -> Report:
        in_flight = options.concurrency or IN_FLIGHT
        async with connect_to(options, concurrency=in_flight) as session:
            return await examine(session, concurrency=in_flight, watch=watch)

    report = asyncio.run(findings())
    saved = None
    careful: dict[str, Json] = {}
    complaint = None
    if options.save is not None and report.ended is not None:
        complaint = InputError("no profile was saved, since the self-test did not reach its end")
    elif options.save is not None:
        try:
            careful = save_profile(report, options.save, options.provider, options.base_url)
            saved = str(options.save)
        except InputError as error:  # the findings have cost money, and are printed in any case
            complaint = error
    if options.as_json:
        print_json(report.as_json() | {"saved": saved, "careful": careful})
    else:
        _print(report, saved, careful)
    if complaint is not None:
        echo(f"Error: {complaint}", err=True)
    if report.ended is not None:
        raise report.ended
    incurable = any(finding.incurable for finding in report.contradicted)
    if complaint is not None and not incurable:
        click.get_current_context().exit(2)
    if report.contradicted:
        click.get_current_context().exit(1)


def _prove_arrival(options: DoctorOptions, given: Path) -> None:
    """Print whether a bias arrives at the model."""
    import asyncio

    from blackbox_lb.deploy.arrival import Arrival, Reply, asking, path_of
    from blackbox_lb.errors import RequestRejected
    from blackbox_lb.providers.profile import load_profile

    bias = load_bias(chosen_bias(given), options)
    source = click.get_current_context().get_parameter_source("provider")
    if source is ParameterSource.DEFAULT:
        options = options.replacing(provider=bias.provider)
    profile = load_profile(options.provider)
    if options.model is None and not profile.connection.embedded:
        options = options.replacing(model=bias.model)

    async def proved() -> tuple[Arrival, int]:
        async with connect_to(options, concurrency=1) as session:
            probes = asking(bias, session.model, profile)
            body = next(probes)
            requests = 0
            while True:
                reply: Reply
                try:
                    reply = await session.channel.post(path_of(body), body)
                except RequestRejected as error:
                    reply = str(error)
                requests += 1
                try:
                    body = probes.send(reply)
                except StopIteration as end:
                    return end.value, requests

    arrival, requests = asyncio.run(proved())
    if options.as_json:
        print_json({"word": arrival.word, "sentence": arrival.sentence, "whole": arrival.whole})
    else:
        echo(f"{arrival.word}  {arrival.sentence} ({requests} tokens)")
        if bias.phrases:
            echo(
                f"{counted(len(bias.phrases), 'phrase')} of the file: kept out by apply and blb"
                " proxy themselves, whatever arrives; not asked here"
            )
    if arrival.fails:
        click.get_current_context().exit(1)
    if arrival.word == "CANNOT BE TOLD":
        click.get_current_context().exit(2)


def _ask(profile: Profile) -> None:
    """Ask for consent to requests that may cost money."""
    if not sys.stdin.isatty():
        raise InputError(
            f"requests to {profile.name} may cost money, and nobody can be asked here; add --yes"
        )
    click.confirm("Go on?", default=True, abort=True, err=True)


def _print(report: Report, saved: str | None, careful: Mapping[str, Json]) -> None:
    print_table(
        f"{report.profile.name}, {report.model}, {report.endpoint} endpoint",
        ("row", "claim", "finding", "evidence"),
        (
            (finding.row, finding.claim, finding.status, finding.evidence)
            for finding in report.findings
        ),
        text_columns=range(4),
    )
    echo(
        f"{len(report.contradicted)} contradicted; {report.requests} requests,"
        f" {report.prompt_tokens:,} prompt and {report.completion_tokens:,} completion tokens,"
        f" {report.seconds:.1f} s"
    )
    if saved is not None:
        for row, value in careful.items():
            echo(
                f"{row} could not be checked: saved as {json.dumps(value)}, which is right in any"
                " case"
            )
        echo(f"wrote {saved}; use it with: {shell_line('--provider', saved)}")
