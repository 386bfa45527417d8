"""Diagnostics: numbers on the trust in an estimate and on the room to learn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Vector, vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken

EFFECT_SIZE_GATE = 5.0


@dataclass(frozen=True, slots=True)
class TailCoverage:
    """The mass that the top-k lists miss, as shares of 1.

    tail_mass: mean unlisted probability. unattributed: the part without a token to go to, which
    stays at bias 0.
    """

    tail_mass: float
    unattributed: float


@dataclass(frozen=True, slots=True)
class Censoring:
    """The sampled tokens' logprobs that the provider withheld.

    positions: sampled tokens. outside: those missing from the list of the likeliest at their
    position. bounded: those without a logprob, whose upper bound is the least listed one. mass:
    mean over positions of the unlisted probability ``1 - sum(top-k)``, which is the chance that a
    sampled token is censored.
    """

    positions: int
    outside: int
    bounded: int
    mass: float

    @classmethod
    def of(cls, rollouts: Rollouts, next_token: NextToken) -> Censoring:
        """Measure these rollouts; ``next_token`` is ``NextToken.of(rollouts)``. Raises InputError
        if it is of others.
        """
        if next_token.n_positions != len(rollouts.token_ids):
            raise InputError(
                f"next_token has {next_token.n_positions} positions, the rollouts"
                f" {len(rollouts.token_ids)}"
            )
        return cls(
            positions=next_token.n_positions,
            outside=int(next_token.sampled_outside.sum()),
            bounded=int(rollouts.is_bounded.sum()),
            mass=float(next_token.tail_mass.mean()),
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


@dataclass(frozen=True, slots=True)
class DeltaStatistics:
    """A bias over the whole vocabulary after centring to mean 0 (the paper, "Logit-bias
    statistics").

    sampled_fraction and selected_fraction are shares of the vocabulary; sigma, low and high are
    nats. selected_fraction counts coordinates with ``|delta| >= 5 median |delta|`` (and not 0, so
    that a bias of zeros selects nothing).
    """

    sampled_fraction: float
    sigma: float
    low: float
    high: float
    selected_fraction: float


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


def delta_statistics(
    delta: Vector, vocab_size: int, *, sampled: int | None = None
) -> DeltaStatistics:
    """Statistics of a bias with listed values ``delta`` (k,) in nats and 0 on the other
    ``vocab_size - k`` tokens.

    sampled: number of different sampled tokens, k if None.
    """
    listed = np.asarray(delta, dtype=np.float64)
    if len(listed) > vocab_size or vocab_size < 1:
        raise InputError(f"{len(listed)} biases do not fit a vocabulary of {vocab_size}")
    full = np.zeros(vocab_size)
    full[: len(listed)] = listed
    full -= full.mean()
    size = np.abs(full)
    selected = (size >= EFFECT_SIZE_GATE * np.median(size)) & (size > 0)
    return DeltaStatistics(
        sampled_fraction=(len(listed) if sampled is None else sampled) / vocab_size,
        sigma=float(full.std()),
        low=float(full.min()),
        high=float(full.max()),
        selected_fraction=float(selected.mean()),
    )
