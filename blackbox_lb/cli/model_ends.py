"""The end of the model that a command uses, said once a command on stderr."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import click

from blackbox_lb.cli.echo import echo, quiet_by_hand
from blackbox_lb.providers.packaged import end_notice

if TYPE_CHECKING:
    from blackbox_lb.providers.profile import Profile

SAID = "blackbox_lb.model_ends"
"""The key of the running command's notes under which the sentences that it has printed stand."""


def tell_end_of_model(profile: Profile, model: str | None) -> None:
    """Print when ``model`` is switched off, where that is near; not twice, and not with
    ``--quiet`` on the command line.
    """
    sentence = end_notice(profile, model, dt.date.today())
    if sentence is None or quiet_by_hand():
        return
    context = click.get_current_context(silent=True)
    printed = set() if context is None else context.meta.setdefault(SAID, set())
    if sentence not in printed:
        printed.add(sentence)
        echo(sentence, err=True)
