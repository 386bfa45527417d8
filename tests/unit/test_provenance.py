"""What a result says of its origin."""

from __future__ import annotations

import click
from click.testing import CliRunner

from blackbox_lb.jobs.records.provenance import command_line, provenance


def test_no_password_in_the_command() -> None:
    """Whatever stands between :// and the last @ before the path is masked, as URL parsers read it."""
    assert command_line(["fit", "--reward", "https://ada:p@ss@host/x"]) == "blb fit --reward 'https://[masked]@host/x'"
    assert command_line(["--base-url=http://k@host/v1"]) == "blb '--base-url=http://[masked]@host/v1'"
    assert command_line(["--baseline-prompt", "mail a@b.c"]) == "blb --baseline-prompt 'mail a@b.c'"


def test_what_a_file_gave_is_recorded() -> None:
    """Options from blb.toml or the environment, which the command line does not show, and those alone."""
    seen: list[dict[str, str]] = []

    @click.command()
    @click.option("--tau", type=float)
    @click.option("--base-url")
    @click.option("--limit", default=3)
    def command(**options: object) -> None:
        seen.append(provenance()["settings"])

    defaults = {"tau": 0.5, "base_url": "http://k:secret@host/v1"}
    CliRunner().invoke(command, ["--tau", "0.7"], default_map=defaults, catch_exceptions=False)
    assert seen == [{"base_url": "http://[masked]@host/v1"}]
    assert provenance()["settings"] == {}
