"""Mended decisions on the test rows, beside what one would do instead: the same answers as they
are, a temperature, the batch prior, the mended layout as it is, ReAnchor's rule, and a classifier
of the texts.

Index letters: ``n`` rows, ``c`` options.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blackbox_lb.bias.decisions import MendedQuestion
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Comparison
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.prediction import decisions_of
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.label_fit import softmax
from blackbox_lb.estimate.mending import (
    FEWEST_ANSWERS,
    Mending,
    MendingRows,
    mending_candidates,
)
from blackbox_lb.extras.rivals.classifier import learned_classifier
from blackbox_lb.extras.rivals.reanchor import reanchor_weights
from blackbox_lb.jobs.decisions.applying import (
    check_models,
    check_reading,
    questions_to_ask,
    read_mended,
    right_places,
    way_of,
)
from blackbox_lb.jobs.decisions.fit import RIVALS
from blackbox_lb.jobs.decisions.judge import (
    beside,
    comparisons,
    log_losses,
    right_rows,
)
from blackbox_lb.jobs.decisions.reading import (
    ReadRows,
    WayToRead,
    list_width,
    parts_to_read,
    read,
    ways_to_read,
)
from blackbox_lb.jobs.decisions.rows import NO_ANSWER
from blackbox_lb.jobs.evaluation.compare import mean_of
from blackbox_lb.jobs.evaluation.document import Evaluation, PolicyResult
from blackbox_lb.jobs.evaluation.policies import BASE, CLASSIFIER
from blackbox_lb.jobs.records.run_record import Remembering, provenance
from blackbox_lb.questions.answers import UNROUNDED_FLOOR
from blackbox_lb.rollouts.judging.trials import StagePart, Trials
from blackbox_lb.rollouts.judging.verdict import GREEDY, together
from blackbox_lb.safety.printable import first_line
from blackbox_lb.tasks import Task
from blackbox_lb.types import Example

REANCHOR = "ReAnchor"


@dataclass(frozen=True, slots=True, eq=False)
class RivalDecision:
    """One way to decide the test rows: (n, c) probabilities, and the mean tokens of a request."""

    name: str
    probabilities: Vector
    tokens: float


def evaluation_parts(
    trials: Trials, task: Task, bias: Bias, mended: MendedQuestion, *, rivals: bool
) -> Iterator[StagePart]:
    """All that ``evaluate_mended`` may ask for. Raises BiasError: see ``check_reading``."""
    check_reading(bias, trials.session)
    rows = (*task.train, *task.test) if rivals else task.test
    width = list_width(trials.session.profile, trials.session.endpoint)
    questions = questions_to_ask(bias, mended)
    base_way = _base_way(trials)
    if base_way != way_of(mended):
        yield from parts_to_read(trials.draw, task.test, questions, base_way, width)
    yield from parts_to_read(trials.draw, rows, questions, way_of(mended), width)


async def evaluate_mended(
    trials: Trials, task: Task, bias: Bias, mended: MendedQuestion, name: str, *, rivals: bool
) -> Evaluation:
    """Judge the mended decisions of the test rows, ``name`` in the result; with ``rivals`` beside
    what else decides, learned from the training rows.

    mended: the question of ``bias`` that is judged.

    Raises InputError: no test row has an answer, or an answer is no option. BiasError: another
    model answered, or another endpoint. ProviderError: the API failed; what was received is kept.
    """
    remembering = Remembering(trials.report)
    trials = replace(trials, report=remembering)
    check_reading(bias, trials.session)
    if bias.data_hash != task.data_hash:
        trials.report.notice(
            f"{name} was learned on other rows, or on another division of them: make sure that no"
            " test row here is one that it was learned on"
        )
    decided, answers = await _decided(trials, task, bias, mended, name, rivals=rivals)
    policies = [_policy(row, mended, answers, name) for row in decided]
    base, own, *alternatives = decided
    primary = [
        row.replacing(against=BASE, policy=name)
        for row in comparisons(
            mended.question.names, base.probabilities, own.probabilities, answers
        )
    ]
    secondary: list[Comparison] = []
    for rival in alternatives:
        pairs = beside(rival.name, rival.probabilities, own.probabilities, answers)
        secondary += [row.replacing(policy=name) for row in pairs]
    rows = (*together(primary), *together(secondary))
    return Evaluation(
        provider=trials.session.profile.name,
        model=trials.session.model,
        task=task.name,
        reward=trials.reward.name,
        label="accuracy",
        policies=tuple(policies),
        comparisons=rows,
        provenance=provenance(remembering.notices),
    )


async def _decided(
    trials: Trials, task: Task, bias: Bias, mended: MendedQuestion, name: str, *, rivals: bool
) -> tuple[list[RivalDecision], Ids]:
    """The test rows with an answer, decided as they are, mended and by the rivals; and (n,) the
    right options.
    """
    question = mended.question
    base_way = _base_way(trials)
    base, tokens = await _read(trials, bias, mended, task.test, base_way)
    own, own_tokens = base, tokens
    if base_way != way_of(mended):
        own, own_tokens = await _read(trials, bias, mended, task.test, way_of(mended))
    places = right_places(bias, mended, task.test)
    has_answer = places != NO_ANSWER
    is_judged = base.is_read & own.is_read & has_answer
    if not is_judged.any():
        ways = " and ".join(dict.fromkeys([base_way.name, way_of(mended).name]))
        raise InputError(
            f"{has_answer.sum()} of {len(places)} test rows have an answer to the question"
            f" {question.id!r}, and none of these was read by {ways}; give rows with answers, or a"
            " model that answers with an option"
        )
    answers = places[is_judged]
    logprobs = own.logprobs[is_judged]
    learned = Mending(mended.slope, np.array(mended.center), np.array(mended.offsets))
    decided = [
        RivalDecision(BASE, softmax(base.logprobs[is_judged]), tokens),
        RivalDecision(name, learned.probabilities(logprobs), own_tokens),
    ]
    if own is not base:
        title = f"{way_of(mended).name} as it is"
        decided.append(RivalDecision(title, softmax(logprobs), own_tokens))
    if rivals:
        training = right_places(bias, mended, task.train)
        usable = training != NO_ANSWER
        if _can_teach(training[usable]):
            train, _ = await _read(trials, bias, mended, task.train, way_of(mended))
            usable &= train.is_read
        if not _can_teach(training[usable]):
            trials.report.notice(
                f"rivals are left out: they learn from at least {FEWEST_ANSWERS} training rows with"
                f" two different answers to {question.id!r}, and {usable.sum()} rows with"
                f" {len(np.unique(training[usable]))} can be used"
            )
            return decided, answers
        decided += _refitted(mended, train, training, logprobs, own_tokens, trials.seed or 0)
        decided += _reanchored(trials, mended, train, training, logprobs, own_tokens)
        decided += _classified(
            trials, task, training, is_judged, len(question.options), trials.seed or 0
        )
    return decided, answers


def _can_teach(answers: Ids) -> bool:
    """Whether rivals can learn from rows with these answers."""
    return len(answers) >= FEWEST_ANSWERS and len(np.unique(answers)) > 1


def _base_way(trials: Trials) -> WayToRead:
    """How a deployment without this package reads a question: the server's own layout."""
    return ways_to_read(trials.session.profile, trials.session.endpoint, ())[0]


async def _read(
    trials: Trials, bias: Bias, mended: MendedQuestion, examples: Sequence[Example], way: WayToRead
) -> tuple[ReadRows, float]:
    """The rows, and the mean tokens of what was read for one."""
    counted = replace(trials, used=set())
    if way == way_of(mended):
        rows = await read_mended(counted, "eval", examples, bias, mended)
    else:
        questions = questions_to_ask(bias, mended)
        rows = (await read(counted, "eval", examples, questions, way))[mended.question.id]
        check_models(mended, rows)
    _, prompt_tokens, _ = trials.store.spent(counted.used)
    return rows, prompt_tokens / max(len(examples), 1)


def _refitted(
    mended: MendedQuestion,
    train: ReadRows,
    answers: Ids,
    logprobs: Vector,
    tokens: float,
    seed: int,
) -> Iterator[RivalDecision]:
    """Temperature and batch prior, learned from the training rows."""
    rows = MendingRows(
        train.logprobs[train.is_read],
        answers[train.is_read],
        train.floored[train.is_read],
        mended.question.kind == "score",
    )
    for candidate in mending_candidates(rows, seed):
        if candidate.name in RIVALS:
            yield RivalDecision(candidate.name, candidate.mending.probabilities(logprobs), tokens)


def _reanchored(
    trials: Trials,
    mended: MendedQuestion,
    train: ReadRows,
    answers: Ids,
    logprobs: Vector,
    tokens: float,
) -> Iterator[RivalDecision]:
    """ReAnchor's rule, where DSPy is installed; it has none of this form for scores."""
    if importlib.util.find_spec("dspy") is None or mended.question.kind == "score":
        return
    is_used = train.is_read & (answers != NO_ANSWER)
    shares = softmax(train.logprobs[is_used])
    try:
        weights = reanchor_weights(mended.question, shares, answers[is_used])
    except (ImportError, AttributeError, TypeError) as error:
        trials.report.notice(
            f"ReAnchor is left out: the installed dspy has it in another form ({first_line(error)})"
        )
        return
    yield RivalDecision(REANCHOR, softmax(logprobs + np.log(weights)), tokens)


def _classified(
    trials: Trials, task: Task, answers: Ids, is_judged: Bools, size: int, seed: int
) -> Iterator[RivalDecision]:
    """A classifier of the texts, where its package is installed."""
    if importlib.util.find_spec("sklearn") is None:
        trials.report.notice("a classifier is left out: scikit-learn is not installed")
        return
    has_answer = answers != NO_ANSWER
    texts = [
        example.prompt.text
        for example, usable in zip(task.train, has_answer.tolist(), strict=True)
        if usable
    ]
    tests = [
        example.prompt.text
        for example, judged in zip(task.test, is_judged.tolist(), strict=True)
        if judged
    ]
    model = learned_classifier(texts, answers[has_answer], None, seed)
    probabilities = np.full((len(tests), size), UNROUNDED_FLOOR)
    probabilities[:, model.classes_] = model.predict_proba(tests)
    yield RivalDecision(CLASSIFIER, probabilities, 0.0)


def _policy(row: RivalDecision, mended: MendedQuestion, answers: Ids, name: str) -> PolicyResult:
    right = right_rows(row.probabilities, answers).astype(float)
    losses = log_losses(row.probabilities, answers)
    return PolicyResult(
        name=row.name,
        bias=name if row.name == name else None,
        entries=0,
        setting=GREEDY.name,
        temperature=0.0,
        max_tokens=1,
        kind="decisions",
        prompts=len(answers),
        completions=len(answers),
        metrics={
            "accuracy": mean_of(np.split(right, len(answers))),
            "log loss": mean_of(np.split(losses, len(answers))),
        },
        prompt_tokens=row.tokens,
        completion_tokens=0.0,
        decisions=decisions_of(
            mended.question.names,
            answers,
            row.probabilities.argmax(axis=1),
            row.probabilities.max(axis=1),
        ),
    )
