"""The action of ``blb doctor``: ask, examine, save, print."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping

import click

from blackbox_lb.cli.commands.setup.doctor import DoctorOptions
from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.resources import connect_to
from blackbox_lb.cli.terminal import print_table
from blackbox_lb.errors import BlbError, InputError
from blackbox_lb.extras.doctor.findings import Report
from blackbox_lb.extras.doctor.run import IN_FLIGHT, examine, most_requests, most_tokens
from blackbox_lb.extras.doctor.save import check_target, save_profile
from blackbox_lb.providers.credentials import Credentials
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.providers.schema import Json
from blackbox_lb.safety.printable import shell_line


def execute(options: DoctorOptions) -> None:
    profile = load_profile(options.provider)
    _check(profile, options)
    _announce(profile, options)
    report = asyncio.run(_run(options))
    saved, careful, complaint = _saved(report, options)
    if options.as_json:
        print_json(report.as_json() | {"saved": saved, "careful": careful})
    else:
        _print(report, saved, careful)
    if complaint is not None:
        echo(f"Error: {complaint}", err=True)
    incurable = any(finding.incurable for finding in report.contradicted)
    if complaint is not None and not incurable:
        click.get_current_context().exit(2)
    if report.contradicted:
        click.get_current_context().exit(1)


def _check(profile: Profile, options: DoctorOptions) -> None:
    """Refuse whatever can be refused before the question whether to go on."""
    if options.save is not None:
        check_target(options.save, options.provider)
    if options.endpoint is not None:
        profile.endpoint(options.endpoint)
    profile.check_model(options.model)
    Credentials(profile)


def _announce(profile: Profile, options: DoctorOptions) -> None:
    """Announce the requests, and ask for consent where they may cost money."""
    requests = most_requests(thorough=options.thorough)
    tokens = most_tokens(thorough=options.thorough)
    echo(
        f"{profile.title}: at most {requests} requests and {tokens:,} completion tokens, with short"
        " prompts",
        err=True,
    )
    if not profile.connection.api_key_required or options.yes:
        return
    if not sys.stdin.isatty():
        raise InputError(
            f"requests to {profile.name} may cost money, and nobody can be asked here; add --yes"
        )
    click.confirm("Go on?", default=True, abort=True, err=True)


async def _run(options: DoctorOptions) -> Report:
    def watch(title: str) -> None:
        if not options.quiet:
            echo(f"  {title} ...", err=True)

    in_flight = options.concurrency or IN_FLIGHT
    async with connect_to(options, concurrency=in_flight) as session:
        return await examine(session, concurrency=in_flight, thorough=options.thorough, watch=watch)


def _saved(
    report: Report, options: DoctorOptions
) -> tuple[str | None, dict[str, Json], BlbError | None]:
    """Where the profile was saved and with which careful values, or why it was not: the findings
    have cost money and are printed in any case.
    """
    if options.save is None:
        return None, {}, None
    try:
        careful = save_profile(report, options.save, options.provider, options.base_url)
    except InputError as error:
        return None, {}, error
    return str(options.save), careful, None


def _print(report: Report, saved: str | None, careful: Mapping[str, Json]) -> None:
    print_table(
        f"{report.profile.name}, {report.model}, {report.endpoint} endpoint",
        ("row", "claim", "finding", "evidence"),
        (
            (finding.row, finding.claim, finding.status, finding.evidence)
            for finding in report.findings
        ),
        left_aligned=4,
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
