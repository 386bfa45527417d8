"""The parts of a plan that were left open, decided by the data."""

from __future__ import annotations

import shlex
from typing import TypeVar

from blackbox_lb.api.wire.decisions import check_questions
from blackbox_lb.bias.document import MAX_PHRASES
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.sweep import ANSWERS_L2, DEFAULT_L2, Sweep
from blackbox_lb.jobs.decisions.goal import DecisionGoal
from blackbox_lb.jobs.decisions.reading import ways_to_read
from blackbox_lb.jobs.decisions.rows import DecisionRows
from blackbox_lb.jobs.plan.plan import LearnFrom, Plan
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.providers.stepping_back import check_steps_back
from blackbox_lb.rollouts.judging.decisions import check_wanted
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.safety.printable import counted
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.sets.labels import LEAST_ROWS, Labels, OpenLabels, labels_of_task

P = TypeVar("P", bound=Plan)

CORRECTNESS = frozenset({"exact-match", "contains", "accuracy", "log-accuracy"})
"""Rewards that only depend on whether the answer is right."""
OF_COMPLETIONS = (
    "learn_from",
    "rollouts",
    "only_stored",
    "depends_on",
    "phases",
    "phrases",
    "deploy",
    "decide",
    "positive",
    "thinking",
    "tools",
    "prefill",
    "estimator",
    "tau",
    "l2",
    "weights",
    "alpha",
    "alpha_scale",
    "positions",
    "clip",
    "unobserved",
    "go_on",
    "entries",
    "search",
    "integers",
)
"""Settings that a question has no use for."""
FEW_ROWS = 100
"""Rows a label, on average, below which none are set apart to choose on."""


def completed(plan: P, task: Task, reward: Reward, *, needs_samples: bool = False) -> P:
    """``plan`` with what the user left open: the labels, the source to learn from, the settings to
    judge at, and the shrinkage that suits them.

    Without ``learn_from`` it learns from the answers where they are labels and the reward is
    correctness, else from samples.

    Args:
        plan: as asked for.
        task: the prompts; labels that nobody named are found in its answers.
        reward: of the fit.
        needs_samples: whether something is to be used that only samples have, beside what the plan
            itself names.

    Raises:
        InputError: the reward has no right answers to learn from; or it compares with wanted shares
            and the data, the source or a setting has none.
    """
    labels = labels_of_task(plan.decide, plan.labels, task)
    if plan.question is not None:
        return _for_question(plan, task, reward, labels)
    if plan.layout is not None:
        raise InputError("``layout`` is about a ``question``, and there is none; give both")
    check_phrases(plan)
    if reward.of_shares:
        return _for_shares(plan, task, reward, labels)
    notices = []
    if plan.parsed_phrases is not None:
        count = counted(len(plan.parsed_phrases.lines), "phrase")
        notices.append(
            f"the bias file also keeps {count} out, by apply() and blb proxy; what follows is"
            " learned and judged without that"
        )
    suits_answers = (
        labels is not None
        and reward.name in CORRECTNESS
        and plan.sweep.estimators == Sweep().estimators
        and not (needs_samples or plan.rollouts or plan.only_stored)
        and plan.parsed_phases == plan.confined_to
    )
    too_few = None
    is_named = plan.labels is not None or plan.decide is not None
    if labels is not None and not is_named:
        too_few = _too_few_rows(labels, task, plan.limit)
    source: LearnFrom = plan.learn_from or "samples"
    if plan.learn_from is None and suits_answers:
        if too_few is None:
            source = "answers"
        else:
            notices.append(too_few)
    if source == "answers" and not reward.needs_answer:
        raise InputError(
            f"``learn_from=answers`` needs right answers, and the reward {reward.name} has none;"
            " use a reward such as contains or exact-match, or ``learn_from=samples``"
        )
    decides = source in ("answers", "unlabelled")
    return plan.for_data(
        labels,
        notices,
        learn_from=source,
        deploy=plan.deploy or (("greedy",) if decides else ()),
        l2=_strengths(plan, source),
    )


def check_phrases(plan: Plan) -> None:
    """Check the phrases of a plan, and that its server can step back from them.

    Raises InputError: the list is wrong or longer than a bias file takes, or the server cannot.
    """
    if plan.parsed_phrases is None:
        return
    number = len(plan.parsed_phrases.lines)
    if number > MAX_PHRASES:
        raise InputError(
            f"``phrases`` has {number:,} phrases, and a bias file holds at most {MAX_PHRASES:,};"
            " shorten the list"
        )
    profile = load_profile(plan.provider)
    check_steps_back(profile, plan.endpoint or profile.first_endpoint)


def pooled(plan: Plan, task: Task, reward: Reward) -> Task:
    """``task`` with all rows that are not test rows to learn from and to choose on, by
    cross-fitting, where lists alone choose a fixed bias between labels and a label has fewer than
    ``FEW_ROWS`` rows; rows that the user divided stay so.

    plan: completed.
    """
    if plan.question is not None:
        # A promise is certified on rows that taught nothing.
        return task if DecisionGoal.parse(plan.objective).error else task.pooled()
    needs_rows = bool(plan.limit or plan.parsed_features) or plan.goal.positive is not None
    if needs_rows or reward.of_shares or not plan.selects_offline:
        return task
    return task.pooled() if has_few_rows(task, plan.decision_labels) else task


def has_few_rows(task: Task, labels: Labels | None) -> bool:
    """Whether a decision between these labels has so few rows that, where nobody divided them, none
    are set apart to choose on.
    """
    if labels is None or isinstance(labels, OpenLabels):
        return False
    rows = len(task.train) + len(task.validation)
    return task.divided and rows < FEW_ROWS * len(labels.names)


def _strengths(plan: Plan, source: LearnFrom) -> tuple[object, ...]:
    """The shrinkages of the plan, or those that suit given answers where it names none."""
    if source == "answers" and tuple(plan.l2) == DEFAULT_L2:
        return ANSWERS_L2
    return tuple(plan.l2)


def _for_question(plan: P, task: Task, reward: Reward, labels: Labels | None) -> P:
    """``plan`` for a question whose probabilities are mended, at the endpoint that decides it."""
    if reward.name not in CORRECTNESS:
        raise InputError(
            f"``question`` is judged by right answers, and ``reward={reward.name}`` has none; use"
            " ``reward=accuracy``"
        )
    DecisionGoal.parse(plan.objective)  # raises where it is none
    for name in OF_COMPLETIONS:
        value = getattr(plan, name)
        default = Plan.model_fields[name].default
        if isinstance(default, tuple):
            value = tuple(value)
        if value != default:
            raise InputError(
                f"``{name}`` is about completions and biases on tokens, and ``question`` reads"
                f" probabilities of options; leave out ``{name}``"
            )
    profile = load_profile(plan.provider)
    endpoint = plan.endpoint
    if endpoint is None and profile.decides(plan.model):
        endpoint = "decisions"
    completed_plan = plan.for_data(
        labels, (), learn_from="answers", deploy=("greedy",), endpoint=endpoint
    )
    rows = DecisionRows.of(task, completed_plan)
    if endpoint == "decisions":
        check_questions(profile, rows.questions)
    ways_to_read(profile, endpoint or profile.first_endpoint, plan.layout or ())
    return completed_plan


def _for_shares(plan: P, task: Task, reward: Reward, labels: Labels | None) -> P:
    """``plan`` for a wanted distribution: learned from the shares, judged on samples."""
    if plan.learn_from not in (None, "answers"):
        raise InputError(
            f"``learn_from={plan.learn_from}`` weighs each completion by its reward, and with"
            f" ``reward={reward.name}`` no completion alone has one; leave it out: the wanted"
            " shares are learned from the lists at the place of the answer"
        )
    completed_plan = plan.for_data(
        labels,
        (),
        learn_from="answers",
        deploy=plan.deploy or (f"temperature={SAMPLED.temperature:g}",),
        l2=_strengths(plan, "answers"),
    )
    check_wanted(reward, (*task.train, *task.validation, *task.test), completed_plan.settings)
    return completed_plan


def _too_few_rows(labels: Labels, task: Task, limit: int | None) -> str | None:
    """A sentence where the limit leaves too few rows to learn from the answers; None elsewhere."""
    if Labels.found_in((*task.train[:limit], *task.validation)) is not None:
        return None
    return (
        f"``limit={limit}`` leaves too few rows to see that the answers are"
        f" {len(labels.names)} labels (that takes {LEAST_ROWS} rows of each), so this fit learns"
        " from samples; to learn from the answers, name the labels:"
        f" ``labels={shlex.quote(','.join(labels.names))}``"
    )
