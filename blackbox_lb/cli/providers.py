"""``blb providers``: what is known of each inference API."""

from __future__ import annotations

import click

from blackbox_lb.cli.terminal import print_json, print_table
from blackbox_lb.profiles import Profile, load_profile, profile_names

__all__ = ["command"]


@click.command("providers")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the profiles as JSON on stdout.")
def command(name: str | None, as_json: bool) -> None:
    """List the providers, or show everything that is known of NAME and how it is known."""
    profiles = [load_profile(each) for each in ([name] if name else profile_names())]
    if as_json:
        print_json([profile.model_dump(mode="json") for profile in profiles])
    elif name:
        _details(profiles[0])
    else:
        _overview(profiles)


def _overview(profiles: list[Profile]) -> None:
    print_table(
        "Providers",
        ("name", "what", "key", "top logprobs", "bias entries"),
        (
            (
                profile.name,
                profile.title,
                profile.connection.api_key_env or "none",
                _most(profile.logprobs.limit),
                _most(profile.bias.entries),
            )
            for profile in profiles
        ),
        left=3,
    )


def _most(limit: int | None) -> str:
    return "no limit" if limit is None else str(limit)


def _details(profile: Profile) -> None:
    click.echo(f"{profile.name}: {profile.title}\n{profile.homepage}\n")
    for table, rows in profile.model_dump(exclude={"name", "title", "homepage", "evidence"}).items():
        click.echo(f"[{table}]")
        for key, value in rows.items():
            click.echo(f"  {key} = {value}")
    click.echo("\nHow it is known (S source, R recorded traffic, L measured live, D vendor documentation):")
    for key, seen in profile.evidence.items():
        click.echo(f"  {key}: {seen}")
