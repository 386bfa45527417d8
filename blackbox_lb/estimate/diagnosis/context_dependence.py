"""Context dependence: how much the right correction of a token differs between prompts, which no fixed bias can follow.

Index letters: ``n`` completions, ``p`` prompts, ``y`` tokens, ``m`` positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector, vector, weight_vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.thresholds import CONFIDENCE, CONTEXT, SMALL_KL, Word
from blackbox_lb.estimate.next_token.next_token import NextToken

LARGEST_CORRECTION = 3.0
"""Nats between a bias and its unpenalised value: one linear step does not reach further."""


@dataclass(frozen=True, slots=True)
class Context:
    """The correction of each token, taken apart into what prompts have in common and what they have not.

    common, varying: nats of KL a completion, ``T/2 sum_y u(y) d(y)^2`` and ``T/2 sum_y u(y) tau2(y)`` over the ``tokens``
    looked at, where d is the common correction, tau2 its variance between prompts and u the mean probability of y. share:
    ``varying / (common + varying)``, with low and high at 95 % over prompts. usage: share of all sampled tokens that the
    ``tokens`` make up. prompts: with two weighted completions or more.
    """

    common: float
    varying: float
    most: float
    share: float
    low: float
    high: float
    tokens: int
    usage: float
    prompts: int

    @property
    def word(self) -> Word:
        """Of the share; PASS too where what varies is surely too little to matter, and no FAIL where it hardly does."""
        if self.most <= SMALL_KL:
            return "PASS"
        word = CONTEXT.judge(self.share, self.low, self.high)
        return "INCONCLUSIVE" if word == "FAIL" and self.varying <= SMALL_KL else word


def context(
    rollouts: Rollouts, next_token: NextToken, delta: npt.ArrayLike, weights: npt.ArrayLike, *, tokens: int = 100
) -> Context | None:
    """Context dependence at ``delta`` (s,), of rollouts with ``weights`` (n,); None where fewer than two prompts could show
    any.

    next_token: of the rollouts. tokens: how many are looked at, those with the largest weighted usage, each at the price of two
    passes over the lists. Prompt p's score ``g_p(y) = sum_n w_n sum_m (1{y_m = y} - pi_delta(y | m))`` has to first order the
    expectation ``h_p(y) (delta_p(y) - d(y))`` with the prompt's own best correction, both centred at its mean under pi, and its
    usage ``h_p = sum w pi``. Completions of one prompt are independent, so the products of two of them have no noise in
    common, and

        tau2(y) = sum_p sum_{n != n'} g_n g_n' / sum_p sum_{n != n'} h_n h_n',

    the excess of prompt sums over completion sums, is unbiased at each y: DerSimonian and Laird's estimate (Controlled Clinical
    Trials 7, 1986) with the noise measured instead of assumed. Scores are taken about the unpenalised common correction
    ``d = delta + sum g / sum h``, so that shrinkage does not count as a difference, and less the scores of the base model with
    equal weights, whose expectation is 0 unless the tail model errs: what prompts differ in there is not the reward's.
    InputError: shapes that do not fit.
    """
    if next_token.n_positions != len(rollouts.token_ids):
        raise InputError(f"next_token has {next_token.n_positions} positions, the rollouts {len(rollouts.token_ids)}")
    w = weight_vector("weights", weights, len(rollouts.keys))
    table, bias = next_token.named(), vector("delta", delta, len(next_token.token_ids))
    of = np.unique(rollouts.prompts, return_inverse=True)[1]
    live = (w > 0) & (rollouts.lengths > 0)
    several = int((np.bincount(of[live]) > 1).sum()) if live.any() else 0
    if several < 2:
        return None
    per_position = w[rollouts.rollout_of]
    usage = table.expected(bias, per_position) / per_position.sum()
    chosen = np.argsort(-usage, kind="stable")[:tokens]
    chosen = chosen[usage[chosen] > 0]
    scores, expected = _scores(rollouts, table, bias, w, chosen)
    plain, known = _scores(rollouts, table, np.zeros_like(bias), np.ones(len(w)), chosen)
    scores -= plain * _ratio(expected.sum(axis=0), known.sum(axis=0))
    centred = bias[chosen] - usage @ bias / usage.sum()
    return _decompose(scores, expected, of, centred, usage[chosen], _tokens(rollouts, w), several)


def _tokens(rollouts: Rollouts, w: Vector) -> float:
    return float(w @ rollouts.lengths / w.sum())


def _scores(rollouts: Rollouts, table: NextToken, delta: Vector, weights: Vector, chosen: Ids) -> tuple[Vector, Vector]:
    """(n, k) scores and expected counts of the ``chosen`` tokens.

    ``log Z(delta + log 2 at y) - log Z(delta)`` is ``log(1 + pi_delta(y))``, so one normaliser gives a token's probability
    everywhere.
    """
    rows, size = rollouts.rollout_of, len(rollouts.keys)
    scores, expected = np.zeros((size, len(chosen))), np.zeros((size, len(chosen)))
    before = table.log_normaliser(delta)
    for column, y in enumerate(chosen):
        doubled = delta.copy()
        doubled[y] += math.log(2)
        pi = np.clip(np.expm1(table.log_normaliser(doubled) - before), 0.0, 1.0)
        scores[:, column] = weights * np.bincount(rows, weights=(table.sampled == y) - pi, minlength=size)
        expected[:, column] = weights * np.bincount(rows, weights=pi, minlength=size)
    return scores, expected


def _decompose(scores: Vector, expected: Vector, of: Ids, delta: Vector, usage: Vector, length: float, prompts: int) -> Context:
    total = expected.sum(axis=0)
    step = np.clip(_ratio(scores.sum(axis=0), total), -LARGEST_CORRECTION, LARGEST_CORRECTION)
    scores = scores - expected * step
    pairs, known = _pairs(scores, of), _pairs(expected, of).sum(axis=0)
    scale = _ratio(usage, known) * length / 2
    parts = pairs @ scale
    varying, error = float(parts.sum()), math.sqrt(len(parts) * float(parts.var(ddof=1)))
    noise = _ratio((_sums(scores, of) ** 2).sum(axis=0), total**2)
    common = max(length / 2 * float(usage @ ((delta + step) ** 2 - noise)), 0.0)
    reach = float(special.stdtrit(len(parts) - 1, (1 + CONFIDENCE) / 2)) * error
    share, low, high = (_share(part, common) for part in (varying, varying - reach, varying + reach))
    return Context(common, max(varying, 0.0), max(varying + reach, 0.0), share, low, high, len(usage), float(usage.sum()), prompts)


def _ratio(above: Vector, below: Vector) -> Vector:
    """(k,) the quotient, 0 where there is nothing below."""
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)


def _share(varying: float, common: float) -> float:
    """``varying / (varying + common)``, 0 where nothing varies."""
    return varying / (varying + common) if varying > 0 else 0.0


def _sums(values: Vector, of: Ids) -> Vector:
    """(p, k) sums by prompt."""
    out = np.zeros((int(of.max()) + 1, values.shape[1]))
    np.add.at(out, of, values)
    return out


def _pairs(values: Vector, of: Ids) -> Vector:
    """(p, k) sums by prompt of the products of two different completions."""
    return _sums(values, of) ** 2 - _sums(values**2, of)
