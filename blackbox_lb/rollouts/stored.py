"""What a store tells of its completions: those of each prompt, and how their providers list end
tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from blackbox_lb.errors import InputError
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.safety.printable import printable
from blackbox_lb.store import RolloutStore
from blackbox_lb.types import EndTokens, Prompt
from blackbox_lb.vocabulary import Vocabulary

FIELDS = ("provider", "model", "tokenizer", "endpoint", "sampling", "bias")
"""What the settings of every request have."""
SAMPLING_FIELDS = ("temperature", "max_tokens", "top_logprobs")
"""What the sampling in them has."""


def settings_by_request(store: RolloutStore) -> dict[str, dict[str, Any]]:
    """The hash of each request in a store -> its settings.

    Raises InputError: those of one are not whole, as in a store that somebody made by hand.
    """
    requests = store.requests()
    for request, settings in requests.items():
        sampling = settings.get("sampling")
        missing = [name for name in FIELDS if name not in settings]
        if isinstance(sampling, dict):
            missing += [name for name in SAMPLING_FIELDS if name not in sampling]
        if missing or not isinstance(sampling, dict):
            raise InputError(
                f"{store.path}: the settings of request {request[:8]} have no"
                f" {', '.join(missing) or 'object sampling'}; a store made by hand needs what"
                " docs/store.md lists"
            )
    return requests


def keys_by_prompt(store: RolloutStore, requests: Iterable[str]) -> dict[Prompt, list[str]]:
    """Prompt -> the keys of its completions that these requests drew."""
    keys: dict[Prompt, list[str]] = {}
    for request in requests:
        for key, prompt in store.prompts(request).items():
            keys.setdefault(prompt, []).append(key)
    return keys


def lists_end_tokens(provider: str, profile: Profile | None = None) -> bool | None:
    """Whether a provider is known to list the token that ends a completion.

    profile: of one provider, which may be no packaged one.
    """
    if profile is not None and provider == profile.name:
        return profile.logprobs.end_token_listed
    if provider in profile_names():
        return load_profile(provider).logprobs.end_token_listed
    return None


def end_tokens(
    providers: Collection[str], profile: Profile, vocabulary: Vocabulary | None
) -> EndTokens:
    """The listing of end tokens by these providers, as a fit would read it.

    profile: of one of them, which may be no packaged one. Raises InputError: they are not known to
    list the token that ends a completion, and no vocabulary says which it is.
    """
    listed = {lists_end_tokens(name, profile) for name in providers}
    if listed == {True}:
        return EndTokens(True)
    if vocabulary is None:
        raise InputError(
            f"the completions come through {printable(', '.join(sorted(providers)))}, not known to"
            " list the token that ends one, so its id must be known to leave it alone: give the"
            " model's vocabulary with ``tokenizer``, or ``provider`` with the TOML that they came"
            " through"
        )
    listed_end = None
    if len(listed) == 1:
        listed_end = listed.pop()
    return EndTokens(listed_end, frozenset(vocabulary.special.values()))
