"""Servers that a sender can step back with: they go on from a given beginning of an answer, and tell the
ids of sampled tokens.
"""

from __future__ import annotations

import pytest

from blackbox_lb.errors import InputError, ProfileError
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.providers.stepping_back import check_steps_back
from tests.support.errors import raises_naming

ABLE = {
    "fireworks": ("completions",),
    "llamacpp": ("chat", "completions"),
    "local": ("chat", "completions"),
    "mlx": ("completions",),
    "sglang": ("chat", "completions"),
    "together": ("completions",),
    "vllm": ("chat", "completions"),
}
"""By the facts of the profiles alone; whoever adds one to a profile gets it here."""


@pytest.mark.parametrize("name", profile_names())
def test_who_cannot_is_refused_with_those_who_can(name: str) -> None:
    """The provider, what it lacks, and the profiles that can; at another endpoint, that endpoint."""
    profile = load_profile(name)
    able = ABLE.get(name, ())
    if able:
        check_steps_back(profile)
    else:
        with raises_naming(
            InputError, name, *(f"{one} ({' and '.join(ABLE[one])})" for one in ABLE)
        ):
            check_steps_back(profile)
    for endpoint in profile.endpoints:
        if endpoint in able:
            check_steps_back(profile, endpoint)
        else:
            remedy = f"endpoint={able[0]}" if able else "vllm"
            with raises_naming(InputError, name, endpoint, remedy):
                check_steps_back(profile, endpoint)


def test_an_endpoint_that_is_none_is_refused() -> None:
    """With those that the provider has."""
    with raises_naming(ProfileError, "perplexity", "completions"):
        check_steps_back(load_profile("perplexity"), "completions")
