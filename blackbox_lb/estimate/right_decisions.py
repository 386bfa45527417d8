"""Offsets of options chosen for the number of right decisions itself.

Index letters: ``n`` rows, ``c`` options.
"""

from __future__ import annotations

import numpy as np

from blackbox_lb.estimate.inputs.checks import Ids, Vector

MOST_MOVES = 200
SAME_DECIMALS = 9
BEYOND = 0.5
"""Nats beyond the outermost flip of a decision."""


def best_offsets(scores: Vector, answers: Ids) -> Vector:
    """Offsets of the options with the most right decisions for the likeliest option, one option
    after the other: always the one that gains most, between the two scores at which decisions flip
    that are nearest to where it is. It ends where no option gains.

    Args:
        scores: (n, c) nats.
        answers: (n,) the right option of each row.

    Returns:
        (c,) nats.
    """
    rows = np.arange(len(scores))
    size = scores.shape[1]
    offsets = np.zeros(size)
    for _ in range(MOST_MOVES):
        logits = scores + offsets
        first = logits.argmax(axis=1)
        rivals = logits.copy()
        rivals[rows, first] = -np.inf
        second = rivals.argmax(axis=1)
        moves = [
            _best_move(logits, answers, option, np.where(first == option, second, first))
            for option in range(size)
        ]
        gains = np.array([move[0] for move in moves])
        option = int(gains.argmax())
        if gains[option] <= 0:
            break
        offsets[option] += moves[option][1]
    return offsets


def _best_move(logits: Vector, answers: Ids, option: int, rival: Ids) -> tuple[int, float]:
    """The largest gain in right decisions by moving one option, and its smallest move in nats.

    rival: (n,) the likeliest option of each row beside it.
    """
    rows = np.arange(len(logits))
    # A row is the option's above its flip. Values of two decimals are equal up to rounding.
    flips = np.round(logits[rows, rival] - logits[:, option], SAME_DECIMALS)
    order = np.argsort(flips, kind="stable")
    gained = (answers == option).astype(np.int64) - (answers == rival)
    gains = np.cumsum(gained[order])
    ends, last = np.unique(flips[order][::-1], return_index=True)
    totals = np.append(0, gains[len(flips) - 1 - last])
    now = int(np.searchsorted(ends, 0.0, side="left"))
    middles = np.concatenate([ends[:1] - BEYOND, (ends[:-1] + ends[1:]) / 2, ends[-1:] + BEYOND])
    improvements = totals - totals[now]
    best = np.flatnonzero(improvements == improvements.max())
    nearest = best[np.abs(middles[best]).argmin()]
    return int(improvements[nearest]), float(middles[nearest])
