"""What is said once before the first request: keys of files that are not the package's, which are
asked for, and the end of a model.

A profile or a judge of a user's own, or of a stranger's, names environment variables and the host
that gets them; a bias that depends on embeddings may name the API that gets prompts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from blackbox_lb.cli.echo import echo, for_screen, is_terminal, quiet_by_hand
from blackbox_lb.providers.credentials import environment
from blackbox_lb.providers.packaged import end_notice, is_profile_file
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.safety.network import is_loopback

if TYPE_CHECKING:
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.jobs.plan.shared import ServerSettings
    from blackbox_lb.providers.profile import Profile
    from blackbox_lb.tasks import Reward


def tell_keys_of_profile(provider: str, options: ServerSettings) -> None:
    """Say which keys a profile outside the package sends where, and ask (see ``_tell``)."""
    if not is_profile_file(provider):
        return
    from blackbox_lb.api.transport.channel import address_of

    profile = load_profile(provider)
    variables = [name for name in profile.connection.secret_variables if environment(name)]
    if variables and not profile.connection.embedded:
        _tell(Path(provider), variables, address_of(profile, options.base_url), options)


def tell_keys_of_judge(reward: Reward, options: object) -> None:
    """Say which key a judge's file sends where, and ask (see ``_tell``)."""
    if reward.judge is None:
        return
    name = reward.judge.file.api_key_env
    if environment(name):
        _tell(reward.judge.path, [name or ""], reward.judge.file.base_url, options)


def tell_host_of_bias(path: Path, bias: Bias, options: object) -> None:
    """Say that a bias sends prompts to an embeddings API, and ask (see ``_tell``)."""
    from blackbox_lb.bias.request_bias import embedding_model
    from blackbox_lb.vocabulary.embedding import key_variable, of_an_api

    model = embedding_model(bias.features)
    if model is None or not of_an_api(model.name):
        return
    url = model.name.partition("@")[2]
    variable = key_variable(url)
    _tell(path, ["the prompts", *([variable] if environment(variable) else [])], url, options)


def _tell(source: Path, purposes: Iterable[str], address: str, options: object) -> None:
    """Say that variables with keys, or the prompts, go to an address, because a file says so.

    On a terminal it is asked for, unless the command has ``--yes`` or the host is this machine.

    Raises:
        click.Abort: the answer is no.
    """
    names = sorted(set(purposes))
    host = urlsplit(address).hostname or ""
    verb = "go"
    if len(names) == 1 and names[0].isupper():
        verb = "goes"
    sentence = f"{' and '.join(names)} {verb} to {host}, by {source}"
    asks = not (is_loopback(host) or getattr(options, "yes", False))
    if asks and is_terminal():
        from blackbox_lb.api.limits.concurrency import asking

        with asking():
            click.confirm(for_screen(f"{sentence}. Is that right?", err=True), abort=True, err=True)
    elif not quiet_by_hand():
        echo(sentence, err=True)


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
