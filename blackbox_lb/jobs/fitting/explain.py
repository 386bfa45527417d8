"""Explaining a fit: its measurements become facts, and the facts findings in plain words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blackbox_lb.bias.records import Verdict
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import Candidate
from blackbox_lb.estimate.choice.table import ROWS
from blackbox_lb.estimate.diagnosis.diagnose import (
    Effect,
    Facts,
    diagnose,
    test_findings,
)
from blackbox_lb.estimate.diagnosis.headroom import Headroom, Rarity, headroom
from blackbox_lb.estimate.diagnosis.reliability import Precision
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts, weighting
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import projection
from blackbox_lb.estimate.projection.standard_errors import (
    StandardErrors,
    standard_errors,
)
from blackbox_lb.estimate.reweighting import (
    Touched,
    censoring_of,
    effective_sample_size,
    learned_record,
    tail_coverage,
)
from blackbox_lb.jobs.fitting.evidence.selection import Selected
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.records import Finding, Learned
from blackbox_lb.tasks import Reward


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """findings: the most likely reason first. errors: (k,) nats, the standard error of each value
    sent, NaN where it has none.

    learned: statistics of the bias before the compile, None where the size of the vocabulary is not
    known.
    """

    findings: tuple[Finding, ...]
    errors: Vector
    learned: Learned | None


def room_for_gain(rollouts: Rollouts, reward: Reward, tau: float) -> Headroom | None:
    """The room for a gain in the base's completions; None where no prompt has two."""
    try:
        return headroom(
            rollouts.rewards,
            rollouts.prompts,
            [reward.displayed(measured) for measured in rollouts.rewards],
            tau=tau,
        )
    except InputError:
        return None


def explain(job: FitJob, selected: Selected, verdict: Sequence[Verdict]) -> Explanation:
    """Explain why the chosen candidate helped or did not.

    Of one without standard errors and without drawn completions the test alone tells: whether it
    helped, and how many prompts would show it.
    """
    reward = job.trials.reward
    chosen = selected.choice.candidate
    if not selected.has_errors:
        no_errors = np.full(chosen.sparse.entries, np.nan)
        return Explanation(test_findings(_effects(verdict, reward)), no_errors, None)
    training = selected.positions
    vocab_size = job.trials.tokenizer.vocabulary_size
    rollouts = training.rollouts
    next_token = training.next_token
    learned = chosen.learned_from or chosen
    projected = learned.projected
    tau = float(chosen.settings.get("tau") or 1.0)
    if projected is None:
        position_weights = weighting(tau, job.plan.sweep.weights).weights(rollouts)
    else:
        position_weights = projected.weights(rollouts)
    weights = position_weights.of_rollouts(rollouts)
    errors, no_precision = _errors(rollouts, next_token, learned)
    effects = _effects(verdict, reward)
    sent = next_token.align(chosen.sparse.token_ids, chosen.sparse.values)
    precision = None
    if errors is not None:
        precision = Precision.of(errors, rollouts)
    effect = None
    if effects:
        effect = effects[0]
    room = None
    rarity = None
    is_given = bool(rollouts.given.any())
    if not is_given:
        room = room_for_gain(rollouts, reward, tau)
        rarity = Rarity.of([reward.displayed(measured) for measured in rollouts.rewards])
    facts = Facts(
        estimator=learned.estimator,
        effect=effect,
        further_effects=effects[1:],
        headroom=room,
        precision=precision,
        rarity=rarity,
        effective_sample=effective_sample_size(weights),
        completions=len(weights),
        censoring=None if is_given else censoring_of(rollouts, next_token),
        tail=None if is_given else tail_coverage(next_token),
        touched=Touched.of(rollouts, next_token, sent),
        top_logprobs=job.trials.top_logprobs,
        truncation=selected.truncation,
        given=is_given,
        no_precision=no_precision,
    )
    record = None
    if vocab_size is not None and vocab_size >= len(chosen.values):
        record = learned_record(
            chosen.values,
            vocab_size,
            sampled=len(np.unique(rollouts.token_ids)),
            reliability=None if precision is None else precision.reliability,
        )
    return Explanation(diagnose(facts), _of_sent(errors, chosen), record)


def _errors(
    rollouts: Rollouts, next_token: NextToken, chosen: Candidate
) -> tuple[StandardErrors | None, str]:
    """Standard errors of the projection behind the candidate, None for another estimator; or None,
    and why there are none.

    Where these rollouts are a sample of the candidate's, the errors are those of a fit to the
    sample.
    """
    projected = chosen.projected
    if projected is None and chosen.estimator in ROWS:
        return None, ""
    if projected is None:
        return None, "no estimator made this bias, so its entries have no standard errors"
    fit = projected.fit
    share = len(rollouts.keys) / projected.fit.rollouts
    settings: dict[str, Any] = {
        "l2": projected.l2 * share,
        "support": projected.support,
        "prior": projected.prior,
    }
    try:
        weights = projected.weights(rollouts)
        if share < 1:
            fit = projection(rollouts, weights, **settings, start=fit, next_token=next_token)
        return standard_errors(rollouts, next_token, fit, weights, **settings), ""
    except InputError as error:
        return None, str(error)


def _of_sent(errors: StandardErrors | None, chosen: Candidate) -> Vector:
    sent = chosen.sparse.token_ids
    if errors is None or chosen.learned_from is not None:  # they are not of the values sent
        return np.full(len(sent), np.nan)
    # A token may be sent that the projection did not learn: one of a shifted label.
    places = np.minimum(np.searchsorted(errors.token_ids, sent), len(errors.token_ids) - 1)
    return np.where(errors.token_ids[places] == sent, errors.errors[places], np.nan)


def _effects(verdict: Sequence[Verdict], reward: Reward) -> tuple[Effect, ...]:
    """The effect on the reward in the test at each setting, that at temperature 1 first, and
    whether the verdict confirms it.
    """
    rows = [row for row in verdict if row.metric == reward.label]
    rows.sort(key=lambda row: row.setting != "temperature 1")
    return tuple(_effect(row) for row in rows)


def _effect(row: Verdict) -> Effect:
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
