"""Many biases on one real model with common seeds: what two policies do alike cancels.

Completion s of prompt x is drawn with the same seed under every bias, so that two policies that
nearly agree give nearly the same completions, and their difference is known far better than either
mean.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.studies.compiled import Row
from blackbox_lb import Trials
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting.divergence import divergence
from blackbox_lb.rollouts.collect import settings_of
from blackbox_lb.rollouts.columns import columns
from blackbox_lb.store import prompt_hash, request_hash, rollout_key
from blackbox_lb.types import Completion, Draw, Example, Sampling

__all__ = ["Drawn", "Kept", "draw", "gain_kept", "kept", "scores_of", "seed_of", "stored_keys"]

Vector = npt.NDArray[np.float64]
REPLICATES = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Completions of one bias: ``keys[p][s]`` in the store; reward, correct, tokens: (p, s), NaN
    where one could not be read.

    kl: KL(p_row || p_0) in nats a completion. A reward is what a user reads.
    """

    keys: tuple[tuple[str, ...], ...]
    reward: Vector
    correct: Vector
    tokens: Vector
    kl: float


@dataclass(frozen=True, slots=True)
class Kept:
    """The share of the full vector's gain that is kept, with its 95 % percentile bootstrap interval
    over prompts.
    """

    share: float
    low: float
    high: float


def seed_of(example: Example, sample: int) -> int:
    """31 bits that depend on the prompt and the number of the sample, and on no bias."""
    digest = hashlib.sha256(f"{prompt_hash(example.prompt)} {sample}".encode()).hexdigest()
    return int(digest[:8], 16) & 0x7FFFFFFF


async def draw(
    trials: Trials, row: Row, examples: Sequence[Example], samples: int | None, tail: NextToken
) -> Drawn:
    """``samples`` completions a prompt at temperature 1 with the common seeds; asks only for those
    that are not in the store.

    samples None: asks for nothing, and takes as many as the store has of every prompt.
    """
    settings = _settings(trials, row)
    if samples is None:
        request = request_hash(settings)
        keys = stored_keys(request, trials.store.keys(request), examples)
    else:
        keys = await _collect(trials, row, settings, examples, samples)
    table = np.full((3, len(examples), len(keys[0])), np.nan)
    whole: dict[str, Completion] = {}
    owner = []
    for p, (example, names) in enumerate(zip(examples, keys, strict=True)):
        for s, (key, completion) in enumerate(
            zip(names, trials.store.completions(names), strict=True)
        ):
            if completion.readable:
                table[:, p, s] = scores_of(trials, example, completion)
            if completion.whole and len(completion.token_ids):
                whole[key] = completion
                owner.append(p)
    kl = 0.0 if not row.bias else np.nan
    if row.bias and whole:
        rollouts = columns(whole, owner, [0.0] * len(whole), trials.session.end_tokens)
        kl = divergence(rollouts, list(row.bias), list(row.bias.values()), tail).kl
    return Drawn(keys, table[0], table[1], table[2], kl)


def scores_of(
    trials: Trials, example: Example, completion: Completion
) -> tuple[float, float, float]:
    """Reward as a user reads it, 1 if correct (NaN where nobody can tell), tokens."""
    reward, right = trials.reward, trials.reward.correct(example, completion)
    value = reward.value(reward.score(example, completion))
    return value, np.nan if right is None else float(right), float(completion.n_tokens)


def stored_keys(
    request: str, stored: set[str], examples: Sequence[Example]
) -> tuple[tuple[str, ...], ...]:
    """The first keys of each prompt that are in ``stored``, as many as the prompt with the fewest
    has.
    """
    found = []
    for example in examples:
        name, keys = prompt_hash(example.prompt), list[str]()
        while (key := rollout_key(request, name, len(keys))) in stored:
            keys.append(key)
        found.append(keys)
    fewest = min(len(keys) for keys in found)
    return tuple(tuple(keys[:fewest]) for keys in found)


def _settings(trials: Trials, row: Row) -> dict[str, Any]:
    """Of the request, and that the seeds are not those of ``collect``, which depend on the bias."""
    sampling = Sampling(1.0, trials.reward.max_tokens, trials.top_logprobs, 0)
    where = trials.session.biased_endpoint
    draw = Draw(sampling, row.bias, where)
    return settings_of(trials.session, trials.tokenizer, draw) | {"seeds": "of prompt and sample"}


async def _collect(
    trials: Trials, row: Row, settings: dict[str, Any], examples: Sequence[Example], samples: int
) -> tuple[tuple[str, ...], ...]:
    """Keys of the completions, each asked for by a request of its own, because a request has one
    seed.
    """
    session, endpoint, most = (
        trials.session,
        trials.session.biased_endpoint,
        trials.reward.max_tokens,
    )
    request = request_hash(settings)
    keys = tuple(
        tuple(rollout_key(request, prompt_hash(e.prompt), s) for s in range(samples))
        for e in examples
    )
    stored = trials.store.keys(request)
    slots = asyncio.Semaphore(trials.concurrency or session.profile.connection.concurrency)
    with trials.report.stage(row.name, sum(len(names) for names in keys)) as watch:

        async def one(example: Example, sample: int) -> None:
            async with slots:
                asked = Sampling(1.0, most, trials.top_logprobs, seed_of(example, sample))
                completion = await session.complete(
                    example.prompt, asked, row.bias or None, endpoint
                )
            trials.store.add(settings, example.prompt, sample, completion)
            watch(completion)

        async with asyncio.TaskGroup() as group:
            for sample in range(
                samples
            ):  # of all prompts first, so that a run that is cut off leaves equally many of each
                for example, names in zip(examples, keys, strict=True):
                    if names[sample] not in stored:
                        group.create_task(one(example, sample))
    return keys


def gain_kept(row: Drawn, full: Drawn, base: Drawn, seed: int = 0) -> Kept | None:
    """``1 + E[r_row - r_full] / E[r_full - r_0]``, the differences over the samples that both have,
    so with common seeds.

    None where one of them has no completion.
    """
    if not all(each.reward.size for each in (row, full, base)):
        return None
    return kept(_differences(row, full), _differences(full, base), seed)


def _differences(one: Drawn, other: Drawn) -> Vector:
    """(p,) mean difference of the reward over common samples."""
    both = min(one.reward.shape[1], other.reward.shape[1])
    return np.asarray(
        np.nanmean(one.reward[:, :both] - other.reward[:, :both], axis=1), dtype=np.float64
    )


def kept(behind: Vector, gain: Vector, seed: int = 0) -> Kept:
    """``1 + mean(behind) / mean(gain)``, both (p,). Prompts are what is resampled, for both means
    at once.
    """
    picks = np.random.default_rng(seed).integers(0, len(gain), size=(REPLICATES, len(gain)))
    shares = 1 + behind[picks].mean(axis=1) / gain[picks].mean(axis=1)
    low, high = np.quantile(shares, [0.025, 0.975])
    return Kept(float(1 + behind.mean() / gain.mean()), float(low), float(high))
