"""A fit of decisions: read the options' probabilities, learn how to mend them, judge it on unseen
rows.

What an endpoint answers is not sampled anew with a bias: mending changes the numbers that it gave,
so the same answers to the test rows are judged before and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blackbox_lb.api.wire.decisions import decision_rules
from blackbox_lb.bias.decisions import MendedQuestion, PromisedError
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Comparison
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.label_fit import softmax
from blackbox_lb.estimate.mending import (
    CandidateMending,
    MendingRows,
    best_mending,
    candidate_weights,
    changed_by_floors,
    mending_candidates,
)
from blackbox_lb.estimate.promising import Certified, certified, preset_cuts
from blackbox_lb.estimate.rechecking import DECIMALS
from blackbox_lb.jobs.decisions.document import DecidedQuestion, TriedMending
from blackbox_lb.jobs.decisions.goal import DecisionGoal
from blackbox_lb.jobs.decisions.judge import (
    beside,
    both_decisions,
    changed_rows,
    comparisons,
    coverage,
    reliability,
)
from blackbox_lb.jobs.decisions.reading import (
    ReadRows,
    WayToRead,
    list_width,
    parts_to_read,
    read,
    read_in_order,
    system_of,
    ways_to_read,
)
from blackbox_lb.jobs.decisions.rows import NO_ANSWER, DecisionRows, questions_of
from blackbox_lb.jobs.fitting.document import (
    BothDecisions,
    FitResult,
    FitUsage,
    TrainingCounts,
)
from blackbox_lb.jobs.fitting.result import Fitted
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import Profile
from blackbox_lb.questions.question import Question
from blackbox_lb.rollouts.judging.trials import Draws, StagePart, Trials
from blackbox_lb.rollouts.judging.verdict import GREEDY, together
from blackbox_lb.tasks import Task

ESTIMATOR = "mended decisions"
RIVALS = ("temperature", "batch prior")
"""What one would do without this package, and is judged beside it."""
FLIP_ROWS = 30
"""Rows whose options are also listed in reverse."""
PROMISE_SHARE = 2
"""One of so many learning rows certifies a promise, where no rows are set apart to choose on."""

MOST_SAMPLED = 200
MOST_NUMBERS = 10_000
"""Rows of the sample for a test of drift, and numbers of all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class LearnedQuestion:
    """A question with the mending that was chosen, and what it was chosen from.

    way: how it is read. base_way: the first way by which it can be read, which it is compared with.
    rows: as they were read. is_used: (n,) the train rows that taught. rivals: what else mends, and
    is not chosen.
    """

    question: Question
    way: WayToRead
    base_way: WayToRead
    rows: ReadRows
    is_used: Bools
    chosen: CandidateMending
    tried: tuple[TriedMending, ...]
    rivals: tuple[CandidateMending, ...]


async def fit_decisions(trials: Trials, task: Task, plan: Plan) -> Fitted:
    """Read, mend and judge the questions of a plan.

    Raises InputError: too few answers to learn from. ProviderError: the API failed; what was
    received is kept, and the same call goes on from there.
    """
    trials = replace(trials, used=set())
    session = trials.session
    rows = decision_rows(task, plan)
    goal = DecisionGoal.parse(plan.objective)
    ways = ways_to_read(session.profile, session.endpoint, plan.layout or ())
    system = system_of(rows.train)
    read_ways = {
        way: await read(trials, "learning", rows.train, rows.questions, way) for way in ways
    }
    certifying = _certifying(rows, task, goal)
    learned = [
        _learned(
            question,
            rows,
            {way: read_ways[way][question.id] for way in ways},
            certifying,
            goal,
            trials.seed or 0,
        )
        for question in rows.questions
    ]
    judged_ways = dict.fromkeys(way for choice in learned for way in (choice.base_way, choice.way))
    read_tests = {
        way: await read(trials, "judging", rows.test, rows.questions, way) for way in judged_ways
    }
    decided: list[DecidedQuestion] = []
    mended: list[MendedQuestion] = []
    verdicts: list[Comparison] = []
    rivals: list[Comparison] = []
    decisions: dict[str, BothDecisions] = {}
    for choice in learned:
        question = choice.question
        suffix = f" of {question.id}" if len(learned) > 1 else ""
        base = read_tests[choice.base_way][question.id]
        test = read_tests[choice.way][question.id]
        promise, sentence = _promise(choice, rows, certifying, goal)
        mended.append(_mended(trials, choice, promise, system))
        answers = rows.judged(question)
        is_judged = base.is_read & test.is_read & (answers != NO_ANSWER)
        if is_judged.any():
            answers = answers[is_judged]
            raw = softmax(base.logprobs[is_judged])
            after = choice.chosen.mending.probabilities(test.logprobs[is_judged])
            verdicts += comparisons(question.names, raw, after, answers, suffix)
            for candidate in choice.rivals:
                rival = candidate.mending.probabilities(test.logprobs[is_judged])
                rivals += beside(candidate.name, rival, after, answers, suffix)
            title = GREEDY.name if len(learned) == 1 else f"{GREEDY.name}, {question.id}"
            decisions[title] = both_decisions(question, raw, after, answers)
        flips = await _flips(trials, choice, rows)
        decided.append(_decided(choice, rows, base, test, is_judged, flips, sentence))
    verdicts = together(verdicts)
    bias = Bias(
        provider=trials.session.profile.name,
        model=trials.session.model,
        tokenizer=trials.tokenizer.fingerprint,
        task=task.name,
        reward=trials.reward.name,
        estimator=ESTIMATOR,
        settings={"objective": goal.spec},
        data_hash=task.data_hash,
        rollouts=len(rows.train),
        verdict=tuple(row.as_verdict for row in verdicts),
        decisions=tuple(mended),
        entries=(),
    )
    return Fitted(bias, bias, _result(trials, bias, decided, decisions, rivals), ())


def decision_rows(task: Task, plan: Plan) -> DecisionRows:
    """The rows and questions of a plan. Raises InputError: see ``questions_of`` and
    ``DecisionRows``.
    """
    questions = questions_of(str(plan.question), plan.decision_labels)
    return DecisionRows.of(task, questions, plan.limit)


def decision_parts(
    profile: Profile, endpoint: Endpoint, draws: Draws, task: Task, plan: Plan
) -> Iterator[StagePart]:
    """All that a fit may ask for."""
    rows = decision_rows(task, plan)
    width = list_width(profile, endpoint)
    ways = ways_to_read(profile, endpoint, plan.layout or ())
    for way in ways:
        for examples in (rows.train, rows.test):
            yield from parts_to_read(draws, examples, rows.questions, way, width)
    reversed_way = replace(ways[0], both_orders=True)
    choices = [question for question in rows.questions if question.kind == "choice"]
    yield from parts_to_read(draws, rows.train[:FLIP_ROWS], choices, reversed_way, width)


def _certifying(rows: DecisionRows, task: Task, goal: DecisionGoal) -> Bools:
    """(n,) the train rows that certify a promise and teach nothing: the validation rows, else every
    second one; none without a wish.
    """
    size = len(rows.train)
    is_certifying = np.zeros(size, np.bool_)
    if goal.error is None:
        return is_certifying
    learning = min(len(task.train), size)
    if learning < size:
        is_certifying[learning:] = True
    else:
        is_certifying[1::PROMISE_SHARE] = True
    return is_certifying


def _learned(
    question: Question,
    rows: DecisionRows,
    by_way: dict[WayToRead, ReadRows],
    certifying: Bools,
    goal: DecisionGoal,
    seed: int,
) -> LearnedQuestion:
    """The way to read and the mending with the best cross-validated goal; of equals the first."""
    answers = rows.learned(question)
    choices = []
    for way, read_rows in by_way.items():
        is_used = read_rows.is_read & ~certifying
        if not is_used.any():
            continue
        learning = _mending_rows(question, read_rows, answers, is_used)
        candidates = mending_candidates(learning, seed)
        best = best_mending(candidates, learning.answers)
        choices.append((way, read_rows, is_used, candidates, best))
    if not choices:
        raise InputError(
            f"no answer to the question {question.id!r} could be read: refusals, or none of the"
            f" options {', '.join(question.names)} among the listed first tokens"
        )
    way, read_rows, is_used, candidates, chosen = max(
        choices, key=lambda choice: _value(choice[4], goal)
    )
    tried = [
        row
        for other_way, _, _, tried_candidates, best in choices
        for row in _tried(other_way, tried_candidates, best, chosen)
    ]
    rivals = [candidate for candidate in candidates if candidate.name in RIVALS]
    return LearnedQuestion(
        question, way, choices[0][0], read_rows, is_used, chosen, tuple(tried), tuple(rivals)
    )


def _tried(
    way: WayToRead,
    candidates: Sequence[CandidateMending],
    best: CandidateMending,
    chosen: CandidateMending,
) -> Iterator[TriedMending]:
    """The candidates of a way to read, their average and their weights in it."""
    weights = candidate_weights(candidates).tolist()
    rows = list(zip(candidates, weights, strict=True))
    if best not in candidates:
        rows.append((best, 1.0))
    for candidate, weight in rows:
        yield TriedMending(
            way=way.name,
            mending=candidate.name,
            weight=weight,
            accuracy=candidate.scores.accuracy,
            log_loss=candidate.scores.log_loss,
            is_chosen=candidate is chosen,
        )


def _mending_rows(
    question: Question, read_rows: ReadRows, answers: Ids, is_used: Bools
) -> MendingRows:
    return MendingRows(
        read_rows.logprobs[is_used],
        answers[is_used],
        read_rows.floored[is_used],
        question.kind == "score",
    )


def _value(chosen: CandidateMending, goal: DecisionGoal) -> float:
    if goal.by == "accuracy":
        return chosen.scores.accuracy
    return -chosen.scores.log_loss


def _promise(
    choice: LearnedQuestion, rows: DecisionRows, certifying: Bools, goal: DecisionGoal
) -> tuple[PromisedError | None, str]:
    """What can be certified of the wished share of errors, and a sentence on it."""
    if goal.error is None:
        return None, ""
    answers = rows.learned(choice.question)
    is_counted = certifying & choice.rows.is_read & (answers != NO_ANSWER)
    probabilities = choice.chosen.mending.probabilities(choice.rows.logprobs[is_counted])
    cuts = preset_cuts(choice.chosen.left_out.max(axis=1))
    confidences = probabilities.max(axis=1)
    is_right = probabilities.argmax(axis=1) == answers[is_counted]
    outcome = certified(confidences, is_right, cuts, goal.error)
    size = int(is_counted.sum())
    if not isinstance(outcome, Certified):
        needed = "at any number of answers: errors are too frequent even among the surest rows"
        if outcome.needed is not None:
            needed = f"with {size} answers: about {outcome.needed:,} are needed"
        return None, f"errors of at most {goal.error:g} are not certifiable {needed}"
    promise = PromisedError(
        error=goal.error,
        cut=outcome.cut,
        answered=outcome.answered,
        wrong=outcome.wrong,
        rows=size,
        bound=outcome.error_bound,
    )
    return promise, promise.sentence


def _mended(
    trials: Trials, choice: LearnedQuestion, promise: PromisedError | None, system: str
) -> MendedQuestion:
    """The question as the bias file holds it."""
    mending = choice.chosen.mending
    logprobs = choice.rows.logprobs[choice.rows.is_read]
    rules = None
    if trials.session.endpoint == "decisions":
        rules = decision_rules(trials.session.profile)
    return MendedQuestion(
        question=choice.question,
        reading=choice.way.reading,
        path="" if rules is None else rules.path,
        model=choice.rows.model,
        decimals=None if rules is None else rules.decimals,
        system=system,
        both_orders=choice.way.both_orders,
        slope=float(mending.slope),
        center=tuple(mending.center.tolist()),
        offsets=tuple(mending.offsets.tolist()),
        mending=choice.chosen.name,
        rows=int(choice.is_used.sum()),
        floored=float(choice.rows.floored[choice.rows.is_read].mean()),
        promise=promise,
        mean_logprobs=tuple(logprobs.mean(axis=0).tolist()),
        deviations=tuple(logprobs.std(axis=0).tolist()),
        sample=_sample(logprobs, trials.seed or 0),
    )


def _sample(logprobs: Vector, seed: int) -> tuple[tuple[float, ...], ...]:
    """Some of the rows, drawn at random, for a later test of drift."""
    size = min(len(logprobs), MOST_SAMPLED, max(MOST_NUMBERS // logprobs.shape[1], 1))
    places = np.random.default_rng(seed).permutation(len(logprobs))[:size]
    return tuple(tuple(row) for row in logprobs[places].round(DECIMALS).tolist())


async def _flips(
    trials: Trials, choice: LearnedQuestion, rows: DecisionRows
) -> tuple[int, int] | None:
    """Decisions that change where the options are listed in reverse, and of how many rows; None
    where the question has one order, or both are read.
    """
    question = choice.question
    if question.kind != "choice" or choice.way.both_orders:
        return None
    examples = rows.train[:FLIP_ROWS]
    turned = await read_in_order(
        trials, "order of options", examples, [question], choice.way, is_reversed=True
    )
    backward = turned[question.id]
    is_read = choice.rows.is_read[: len(examples)] & backward.is_read
    forward = choice.rows.logprobs[: len(examples)][is_read].argmax(axis=1)
    changed = forward != backward.logprobs[is_read].argmax(axis=1)
    return int(changed.sum()), int(is_read.sum())


def _decided(
    choice: LearnedQuestion,
    rows: DecisionRows,
    base: ReadRows,
    test: ReadRows,
    is_judged: Bools,
    flips: tuple[int, int] | None,
    promise: str,
) -> DecidedQuestion:
    question = choice.question
    read_rows = choice.rows
    answers = rows.judged(question)[is_judged]
    raw = softmax(base.logprobs[is_judged])
    after = choice.chosen.mending.probabilities(test.logprobs[is_judged])
    examples = [example for example, judged in zip(rows.test, is_judged, strict=True) if judged]
    examples_of_change, changed = changed_rows(question, examples, raw, after, answers)
    masses = read_rows.label_mass[np.isfinite(read_rows.label_mass)]
    learning = _mending_rows(question, read_rows, rows.learned(question), choice.is_used)
    return DecidedQuestion(
        question=question.id,
        options=question.names,
        way=choice.way.name,
        mending=choice.chosen.name,
        tried=choice.tried,
        rows=int((choice.is_used & (rows.learned(question) != NO_ANSWER)).sum()),
        test_rows=len(answers),
        refused=int((~read_rows.is_read).sum() + (~test.is_read).sum()),
        floored=float(read_rows.floored[read_rows.is_read].mean()),
        changed_by_floors=int(changed_by_floors(choice.chosen.mending, learning).sum()),
        label_mass=float(masses.mean()) if len(masses) else None,
        flipped=None if flips is None else flips[0],
        flip_rows=0 if flips is None else flips[1],
        raw_reliability=reliability(raw, answers),
        reliability=reliability(after, answers),
        raw_coverage=coverage(raw, answers) if len(answers) else (),
        coverage=coverage(after, answers) if len(answers) else (),
        changed=tuple(examples_of_change),
        changed_rows=changed,
        promise=promise,
    )


def _result(
    trials: Trials,
    bias: Bias,
    decided: Sequence[DecidedQuestion],
    decisions: dict[str, BothDecisions],
    rivals: Sequence[Comparison],
) -> FitResult:
    """What result.json holds."""
    completions, prompt_tokens, completion_tokens = trials.store.spent(trials.used)
    return FitResult(
        status=bias.status,
        verdict=bias.verdict,
        estimator=ESTIMATOR,
        chosen=bias.settings,
        entries=0,
        uncompiled_entries=0,
        kl_nats_per_completion=None,
        kl_missing="mending changes decisions, not completions",
        training=TrainingCounts(rollouts=bias.rollouts, tokens=0, incomplete=0, filtered=0),
        decisions=decisions,
        beside=tuple(together(rivals)),
        decided=tuple(decided),
        usage=FitUsage(
            completions=completions,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
        ),
    )
