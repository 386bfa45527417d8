"""Reweighted completions: how far the weights can be trusted, how far a biased policy is from the
base, and what it changes of a located reward.

Index letters: ``n`` completions, ``m`` their positions, ``s`` the support. Values in nats.

Each position of a drawn completion weighs by how much likelier the bias makes its token there, as
if what came before it stayed the same. The estimate leaves out what the bias changes before a
position, and the length of completions; it serves to order biases, and fresh completions decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector, vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import positive
from blackbox_lb.estimate.next_token.next_token import LoggedPositions, NextToken
from blackbox_lb.estimate.next_token.sparse_table import stretches, tally
from blackbox_lb.records import Censoring, Learned
from blackbox_lb.types import NO_TOKEN

EFFECT_SIZE_GATE = 5.0


@dataclass(frozen=True, slots=True)
class TailCoverage:
    """The mass that the top-k lists miss, as shares of 1.

    tail_mass: mean unlisted probability. unattributed: the part without a token to go to, which
    stays at bias 0.
    """

    tail_mass: float
    unattributed: float


def censoring_of(
    rollouts: Rollouts,
    next_token: NextToken,
    unobserved: Literal["bound", "drop"] | None = None,
) -> Censoring:
    """The sampled tokens' logprobs that the provider withheld; ``next_token`` is
    ``NextToken.of(rollouts)``.

    unobserved: what the estimator does with tokens that have only a bound.
    """
    return Censoring(
        positions=next_token.n_positions,
        outside=int(next_token.sampled_outside.sum()),
        bounded=int(rollouts.bounded.sum()),
        mass=float(next_token.tail_mass.mean()),
        unobserved=unobserved,
    )


@dataclass(frozen=True, slots=True)
class Touched:
    """The reach of a bias: the mean probability of the biased tokens at a position, without the
    bias and with it.

    entries: biased tokens that were listed or sampled; others have no probability here. tokens:
    mean length of a completion.
    """

    base: float
    biased: float
    entries: int
    tokens: float

    @property
    def per_completion(self) -> float:
        """Biased tokens expected in one completion of the same length, by the larger of the two
        probabilities.
        """
        return max(self.base, self.biased) * self.tokens

    @classmethod
    def of(cls, rollouts: Rollouts, next_token: NextToken, delta: npt.ArrayLike) -> Touched:
        """Measure ``delta`` (s,) in nats on the support of ``next_token``, which is of the
        rollouts.
        """
        bias = vector("delta", delta, len(next_token.token_ids))
        where = np.flatnonzero(bias)
        positions = next_token.n_positions
        base, biased = (
            float(next_token.expected(d)[where].sum()) / positions
            for d in (np.zeros_like(bias), bias)
        )
        return cls(base, biased, entries=len(where), tokens=positions / len(rollouts.keys))


def effective_sample_size(weights: npt.ArrayLike) -> float:
    """``(sum w)^2 / sum w^2`` of weights that are not negative; 0 if all are 0."""
    values = np.asarray(weights, dtype=np.float64)
    if (values < 0).any() or not np.isfinite(values).all():
        raise InputError("weights must be finite and not negative")
    highest = values.max(initial=0.0)
    if highest == 0:
        return 0.0
    scaled = values / highest
    return float(scaled.sum() ** 2 / (scaled**2).sum())


def reward_variance(rewards: npt.ArrayLike, prompts: npt.ArrayLike) -> tuple[float, float]:
    """V_0 of rewards (n,) answering prompts (n,), and its standard error, prompts being
    independent; infinite for one prompt.

    V_0 is ``E_x Var(r | x)``, the unbiased variance within each prompt, averaged over prompts (the
    paper, theorem "Reward gap"): where it is 0 there is nothing to learn. A log reward with -inf
    has no variance: pass ``exp(rewards)``, for example the 0/1 accuracy behind log-accuracy, and
    read the numbers on that scale. InputError otherwise, or if no prompt has two.
    """
    r = np.asarray(rewards, dtype=np.float64)
    of = np.asarray(prompts)
    if r.shape != of.shape or r.ndim != 1:
        raise InputError(f"rewards {r.shape} and prompts {of.shape} must have one shape (n,)")
    if not np.isfinite(r).all():
        raise InputError(
            f"reward {r[~np.isfinite(r)][0]} has no variance; pass exp(rewards), which is bounded"
        )
    names, where, sizes = np.unique(of, return_inverse=True, return_counts=True)
    several = sizes > 1
    if not several.any():
        raise InputError(
            f"none of {len(names)} prompts has two completions; sample each prompt at least twice"
        )
    means = np.bincount(where, weights=r) / sizes
    variances = np.bincount(where, weights=(r - means[where]) ** 2)[several] / (sizes[several] - 1)
    count = len(variances)
    error = math.inf
    if count > 1:
        error = float(variances.std(ddof=1)) / math.sqrt(count)
    return float(variances.mean()), error


def tail_coverage(next_token: NextToken) -> TailCoverage:
    """Measure the mass missing from the lists behind ``next_token``."""
    unattributed = next_token.rest - next_token.unnamed
    return TailCoverage(float(next_token.tail_mass.mean()), float(unattributed.mean()))


def learned_record(
    delta: Vector,
    vocab_size: int,
    *,
    sampled: int | None = None,
    reliability: float | None = None,
) -> Learned:
    """Statistics of a bias with listed values ``delta`` (k,) in nats and 0 on the other
    ``vocab_size - k`` tokens.

    Selected are values with ``|delta| >= 5 median |delta|`` that are not 0, so that a bias of zeros
    selects nothing. sampled: number of different sampled tokens, k if None.
    """
    listed = np.asarray(delta, dtype=np.float64)
    if len(listed) > vocab_size or vocab_size < 1:
        raise InputError(f"{len(listed)} biases do not fit a vocabulary of {vocab_size}")
    full = np.zeros(vocab_size)
    full[: len(listed)] = listed
    full -= full.mean()
    size = np.abs(full)
    selected = (size >= EFFECT_SIZE_GATE * np.median(size)) & (size > 0)
    return Learned(
        sampled_fraction=(len(listed) if sampled is None else sampled) / vocab_size,
        sigma=float(full.std()),
        low=float(full.min()),
        high=float(full.max()),
        selected_fraction=float(selected.mean()),
        reliability=reliability,
    )


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
    """Log of the factor on the tail that explains the number of tokens sampled outside the lists.

    By Newton's method, within the range that still holds the root.
    """
    if not outside.any():
        return -WIDEST
    if outside.all():
        return WIDEST
    odds = log_tail - log_listed
    low = -WIDEST
    high = WIDEST
    factor = 0.0
    step = math.inf
    while abs(step) > 1e-9:
        missed = 1 / (1 + np.exp(-np.clip(odds + factor, -700, 700)))
        surplus = float(missed.sum() - outside.sum())
        if surplus > 0:
            high = factor
        else:
            low = factor
        step = (low + high) / 2 - factor
        slope = float((missed * (1 - missed)).sum())
        if low < factor - surplus / max(slope, 1e-300) < high:
            step = -surplus / slope
        factor += step
    return factor


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

    The error is that of a ratio of sums over the G completions that hold the token: ``G / (G - 1)
    sum_g (sum of shift - S in g)^2 / count^2``. InputError: shapes that differ.
    """
    tokens = np.asarray(token_ids)
    owner = np.asarray(completions)
    values = np.asarray(shifts, dtype=np.float64)
    if not tokens.shape == owner.shape == values.shape or values.ndim != 1:
        raise InputError(
            f"tokens {tokens.shape}, completions {owner.shape} and shifts {values.shape} need one"
            " shape (m,)"
        )
    ids, place, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    scores = np.bincount(place, weights=values) / counts
    return InterventionScores(
        ids.astype(np.int64), scores, _errors(place, owner, values - scores[place], counts), counts
    )


def _errors(place: Ids, owner: Ids, residuals: Vector, counts: Ids) -> Vector:
    """(s,) from the residuals (m,) of the tokens ``place`` (m,)."""
    completions = int(owner.max(initial=0)) + 1
    cells, cell = np.unique(place * completions + owner, return_inverse=True)
    of = cells // completions
    squares = np.bincount(of, weights=np.bincount(cell, weights=residuals) ** 2)
    groups = np.bincount(of).astype(np.float64)
    scale = np.divide(groups, groups - 1, out=np.full(len(groups), np.nan), where=groups > 1)
    return np.asarray(np.sqrt(scale * squares) / counts, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class LocatedCosts:
    """The positions that add to the reward of completions of the base model at one temperature.

    Index letters: ``n`` completions, ``c`` positions with a cost, ``k`` listed tokens.

    Attributes:
        temperature: at which the completions were drawn.
        prompts: (n,) the prompt of each completion.
        completion_of: (c,) the completion of each position.
        costs: (c,) what each adds to the reward.
        sampled: (c,) the token there.
        listed: (c, k) ids of the listed tokens, -1 for none.
        log_shares: (c, k) their log probabilities at the temperature, the listed tokens and all
            others together being 1.
        rest: (c,) the probability of all others.
    """

    temperature: float
    prompts: npt.NDArray[np.int64]
    completion_of: npt.NDArray[np.int64]
    costs: Vector
    sampled: npt.NDArray[np.int64]
    listed: npt.NDArray[np.int64]
    log_shares: Vector
    rest: Vector

    @classmethod
    def of(cls, rollouts: Rollouts, temperature: float) -> Self:
        """Those of ``rollouts``, which the base model drew at ``temperature``.

        The unlisted tokens of a position are taken to be as likely as the least likely listed one
        each: at a temperature below 1 they are less than that together.

        Raises:
            InputError: the rollouts have no costs, or the temperature is not above 0.
        """
        positive("temperature", temperature)
        if rollouts.costs is None:
            raise InputError("the reward of these rollouts is no sum over positions")
        places = np.flatnonzero(rollouts.costs)
        logprobs = rollouts.top_logprobs[places].astype(np.float64)
        is_listed = np.isfinite(logprobs)
        listed = np.where(is_listed, rollouts.top_ids[places], NO_TOKEN).astype(np.int64)
        unlisted = np.clip(1.0 - np.exp(logprobs).sum(axis=1), 0.0, 1.0)
        least = np.where(is_listed, logprobs, 0.0).min(axis=1, initial=0.0)
        log_rest = np.log(np.maximum(unlisted, 1e-300)) + least * (1.0 / temperature - 1.0)
        scaled = logprobs / temperature
        total = np.logaddexp.reduce(np.column_stack([scaled, log_rest]), axis=1)
        return cls(
            temperature,
            rollouts.prompts,
            np.asarray(rollouts.rollout_of[places], np.int64),
            rollouts.costs[places],
            rollouts.token_ids[places].astype(np.int64),
            listed,
            scaled - total[:, None],
            np.exp(log_rest - total),
        )

    def change(self, bias: Mapping[int, float]) -> Vector:
        """(n,) the expected change of each completion's reward under ``bias``, token id -> nats."""
        ids = np.array(sorted(bias), dtype=np.int64)
        nats = np.array([bias[token] for token in ids.tolist()]) / self.temperature
        shifted = self.log_shares + _values(self.listed, ids, nats)
        normaliser = np.exp(shifted).sum(axis=1) + self.rest
        ratio = np.exp(_values(self.sampled, ids, nats)) / normaliser
        change = np.zeros(len(self.prompts))
        np.add.at(change, self.completion_of, self.costs * (ratio - 1.0))
        return change


def _values(tokens: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], nats: Vector) -> Vector:
    """The nats of each of ``tokens``, 0 for a token that is not among the sorted ``ids``."""
    if not ids.size:
        return np.zeros(tokens.shape)
    places = np.minimum(np.searchsorted(ids, tokens), len(ids) - 1)
    return np.where(ids[places] == tokens, nats[places], 0.0)
