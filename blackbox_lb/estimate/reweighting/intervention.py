"""Intervention: the change that a bias makes to the probability of the tokens that are generated
under it.

Index letters: ``m`` positions of completions drawn with the bias, ``s`` different tokens at them,
``r`` some of the positions, ``v`` the vocabulary. A *shift* is ``log pi_delta(y_t) - log
pi_0(y_t)`` in nats at one position; the score S of a token is the mean shift where it was generated
(the paper, appendix "Intervention score as realized log-probability shift").
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector, vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting.divergence import divergence

FEW = 20
"""Draws of a token below which its probability on base positions is better evidence than its count:
one draw of a token suppressed by 6 nats stands for 400. On exact models 5 left errors three times
as large, and 100 changed nothing."""
STRONGEST = 12.0
"""Largest suppression in nats: exp(-12) is 6e-6, too rare to be counted, and more is read as this.
"""


@dataclass(frozen=True, slots=True, eq=False)
class InterventionScores:
    """Scores of s tokens, sorted by id: scores, errors (s,) nats; counts (s,) positions.

    errors: standard errors, completions being independent of each other; NaN for a token in a
    single completion.
    """

    token_ids: Ids
    scores: Vector
    errors: Vector
    counts: Ids

    @property
    def mean(self) -> float:
        """The mean shift of a position: the scores weighted by their counts, an estimate of
        KL(pi_delta || pi_0) a token.
        """
        return float(self.counts @ self.scores / self.counts.sum())


def intervention_scores(
    token_ids: npt.ArrayLike, completions: npt.ArrayLike, shifts: npt.ArrayLike
) -> InterventionScores:
    """``S(y) = mean of shifts where y was generated``, for the tokens (m,) of numbered
    ``completions`` (m,).

    Positions whose shift is NaN are left out. The error is that of a ratio of sums over the G
    completions that hold the token: ``G / (G - 1) sum_g (sum of shift - S in g)^2 / count^2``.
    InputError: shapes that differ, or no shift at all.
    """
    tokens = np.asarray(token_ids)
    owner = np.asarray(completions)
    values = np.asarray(shifts, dtype=np.float64)
    if not tokens.shape == owner.shape == values.shape or values.ndim != 1:
        raise InputError(
            f"tokens {tokens.shape}, completions {owner.shape} and shifts {values.shape} need one"
            " shape (m,)"
        )
    known = np.isfinite(values)
    if not known.any():
        raise InputError(
            f"none of {len(values)} positions has a shift; collect completions with top logprobs"
        )
    tokens = tokens[known]
    owner = owner[known]
    values = values[known]
    ids, place, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    scores = np.bincount(place, weights=values) / counts
    return InterventionScores(
        ids.astype(np.int64), scores, _errors(place, owner, values - scores[place], counts), counts
    )


def _errors(place: Ids, owner: Ids, residuals: Vector, counts: Ids) -> Vector:
    """(s,) from the residuals (m,) of the tokens ``place`` (m,)."""
    cells, cell = np.unique(np.stack([place, owner]), axis=1, return_inverse=True)
    of = cells[0]
    squares = np.bincount(of, weights=np.bincount(cell.reshape(-1), weights=residuals) ** 2)
    groups = np.bincount(of).astype(np.float64)
    scale = np.divide(groups, groups - 1, out=np.full(len(groups), np.nan), where=groups > 1)
    return np.asarray(np.sqrt(scale * squares) / counts, dtype=np.float64)


def exact_shifts(
    logprobs: npt.NDArray[np.floating], sampled: npt.NDArray[np.integer], delta: npt.ArrayLike
) -> Vector:
    """(r,) ``delta(y) - log sum_v pi_0(v) exp(delta(v))`` from whole distributions of the base,
    ``logprobs`` (r, v), delta (v,).
    """
    values = vector("delta", delta, logprobs.shape[1])
    shift = float(values.max())
    tilt = np.exp(values - shift)
    rows = (
        np.exp(row.astype(np.float64)) for row in logprobs
    )  # one at a time: all in float64 are twice as large
    log_z = shift + np.log([float(row @ tilt / row.sum()) for row in rows])
    return np.asarray(values[sampled] - log_z, dtype=np.float64)


def listed_shifts(drawn: Rollouts, bias: Mapping[int, float], tail: NextToken) -> Vector:
    """(m,) shifts from the base model's lists at the positions of ``drawn``, the completions with
    the bias; see ``divergence``.

    tail: of unbiased completions.
    """
    return divergence(drawn, list(bias), list(bias.values()), tail).per_position


def shifts_after_bias(drawn: Rollouts, bias: Mapping[int, float], base: NextToken) -> Vector:
    """(m,) shifts from lists of the *biased* policy: ``log pi_delta`` is listed, and without the
    bias it gives ``log pi_0``.

    ``log pi_0(y) = log pi_delta(y) - delta(y) - log sum_y pi_delta(y) exp(-delta(y))``. The
    unlisted mass is shared by the rates at which the biased completions leave their lists. A
    suppressed token that they would draw fewer than ``FEW`` times shows nothing there: its rate is
    then the policy's on ``base``, the logged positions of unbiased completions, each counting
    ``exp(-delta)``. As in ``divergence``, tokens without an id are left out of both policies. NaN
    without a list.
    """
    ids = np.array(list(bias), dtype=np.int64)
    values = np.array(list(bias.values()))
    table = NextToken.of(drawn, extra_ids=np.union1d(base.token_ids, ids)).named()
    delta = table.align(ids, values)
    milder = np.maximum(delta, -STRONGEST)
    known = base.named()
    usage = (
        known.expected(known.align(ids, np.maximum(values, -STRONGEST))) / known.n_positions
    )  # mean probability of each token
    expected = table.align(base.token_ids, np.asarray(usage)) * table.n_positions
    scarce = (milder < 0) & (expected < FEW)
    rest = np.maximum(expected - _listed(drawn, table), 0.0)
    shared = table.with_unigram(np.where(scarce, rest, table.unigram))
    shifts = delta[table.sampled] + shared.log_normaliser(-milder)
    return np.where((drawn.top_ids >= 0).any(axis=1), shifts, np.nan)


def _listed(drawn: Rollouts, table: NextToken) -> Vector:
    """(s,) the probability that the lists of all positions give to each token."""
    named = drawn.top_ids >= 0
    columns = np.searchsorted(table.token_ids, drawn.top_ids[named])
    masses = np.exp(drawn.top_logprobs[named].astype(np.float64))
    return np.bincount(columns, weights=masses, minlength=len(table.token_ids)).astype(np.float64)
