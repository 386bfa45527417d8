"""Reference positions: places in stored completions where the server is asked for the whole
next-token distribution.

They are drawn uniformly from the tokens of the completions, so that an average over them is one
over their usage.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blackbox_lb.api.limits.concurrency import run_all
from blackbox_lb.errors import (
    CorruptResponse,
    InputError,
    NoLogprobs,
    ProfileError,
    RequestRejected,
)
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.providers.schema import ReferenceRules
from blackbox_lb.rollouts.collect import settings_of
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.progress import Watcher, short
from blackbox_lb.safety.printable import with_remedy
from blackbox_lb.store import next_token_key, prompt_hash
from blackbox_lb.types import Completion, Draw, Example, FloatArray, Prompt, Sampling

IN_FLIGHT = 8
"""Requests at a time: an answer is megabytes of JSON for a whole vocabulary, and more of them at
once only take memory.
"""
WHOLE = 1e-3
"""A whole distribution sums to 1 within this; float32 rounding of a quarter of a million logprobs
stays below it.
"""
MOST_BYTES = 2**32
"""Bytes of distributions held in memory: 4,000 positions of a vocabulary of a quarter of a million.
"""
FARTHEST = 0.1
"""Largest mean total variation between a logged list and the later distribution at the same place.
Engines agree to 2e-6 (llama.cpp) and to the last bit (vLLM in bfloat16, many at a time); a single
completion in bfloat16, whose kernels differ, is up to .1 nat apart. Lists after two different
prefixes were .36 apart."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """``exact`` (r, v): logprobs in nats at the ``positions`` (r,) of the completions.

    unanswered: positions with an answer without a list. padding: ids above the tokenizer's
    vocabulary, which name no token and are left out. disagreement: the largest difference in nats
    between the sampled token's logged logprob and this one. distance: mean total variation between
    the logged list and this one. Both would be 0 with exact arithmetic and correct prefixes.
    received: distributions that were not in the store, in ``seconds``, taking ``stored`` bytes
    there.
    """

    positions: Ids
    exact: FloatArray
    unanswered: int
    padding: int
    disagreement: float
    distance: float
    received: int
    seconds: float
    stored: int

    @property
    def agrees(self) -> bool:
        """Whether the distributions are those behind the completions."""
        return self.distance <= FARTHEST

    @property
    def sentence(self) -> str:
        """The number asked for, the cost, and the agreement with the logged lists."""
        r, v = self.exact.shape
        cost = (
            f"{self.received} asked for in {self.seconds:.0f} s, {self.stored / 1e3:,.0f} kB stored"
        )
        missing = ""
        if self.unanswered:
            missing += f", {self.unanswered} more came without a list"
        if self.padding:
            missing += f", {self.padding} more ids name no token"
        word = "DO NOT AGREE"
        if self.agrees:
            word = "agree"
        return (
            f"{r} reference positions with all {v:,} logprobs ({cost}{missing}); they {word} with"
            f" the logged lists: total variation {short(self.distance)} on average (limit"
            f" {FARTHEST:g}), sampled tokens at most {short(self.disagreement)} nats apart"
        )


async def check_reference(trials: Trials, examples: Sequence[Example], count: int) -> None:
    """Ask for one whole distribution, so that a server without any is known before it costs money.

    count: number of distributions to come.

    Raises ProfileError: the provider is not known to give them, or does not list the token that
    ends a completion. InputError: completions are collected without lists to compare with, the
    vocabulary's size is not known, or so many distributions do not fit into memory.
    RequestRejected: the server refuses, in its own words, with the remedy.
    """
    session = trials.session
    profile = trials.session.profile
    if profile.reference is None or profile.reference.whole is False:
        limit = profile.most_logprobs(session.endpoint)
        listed = ""
        if limit is not None:
            listed = f" (it lists at most {limit} tokens)"
        raise ProfileError(
            "``full_vocab`` needs the whole next-token distribution after a prefix of token ids,"
            f" and {profile.name} is not known to give it{listed}: its profile has no rows under"
            " [reference]; use ``provider=vllm`` (a server with --max-logprobs -1), llamacpp or"
            " local"
        )
    if trials.top_logprobs < 1 or session.end_tokens.listed is not True:
        raise InputError(
            "``full_vocab`` compares whole distributions with logged lists, of which there are"
            f" none with ``top_logprobs={trials.top_logprobs}`` or where the token that ends a"
            " completion is not listed; use ``top_logprobs`` from 1"
        )
    try:
        row = await _Asker.of(trials).distribution(examples[0].prompt, ())
    except RequestRejected as error:
        needs = f"``full_vocab`` needs all logprobs of a position: {profile.logprobs.limit_remedy}"
        raise type(error)(with_remedy(error, needs)) from error
    if row is not None and count * row.nbytes > MOST_BYTES:
        raise InputError(
            f"``full_vocab={count}`` holds {count} times {len(row):,} logprobs in memory,"
            f" {count * row.nbytes / 2**30:.0f} GiB, and {MOST_BYTES / 2**30:.0f} GiB is the limit;"
            f" give {MOST_BYTES // row.nbytes:,} positions at most"
        )


async def ask_reference(
    trials: Trials, examples: Sequence[Example], rollouts: Rollouts, count: int, seed: int
) -> Reference:
    """The whole next-token distribution at ``count`` positions of ``rollouts``, whose lists are in
    memory; stored ones are not asked for again.

    Raises CorruptResponse: an answer that is no distribution over the vocabulary, or fewer than two
    answers with a list. ProviderError: the API failed; what was received is kept.
    """
    chosen = sample_positions(
        rollouts, count, seed, np.asarray((rollouts.top_ids >= 0).any(axis=1))
    )
    asker = _Asker.of(trials)
    started = time.monotonic()
    distributions = await _asked(asker, examples, rollouts, chosen)
    sizes = sorted({len(row) for row in distributions.values()})
    if len(sizes) != 1 or len(distributions) < 2:
        raise CorruptResponse(
            f"{len(distributions)} of {len(chosen)} reference positions came with a list, of"
            f" {sizes} tokens; at least 2 of one vocabulary are needed: run without ``full_vocab``,"
            " or restart the server"
        )
    positions = np.array(sorted(distributions), dtype=np.int64)
    vocabulary_size = _vocabulary_size(trials, rollouts, sizes[0])
    exact = np.stack([distributions[position][:vocabulary_size] for position in positions.tolist()])
    logprobs = exact[np.arange(len(positions)), rollouts.token_ids[positions]]
    apart = np.abs(logprobs - rollouts.logprobs[positions])[~rollouts.is_bounded[positions]]
    return Reference(
        positions=positions,
        exact=exact,
        unanswered=len(chosen) - len(distributions),
        padding=sizes[0] - vocabulary_size,
        disagreement=float(apart.max(initial=0.0)),
        distance=float(total_variation(rollouts, positions, exact).mean()),
        received=asker.received,
        seconds=time.monotonic() - started,
        stored=asker.stored,
    )


def _vocabulary_size(trials: Trials, rollouts: Rollouts, listed: int) -> int:
    """The number of the ``listed`` ids that are tokens: a model's matrix often has rows without a
    token, as padding.
    """
    size = trials.tokenizer.vocabulary_size
    if size is None:
        return listed
    largest_id = int(max(rollouts.token_ids.max(), rollouts.top_ids.max()))
    return min(listed, max(size, largest_id + 1))


def total_variation(rollouts: Rollouts, positions: Ids, exact: npt.NDArray[np.floating]) -> Vector:
    """(r,) half the absolute differences, over the tokens listed at the ``positions`` (r,), between
    the logged probabilities and those of the logprobs ``exact`` (r, v): 0 to 1.
    """
    ids = rollouts.top_ids[positions]
    logged = rollouts.top_logprobs[positions].astype(np.float64)
    now = np.take_along_axis(exact, np.maximum(ids, 0), axis=1).astype(np.float64)
    return np.asarray(np.where(ids >= 0, np.abs(np.exp(now) - np.exp(logged)), 0.0).sum(axis=1) / 2)


async def _asked(
    asker: _Asker, examples: Sequence[Example], rollouts: Rollouts, chosen: Ids
) -> dict[int, FloatArray]:
    """The distributions at the ``chosen`` positions that came with a list."""
    distributions: dict[int, FloatArray] = {}
    starts = np.cumsum(rollouts.lengths) - rollouts.lengths
    owner = rollouts.rollout_of
    trials = asker.trials
    session = asker.trials.session
    at_once = min(trials.concurrency or session.profile.connection.concurrency, IN_FLIGHT)
    with trials.report.stage("reference positions", len(chosen)) as watch:

        async def receive(position: int) -> None:
            row = int(owner[position])
            prefix = rollouts.token_ids[starts[row] : position].tolist()
            # llama.cpp answers with half a character, and no list, where it drew half a character.
            with suppress(NoLogprobs):
                answer = await asker.distribution(
                    examples[int(rollouts.prompts[row])].prompt, prefix, watch
                )
                if answer is not None:
                    distributions[position] = answer

        await run_all(chosen.tolist(), receive, at_once, trials.budget, session.drop_waiting)
    return distributions


def sample_positions(rollouts: Rollouts, count: int, seed: int, usable: Bools) -> Ids:
    """At most ``count`` positions that are ``usable`` (m,), in order.

    Drawn uniformly without replacement; a position's rank depends on its rollout's key and ``seed``
    only, so most of the drawn ones stay when rollouts are added.
    """
    ranks = np.concatenate(
        [np.zeros(0, np.uint64)]
        + [
            _ranks(key, length, seed)
            for key, length in zip(rollouts.keys, rollouts.lengths.tolist(), strict=True)
        ]
    )
    where = np.flatnonzero(usable)
    return np.sort(where[np.argsort(ranks[where], kind="stable")[:count]])


def _ranks(key: str, length: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    # Raw PCG64 output is fixed by numpy's compatibility policy; Generator methods are not.
    words = np.frombuffer(
        hashlib.sha256(f"reference\0{seed}\0{key}".encode()).digest(), dtype="<u4"
    )
    return np.asarray(np.random.PCG64(words.tolist()).random_raw(length), dtype=np.uint64)


@dataclass(slots=True)
class _Asker:
    """Whole distributions from the store, or from the server into the store. received, stored:
    their number and bytes.
    """

    trials: Trials
    rules: ReferenceRules
    sampling: Sampling
    settings: dict[str, Any]
    received: int = 0
    stored: int = 0

    @classmethod
    def of(cls, trials: Trials) -> _Asker:
        """Raise InputError where the request would need an unknown size of the vocabulary."""
        session = trials.session
        rules = trials.session.profile.reference
        size = trials.tokenizer.vocabulary_size
        if rules is None or (rules.whole is None and size is None):
            raise InputError(
                f"the size of the vocabulary of {session.model} is not known, so that not all of"
                " its logprobs can be asked for; give the vocabulary with ``tokenizer``"
            )
        sampling = Sampling(1.0, 1, rules.whole or size or 0)
        settings = settings_of(session, trials.tokenizer, Draw(sampling, endpoint=rules.endpoint))
        return cls(trials, rules, sampling, {**settings, "prompt": session.endpoint})

    async def distribution(
        self, prompt: Prompt, prefix: Sequence[int], watch: Watcher | None = None
    ) -> FloatArray | None:
        """(v,) logprobs in nats of the token after ``prompt`` and ``prefix``; None where the answer
        lists nothing.
        """
        store = self.trials.store
        session = self.trials.session
        key = next_token_key(self.settings, prompt_hash(prompt), prefix)
        stored = store.next_token(key)
        if stored is not None:
            return stored
        ids = await session.prompt_ids(prompt)
        completion = await session.complete(
            [*ids, *prefix], self.sampling, endpoint=self.rules.endpoint
        )
        if watch is not None:
            watch(completion)
        if not len(
            completion.token_ids
        ):  # llama.cpp lists no token that leaves a character incomplete
            return None
        row = _whole(session.profile.name, completion)
        size = store.add_next_token(key, row)
        self.received += 1
        self.stored += size
        return row


def _whole(provider: str, completion: Completion) -> FloatArray:
    """The logprobs of the first position by token id. CorruptResponse unless they are those of all
    ids from 0 and sum to 1.
    """
    order = np.argsort(completion.top_ids[0])
    ids = completion.top_ids[0][order]
    row: FloatArray = completion.top_logprobs[0][order]
    total = float(np.exp(row.astype(np.float64)).sum())
    if not np.array_equal(ids, np.arange(len(ids))) or abs(total - 1) > WHOLE:
        raise CorruptResponse(
            f"{provider} listed {len(ids):,} tokens with ids up to {ids.max(initial=0):,} whose"
            f" probabilities sum to {total:.4f}, where the whole vocabulary was asked for; is the"
            " server started so that it lists all (vLLM: --max-logprobs -1)?"
        )
    return row
