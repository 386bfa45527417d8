"""What makes a plan impossible for a server and a task, found before anything costs money. Each way
to learn has a check of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blackbox_lb.api.wire import asks_logprobs, check_stop, with_logprobs
from blackbox_lb.bias.phases import Phases
from blackbox_lb.errors import InputError, NoLogprobs
from blackbox_lb.estimate.choice.goal import OF_DECISIONS
from blackbox_lb.estimate.choice.table import estimators, most_candidates
from blackbox_lb.jobs.fitting.choosing.decision_goals import cost_matrix, label_number
from blackbox_lb.jobs.fitting.varying.feature_matrix import check_features
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import parse_setting
from blackbox_lb.rollouts.phased import check_continues
from blackbox_lb.tasks import Task
from blackbox_lb.tasks.rewards.normalising import normalise
from blackbox_lb.tasks.sets.labels import OPENING, Labels, OpenLabels

if TYPE_CHECKING:
    from blackbox_lb.jobs.fitting.job import FitJob

NOTHING_TO_CHOOSE_ON = (
    "there is no validation row to choose on: a fixed bias between labels is chosen by"
    " cross-fitting over the training rows, and anything else needs rows of its own; give"
    " ``validation_data``, or a ``Task`` with ``validation``"
)

RARE = 0.02
"""Share of the training rows below which a label is reported as rare: of 300 rows, fewer than six.
"""


def check_fit_plan(job: FitJob) -> None:
    """Check a plan that learns from samples or from given answers.

    Raises:
        InputError, ProfileError or NoLogprobs: the plan is impossible.
    """
    trials = job.trials
    plan = job.plan
    for endpoint in dict.fromkeys((trials.session.endpoint, trials.session.biased_endpoint)):
        check_stop(trials.session.profile, endpoint, trials.stop)
    check_logprobs(trials)
    _check_validation(job)
    _check_shares(job)
    _check_goal(job)
    if plan.learn_from == "answers":
        _check_answers(job)
    check_features(plan.parsed_features, job.task, plan.limit)
    _check_phases(job)
    has_features = bool(plan.parsed_features) or plan.parsed_phases is not None
    if has_features and (_cannot_learn_answers(job) or trials.engine is not None):
        raise InputError(
            "``depends_on`` and ``phases`` are learned by projection in one process; leave out"
            " ``engine`` and ``estimator``, or the features"
        )


def check_opening_plan(job: FitJob, labels: OpenLabels) -> None:
    """Check a plan that learns a decision between an opening and everything else.

    Raises:
        InputError: the plan asks for what an open label has not. NoLogprobs: see
        ``check_logprobs``.
    """
    check_logprobs(job.trials)
    if not job.task.validation:
        raise InputError(NOTHING_TO_CHOOSE_ON)
    _refuse_beside_a_shift(
        job, f"``decide={labels.spec}`` learns one shift of the opening's tokens"
    )
    goal = job.plan.goal
    if not job.plan.selects_offline:
        raise InputError(
            f"``decide={labels.spec}`` is learned from the answers that the data want and"
            " predicted for greedy decisions; use ``reward=accuracy`` and ``deploy=greedy``,"
            " and try other settings afterwards with blb eval"
        )
    if goal.objective not in OF_DECISIONS:
        raise InputError(
            f"``objective={goal.spec}`` needs completions that are drawn, and"
            f" ``decide={labels.spec}`` draws none to choose by; use accuracy, balanced,"
            " cost:FILE or an operating point"
        )
    if goal.positive is not None:
        number = label_number(labels, goal.positive, "positive")
        if number != OPENING:
            raise InputError(
                f"``positive={goal.positive}`` is everything but the opening, and the point is"
                " a shift of the opening's tokens; use"
                f" ``positive={labels.names[OPENING]}``, or leave it out"
            )
    _check_decision_goal(job)


def check_unlabelled_plan(job: FitJob) -> None:
    """Check a plan that learns without any answer.

    Raises:
        InputError: there are no labels, or something was asked for that needs answers.
        NoLogprobs: see ``check_logprobs``.
    """
    check_logprobs(job.trials)
    if job.plan.decision_labels is None:
        raise InputError(
            "without answers nobody knows what the labels are; name them, as in ``labels=yes,no``"
        )
    goal = job.plan.goal
    if goal.objective not in ("reward", "accuracy") or goal.positive is not None:
        named = "objective" if goal.positive is None else "positive"
        raise InputError(
            f"``{named}={getattr(job.plan, named)}`` is chosen by right answers, and"
            f" ``learn_from=unlabelled`` reads none; leave it out, or use ``learn_from=answers``"
        )
    _refuse_beside_a_shift(
        job, "``learn_from=unlabelled`` shifts the labels by the model's mean answer"
    )


def _refuse_beside_a_shift(job: FitJob, reason: str) -> None:
    """Refuse what a shift that is read from first lists has not. reason: the beginning of the
    message.
    """
    refused = {
        "``depends_on``": bool(job.plan.parsed_features),
        "``phases``": job.plan.parsed_phases is not None,
        "``engine``": job.trials.engine is not None,
        "``only_stored``": job.plan.only_stored,
    }
    for option, is_given in refused.items():
        if is_given:
            raise InputError(f"{reason}, the same for all prompts; leave out {option}")


def _cannot_learn_answers(job: FitJob) -> str:
    """The names of the plan's estimators that learn from drawn completions alone."""
    return ", ".join(
        name
        for name, estimator in estimators(job.plan.sweep).items()
        if not estimator.facts.learns_answers
    )


def _check_validation(job: FitJob) -> None:
    """Refuse a choice without a row to choose on, where neither cross-fitting stands in for it nor
    there is nothing to choose between.
    """
    plan = job.plan
    reward = job.trials.reward
    if job.task.validation:
        return
    if plan.selects_offline:
        is_decision = plan.decision_labels is not None and not reward.of_shares
        if is_decision and plan.goal.positive is None and not plan.parsed_features:
            return
    elif plan.searches == "named" and not plan.parsed_features and plan.parsed_phases is None:
        has_costs = reward.has_spans or reward.has_token_costs
        if most_candidates(plan.sweep, has_costs=has_costs) == 1:
            return
    raise InputError(NOTHING_TO_CHOOSE_ON)


def _check_answers(job: FitJob) -> None:
    """Refuse answers that teach nothing, and report labels that training hardly has."""
    plan = job.plan
    names = _cannot_learn_answers(job)
    if names:
        raise InputError(
            f"given answers are learned by projection, and not by {names}, which need"
            " completions that were drawn; use ``learn_from=samples``, or"
            " ``estimator=projection`` alone"
        )
    if job.trials.engine is not None:
        raise InputError(
            "``learn_from=answers`` works in one process; leave out ``engine``, or use"
            " ``learn_from=samples``"
        )
    training = job.task.train[: plan.limit]
    has_shares = any(example.weights for example in training)
    kinds = {tuple(sorted(map(normalise, example.answers))) for example in training}
    if len(kinds) == 1 and not has_shares:
        raise InputError(
            f"all {len(training)} training rows have the same answer,"
            f" {training[0].answers[0]!r}: no decision can be learned from it; give rows with"
            " other answers, too"
        )
    if plan.decision_labels is not None:
        counted, *warnings = unequal(plan.decision_labels, job.task, plan.limit)
        job.trials.report.detail(counted)
        for sentence in warnings:
            job.trials.report.notice(sentence)


def _check_shares(job: FitJob) -> None:
    """Refuse a goal that wanted shares cannot be chosen by; ``by_data`` refuses the rest."""
    reward = job.trials.reward
    plan = job.plan
    if not reward.of_shares:
        return
    if plan.goal.objective != "reward":
        raise InputError(
            f"``objective={plan.goal.objective}`` needs right answers, and rows with wanted"
            " shares have none; choose 'reward'"
        )
    if plan.parsed_phases is None and reward.max_tokens > 1:
        job.trials.report.notice(
            "a bias acts at every token: what stands behind a label in completions of up to"
            f" {reward.max_tokens} tokens may repeat it; ``phases=only-first`` confines the"
            " bias to the first token"
        )


def _check_phases(job: FitJob) -> None:
    phases = job.plan.parsed_phases
    if phases is None:
        return
    if job.trials.stop and not phases.confined:
        raise InputError(
            "``phases`` are learned from samples, and without stop texts; leave out the task's"
            " stop texts"
        )
    check_continues(job.trials.session, phases)


def _check_goal(job: FitJob) -> None:
    objective = job.plan.goal.objective
    _check_decision_goal(job)
    if objective == "pareto" and job.plan.selects_offline:
        raise InputError(
            "objective 'pareto' compares the tokens of completions, and greedy decisions that"
            " are learned from answers are predicted without any; use ``learn_from=samples``,"
            " or choose 'reward'"
        )
    silent = sum(
        job.trials.reward.right.needs_answer and not example.answers
        for example in job.task.validation
    )
    if objective == "pareto" and silent:
        raise InputError(
            "objective 'pareto' needs to know which completions are correct, but"
            f" {silent} of {len(job.task.validation)} validation examples have no answer;"
            " give every one an answer, or choose 'reward'"
        )


def _check_decision_goal(job: FitJob) -> None:
    """Refuse a goal of decisions where the plan makes none that lists predict, or its labels
    are not those that the goal names.
    """
    goal = job.plan.goal
    if goal.objective not in OF_DECISIONS:
        return
    labels = job.plan.decision_labels
    if labels is None or not job.plan.selects_offline:
        raise InputError(
            f"objective {goal.spec!r} is predicted for greedy decisions between labels, from"
            " given answers; use it with ``learn_from=answers``, ``deploy=greedy`` and data"
            " whose answers are few labels, or ``labels``"
        )
    if goal.costs is not None:
        cost_matrix(labels, goal.costs)
    if goal.positive is None:
        return
    label_number(labels, goal.positive, "positive")
    if job.plan.parsed_features or job.plan.parsed_phases is not None:
        raise InputError(
            f"an operating point of ``objective={goal.spec}`` is a shift that all prompts"
            " share; leave out ``depends_on``, or ``positive``"
        )


def check_settings(plan: Plan) -> None:
    """Refuse settings that are none, or that contradict each other whatever data and server are.

    Raises InputError: see above.
    """
    estimators(plan.sweep)  # raises where one is none
    for spec in plan.deploy:
        parse_setting(spec)  # raises where it is none
    if plan.only_stored and plan.learn_from == "answers":
        raise InputError(
            "``only_stored`` learns from stored samples alone; leave out ``learn_from=answers``,"
            " or ``only_stored``"
        )
    phases = plan.parsed_phases
    if phases is not None and plan.learn_from is not None:
        _check_source(phases, plan.learn_from)


def _check_source(phases: Phases, source: str) -> None:
    """Refuse phases that cannot be learned from ``source``, or cannot confine what is."""
    if phases.confined and (source != "answers" or len(phases.features) > 1):
        raise InputError(
            f"``phases={phases.spec}`` confines a bias that is learned from given answers, and"
            f" this plan has ``learn_from={source}`` and {len(phases.features)} phases; use"
            " ``learn_from=answers`` and no other phase, or ``phases=first``"
        )
    if not phases.confined and source == "answers":
        raise InputError(
            "``phases`` are learned from samples, and without stop texts; leave out"
            " ``learn_from=answers``"
        )


def check_logprobs(trials: Trials) -> None:
    """Refuse to collect completions that nothing can be learned from, before they cost anything.

    Raises:
        NoLogprobs: the endpoint gives no logprobs, or none are asked for.
    """
    session = trials.session
    rules = session.profile.endpoint(session.endpoint)
    if rules.ask_logprobs == "no":
        raise NoLogprobs(
            f"{session.profile.name} gives no logprobs on its {session.endpoint} endpoint, and a"
            " bias is learned from those of sampled tokens; choose a model or server that returns"
            f" them{with_logprobs(session.profile, session.endpoint)}"
        )
    if not asks_logprobs(rules, trials.top_logprobs):
        raise NoLogprobs(
            "a bias is learned from the logprobs of sampled tokens, and ``top_logprobs=0`` asks for"
            " none; use ``top_logprobs`` from 1, or leave it out"
        )


def unequal(labels: Labels, task: Task, limit: int | None) -> list[str]:
    """The counts of the labels; then a sentence on labels that training hardly has."""
    counts = labels.counts(task.train[:limit])
    total = sum(counts.values())
    sentences = [
        f"{len(counts)} labels in {total} training rows:"
        f" {', '.join(f'{k} {v}' for k, v in counts.items())}"
    ]
    if rare := [f"{name} ({count})" for name, count in counts.items() if count < RARE * total]:
        sentences.append(f"labels with too few training rows to be learned: {', '.join(rare)}")
    unseen = sorted(
        {
            answer
            for example in (*task.validation, *task.test)
            if labels.of(example) is None
            for answer in example.answers[:1]
        }
    )
    if unseen:
        sentences.append(
            f"answers of validation or test that no training row has: {', '.join(unseen[:10])}"
        )
    return sentences
