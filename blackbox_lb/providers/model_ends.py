"""The day on which a host switches a model off, said while there is time to move."""

from __future__ import annotations

import datetime as dt
import tomllib
from typing import TYPE_CHECKING

from blackbox_lb.errors import ModelUnsuitable
from blackbox_lb.providers.names import profile_names, profiles_folder

if TYPE_CHECKING:
    from blackbox_lb.providers.profile import Profile

NOTICE_DAYS = 90
"""Days before its end from which a model's use is remarked: OpenAI announces an end half a year
ahead, and a bias for another model takes a fit of its own.
"""


def end_notice(profile: Profile, model: str | None, today: dt.date) -> str | None:
    """The sentence on a model that has ended, or ends within ``NOTICE_DAYS``; None for any other
    model, and for none in particular.
    """
    end = None if model is None else profile.end_of(model)
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
        if not _can_be_biased(profile, end.successor):
            sentence += " and takes no bias"
    return (
        f"{sentence}. A bias goes on with open weights, on a server of your own or on a host: blb"
        " providers ``hosts=NAME`` says which hosts serve a model"
    )


def end_notice_by_name(provider: str, model: str, today: dt.date) -> str | None:
    """``end_notice`` of a packaged profile; None for any other provider."""
    if provider not in profile_names() or not _names_an_end(provider):
        return None
    from blackbox_lb.providers.profile import load_profile  # reads numpy: too heavy for ``apply``

    return end_notice(load_profile(provider), model, today)


def _names_an_end(provider: str) -> bool:
    """Whether the packaged profile, or the one that it extends, names a model's end. Most name
    none, and are not loaded to apply a bias.
    """
    text = (profiles_folder() / f"{provider}.toml").read_text(encoding="utf-8")
    profile = tomllib.loads(text)
    if profile.get("models", {}).get("ends"):
        return True
    base = profile.get("extends")
    return base in profile_names() and _names_an_end(base)


def _can_be_biased(profile: Profile, model: str) -> bool:
    try:
        profile.check_model(model)
    except ModelUnsuitable:
        return False
    return True
