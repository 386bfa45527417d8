"""Logged prefixes: next-token distributions from a store's base completions, without a task or a
reward.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blackbox_lb.bias.document import Bias
from blackbox_lb.errors import InputError, NoLogprobs, StoreError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.rollouts.positions import Positions, training_set
from blackbox_lb.rollouts.reading import END_UNKNOWN
from blackbox_lb.rollouts.stored import end_tokens, lists_end_tokens, settings_by_request
from blackbox_lb.safety.printable import printable
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import parse_reward
from blackbox_lb.types import EndTokens, Example, Prompt
from blackbox_lb.vocabulary import Vocabulary


def logged_prefixes(
    path: str | Path, bias: Bias, profile: Profile, vocabulary: Vocabulary | None = None
) -> Positions:
    """Read the positions of all base completions of the bias's model in the rollout store ``path``,
    without any request.

    They were drawn without a bias at temperature 1, whatever their prompts. profile: of the bias's
    provider, whose own completions may be in the store under a name that no packaged profile has.
    vocabulary: of the model; it identifies the tokens that end a completion where they may be
    unlisted. Without it such completions are left out, if there are others.

    Raises StoreError: no such store. InputError: none of its completions is of that model, or a
    vocabulary is needed. NoLogprobs: none of them has lists.
    """
    if not Path(path).is_file():
        raise StoreError(
            f"no rollout store {path}; give the one that blb fit or blb collect wrote with"
            " ``store``"
        )
    with RolloutStore(path, read_only=True) as store:
        base = _base_requests(store, bias)
        listing = {
            name: settings
            for name, settings in base.items()
            if lists_end_tokens(settings["provider"], profile) is True
        }
        requests = base if vocabulary is not None else listing
        providers = {settings["provider"] for settings in (requests or base).values()}
        ends = end_tokens(providers, profile, vocabulary)
        positions = _read(store, requests or base, bias, ends)
        tally = positions.tally.copy()
        for name in base.keys() - (requests or base).keys():
            tally[f"{END_UNKNOWN}{base[name]['provider']}"] += len(store.keys(name))
        return replace(positions, tally=tally)


def _base_requests(store: RolloutStore, bias: Bias) -> dict[str, dict[str, Any]]:
    """Hash -> settings of the requests that drew from the base of the bias's model and asked for
    lists.
    """
    requests = settings_by_request(store)
    same = {
        name: settings
        for name, settings in requests.items()
        if (settings["model"], settings["tokenizer"]) == (bias.model, bias.tokenizer)
    }
    if not same:
        models = {
            f"{request['model']} (tokenizer {request['tokenizer']})"
            for request in requests.values()
        }
        raise InputError(
            f"{store.path} holds no completion of {printable(bias.model)} (tokenizer"
            f" {printable(bias.tokenizer)}), only of"
            f" {printable(', '.join(sorted(models))) or 'nothing'}; give the store of the bias's"
            " own model with ``store``"
        )
    base = {name: settings for name, settings in same.items() if _is_base(settings)}
    if not base:
        raise NoLogprobs(
            f"{store.path} holds no completion of {printable(bias.model)} without a bias, at"
            " temperature 1 and with logprobs; blb collect draws some"
        )
    return base


def _is_base(settings: Mapping[str, Any]) -> bool:
    sampling = settings["sampling"]
    is_at_one = sampling["temperature"] == 1
    return is_at_one and not settings["bias"] and sampling["top_logprobs"] > 0


def _read(store: RolloutStore, requests: Collection[str], bias: Bias, ends: EndTokens) -> Positions:
    keys = sorted(key for request in requests for key in store.keys(request))
    anything = Example("", Prompt(()))
    unread = parse_reward("length", max_tokens=1)
    try:
        return training_set(store, [anything], [keys], unread, ends, vocab_size=bias.vocab_size)
    except NoLogprobs as error:
        raise NoLogprobs(
            f"none of {len(keys)} base completions of {printable(bias.model)} in {store.path} has a"
            " complete list of token logprobs, which the compile needs to know the next token;"
            " collect some with ``top_logprobs`` from 1"
        ) from error
