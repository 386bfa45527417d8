"""A biased policy against the base: its divergence, from its own completions and the base model's
listed logprobs, and how likely it makes logged completions.

Index letters: ``n`` completions, ``m`` their positions, ``s`` the support. Values in nats.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.parallel import stretches, tally
from blackbox_lb.estimate.next_token.potential import LoggedPositions

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
    factor = (
        _factor(log_listed[listed], log_tail[listed], table.sampled_outside[listed])
        if listed.any()
        else 0.0
    )
    log_normaliser = np.logaddexp(log_listed, log_tail + np.where(listed, factor, 0.0))
    ratios = delta[table.sampled] - log_normaliser
    gained = np.minimum(
        *(
            _grouped_kl(terms - whole[:, None], of_listed - whole[:, None])
            for whole in (log_normaliser, log_all)
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
    whole = listed + biased_rest * np.log(biased_rest / base_rest)
    return np.asarray(np.maximum(whole, 0.0), dtype=np.float64)


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
