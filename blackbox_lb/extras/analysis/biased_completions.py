"""Biased: completions drawn with a bias, from the store of fit and eval, and the shift of each
token.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.features import Groups
from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.request_bias import phases_of_features, store_key, to_request_bias
from blackbox_lb.errors import BiasError, CorruptResponse, InputError, ProfileError, StoreError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.reweighting import (
    exact_shifts,
    listed_shifts,
    shifts_after_bias,
)
from blackbox_lb.extras.analysis.document import Source
from blackbox_lb.jobs.compiling.logged_prefixes import logged_prefixes
from blackbox_lb.providers.profile import Profile
from blackbox_lb.rollouts.judging.trials import StagePart, Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.rollouts.phased import bias_at_positions, phase_of_positions
from blackbox_lb.rollouts.progress import Reporter
from blackbox_lb.rollouts.reading import BROKEN_OFF
from blackbox_lb.rollouts.reference import ask_reference, check_reference
from blackbox_lb.rollouts.training import scored
from blackbox_lb.safety.printable import printable
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import parse_reward
from blackbox_lb.types import Endpoint, EndTokens, Example, Prompt
from blackbox_lb.vocabulary import Vocabulary

COUNT = parse_reward("length", max_tokens=1)
"""A reward that is never read."""


@dataclass(frozen=True, slots=True, eq=False)
class Biased:
    """Completions drawn with the bias at temperature 1. examples: (x,) the numbering of
    ``rollouts.prompts``.

    endpoint: their source. left_out: number of unreadable completions. phases: (m,) of positions,
    where the bias changes within an answer.
    """

    rollouts: Rollouts
    examples: tuple[Example, ...]
    endpoint: Endpoint
    left_out: int
    phases: Ids

    @property
    def words(self) -> str:
        """The source of the completions, in words."""
        return (
            f"{len(self.rollouts.keys)} completions with this bias at temperature 1, of"
            f" {len(self.examples)} prompts, {len(self.rollouts.token_ids):,} tokens"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Shifts:
    """values: (m,) nats at the positions of the biased completions, NaN where none is known; and
    their source.
    """

    values: Vector
    source: Source


async def draw(trials: Trials, examples: Sequence[Example], bias: Bias, samples: int) -> None:
    """Draw ``samples`` completions of each example with the bias, and without it where whole lists
    of the base are needed.

    Raises ProviderError: the API failed; what was received is kept.
    """
    where = trials.session.biased_endpoint
    policies = {"biased": to_request_bias(bias), "base": None}
    parts = [
        StagePart(f"analysis, {name}", examples, trials.draw(SAMPLED, sent, where), samples)
        for name, sent in policies.items()
    ]
    await trials.collect_all("analysis", parts)


def biased_completions(
    path: Path,
    bias: Bias,
    profile: Profile,
    vocabulary: Vocabulary | None,
    report: Reporter,
    rows: Sequence[Example] = (),
) -> Biased:
    """Read the completions under this bias from the rollout store ``path``, for the bias's model
    and the profile's provider.

    rows: of the data, with the columns that no store keeps.

    Raises StoreError: no such store. InputError: the bias is empty, or no such completion is in it.
    BiasError: it depends on a column, and no row is given. NoLogprobs: none lists tokens.
    """
    if any(isinstance(feature, Groups) for feature in bias.features) and not rows:
        raise BiasError(
            f"the bias depends on {printable(bias.depends_on)}, and the store keeps prompts without"
            " the columns of their rows; give the data with ``data`` or ``task``"
        )
    if not bias.entries:
        raise BiasError(
            "the bias has no entries, so there is no policy to analyse; give one that lists tokens"
        )
    if not path.is_file():
        raise StoreError(
            f"no rollout store {path}; give the one that blb fit or blb eval wrote with ``store``"
        )
    with RolloutStore(path, read_only=True) as store:
        requests = _requests(store, bias, profile)
        if not requests:
            raise InputError(
                f"{path} holds no completion of {printable(bias.model)} through {profile.name} with"
                " this bias at temperature 1 and with logprobs; give ``task`` or ``data``, as in"
                " blb fit, to draw some"
            )
        ends = _end_tokens(profile, vocabulary)
        columns = {example.prompt: example.prompt for example in rows}
        rollouts, examples, left_out_count = _read(
            store, _as_learned(bias, requests), ends, columns
        )
        phases = _phases(phases_of_features(bias.features), rollouts, store, bias, vocabulary)
        left_out = sum(
            number
            for category, number in left_out_count.items()
            if category in ("incomplete", "filtered") or category.startswith(BROKEN_OFF)
        )
        unused = sum(len(store.keys(name)) for name in requests) - len(rollouts.keys) - left_out
    endpoints = Counter(settings["endpoint"] for settings in requests.values())
    endpoint = cast("Endpoint", endpoints.most_common(1)[0][0])
    biased = Biased(rollouts, examples, endpoint, left_out, phases)
    report.notice(biased.words)
    if unused:
        report.notice(
            f"{unused} more are not read: drawn with an instruction after the prompt or with"
            " another max_tokens"
        )
    if biased.left_out:
        report.notice(
            f"{biased.left_out} completions are left out: filtered, broken off by the host, or"
            " not all of their tokens are listed"
        )
    return biased


def _requests(store: RolloutStore, bias: Bias, profile: Profile) -> dict[str, Any]:
    """Hash -> settings of the requests at temperature 1 with logprobs and exactly this bias."""
    key = store_key(to_request_bias(bias))
    same = (profile.name, bias.model, bias.tokenizer)
    return {
        name: request
        for name, request in store.requests().items()
        if (request.get("provider"), request.get("model"), request.get("tokenizer")) == same
        and request.get("bias") == key
        and request["sampling"]["temperature"] == 1
        and request["sampling"]["top_logprobs"] > 0
        and store.keys(name)
    }


def _as_learned(bias: Bias, requests: Mapping[str, Any]) -> list[str]:
    """The requests with the ``max_tokens`` of the bias's training, if there are any, else all."""
    limit = None if bias.sampling is None else bias.sampling.max_tokens
    same = [
        name for name, request in requests.items() if request["sampling"]["max_tokens"] == limit
    ]
    return same or list(requests)


def _end_tokens(profile: Profile, vocabulary: Vocabulary | None) -> EndTokens:
    listed = profile.logprobs.end_token_listed
    if listed is not True and vocabulary is None:
        raise ProfileError(
            f"{profile.name} is not known to list the token that ends a completion, so its id must"
            " be known to leave it alone: give the model's vocabulary with ``tokenizer``"
        )
    return EndTokens(listed, frozenset(vocabulary.special.values() if vocabulary else ()))


def _read(
    store: RolloutStore,
    requests: Iterable[str],
    ends: EndTokens,
    columns: Mapping[Prompt, Prompt],
) -> tuple[Rollouts, tuple[Example, ...], Counter[str]]:
    """The completions of these requests with their lists in memory, their examples, and the number
    left out.

    Prompts with an instruction of ``blb eval`` are not those that the bias is for, and are skipped.
    """
    by_prompt: dict[Prompt, list[str]] = {}
    for request in requests:
        for key, prompt in store.prompts(request).items():
            by_prompt.setdefault(prompt, []).append(key)
    for prompt in instructed(by_prompt):
        del by_prompt[prompt]
    examples = tuple(
        Example(str(number), columns.get(prompt, prompt)) for number, prompt in enumerate(by_prompt)
    )
    rollouts, left_out = scored(store, examples, list(by_prompt.values()), COUNT, ends)
    return rollouts, examples, left_out


def instructed(prompts: Iterable[Prompt]) -> list[Prompt]:
    """The prompts that equal another one plus an instruction after its last message, the same one
    for several prompts.
    """
    bare = set(prompts)
    tails: dict[str, list[Prompt]] = {}
    for prompt in bare:
        *before, last = prompt.messages
        for gap in re.finditer(r"\n\n| ", last.content):
            shorter = replace(last, content=last.content[: gap.start()])
            if replace(prompt, messages=(*before, shorter)) in bare:
                tails.setdefault(last.content[gap.end() :], []).append(prompt)
    return [prompt for same in tails.values() if len(same) > 1 for prompt in same]


def shifts_by_lists(
    path: Path, biased: Biased, bias: Bias, profile: Profile, vocabulary: Vocabulary | None
) -> Shifts:
    """Compute the shifts from the completions' own lists and base completions of the same store,
    without any request.

    Raises InputError: the policy of the provider's logprobs is not known. NoLogprobs: no base
    completions.
    """
    meaning = profile.logprobs.meaning
    if meaning in ("before bias", "after bias"):
        base = logged_prefixes(path, bias, profile, vocabulary).next_token
        before = meaning == "before bias"
        shifts = listed_shifts if before else shifts_after_bias
        values = np.full(len(biased.rollouts.token_ids), np.nan)
        for rows, sent in _sent(biased, bias):
            values[rows] = shifts(biased.rollouts.with_positions(rows)[1], sent, base)
        return Shifts(values, "tail model" if before else "logprobs after the bias")
    raise ProfileError(
        f"it is not known whether {profile.name} returns logprobs of the base or of the biased"
        f" policy (logprobs.meaning is {meaning}), so nothing tells how far they are apart; let blb"
        " doctor find out and set the row in a profile of your own"
    )


def _sent(biased: Biased, bias: Bias) -> Iterator[tuple[Bools, Mapping[int, float]]]:
    """Each map that requests got, and the positions (m,) where it acted."""
    prompts = [example.prompt for example in biased.examples]
    prompt_of = biased.rollouts.prompts[biased.rollouts.rollout_of]
    return bias_at_positions(to_request_bias(bias), prompts, prompt_of, biased.phases)


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


async def ask_shifts(trials: Trials, biased: Biased, bias: Bias, count: int, seed: int) -> Shifts:
    """Compute the shifts from the base's whole distribution at ``count`` of the positions; stored
    ones are not asked for again.

    Raises ProfileError, InputError: the provider gives no whole distributions, or lists of another
    policy. CorruptResponse: the answer does not fit the lists of the completions. ProviderError:
    the API failed; what was received is kept.
    """
    if not trials.session.tells_base_logprobs:
        raise ProfileError(
            "``full_vocab`` compares with the lists of the completions, which are not the base"
            f" model's on {trials.session.profile.name}; leave it out"
        )
    await check_reference(trials, biased.examples, count)
    answer = await ask_reference(trials, biased.examples, biased.rollouts, count, seed)
    trials.report.notice(answer.sentence)
    if not answer.agrees:
        raise CorruptResponse(
            "the distributions asked for now are not those the completions were drawn from (total"
            f" variation {answer.distance:.2f} on average): is this the same model, endpoint and"
            " chat template? Leave ``full_vocab`` out to go by the lists"
        )
    values = np.full(len(biased.rollouts.token_ids), np.nan)
    for where, sent in _sent(biased, bias):
        rows = where[answer.positions]
        if not rows.any():
            continue
        delta = np.zeros(answer.exact.shape[1])
        listed_bias = {token: value for token, value in sent.items() if token < len(delta)}
        delta[list(listed_bias)] = list(listed_bias.values())
        positions = answer.positions[rows]
        values[positions] = exact_shifts(
            answer.exact[rows], biased.rollouts.token_ids[positions], delta
        )
    return Shifts(values, "exact")
