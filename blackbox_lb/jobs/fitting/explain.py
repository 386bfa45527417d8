"""Explaining a fit: its measurements become facts, and the facts findings in plain words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blackbox_lb.bias.records import Verdict
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits, candidates
from blackbox_lb.estimate.choice.table import estimator
from blackbox_lb.estimate.diagnosis.diagnose import Effect, Facts, diagnose
from blackbox_lb.estimate.diagnosis.findings import Finding
from blackbox_lb.estimate.diagnosis.headroom import Headroom, headroom
from blackbox_lb.estimate.diagnosis.reliability import Agreement, Precision, agreement, prompt_halves
from blackbox_lb.estimate.inputs.checks import Bools, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import projection, reward_weights
from blackbox_lb.estimate.projection.standard_errors import StandardErrors, standard_errors
from blackbox_lb.estimate.reweighting.weight_diagnostics import (
    Censoring,
    DeltaStatistics,
    Touched,
    delta_statistics,
    effective_sample_size,
    tail_coverage,
)
from blackbox_lb.rollouts.training import Training
from blackbox_lb.tasks import Reward

NO_LIMITS = CompileLimits(entries=None, low=-np.inf, high=np.inf, integers=False)


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """findings: the most likely reason first. errors: (k,) nats, the standard error of each value sent, NaN where it has none.

    statistics: of the learned bias, None where the size of the vocabulary is not known. agreement: between the biases of two halves
    of the prompts. effective_sample_size: of the reward weights, in completions.
    """

    findings: tuple[Finding, ...]
    errors: Vector
    statistics: DeltaStatistics | None
    agreement: Agreement
    effective_sample_size: float


def room_for_gain(rollouts: Rollouts, reward: Reward, tau: float, base: Bools | None = None) -> Headroom | None:
    """The room for a gain in the base's completions (``base`` (n,), None: all); None where no prompt has two."""
    drawn = rollouts if base is None else rollouts.take(base)
    try:
        return headroom(drawn.rewards, drawn.prompts, [reward.value(each) for each in drawn.rewards], tau=tau)
    except InputError:
        return None


def explain(
    training: Training,
    chosen: Candidate,
    reward: Reward,
    verdict: Sequence[Verdict],
    *,
    sweep: Sweep,
    vocab_size: int | None = None,
    top_logprobs: int | None = None,
) -> Explanation:
    """Explain why the chosen candidate, fitted to ``training``, helped or did not."""
    rollouts, next_token = training.rollouts, training.next_token
    if chosen.projected is not None:
        rollouts = replace(rollouts, shares=chosen.projected.shares)
    tau = float(chosen.settings["tau"] or 1.0)
    weights = reward_weights(rollouts, tau, sweep.weights)
    errors = _errors(rollouts, next_token, chosen)
    sent = next_token.align(chosen.sparse.token_ids, chosen.sparse.values)
    halves = _halves(rollouts, next_token, chosen, sweep)
    size = effective_sample_size(weights)
    facts = Facts(
        estimator=chosen.estimator,
        effect=_effect(verdict, reward),
        headroom=room_for_gain(rollouts, reward, tau, training.base),
        precision=None if errors is None else Precision.of(errors, rollouts),
        agreement=halves,
        effective_sample=size,
        censoring=None if rollouts.given.any() else Censoring.of(rollouts, next_token),
        tail=None if rollouts.given.any() else tail_coverage(next_token),
        touched=Touched.of(rollouts, next_token, sent),
        top_logprobs=top_logprobs,
    )
    statistics = None
    if vocab_size is not None and vocab_size >= len(chosen.learned):
        statistics = delta_statistics(chosen.learned, vocab_size, sampled=len(np.unique(rollouts.token_ids)))
    return Explanation(diagnose(facts), _of_sent(errors, chosen), statistics, halves, size)


def _errors(rollouts: Rollouts, next_token: NextToken, chosen: Candidate) -> StandardErrors | None:
    """Standard errors of the projection behind the candidate; None for another estimator, or too few prompts.

    Where these rollouts are a sample of the candidate's, the errors are those of a fit to the sample.
    """
    made = chosen.projected
    if made is None:
        return None
    fit, share = made.fit, len(rollouts.keys) / made.fit.rollouts
    tau, l2 = float(chosen.settings["tau"] or 1.0), float(chosen.settings["l2"] or 1.0) * share
    settings: dict[str, Any] = {"tau": tau, "l2": l2, "weights": made.weights, "support": made.support}
    try:
        if share < 1:
            fit = projection(rollouts, **settings, start=fit, next_token=next_token)
        return standard_errors(rollouts, next_token, fit, **settings)
    except InputError:
        return None


def sent_errors(rollouts: Rollouts, next_token: NextToken, chosen: Candidate) -> Vector:
    """(k,) nats, the standard error of each value that a candidate of these rollouts sends, NaN where it has none."""
    return _of_sent(_errors(rollouts, next_token, chosen), chosen)


def _of_sent(errors: StandardErrors | None, chosen: Candidate) -> Vector:
    sent = chosen.sparse.token_ids
    if errors is None:
        return np.full(len(sent), np.nan)
    return errors.errors[np.searchsorted(errors.token_ids, sent)]


def _halves(rollouts: Rollouts, next_token: NextToken, chosen: Candidate, sweep: Sweep) -> Agreement:
    """The agreement of the biases of two halves of the prompts, at the chosen settings and without a provider's limits."""
    nothing = Agreement(None, None)
    if len(np.unique(rollouts.prompts)) < 2:
        return nothing
    swept = ("tau", *estimator(chosen.estimator).facts.swept)
    own = {name: (value,) for name, value in chosen.settings.items() if name in swept}
    if chosen.projected is not None:  # the penalty is on a sum over rollouts, and a half has half as many
        own["l2"] = (float(chosen.settings["l2"] or 1.0) / 2,)
    one = replace(sweep, estimators=(chosen.estimator,), **own)  # type: ignore[arg-type]
    table = next_token.with_tokens(chosen.token_ids)

    def learned(half: Bools) -> Vector:
        part = table.take(half[rollouts.rollout_of])
        return next(candidates(rollouts.take(half), part, one, NO_LIMITS)).learned

    first, second = prompt_halves(rollouts.prompts)
    try:
        return agreement(learned(first), learned(second), table.expected(np.zeros(len(table.token_ids))))
    except InputError:  # a half without any reward learns nothing
        return nothing


def _effect(verdict: Sequence[Verdict], reward: Reward) -> Effect | None:
    """The effect on the reward in the test, at temperature 1 or else in the first row, and whether the verdict confirms it."""
    rows = [row for row in verdict if row.metric == reward.label]
    if not rows:
        return None
    row = next((each for each in rows if each.setting == "temperature 1"), rows[0])
    sign = 1 if row.better == "higher" else -1
    low, high = sorted((sign * row.low, sign * row.high))
    return Effect(
        sign * row.difference,
        low,
        high,
        prompts=row.n_prompts,
        completions=row.n_biased,
        proven=row.verdict != "NO EVIDENCE",
        setting=row.setting,
    )
