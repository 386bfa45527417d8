"""Which servers a sender can step back from a phrase with.

An answer is cut before the phrase and goes on from there, without the phrase's first token. So the
server must go on from a given beginning of an answer, and its lists must say which token was
sampled there, by its id.
"""

from __future__ import annotations

from blackbox_lb.errors import InputError
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.profile import Profile, load_profile


def endpoints_that_step_back(profile: Profile) -> tuple[Endpoint, ...]:
    """The endpoints of a profile at which a sender can step back; none where it cannot."""
    return tuple(name for name in profile.endpoints if not _missing(profile, name))


def profiles_that_step_back() -> dict[str, tuple[Endpoint, ...]]:
    """Packaged profile -> its endpoints at which a sender can step back."""
    profiles = {}
    for name in profile_names():
        endpoints = endpoints_that_step_back(load_profile(name))
        if endpoints:
            profiles[name] = endpoints
    return profiles


def check_steps_back(profile: Profile, endpoint: Endpoint | None = None) -> None:
    """Check that a sender can step back from phrases with a server.

    Args:
        profile: the server's.
        endpoint: that answers; None for any.

    Raises:
        InputError: it cannot, with the profiles that can.
        ProfileError: the profile has no such endpoint.
    """
    endpoints = endpoints_that_step_back(profile)
    if endpoints and (endpoint is None or endpoint in endpoints):
        return
    if endpoint is not None:
        profile.endpoint(endpoint)
    remedies = []
    if endpoints:
        remedies.append(f"ask at its {endpoints[0]} endpoint (``endpoint={endpoints[0]}``)")
    names = [
        f"{name} ({' and '.join(places)})" for name, places in profiles_that_step_back().items()
    ]
    remedies.append(f"take a provider that can: {', '.join(names)}")
    asked = endpoint or next(iter(profile.endpoints), None)
    why = "it completes nothing"
    if asked in profile.endpoints:
        why = f"its {asked} endpoint {_missing(profile, asked)}"
    raise InputError(
        f"phrases are kept out by stepping back, which {profile.name} does not take: {why};"
        f" {', or '.join(remedies)}"
    )


def _missing(profile: Profile, name: Endpoint) -> str:
    """What an endpoint lacks, "" for nothing."""
    rules = profile.endpoints[name]
    if not rules.bias:
        return "takes no logit_bias"
    if name not in ("chat", "completions"):
        return "goes on from no given beginning of an answer"
    if name == "chat" and profile.answers.continues is False:
        return "goes on from no given beginning of an answer"
    if rules.sampled_ids is None and not profile.gives_ids(rules):
        return "does not tell the ids of sampled tokens"
    return ""
