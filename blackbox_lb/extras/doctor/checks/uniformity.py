"""Whether sampled tokens are draws from the distributions that were returned with them.

Index letters: ``t`` draws, ``c`` cells of one draw: its listed tokens from most likely, then one
for all that is not listed. Every test is exact or, for the chi-square and the score, has large
counts: a server that samples what it says fails one with the stated probability, whatever its
distributions are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, ndtr
from scipy.stats import chisquare, poisson_binom

from blackbox_lb.estimate.inputs.checks import Bools, Vector

Ids = npt.NDArray[np.int32]

BINS = 20
LEAST_UNLISTED = 1e-4
"""Mass left for all unlisted tokens where rounding leaves none: adds less than a tenth of a draw in
a whole self-test.
"""
MOST_SURPRISING = 8.0
"""Nats from which on tokens count as equally surprising, so that no single draw decides."""
EXPECTED = 12.0
"""A truncation at top-p .9 goes unseen with probability exp(-12) where it removes 12 expected
draws: below any threshold here.
"""
ROUNDED = 0.005
"""Mass that rounding may hide of all unlisted tokens together, on average over draws: bfloat16 has
steps of 1/8 nat.
"""
COARSE = 0.25
"""Steps of logprobs, in nats, from which on only a truncation is tested for: the other tests would
see the rounding.
"""
NUCLEUS = "tail never drawn, as top_p truncates"
AGAIN = "tokens that were drawn before come too seldom, as under a presence or frequency penalty"
SCALED = "unlisted tokens drawn too often, as lists that are scaled to 1"
UNEVEN = "not uniform over the listed mass"
WORTH = 12.0
GONE = 0.02
SUSPECT = 0.01
"""Only for the words of a verdict: expected draws of an event that can be missed, the share that is
as good as none, and the p-value below which a temperature is named."""


@dataclass(frozen=True, slots=True, eq=False)
class CellDraw:
    """One draw from a list.

    ids: (c - 1,) the listed tokens.
    probabilities: (c,), summing to 1; the last one is of all tokens that are not listed.
    cell: the index that was drawn.
    again: (c,) whether a cell was listed and drawn before.
    """

    ids: Ids
    probabilities: Vector
    cell: int
    again: Bools

    @classmethod
    def of(cls, ids: Ids, listed: Vector, cell: int, before: Collection[int]) -> CellDraw:
        """From the probabilities of the listed tokens, most likely first; ``cell`` is their number
        where none was drawn, ``before`` are the tokens that stand before in the completion.
        """
        probabilities = np.append(listed, max(1.0 - float(listed.sum()), LEAST_UNLISTED))
        again = np.append(np.isin(ids, list(before)), False)
        return cls(ids, probabilities / probabilities.sum(), cell, again)


@dataclass(frozen=True, slots=True)
class ScoreTest:
    """The score test of a strength of 1 for draws from ``p exp((strength - 1) values)``: the sum of
    the drawn values less their expectations, over the sum of their variances, tells how far the
    strength is from 1.

    p: of both sides, by the normal distribution of the sum.
    strength: by one step from 1.
    error: its standard error.
    """

    p: float
    strength: float
    error: float

    @classmethod
    def of(cls, draws: Iterable[tuple[Vector, Vector, int]]) -> ScoreTest:
        """The test of draws as probabilities (c,), values (c,) and the cell that was drawn."""
        gain = 0.0
        variance = 0.0
        for probabilities, values, cell in draws:
            off = values - probabilities @ values
            gain += float(off[cell])
            variance += float(probabilities @ off**2)
        if variance <= 0:
            return cls(1.0, 1.0, np.inf)
        p = 2 * float(ndtr(-abs(gain) / np.sqrt(variance)))
        return cls(p, 1 + gain / variance, float(1 / np.sqrt(variance)))


@dataclass(frozen=True, slots=True)
class UniformityVerdict:
    """``p``: probability that a neutral server looks at least this odd, over all tests. ``reason``:
    what it looks like.

    ``beyond``, ``expected``: draws outside the smallest set that holds 90 % of the mass, seen and
    to be expected. ``heat``: p-value of the temperature alone, by the score of the logprobs.
    """

    p: float
    reason: str
    draws: int
    chi_square: float
    beyond: int
    expected: float
    heat: float


def judge(draws: Sequence[CellDraw], step: float) -> UniformityVerdict:
    """All tests at once: the probability integral transform, two nuclei, min-p, the unlisted mass
    both ways, tokens that were drawn before (the score test of a presence penalty, exactly), and
    the temperature.

    The smallest p-value counts, multiplied for the number of tests (Bonferroni). Half of all false
    accusations are left to the temperature, which takes the most draws to see; the other tests
    share the other half.
    ``step``: nats to which the logprobs are rounded.
    """
    is_unlisted = [np.append(np.zeros(len(draw.ids), np.bool_), True) for draw in draws]
    events = {
        NUCLEUS: _events(draws, _beyond_nucleus(draws, 0.9), step),
        "tail hardly drawn, as top_p truncates": _events(draws, _beyond_nucleus(draws, 0.95), step),
        "unlikely tokens never drawn, as min_p truncates": _events(
            draws, [_below(draw, 0.05) for draw in draws], step
        ),
        "unlisted tokens never drawn, as top_k truncates": _events(draws, is_unlisted, step),
        AGAIN: _events(draws, [draw.again for draw in draws]),
    }
    score = ScoreTest.of((draw.probabilities, _logs(draw), draw.cell) for draw in draws)
    heat = "flatter than returned"
    if score.strength > 1:
        heat = "sharper than returned, as a temperature below 1"
    chi_square = _transform(draws)
    is_coarse = step >= COARSE
    least = 1.0  # share of every probability that is sure, whichever way it was rounded
    if is_coarse:
        least = float(np.exp(-step))
    tests = {
        name: float(poisson_binom.cdf(occurrences, least * p))
        for name, (p, occurrences) in events.items()
    }
    tests |= {heat: 1.0, UNEVEN: 1.0, SCALED: 1.0}
    if not is_coarse:
        mass, occurrences = _events(draws, is_unlisted)
        tests[heat] = score.p
        tests[UNEVEN] = chi_square
        tests[SCALED] = float(poisson_binom.sf(occurrences - 1, np.maximum(mass, ROUNDED)))
    other_p_values = [p for name, p in tests.items() if name != heat]
    probabilities, beyond = events[NUCLEUS]
    return UniformityVerdict(
        p=min(1.0, 2 * tests[heat], 2 * len(other_p_values) * min(other_p_values)),
        reason=_reason(events, tests, heat),
        draws=len(draws),
        chi_square=chi_square,
        beyond=beyond,
        expected=float(probabilities.sum()),
        heat=tests[heat],
    )


def _reason(events: Mapping[str, tuple[Vector, int]], tests: Mapping[str, float], heat: str) -> str:
    """What it looks like: a truncation leaves almost none of an event's draws, a temperature some
    of all.
    """
    for name, (p, occurrences) in events.items():
        if p.sum() >= WORTH and occurrences <= GONE * p.sum():
            return name
    suspects = {
        AGAIN: min(SUSPECT, tests[heat], tests[SCALED]),
        SCALED: SUSPECT / 10,
        heat: SUSPECT,
    }
    for name, below in suspects.items():
        if tests[name] < below:
            return name
    return min(tests, key=lambda name: tests[name])


def temperature_of(draws: Sequence[CellDraw]) -> float:
    """The temperature under which the draws are likeliest, between .25 and 4."""
    logs_tc = np.full((len(draws), max(len(draw.probabilities) for draw in draws)), -np.inf)
    for row, draw in zip(logs_tc, draws, strict=True):
        row[: len(draw.probabilities)] = np.log(draw.probabilities)
    seen_t = logs_tc[np.arange(len(draws)), [draw.cell for draw in draws]]

    def loss(log_beta: float) -> float:
        beta = np.exp(log_beta)
        return float((logsumexp(beta * logs_tc, axis=1) - beta * seen_t).sum())

    best = minimize_scalar(loss, bounds=(-np.log(4), np.log(4)), method="bounded")
    return float(np.exp(-best.x))


def _transform(draws: Sequence[CellDraw]) -> float:
    """Chi-square p-value of the randomised probability integral transform, uniform on [0, 1) for a
    neutral server.
    """
    rng = np.random.default_rng(0)
    start = np.array([draw.probabilities[: draw.cell].sum() for draw in draws])
    width = np.array([draw.probabilities[draw.cell] for draw in draws])
    places = np.minimum(start + rng.random(len(draws)) * width, 1 - 1e-12)
    return float(chisquare(np.bincount((places * BINS).astype(int), minlength=BINS)).pvalue)


def _beyond_nucleus(draws: Sequence[CellDraw], level: float) -> list[Bools]:
    """Cells outside the smallest set of listed tokens with ``level`` of the mass; none where the
    list does not reach it.
    """
    return [np.cumsum(draw.probabilities) - draw.probabilities >= level for draw in draws]


def _below(draw: CellDraw, share: float) -> Bools:
    """Cells below ``share`` of the likeliest; the unlisted ones where the last listed one is."""
    below: Bools = draw.probabilities < share * draw.probabilities[0]
    below[-1] = len(below) > 1 and below[-2]
    return below


def _events(
    draws: Sequence[CellDraw], inside: Sequence[Bools], step: float = 0.0
) -> tuple[Vector, int]:
    """Probability of each draw's event (t,), and the number of events that happened. Where logprobs
    are rounded to ``step`` nats, the part of the unlisted mass that half a step could give to the
    listed tokens is left out.
    """
    probabilities = np.array(
        [float(draw.probabilities[cells].sum()) for draw, cells in zip(draws, inside, strict=True)]
    )
    doubtful = [
        cells[-1] * min(np.expm1(step / 2), draw.probabilities[-1])
        for draw, cells in zip(draws, inside, strict=True)
    ]
    return np.maximum(probabilities - doubtful, 0.0), sum(
        bool(cells[draw.cell]) for draw, cells in zip(draws, inside, strict=True)
    )


def _logs(draw: CellDraw) -> Vector:
    """(c,) logprobs; an unlisted token is at most as likely as the last listed one."""
    logs = np.log(draw.probabilities)
    logs[-1] = logs[-2:].min()
    return np.maximum(logs, -MOST_SURPRISING)
