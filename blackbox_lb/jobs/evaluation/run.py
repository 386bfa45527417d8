"""The whole evaluation: every arm is drawn on the same test prompts, compared and reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from blackbox_lb.api.wire import takes_messages
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.limits import check_limits
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.evaluation.arms import (
    BASE,
    Alternative,
    Arm,
    ArmResult,
    arms_at,
    collect_arms,
    decide,
    result_of,
    unranked,
)
from blackbox_lb.jobs.evaluation.compare import (
    comparisons,
    notes,
    planned,
    policy,
    summarise,
    unresolvable,
)
from blackbox_lb.jobs.evaluation.document import MOST_SHOWN, Evaluation, ShownPrompt
from blackbox_lb.jobs.records.run_record import Remembering, provenance
from blackbox_lb.rollouts.judging.decisions import about_labels, check_wanted
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import GREEDY, SAMPLED, Setting, parse_setting
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.types import Example

if TYPE_CHECKING:
    from blackbox_lb.jobs.evaluation.arms import Alternative
    from blackbox_lb.providers.prices import Prices
    from blackbox_lb.tasks.sets.labels import Labels


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """The settings of an evaluation. ``samples``: completions a prompt and policy. ``labels``: None
    where the task is no decision.

    ``effect``: the difference of the reward for a sample size. ``prices``: None where not known.
    """

    settings: tuple[Setting, ...] = (SAMPLED, GREEDY)
    alternatives: tuple[Alternative, ...] = ()
    samples: int = 6
    effect: float | None = None
    prices: Prices | None = None
    labels: Labels | None = None


def default_settings(biases: Iterable[Bias], reward: Reward) -> tuple[Setting, ...]:
    """The settings at which ``biases`` were judged; where none has a verdict, temperature 1 and
    greedy. Wanted shares have no greedy setting, and temperature 1 where none is left.
    """
    names = dict.fromkeys(row.setting for bias in biases for row in bias.verdict)
    settings = tuple(parse_setting(name.replace(" ", "=")) for name in names)
    if reward.of_shares:
        return tuple(setting for setting in settings if not setting.deterministic) or (SAMPLED,)
    return settings or (SAMPLED, GREEDY)


async def evaluate(
    trials: Trials, task: Task, biases: Mapping[str, Bias], plan: EvalPlan
) -> Evaluation:
    """Judge base, biases, alternatives and both together on the test prompts. The trials' store is
    not asked for again.

    ``biases``: by their names in the result; they must fit the model's tokenizer and the provider's
    limits already.

    Raises ProviderError: the API failed; what was received is kept. InputError: a name that is
    taken, completions that cannot be ranked, or nothing to compare.
    """
    if BASE in biases:
        raise InputError(
            f"a bias cannot be called {BASE!r}, which is the policy without one; name it with"
            " NAME=FILE"
        )
    check_wanted(trials.reward, task.test, plan.settings)
    remembering = Remembering(trials.report)
    trials = replace(trials, report=remembering)
    examples = task.test
    values = {name: to_request_bias(bias, trials.store) for name, bias in biases.items()}
    alternatives = [await _ready(trials, alternative) for alternative in plan.alternatives]
    arms = [
        arm
        for setting in dict.fromkeys(plan.settings)
        for arm in arms_at(setting, values, alternatives)
        if _ranked(trials, arm)
    ]
    _check_names(arms)
    _announce(trials, plan, examples, arms)
    for name, bias in biases.items():
        if bias.task == task.name and bias.data_hash not in (None, task.data_hash):
            trials.report.notice(
                f"{name} was learned on other examples of {task.name}, or on another division of"
                " them: make sure that no test prompt here is one that it was learned or chosen on"
                " (the same ``data``, ``test_data`` and limits)"
            )
    notices = [] if plan.labels is None else list(about_labels(plan.labels, trials.reward))
    for sentence in [*notices, *([task.note] if task.note else [])]:
        trials.report.notice(sentence)
    results = await _results(trials, plan, examples, arms)
    return _report_arms(trials, task, plan, examples, results, remembering)


async def _ready(trials: Trials, policy: Alternative) -> Alternative:
    """Prepare an alternative for the session. Raises an error where the endpoint or the provider
    does not take it.
    """
    if policy.shots and not takes_messages(trials.session.biased_endpoint):
        raise InputError(
            f"{policy.name} stands before the prompt as messages, and the"
            f" {trials.session.biased_endpoint} endpoint takes one text; use ``endpoint=chat``, or"
            " drop ``few_shot``"
        )
    alternative = await policy.ready(trials)
    check_limits(alternative.bias, trials.session.profile, trials.session.highest_id)
    return alternative


async def _results(
    trials: Trials, plan: EvalPlan, examples: Sequence[Example], arms: Sequence[Arm]
) -> list[ArmResult]:
    """The results of all arms. Decisions made here come first, so that errors come in time, and are
    the same at all settings.
    """
    decided: dict[Alternative, ArmResult] = {}
    for arm in arms:
        if (
            arm.alternative.decision is not None
            and arm.alternative not in decided
            and plan.labels is not None
        ):
            decided[arm.alternative] = await decide(trials, examples, arm, plan.labels)
    drawn = [arm for arm in arms if arm.alternative not in decided]
    tables = iter(await collect_arms(trials, examples, drawn, plan.samples))
    return [
        (
            replace(decided[arm.alternative], arm=arm)
            if arm.alternative in decided
            else result_of(trials, examples, arm, next(tables), plan.labels)
        )
        for arm in arms
    ]


def _report_arms(
    trials: Trials,
    task: Task,
    plan: EvalPlan,
    examples: Sequence[Example],
    results: Sequence[ArmResult],
    remembering: Remembering,
) -> Evaluation:
    label = trials.reward.label
    limit = trials.reward.max_tokens
    policies = tuple(policy(result, label, limit, plan.prices) for result in results)
    rows = comparisons(results, label, plan.effect)
    fewest = min((row.n_prompts for row in rows), default=0)
    if rows and fewest < len(examples):  # else it was said before the first request
        for sentence in unresolvable(fewest, Counter(row.family for row in rows)):
            trials.report.notice(sentence)
    if plan.prices is not None and any(row.prompt_tokens == 0 for row in policies):
        trials.report.notice(
            f"{trials.session.profile.name} does not count prompt tokens: costs are of completions"
            " only"
        )
    return Evaluation(
        provider=trials.session.profile.name,
        model=trials.session.model,
        task=task.name,
        reward=trials.reward.spec,
        label=label,
        policies=policies,
        comparisons=rows,
        summary=summarise(policies, rows, label, plan.effect),
        notes=notes(rows, plan.samples),
        effect=plan.effect,
        examples=tuple(_shown(examples, results)),
        provenance=provenance(remembering.notices),
    )


def _check_names(arms: Sequence[Arm]) -> None:
    """Raise InputError where two policies of a setting would have one name, and indistinguishable
    rows.
    """
    names = [(arm.setting.name, arm.name) for arm in arms]
    repeated = sorted({name for place, name in names if names.count((place, name)) > 1})
    if repeated:
        raise InputError(
            f"two policies would both be called {repeated[0]!r}; give the bias another name with"
            " NAME=FILE"
        )


def _ranked(trials: Trials, arm: Arm) -> bool:
    """Whether the arm can be drawn; raises for an unrankable arm without a bias, leaves out one
    with a bias, with a remark.
    """
    why = unranked(trials, arm)
    if why is not None and arm.bias_name is None:
        raise InputError(
            f"``best_of`` cannot rank completions at {arm.setting.name}: {why}; drop ``best_of``"
        )
    if why is not None:
        trials.report.notice(f"{arm.setting.name}, {arm.name} is left out: {why}")
    return why is None


def _announce(
    trials: Trials, plan: EvalPlan, examples: Sequence[Example], arms: Sequence[Arm]
) -> None:
    """Announce the maximum of requests, and remarks on the prompts, before anything costs money."""
    trials.report.notice(
        f"{len(arms)} policies on {len(examples)} test prompts, {plan.samples} completions of each"
        " (one where greedy); what is in the store is not asked for again"
    )
    if len(arms) > 1:
        counts = planned(arms, trials.reward, examples)
        trials.report.notice(
            f"{counts['primary']} primary comparisons (a bias with the base; without a bias, an"
            f" alternative with it) and {counts['secondary']} secondary ones; p is adjusted within"
            " each of both"
        )
        for sentence in unresolvable(len(examples), counts):
            trials.report.notice(sentence)
    for cost in dict.fromkeys(
        f"{arm.alternative.name}: {arm.alternative.cost}" for arm in arms if arm.alternative.cost
    ):
        trials.report.notice(cost)
    instructed = any(arm.alternative.instruction for arm in arms)
    if instructed and not takes_messages(trials.session.biased_endpoint):
        trials.report.notice(
            "the completions endpoint takes one text, so instructions stand at its very end, after"
            " any cue for the answer; a chat endpoint treats them more fairly"
        )
    elif instructed and any(
        example.prompt.messages[-1].content.rstrip().endswith(":") for example in examples
    ):
        trials.report.notice(
            "prompts end with a cue for the answer, and instructions stand after it, which may do"
            " an instruction less than justice"
        )


def _shown(examples: Sequence[Example], results: Sequence[ArmResult]) -> Iterator[ShownPrompt]:
    """Answers of base and biases side by side, greedy ones where there are any, else first samples;
    without a bias, of all arms.

    Prompts where an answer differs from the base's come first; else their order is the task's.
    """
    settings = dict.fromkeys(result.arm.setting for result in results)
    chosen = next((setting for setting in settings if setting.deterministic), next(iter(settings)))
    setting_results = [result for result in results if result.arm.setting == chosen]
    biased = any(result.arm.bias_name for result in setting_results)
    sides = [result for result in setting_results if not (biased and result.arm.alternative.name)]
    rows = list(zip(examples, *(side.first for side in sides), strict=True))
    rows.sort(key=lambda row: len({answer.text for answer in row[1:] if answer is not None}) < 2)
    for example, *answers in rows[:MOST_SHOWN]:
        yield ShownPrompt(
            id=example.id,
            prompt=example.prompt.text,
            answers=example.answers,
            completions=tuple(answer for answer in answers if answer is not None),
        )
