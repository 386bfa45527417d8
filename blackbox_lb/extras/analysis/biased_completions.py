"""Completions that were drawn with a bias, from the store of fit and eval, and the shift of each of
their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.features import Groups
from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.request_bias import phases_of_features, to_vector
from blackbox_lb.errors import BiasError, InputError, ProfileError, StoreError
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.reweighting import divergence
from blackbox_lb.jobs.compiling.logged_prefixes import logged_prefixes
from blackbox_lb.providers.profile import Profile
from blackbox_lb.rollouts.phased import bias_at_positions, phase_of_positions
from blackbox_lb.rollouts.positions import scored
from blackbox_lb.rollouts.reading import BROKEN_OFF
from blackbox_lb.rollouts.stored import end_tokens, keys_by_prompt, settings_by_request
from blackbox_lb.safety.printable import printable
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import parse_reward
from blackbox_lb.types import Example, Prompt
from blackbox_lb.vocabulary import Vocabulary

COUNT = parse_reward("length", max_tokens=1)
"""A reward that is never read."""


@dataclass(frozen=True, slots=True, eq=False)
class Biased:
    """Completions drawn with the bias at temperature 1, with the base model's lists.

    prompts: (x,) the numbering of ``rollouts.prompts``.
    left_out: number of unreadable completions.
    phases: (m,) of positions, where the bias changes within an answer.
    """

    rollouts: Rollouts
    prompts: tuple[Prompt, ...]
    left_out: int
    phases: Ids


def biased_completions(
    path: Path, bias: Bias, profile: Profile, vocabulary: Vocabulary | None
) -> Biased:
    """Read the completions under this bias from the rollout store ``path``, for the bias's model
    and the profile's provider, without any request.

    Of several lengths of lists the longest is read, which is the whole vocabulary where a vLLM
    server was asked for it.

    Raises:
        StoreError: no such store.
        InputError: no such completion is in it.
        BiasError: the bias is empty, or depends on a column, which no store keeps.
        ProfileError: the provider is not known to list the base model's logprobs.
        NoLogprobs: none of the completions lists tokens.
    """
    if any(isinstance(feature, Groups) for feature in bias.features):
        raise BiasError(
            f"the bias depends on {printable(bias.depends_on)}, and the store keeps prompts without"
            " the columns of their rows, so that nothing says which vector a completion was drawn"
            " with; blb show lists the vector of each group"
        )
    if not bias.entries:
        raise BiasError(
            "the bias has no entries, so there is no policy to analyse; give one that lists tokens"
        )
    if profile.logprobs.meaning != "before bias":
        raise ProfileError(
            "intervention scores are read from the base model's lists along completions with the"
            f" bias, and those of {profile.name} are not known to be the base model's"
            f" (logprobs.meaning is {profile.logprobs.meaning}): let blb doctor find out and set"
            " the row in a profile of your own, or draw the completions through vllm, llamacpp or"
            " local"
        )
    if not path.is_file():
        raise StoreError(
            f"no rollout store {path}; give the one that blb fit or blb eval wrote with ``store``"
        )
    with RolloutStore(path, read_only=True) as store:
        requests = _requests(store, bias, profile)
        if not requests:
            with_parts = ""
            if bias.phrases:
                with_parts = " and ``parts``"
            raise InputError(
                f"{path} holds no completion of {printable(bias.model)} through {profile.name} with"
                " this bias at temperature 1 and with logprobs; blb eval draws some, with"
                f" ``deploy=temperature=1``{with_parts}"
            )
        ends = end_tokens([profile.name], profile, vocabulary)
        by_prompt = keys_by_prompt(store, requests)
        prompts = tuple(by_prompt)
        examples = [Example(str(number), prompt) for number, prompt in enumerate(prompts)]
        rollouts, counts = scored(store, examples, list(by_prompt.values()), COUNT, ends)
        phases = _phases(phases_of_features(bias.features), rollouts, store, bias, vocabulary)
    left_out = sum(
        number
        for category, number in counts.items()
        if category in ("incomplete", "filtered") or category.startswith(BROKEN_OFF)
    )
    return Biased(rollouts, prompts, left_out, phases)


def _requests(store: RolloutStore, bias: Bias, profile: Profile) -> list[str]:
    """The hashes of the requests at temperature 1 with exactly this bias and the longest lists."""
    key = to_vector(bias).store_key
    same = (profile.name, bias.model, bias.tokenizer)
    listed: dict[str, int] = {}
    for name, request in settings_by_request(store).items():
        sampling: Mapping[str, Any] = request["sampling"]
        if (
            (request["provider"], request["model"], request["tokenizer"]) == same
            and request["bias"] == key
            and sampling["temperature"] == 1
            and sampling["top_logprobs"] > 0
            and store.keys(name)
        ):
            listed[name] = sampling["top_logprobs"]
    longest = max(listed.values(), default=0)
    return [name for name, length in listed.items() if length == longest]


def _phases(
    phases: Phases,
    rollouts: Rollouts,
    store: RolloutStore,
    bias: Bias,
    vocabulary: Vocabulary | None,
) -> Ids:
    """(m,) the phase of each position. Raises BiasError: a text of the phases is looked for, and
    the bytes of tokens are not known.
    """
    token_bytes: Mapping[int, bytes] = {}
    if phases.until:
        token_bytes = store.token_bytes(bias.tokenizer)
        tokens = np.unique(rollouts.token_ids[rollouts.token_ids >= 0]).tolist()
        if vocabulary is not None:
            token_bytes = {
                **token_bytes,
                **{token: vocabulary.bytes_of(token) or b"" for token in tokens},
            }
        missing = set(tokens).difference(token_bytes)
        if missing:
            raise BiasError(
                f"the bytes of {len(missing):,} tokens are not known, so that the text of"
                f" {printable(phases.spec)} could go unseen; give the model's vocabulary with"
                " ``tokenizer``"
            )
    return phase_of_positions(phases, rollouts, token_bytes)


def shifts(
    path: Path, biased: Biased, bias: Bias, profile: Profile, vocabulary: Vocabulary | None
) -> Vector:
    """(m,) ``log pi_delta - log pi_0`` in nats of each token, from the completions' own lists; what
    they leave out is spread as base completions of the same store have it.

    Raises NoLogprobs: the store has no base completions with lists.
    """
    base = logged_prefixes(path, bias, profile, vocabulary).next_token
    values = np.zeros(len(biased.rollouts.token_ids))
    prompt_of = biased.rollouts.prompts[biased.rollouts.rollout_of]
    contexts = bias_at_positions(to_vector(bias), biased.prompts, prompt_of, biased.phases)
    for positions, sent in contexts:
        _, part = biased.rollouts.with_positions(positions)
        ratios = divergence(part, list(sent), list(sent.values()), base)
        values[positions] = ratios.per_position
    return values
