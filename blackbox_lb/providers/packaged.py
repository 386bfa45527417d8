"""The packaged profiles: their names, and the days on which hosts switch models off.

Help and completion list the names, and ``apply`` checks the days, so nothing heavy is loaded here.
"""

from __future__ import annotations

import datetime as dt
import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from blackbox_lb.errors import ModelUnsuitable

if TYPE_CHECKING:
    from blackbox_lb.providers.profile import Profile


def profiles_folder() -> Traversable:
    """The packaged profiles; in a checkout, the folder at the root."""
    folder = resources.files("blackbox_lb") / "providers" / "profiles"
    if folder.is_dir():
        return folder
    return Path(__file__).parents[2] / "providers"


def profile_names() -> list[str]:
    """The sorted names of the packaged profiles."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in profiles_folder().iterdir()
        if entry.name.endswith(".toml")
    )


def is_profile_file(name: str) -> bool:
    """Whether the name of a provider is the path of a user's profile."""
    return name.endswith(".toml")


NOTICE_DAYS = 90
"""Days before a model's end from which its use gets a notice. OpenAI announces an end half a year
ahead, and a bias for another model takes a new fit.
"""


def end_notice(profile: Profile, model: str | None, today: dt.date) -> str | None:
    """The sentence on a model that has ended, or ends within ``NOTICE_DAYS``; else None.

    model: None for no model in particular.
    """
    if model is None:
        return None
    end = profile.end_of(model)
    if end is None:
        return None
    days = (end.date - today).days
    if days > NOTICE_DAYS:
        return None
    if days < 0:
        when = f"ended on {end.date}, as far as is known"
    else:
        when = f"ends on {end.date}, in {days} days"
    sentence = f"{model} {when} at {profile.title}"
    if end.successor:
        sentence += f"; {end.successor} is named in its place"
        try:
            profile.check_model(end.successor)
        except ModelUnsuitable:
            sentence += " and takes no bias"
            if profile.decides(end.successor):
                sentence += ", but decides between labels (blb fit ``question``)"
    return (
        f"{sentence}. A bias goes on with open weights, on a server of your own or on a host: blb"
        " providers ``hosts=NAME`` says which hosts serve a model"
    )


def end_notice_by_name(provider: str, model: str, today: dt.date) -> str | None:
    """``end_notice`` of a packaged profile; None for any other provider."""
    if provider not in profile_names() or not _lists_ends(provider):
        return None
    from blackbox_lb.providers.profile import load_profile  # loads numpy, too heavy for ``apply``

    return end_notice(load_profile(provider), model, today)


def _lists_ends(provider: str) -> bool:
    """Whether a packaged profile, or one that it extends, lists ends of models.

    Most list none, and are not loaded to apply a bias.
    """
    text = (profiles_folder() / f"{provider}.toml").read_text(encoding="utf-8")
    profile = tomllib.loads(text)
    if profile.get("models", {}).get("ends"):
        return True
    base = profile.get("extends")
    return base in profile_names() and _lists_ends(base)
