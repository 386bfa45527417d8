"""A biased policy against the base: its divergence, from its own completions and the base model's
listed logprobs, and how likely it makes logged completions.

Index letters: ``n`` completions, ``m`` their positions, ``s`` the support. Values in nats.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector, vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.potential import LoggedPositions
from blackbox_lb.estimate.next_token.sparse_table import stretches, tally

WIDEST = 60.0
"""Largest error of the tilted tail, in nats: beyond it exp has no digits left beside the listed
mass.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Divergence:
    """per_completion: (n,) ``log p_delta(y) - log p_0(y)``, whose mean estimates KL(p_delta || p_0)
    a completion.

    per_position: (m,) the same of each token, which sum to it. expected: (n,) what the lists alone
    let expect of each completion under the bias, at least: the KL of its positions between the
    listed tokens and all others as one, whichever of the tail's model and its mended form lets
    expect less.
    """

    per_completion: Vector
    per_position: Vector
    expected: Vector

    @property
    def kl(self) -> float:
        """The mean, in nats a completion; 0 where noise puts it below, which no KL is."""
        return max(float(self.per_completion.mean()), 0.0)


def divergence(
    rollouts: Rollouts, token_ids: npt.ArrayLike, values: npt.ArrayLike, tail: NextToken
) -> Divergence:
    """KL of the policy biased by ``values`` (nats) on ``token_ids`` to the base, both shape (k,).

    rollouts: completions drawn *with* the bias at temperature 1, carrying the base model's
    logprobs. tail: of unbiased rollouts, for its unigram of the tail. At every position ``log
    pi_delta / pi_0 = delta(y_t) - log sum_y pi_0(y) exp(delta(y))``; the listed part of the sum is
    exact, the tail's is the model's times one factor, which makes the expected number of tokens
    sampled outside the lists equal to the observed one; a position without a list is all tail and
    has no factor. Tokens without an id are left out of both policies, because a provider that does
    not list the drawn end token hides that choice: the KL is then that of the tokens given that the
    completion goes on, and the whole one is larger. Without the factor a bias that is large on rare
    tokens would seem to use them all the time.
    """
    full = NextToken.of(rollouts, tail=tail)
    table = full.named()
    delta = table.align(token_ids, values)
    log_all = table.log_normaliser(delta)
    terms, of_listed = _listed_terms(rollouts, full, delta)
    log_listed = np.minimum(np.logaddexp.reduce(terms, axis=1), log_all)
    log_tail = log_all + np.log(-np.expm1(np.minimum(log_listed - log_all, -1e-15)))
    listed = log_listed > -np.inf
    factor = 0.0
    if listed.any():
        factor = _factor(log_listed[listed], log_tail[listed], table.sampled_outside[listed])
    log_normaliser = np.logaddexp(log_listed, log_tail + np.where(listed, factor, 0.0))
    ratios = delta[table.sampled] - log_normaliser
    gained = np.minimum(
        *(
            _grouped_kl(terms - log_total[:, None], of_listed - log_total[:, None])
            for log_total in (log_normaliser, log_all)
        )
    )
    summed = np.zeros(len(rollouts.keys))
    np.add.at(summed, rollouts.rollout_of, ratios)
    expected = np.zeros(len(rollouts.keys))
    np.add.at(expected, rollouts.rollout_of, gained)
    return Divergence(summed, ratios, expected)


def log_policy_ratios(
    rollouts: Rollouts, next_token: LoggedPositions, delta: npt.ArrayLike
) -> Vector:
    """(n,) ``log p_delta(y_n) - log p_0(y_n) = sum_t [delta(y_nt) - log sum_y pi_0(y | prefix_nt)
    exp(delta(y))]``.

    next_token: of these rollouts, ``delta``: (s,) nats on its support. The sum is over all tokens,
    those without an id at bias 0, because a bias on the others makes these rarer or commoner. A
    completion without a token has 0, and so has an end token that the provider does not list.
    Raises InputError: ``next_token`` is of other rollouts.
    """
    if next_token.n_positions != len(rollouts.token_ids):
        raise InputError(
            f"next_token has {next_token.n_positions} positions, the rollouts"
            f" {len(rollouts.token_ids)}"
        )
    bias = np.asarray(delta, dtype=np.float64)
    owner = np.arange(len(rollouts.keys), dtype=np.int32)
    steps = next_token.log_normaliser(bias)
    for at in stretches(len(steps)):
        steps[at] = bias[next_token.sampled[at]] - steps[at]
    ratios = np.zeros(len(rollouts.keys))
    tally(ratios, np.repeat(owner, rollouts.lengths), steps)
    return ratios


def _listed_terms(rollouts: Rollouts, table: NextToken, delta: Vector) -> tuple[Vector, Vector]:
    """(m, k) log of the tilted probability of each listed token that has an id, given that the
    token has one, not normalised, and (m, k) its bias; -inf and 0 elsewhere.
    """
    named = rollouts.top_ids >= 0
    columns = np.searchsorted(
        table.token_ids, np.where(named, rollouts.top_ids, table.token_ids[0])
    )
    of_listed = np.where(named, delta[columns], 0.0)
    terms = np.where(named, rollouts.top_logprobs.astype(np.float64) + of_listed, -np.inf)
    return terms - np.log(table.named_mass)[:, None], of_listed


def _grouped_kl(log_tilted: Vector, log_ratios: Vector) -> Vector:
    """(m,) the KL of the biased policy to the base at each position, all unlisted tokens as one.

    log_tilted: (m, k) of the listed tokens under the bias. log_ratios: (m, k) biased over base.
    """
    tilted = np.exp(log_tilted)
    biased_rest = np.clip(1.0 - tilted.sum(axis=1), 1e-12, 1.0)
    base_rest = np.clip(1.0 - np.exp(log_tilted - log_ratios).sum(axis=1), 1e-12, 1.0)
    listed = (tilted * log_ratios).sum(axis=1)
    total = listed + biased_rest * np.log(biased_rest / base_rest)
    return np.asarray(np.maximum(total, 0.0), dtype=np.float64)


def _factor(log_listed: Vector, log_tail: Vector, outside: Bools) -> float:
    """Log of the factor on the tail that explains the number of tokens sampled outside the
    lists.
    """
    odds = log_tail - log_listed

    def surplus(factor: float) -> float:
        return float((1 / (1 + np.exp(-np.clip(odds + factor, -700, 700)))).sum() - outside.sum())

    if surplus(-WIDEST) >= 0:
        return -WIDEST
    if surplus(WIDEST) <= 0:
        return WIDEST
    from scipy import optimize  # a quarter of a second, where a command starts

    return float(optimize.brentq(surplus, -WIDEST, WIDEST, xtol=1e-9))


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
    is_finite = np.isfinite(values)
    if not is_finite.any():
        raise InputError(
            f"none of {len(values)} positions has a shift; collect completions with top logprobs"
        )
    tokens = tokens[is_finite]
    owner = owner[is_finite]
    values = values[is_finite]
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
    named = base.named()
    usage = (
        named.expected(named.align(ids, np.maximum(values, -STRONGEST))) / named.n_positions
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
