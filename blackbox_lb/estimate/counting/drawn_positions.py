"""Positions: the token positions of each completion that enter an estimate, and their inverse propensities."""

from __future__ import annotations

import hashlib

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector, clean_logprobs
from blackbox_lb.estimate.inputs.rollouts import Rollouts

LOWEST_LOGPROB = -700.0
"""Smallest logprob: below it 1 / pi_0 leaves float64. No float32 softmax of a real model gets there; censoring marks (-9999) do."""


def inverse_propensities(rollouts: Rollouts, rows: Ids) -> Vector:
    """(m,) 1 / pi_0 of the sampled tokens, its lower bound where only a bound is known.

    rows: (m,) the rollout of each position. Raises InputError with the rollout key: a NaN, positive or missing (-inf, -9999) value.
    """
    logprobs = clean_logprobs("sampled logprob", rollouts.logprobs, rollouts, rows)
    missing = np.flatnonzero(logprobs < LOWEST_LOGPROB)
    if missing.size:
        raise InputError(
            f"sampled logprob {logprobs[missing[0]]:g} in rollout {rollouts.keys[int(rows[missing[0]])]} is a mark for "
            f"'not given', below the limit {LOWEST_LOGPROB:g} ({missing.size} of {logprobs.size} are): inverse "
            f"propensities need the probability of every sampled token, or a bound that is marked as one; use the projection, "
            f"which needs neither"
        )
    return np.exp(-logprobs)


def draw(rollouts: Rollouts, usable: Bools, positions: int | None, seed: int) -> Bools:
    """(m,) whether each is drawn: ``positions`` of a completion's ``usable`` ones, uniformly without replacement; None for all.

    The draw of a completion depends on its key, its own positions and ``seed``, and on no other completion.
    """
    kept = usable.copy()
    if positions is None:
        return kept
    ends = np.cumsum(rollouts.lengths)
    for key, end, length in zip(rollouts.keys, ends, rollouts.lengths, strict=True):
        if length > positions:
            kept[end - length : end] = _draw_one(key, usable[end - length : end], positions, seed)
    return kept


def _draw_one(key: str, usable: Bools, positions: int, seed: int) -> Bools:
    # Raw PCG64 output is fixed by numpy's compatibility policy; Generator methods such as choice are not.
    words = np.frombuffer(hashlib.sha256(f"{seed}\0{key}".encode()).digest(), dtype="<u4")
    order = np.argsort(np.random.PCG64(words.tolist()).random_raw(len(usable)), kind="stable")
    kept = np.zeros(len(usable), dtype=np.bool_)
    kept[order[usable[order]][:positions]] = True
    return kept
