"""Estimates of a bias's effect from completions of the base model: reward, length and KL, with their errors.

Index letters: ``n`` completions, ``m`` their positions, ``x`` prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector, vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.thresholds import EFFECTIVE_PROMPTS, EFFECTIVE_SAMPLE, HIDDEN_STOP, MEAN_WEIGHT
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting.importance import log_policy_ratios
from blackbox_lb.estimate.reweighting.weight_diagnostics import effective_sample_size


@dataclass(frozen=True, slots=True, eq=False)
class ByPrompt:
    """A mean over prompts that remembers its parts, so that the error of a difference is that of the paired difference.

    ``parts``: (x,) one number a prompt whose mean is the estimate: the mean of its completions, or a linearisation of a ratio. NaN
    where a prompt has no completion.
    """

    parts: Vector

    @property
    def value(self) -> float:
        """The mean of the parts; NaN where there is none."""
        known = self.parts[~np.isnan(self.parts)]
        return float(known.mean()) if known.size else math.nan

    @property
    def standard_error(self) -> float:
        """Standard error of the value, prompts being independent of each other; infinite with fewer than two."""
        known = self.parts[~np.isnan(self.parts)]
        return float(known.std(ddof=1) / math.sqrt(known.size)) if known.size > 1 else math.inf

    def minus(self, other: ByPrompt, times: float = 1.0) -> ByPrompt:
        """``self - times * other``, over the prompts that both have."""
        return ByPrompt(self.parts - times * other.parts)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Results of a policy on a set of prompts.

    reward: in the user's own unit. tokens: of a completion. accuracy: 0 to 1, None where no right answer is known. kl:
    KL(p_delta || p_0) in nats a completion, None where it is not known.
    """

    reward: ByPrompt
    tokens: ByPrompt
    accuracy: ByPrompt | None
    kl: ByPrompt | None


@dataclass(frozen=True, slots=True, eq=False)
class OffPolicy:
    """The estimated ``outcome`` of a policy without samples, with measures of trust.

    effective_sample_size, effective_prompts: ``(sum w)^2 / sum w^2`` of the weights of completions, and of their sums by prompt.
    mean_weight: mean of p_delta / p_0, which is 1 in truth. doubts: reasons against using the estimate, a clause each.
    """

    outcome: Outcome
    effective_sample_size: float
    effective_prompts: float
    mean_weight: float
    doubts: tuple[str, ...]

    @property
    def trusted(self) -> bool:
        """Whether the estimate may be used and shown; otherwise it is noise."""
        return not self.doubts


def off_policy(
    rollouts: Rollouts,
    next_token: NextToken,
    delta: npt.ArrayLike,
    *,
    reward: npt.ArrayLike,
    tokens: npt.ArrayLike,
    correct: npt.ArrayLike | None = None,
) -> OffPolicy:
    """Estimate the outcome of the policy biased by ``delta`` (s,), in nats on the support of ``next_token``.

    rollouts: completions of the *base* unseen by the fit of ``delta``. next_token: of these. reward, tokens, correct:
    (n,) of each completion, finite; reward in the user's own unit. With w = p_delta / p_0 and b the mean of the other completions
    of the same prompt (of all prompts where there is no other),

        E_delta[f] = E_0[f] + E_0[w (f - b)] / E_0[w],    KL(p_delta || p_0) = E_0[w sum_t KL_t] / E_0[w].

    Both are self-normalised (Swaminathan and Joachims 2015). b leaves out its own completion, so it adds no bias; it takes the
    differences between prompts out of the variance, because E_0[w] is 1 for each of them. KL_t is exact at its position, which
    varies far less than log w. Standard errors take prompts as clusters.

    Raises InputError: no completion, shapes that do not agree, values that are not finite, or completions of another policy.
    """
    n = len(rollouts.keys)
    if n == 0:
        raise InputError("no base completions to estimate from; draw at least two for each prompt")
    log_weights = log_policy_ratios(rollouts, next_token, delta)
    weights = np.exp(log_weights - log_weights.max())
    groups = np.unique(rollouts.prompts, return_inverse=True)[1]
    divergences = np.bincount(rollouts.rollout_of, weights=next_token.kl(delta), minlength=n).astype(np.float64)
    outcome = Outcome(
        reward=_tilted(vector("reward", reward, n), weights, groups),
        tokens=_tilted(vector("tokens", tokens, n), weights, groups),
        accuracy=None if correct is None else _tilted(vector("correct", correct, n), weights, groups),
        kl=ByPrompt(_ratio(divergences, weights, groups)),
    )
    completions, prompts = effective_sample_size(weights), effective_sample_size(np.bincount(groups, weights=weights))
    mean_weight = float(np.exp(min(log_weights.max() + math.log(weights.mean()), 700.0)))
    doubts = _doubts(completions, prompts, mean_weight, float((1 - next_token.named_mass).sum() / n))
    return OffPolicy(outcome, completions, prompts, mean_weight, doubts)


def _tilted(values: Vector, weights: Vector, groups: Ids) -> ByPrompt:
    own = _means(values, groups)
    return ByPrompt(own + _ratio(values - _others(values, groups), weights, groups))


def _others(values: Vector, groups: Ids) -> Vector:
    """(n,) the mean over the other completions of the same prompt; over everything where there is no other."""
    sizes = np.bincount(groups)[groups]
    totals = np.bincount(groups, weights=values)[groups]
    return np.where(sizes > 1, (totals - values) / np.maximum(sizes - 1, 1), values.mean())


def _ratio(values: Vector, weights: Vector, groups: Ids) -> Vector:
    """(x,) parts of ``E[w f] / E[w]``: the ratio of means over prompts, linearised (the delta method)."""
    above, below = _means(weights * values, groups), _means(weights, groups)
    ratio = above.mean() / below.mean()
    parts: Vector = ratio + (above - ratio * below) / below.mean()
    return parts


def _means(values: Vector, groups: Ids) -> Vector:
    return np.bincount(groups, weights=values) / np.bincount(groups)


def _doubts(completions: float, prompts: float, mean_weight: float, hidden: float) -> tuple[str, ...]:
    found = []
    if EFFECTIVE_SAMPLE.judge(completions) == "FAIL":
        found.append(f"{completions:.0f} effective completions, fewer than {EFFECTIVE_SAMPLE.bad:g}")
    if EFFECTIVE_PROMPTS.judge(prompts) == "FAIL":
        found.append(f"{prompts:.0f} effective prompts, fewer than {EFFECTIVE_PROMPTS.bad:g}")
    if MEAN_WEIGHT.judge(abs(mean_weight - 1)) == "FAIL":
        found.append(f"the weights have mean {mean_weight:.2f}, further than {MEAN_WEIGHT.bad:g} from 1")
    if HIDDEN_STOP.judge(hidden) == "FAIL":
        found.append(f"tokens without an id had probability {hidden:.2f} a completion, above {HIDDEN_STOP.bad:g}")
    return tuple(found)
