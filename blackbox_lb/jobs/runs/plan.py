"""From what a user asked for to the plan of a fit: what was left open is decided by the data."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.goal import MEASURES, Costs, Goal, Objective
from blackbox_lb.estimate.choice.table import estimators
from blackbox_lb.estimate.inputs.recipe import ANSWERS_L2, DEFAULT_L2, Sweep
from blackbox_lb.jobs.fitting.plan import FitPlan, LearnFrom
from blackbox_lb.rollouts.judging.decisions import check_wanted
from blackbox_lb.rollouts.judging.verdict import GREEDY, SAMPLED, parse_setting
from blackbox_lb.safety.printable import shorten
from blackbox_lb.safety.untrusted import parse_json, read_settings
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.sets.labels import LEAST_ROWS, OPENING, Labels, OpenLabels

COST = "cost:"
_GOAL = Goal()
EXAMPLE = '{"yes": {"no": 5}, "no": {"yes": 1}}'


def parse_goal(
    objective: str = _GOAL.objective,
    positive: str | None = None,
    labels: Labels | None = None,
) -> Goal:
    """The goal of a fit.

    Args:
        objective: a name of ``Objective``; cost:FILE; recall@precision=, precision@recall= or rate=
            with a share.
        positive: the label that an operating point decides for.
        labels: of the task; of open ones the opening is the positive label by default, and accuracy
            the goal.

    Raises:
        InputError: no such objective, a share that is none, a file of costs that cannot be read, or
            something that the objective needs and lacks.
    """
    if isinstance(labels, OpenLabels):
        positive = positive or labels.names[OPENING]
        objective = "accuracy" if objective == "reward" else objective
    if objective.startswith(COST):
        costs = read_costs(Path(objective.removeprefix(COST)))
        return Goal("cost", positive=positive, costs=costs)
    name, equals, number = objective.partition("=")
    level = None
    if equals:
        level = _level(objective, number)
    for metric in get_args(Objective):
        if name == metric:
            return Goal(metric, level, positive)
    raise InputError(f"``objective={objective}`` is unknown; choose {', '.join(choices())}")


def choices() -> list[str]:
    """What can be named as objective, as a user writes it."""
    written = {"cost": "cost:FILE"} | {name: f"{name}=SHARE" for name in MEASURES}
    return [written.get(name, name) for name in get_args(Objective)]


def _level(objective: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise InputError(
            f"``objective={objective}`` names no share; give one as in recall@precision=.95"
        ) from None


def read_costs(path: Path) -> Costs:
    """The costs in a JSON file: right label -> decided label -> cost.

    Raises InputError: it cannot be read, or a cost is no number from 0.
    """
    document = read_settings(
        path, "the file of costs", f"give a file as in {EXAMPLE}", parse=parse_json
    )
    if not isinstance(document, dict) or not document:
        raise InputError(f"{path}: the costs are no JSON object; write them as in {EXAMPLE}")
    costs: dict[str, dict[str, float]] = {}
    for right, row in document.items():
        if not isinstance(row, dict):
            raise InputError(
                f"{path}: the costs of the label {right!r} are no object; write them as in"
                f" {EXAMPLE}"
            )
        costs[right] = {decided: _cost(path, right, decided, row[decided]) for decided in row}
    return costs


def _cost(path: Path, right: str, decided: str, value: object) -> float:
    """One cost. Raises InputError: it is no number from 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= sys.float_info.max:  # type: ignore[operator]
        raise InputError(
            f"{path}: deciding {decided!r} where {right!r} is right costs {shorten(value)}; give a"
            " finite number from 0"
        )
    return float(value)  # type: ignore[arg-type]


CORRECTNESS = frozenset({"exact-match", "contains", "accuracy", "log-accuracy"})
"""Rewards that only depend on whether the answer is right."""
SEEN_ERRORS = 1.84
"""Standard errors of a loss that is seen in four of five cases where one standard error is
allowed: 1 and the 80th percentile of a normal distribution.
"""
SMALL_LOSS = 10
"""Points of accuracy that may be lost unseen without a word."""


def completed_plan(
    plan: FitPlan,
    task: Task,
    reward: Reward,
    *,
    learn_from: LearnFrom | None = None,
    deploy: Sequence[str] = (),
    labels_named: bool = False,
    needs_samples: bool = False,
) -> FitPlan:
    """``plan`` with what the user left open: the source to learn from, the settings to judge at,
    and the shrinkage that suits them.

    Args:
        plan: as asked for; its labels are those named, or those found in the data.
        learn_from: None to learn from the answers where they are labels and the reward is
            correctness, else from samples.
        deploy: settings, as in "temperature=0.5"; none for the default.
        labels_named: whether the user named the labels.
        needs_samples: whether something was asked for that only samples have, beside the plan's
            phases, of which those that confine a bias need none.

    Raises:
        InputError: the source or an estimator is unknown, the reward has no right answers to learn
            from, a setting cannot be read, or the reward compares with wanted shares and the data,
            the source or a setting has none.
    """
    estimators(plan.sweep)  # a name that is none is refused before anything is asked for
    if reward.of_shares:
        return _plan_of_shares(plan, task, reward, learn_from, deploy)
    loss = unseen_loss(len(task.validation))
    if plan.goal.objective == "pareto" and loss > SMALL_LOSS:
        notice = (
            f"objective pareto keeps the accuracy only as far as {len(task.validation)} validation"
            f" prompts show it: a candidate that loses {loss:.0f} points may pass one time in five;"
            " more rows for validation narrow that, and the test prompts say whether it stayed"
        )
        plan = replace(plan, notices=(*plan.notices, notice))
    suits_answers = (
        plan.labels is not None
        and reward.name in CORRECTNESS
        and plan.sweep.estimators == Sweep().estimators
        and not needs_samples
        and plan.phases == plan.confined_to
    )
    too_few = None
    if plan.labels is not None and not labels_named:
        too_few = _too_few_rows(plan.labels, task, plan.limit)
    if learn_from not in (None, *get_args(LearnFrom)):
        raise InputError(
            f"``learn_from={learn_from}`` is unknown; choose {', '.join(get_args(LearnFrom))}"
        )
    source: LearnFrom = learn_from or "samples"
    if learn_from is None and suits_answers and too_few is None:
        source = "answers"
    if source == "answers" and not reward.needs_answer:
        raise InputError(
            f"``learn_from=answers`` needs right answers, and the reward {reward.spec} has none;"
            " use a reward such as contains or exact-match, or ``learn_from=samples``"
        )
    settings = tuple(dict.fromkeys(parse_setting(spec) for spec in deploy))
    if not settings:
        decides = source in ("answers", "unlabelled")
        settings = (GREEDY,) if decides else FitPlan().settings
    sweep = plan.sweep
    if source == "answers" and sweep.l2 == DEFAULT_L2:
        sweep = replace(sweep, l2=ANSWERS_L2)
    notices = plan.notices
    if too_few is not None and suits_answers and learn_from is None:
        notices = (*notices, too_few)
    return replace(plan, learn_from=source, settings=settings, sweep=sweep, notices=notices)


def unseen_loss(prompts: int) -> float:
    """Points of accuracy that a candidate may lose and still be kept by the objective pareto one
    time in five, on so many validation prompts.

    It is kept where it lost at most one standard error, which for a share is about
    50 / sqrt(prompts) points.
    """
    return min(SEEN_ERRORS * 50 / math.sqrt(max(prompts, 1)), 100)


def _plan_of_shares(
    plan: FitPlan,
    task: Task,
    reward: Reward,
    learn_from: LearnFrom | None,
    deploy: Sequence[str],
) -> FitPlan:
    """``plan`` for a wanted distribution: learned from the shares, judged on samples."""
    if learn_from not in (None, "answers"):
        raise InputError(
            f"``learn_from={learn_from}`` weighs each completion by its reward, and with"
            f" ``reward={reward.spec}`` no completion alone has one; leave it out: the wanted"
            " shares are learned from the lists at the place of the answer"
        )
    settings = tuple(dict.fromkeys(parse_setting(spec) for spec in deploy)) or (SAMPLED,)
    check_wanted(reward, (*task.train, *task.validation, *task.test), settings)
    sweep = plan.sweep
    if sweep.l2 == DEFAULT_L2:
        sweep = replace(sweep, l2=ANSWERS_L2)
    return replace(plan, learn_from="answers", settings=settings, sweep=sweep)


def _too_few_rows(labels: Labels, task: Task, limit: int | None) -> str | None:
    """A sentence where the limit leaves too few rows to learn from the answers; None elsewhere."""
    if Labels.found_in(task.train[:limit]) is not None:
        return None
    return (
        f"``limit={limit}`` leaves too few rows to see that the answers are"
        f" {len(labels.names)} labels (that takes {LEAST_ROWS} rows of each), so this fit learns"
        " from samples; to learn from the answers, name the labels:"
        f" ``labels={shlex.quote(','.join(labels.names))}``"
    )
