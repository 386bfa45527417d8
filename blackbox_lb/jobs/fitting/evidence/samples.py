"""Evidence from samples: completions of the training prompts, weighed by their rewards. A first
look stops where they show nothing to learn. Fresh completions of the validation prompts choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.table import rule
from blackbox_lb.estimate.diagnosis.truncation import Truncation
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.reweighting import censoring_of
from blackbox_lb.jobs.fitting.choosing.scorers import FromSamples
from blackbox_lb.jobs.fitting.evidence.selection import (
    Selected,
    check_plan,
    select_by,
)
from blackbox_lb.jobs.fitting.explain import room_for_gain
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.varying.by_samples import challengers_by_samples
from blackbox_lb.rollouts.judging.trials import Trials, stage_part
from blackbox_lb.rollouts.judging.verdict import SAMPLED, check_values, truncation_of
from blackbox_lb.rollouts.positions import Positions, scored, training_set
from blackbox_lb.rollouts.progress import short
from blackbox_lb.tasks import Reward
from blackbox_lb.types import Example

FIRST_LOOK = 50
"""Prompts before the first look at the reward's variance: enough to see that there is none, few
enough to cost little.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The scored completions of the training prompts.

    Attributes:
        positions: of all completions.
        truncation: of those of the first look, None where the reward is not by length.
    """

    positions: Positions
    truncation: Truncation | None

    async def choose(self, job: FitJob) -> Selected:
        """See ``FitEvidence``: the race by fresh completions."""
        trials = job.trials
        plan = job.plan
        censoring = censoring_of(
            self.positions.rollouts, self.positions.next_token, rule(plan.sweep)
        )
        trials.report.detail(censoring.sentence(trials.top_logprobs))
        scorer = FromSamples(trials, job.task.validation, plan.goal, plan.settings)
        selected = await select_by(scorer, job, self.positions, challengers_by_samples)
        return replace(selected, truncation=self.truncation)


async def collect(job: FitJob) -> Samples:
    """Draw the completions of the plan unless they are in the store, each scored once, the first
    look included.

    Raises:
        InputError: the plan is impossible, or there is nothing to learn: all rewards are equal, or
        the first look shows no room for a gain and the plan does not say to go on; or a reward is
        not finite or too large. ProviderError: the API failed.
    """
    check_plan(job)
    remembering = replace(job.trials, reward=job.trials.reward.remembering())
    job = replace(job, trials=remembering)
    truncation = None
    if not job.plan.only_stored:
        truncation = await _first_look(job)
    return Samples(await _positions(job, truncation), truncation)


async def _first_look(job: FitJob) -> Truncation | None:
    """Draw completions of the first prompts, and report what they allow to learn. Returns how many
    the limit cut; None where the reward is not by length.
    """
    trials = job.trials
    first = job.examples[:FIRST_LOOK]
    keys = await _collected_keys(job, f"training, first {len(first)} prompts", first)
    rollouts, _ = scored(trials.store, first, keys, trials.reward, trials.end_tokens, lists=False)
    _check(trials.reward, rollouts.rewards)
    truncation = truncation_of(
        trials.reward, trials.store.completions([key for row in keys for key in row])
    )
    if truncation is not None and truncation.hides_lengths:
        trials.report.notice(f"first {len(first)} prompts: {truncation.warning}")
    room = room_for_gain(rollouts, trials.reward, min(job.plan.sweep.tau))
    if room is None:
        trials.report.detail(
            "what there is to learn was not checked: it takes two completions a prompt"
        )
        return truncation
    trials.report.detail(f"first {len(first)} prompts: {room.sentence}")
    if room.decision != "nothing":
        return truncation
    if len(first) < len(job.examples) and not job.plan.go_on:
        _refuse_without_hits(trials.reward, rollouts.rewards)
        remedy = _longer_or(
            truncation, "use another reward, or prompts that the model sometimes gets right"
        )
        raise InputError(
            f"{room.plain}; stopped after {len(first)} of {len(job.examples)} prompts,"
            f" before more is paid for: {remedy}, or ``go_on`` to collect all the same (what came"
            " is kept)"
        )
    trials.report.notice(room.plain)
    return truncation


async def _positions(job: FitJob, truncation: Truncation | None) -> Positions:
    """All completions of the plan as training data. truncation: of the first look."""
    trials = job.trials
    keys = await _collected_keys(job, "training", job.examples)
    await trials.spell_tokens(job.examples, keys)
    training = training_set(
        trials.store,
        job.examples,
        keys,
        trials.reward,
        trials.end_tokens,
        vocab_size=trials.tokenizer.vocabulary_size,
        engine=trials.engine,
    )
    values = _announce(training, trials)
    if np.ptp(values) == 0:
        _refuse_without_hits(trials.reward, values)
        label = trials.reward.label
        remedy = _longer_or(truncation, _remedy_for_equal(trials.reward, float(values[0])))
        raise InputError(
            f"every completion has the same {label} ({values[0]:.3g}): there is nothing to"
            f" learn from this reward; {remedy}"
        )
    return training


async def _collected_keys(
    job: FitJob, title: str, examples: Sequence[Example]
) -> tuple[tuple[str, ...], ...]:
    """Keys of the plan's completions of ``examples``. Raises InputError: only stored ones are
    wanted, and there are none.
    """
    plan = job.plan
    trials = job.trials
    part = stage_part(trials.draw, title, examples, SAMPLED, plan.samples_per_prompt)
    [keys] = await trials.collect_all(title, [part], only_stored=plan.only_stored)
    stored = sum(map(len, keys))
    if not stored:
        raise InputError(
            f"{trials.store.path} holds no completion of these {len(examples)} training prompts"
            " under these settings (model, ``max_tokens``, ``top_logprobs``, ``seed``); check"
            " them and ``rollouts``, or leave out ``only_stored``"
        )
    if plan.only_stored:
        trials.report.detail(
            f"{title}: {stored:,} of {len(examples) * plan.samples_per_prompt:,} completions are"
            " stored; no more are asked for"
        )
    return keys


def _longer_or(truncation: Truncation | None, remedy: str) -> str:
    """A longer limit where this one hides the lengths of completions, else ``remedy``."""
    if truncation is None or not truncation.hides_lengths:
        return remedy
    return f"{truncation.sentence}, and {truncation.remedy}"


def _announce(training: Positions, trials: Trials) -> Vector:
    """Report what the training completions are worth; return (n,) their rewards in the user's own
    unit.
    """
    reward = trials.reward
    positions = len(training.rollouts.token_ids)
    everywhere = len(training.learned_from.token_ids)
    if positions < everywhere:
        trials.report.detail(
            f"learned from {everywhere:,} positions; compiled and explained with {positions:,}"
            " of them, whose standard errors are larger than those of all"
        )
    values = _check(reward, training.learned_from.rewards)
    trials.report.detail(
        f"{len(values)} rollouts, {everywhere:,} tokens, mean {reward.label} {short(values.mean())}"
    )
    for sentence in training.notices:
        trials.report.notice(sentence)
    return values


def _refuse_without_hits(reward: Reward, values: Vector) -> None:
    """Raise InputError: the reward counts what a completion should not do, and none does it.

    values: (n,) rewards of the completions.
    """
    if reward.label.startswith("-") and not values.any():
        raise InputError(
            f"the model does not do what {reward.name} is against: 0 hits in {len(values):,}"
            " completions, so there is nothing to remove; give prompts on which it does"
        )


def _remedy_for_equal(reward: Reward, value: float) -> str:
    """What to do where every completion has the same reward."""
    if not reward.needs_answer:
        return "use another reward, or other prompts"
    if value > 0:
        return "use another reward, or harder prompts"
    return "use another reward, or prompts that the model sometimes gets right"


def _check(reward: Reward, rewards: Vector) -> Vector:
    """The ``rewards`` (n,) in nats, checked, in the user's own unit. Raises InputError: one is not
    finite or too large.
    """
    values = np.array([reward.displayed(measured) for measured in rewards])
    check_values(f"training: {reward.label}", values)
    return values
