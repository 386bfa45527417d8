"""A fit of decisions: read the options' probabilities, learn how to mend them, judge it on unseen
rows.

What an endpoint answers is not sampled anew with a bias: mending changes the numbers that it gave,
so the same answers to the test rows are judged before and after.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blackbox_lb.api.wire.decisions import decision_rules
from blackbox_lb.bias.decisions import MendedQuestion, PromisedError
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Comparison
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Vector
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
    parts_in_order,
    parts_to_read,
    read,
    read_in_order,
    system_of,
    ways_to_read,
)
from blackbox_lb.jobs.decisions.rows import NO_ANSWER, DecisionRows
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

MOST_SAMPLED = 200
MOST_NUMBERS = 10_000
"""Rows of the sample for a test of drift, and numbers of all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class LearnedWay:
    """A way to read a question, with the best mending of what it reads.

    rows: as they were read. learning: those of them that taught. read: share of the rows that
    teach which it reads.
    """

    way: WayToRead
    rows: ReadRows
    learning: MendingRows
    read: float
    candidates: Sequence[CandidateMending]
    best: CandidateMending

    def value(self, goal: DecisionGoal) -> float:
        """What the goal says of it: a row that cannot be read is decided wrong, and each of its
        options is as likely.
        """
        if goal.by == "accuracy":
            return self.read * self.best.scores.accuracy
        options = self.rows.logprobs.shape[1]
        return -self.read * self.best.scores.log_loss - (1 - self.read) * math.log(options)

    def tried(self, chosen: CandidateMending) -> Iterator[TriedMending]:
        """The candidates, their average and their weights in it."""
        weights = candidate_weights(self.candidates).tolist()
        rows = list(zip(self.candidates, weights, strict=True))
        if self.best not in self.candidates:
            rows.append((self.best, 1.0))
        for candidate, weight in rows:
            yield TriedMending(
                way=self.way.name,
                mending=candidate.name,
                weight=weight,
                accuracy=candidate.scores.accuracy,
                log_loss=candidate.scores.log_loss,
                read=self.read,
                is_chosen=candidate is chosen,
            )


@dataclass(frozen=True, slots=True, eq=False)
class LearnedQuestion:
    """A question with the ways by which it can be read, in their order, and the one that was
    chosen, which is compared with the first.
    """

    question: Question
    ways: tuple[LearnedWay, ...]
    chosen: LearnedWay


async def fit_decisions(trials: Trials, task: Task, plan: Plan) -> Fitted:
    """Read, mend and judge the questions of a plan.

    Raises InputError: too few answers to learn from. ProviderError: the API failed; what was
    received is kept, and the same call goes on from there.
    """
    trials = replace(trials, used=set())
    session = trials.session
    rows = DecisionRows.of(task, plan)
    goal = DecisionGoal.parse(plan.objective)
    ways = ways_to_read(session.profile, session.endpoint, plan.layout or ())
    system = system_of((*rows.train, *rows.test))
    read_ways = {
        way: await read(trials, "learning", rows.train, rows.questions, way) for way in ways
    }
    learned = [
        learned_question(
            question,
            rows,
            {way: read_ways[way][question.id] for way in ways},
            goal,
            trials.seed or 0,
        )
        for question in rows.questions
    ]
    flips = await _flips(trials, learned, rows)
    judged_ways = dict.fromkeys(
        part.way for choice in learned for part in (choice.ways[0], choice.chosen)
    )
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
        chosen = choice.chosen
        mending = chosen.best.mending
        suffix = f" of {question.id}" if len(learned) > 1 else ""
        base = read_tests[choice.ways[0].way][question.id]
        test = read_tests[chosen.way][question.id]
        promise, sentence = _promise(choice, rows, goal)
        mended.append(_mended(trials, choice, promise, system))
        is_judged = base.is_read & test.is_read & (rows.judged(question) != NO_ANSWER)
        answers = rows.judged(question)[is_judged]
        raw = softmax(base.logprobs[is_judged])
        after = mending.probabilities(test.logprobs[is_judged])
        if len(answers):
            verdicts += comparisons(question.names, raw, after, answers, suffix)
            for candidate in chosen.candidates:
                if candidate.name in RIVALS:
                    rival = candidate.mending.probabilities(test.logprobs[is_judged])
                    rivals += beside(candidate.name, rival, after, answers, suffix)
            title = GREEDY.name if len(learned) == 1 else f"{GREEDY.name}, {question.id}"
            decisions[title] = both_decisions(question, raw, after, answers)
        examples = [row for row, judged in zip(rows.test, is_judged, strict=True) if judged]
        examples_of_change, changed = changed_rows(question, examples, raw, after, answers)
        flipped, flip_rows = flips.get(question.id, (None, 0))
        masses = chosen.rows.label_mass[np.isfinite(chosen.rows.label_mass)]
        decided.append(
            DecidedQuestion(
                question=question.id,
                options=question.names,
                way=chosen.way.name,
                mending=chosen.best.name,
                tried=tuple(row for way in choice.ways for row in way.tried(chosen.best)),
                rows=int((chosen.learning.answers != NO_ANSWER).sum()),
                test_rows=len(answers),
                refused=int((~chosen.rows.is_read).sum() + (~test.is_read).sum()),
                floored=float(chosen.rows.floored[chosen.rows.is_read].mean()),
                changed_by_floors=int(changed_by_floors(mending, chosen.learning).sum()),
                label_mass=float(masses.mean()) if len(masses) else None,
                flipped=flipped,
                flip_rows=flip_rows,
                raw_reliability=reliability(raw, answers),
                reliability=reliability(after, answers),
                raw_coverage=coverage(raw, answers),
                coverage=coverage(after, answers),
                changed=tuple(examples_of_change),
                changed_rows=changed,
                promise=sentence,
            )
        )
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


def decision_parts(
    profile: Profile, endpoint: Endpoint, draws: Draws, task: Task, plan: Plan
) -> Iterator[StagePart]:
    """All that a fit may ask for."""
    rows = DecisionRows.of(task, plan)
    width = list_width(profile, endpoint)
    ways = ways_to_read(profile, endpoint, plan.layout or ())
    for way in ways:
        for examples in (rows.train, rows.test):
            yield from parts_to_read(draws, examples, rows.questions, way, width)
    choices = [question for question in rows.questions if question.kind == "choice"]
    if choices:
        examples = rows.train[:FLIP_ROWS]
        yield from parts_in_order(draws, examples, choices, ways[0], width, is_reversed=True)


def learned_question(
    question: Question,
    rows: DecisionRows,
    by_way: dict[WayToRead, ReadRows],
    goal: DecisionGoal,
    seed: int,
) -> LearnedQuestion:
    """The way to read and the mending with the best cross-validated goal; of equals the first.

    Raises InputError: in no way could enough answers be read to learn from.
    """
    answers = rows.learned(question)
    teaches = (answers != NO_ANSWER) & ~rows.certifies
    learned: list[LearnedWay] = []
    too_few = InputError("")
    for way, read_rows in by_way.items():
        is_used = read_rows.is_read & ~rows.certifies
        learning = MendingRows(
            read_rows.logprobs[is_used],
            answers[is_used],
            read_rows.floored[is_used],
            question.kind == "score",
        )
        try:
            candidates = mending_candidates(learning, seed)
        except InputError as error:
            too_few = error
            continue
        share = float(read_rows.is_read[teaches].mean())
        best = best_mending(candidates, learning.answers)
        learned.append(LearnedWay(way, read_rows, learning, share, candidates, best))
    if not learned:
        if any(read_rows.is_read.any() for read_rows in by_way.values()):
            raise too_few
        raise InputError(
            f"no answer to the question {question.id!r} could be read: refusals, or none of the"
            f" options {', '.join(question.names)} among the listed first tokens"
        )
    chosen = max(learned, key=lambda part: part.value(goal))
    return LearnedQuestion(question, tuple(learned), chosen)


def _promise(
    choice: LearnedQuestion, rows: DecisionRows, goal: DecisionGoal
) -> tuple[PromisedError | None, str]:
    """What can be certified of the wished share of errors, and a sentence on it."""
    if goal.error is None:
        return None, ""
    answers = rows.learned(choice.question)
    read_rows = choice.chosen.rows
    best = choice.chosen.best
    is_counted = rows.certifies & read_rows.is_read & (answers != NO_ANSWER)
    probabilities = best.mending.probabilities(read_rows.logprobs[is_counted])
    cuts = preset_cuts(best.left_out.max(axis=1))
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
    chosen = choice.chosen
    mending = chosen.best.mending
    logprobs = chosen.rows.logprobs[chosen.rows.is_read]
    rules = None
    if trials.session.endpoint == "decisions":
        rules = decision_rules(trials.session.profile)
    return MendedQuestion(
        question=choice.question,
        reading=chosen.way.reading,
        path="" if rules is None else rules.path,
        model=chosen.rows.models[-1],
        decimals=None if rules is None else rules.decimals,
        system=system,
        both_orders=chosen.way.both_orders,
        slope=float(mending.slope),
        center=tuple(mending.center.tolist()),
        offsets=tuple(mending.offsets.tolist()),
        mending=chosen.best.name,
        rows=len(chosen.learning.answers),
        floored=float(chosen.rows.floored[chosen.rows.is_read].mean()),
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
    trials: Trials, learned: Sequence[LearnedQuestion], rows: DecisionRows
) -> dict[str, tuple[int, int]]:
    """Question id -> decisions that change where the options are listed in reverse, and of how many
    rows; of the choices that are read in one order. Those that are read alike are asked together.
    """
    examples = rows.train[:FLIP_ROWS]
    turning = [
        choice
        for choice in learned
        if choice.question.kind == "choice" and not choice.chosen.way.both_orders
    ]
    flips = {}
    for way in dict.fromkeys(choice.chosen.way for choice in turning):
        alike = [choice for choice in turning if choice.chosen.way == way]
        questions = [choice.question for choice in alike]
        turned = await read_in_order(
            trials, "order of options", examples, questions, way, is_reversed=True
        )
        for choice in alike:
            backward = turned[choice.question.id]
            rows_read = choice.chosen.rows
            is_read = rows_read.is_read[: len(examples)] & backward.is_read
            forward = rows_read.logprobs[: len(examples)][is_read].argmax(axis=1)
            changed = forward != backward.logprobs[is_read].argmax(axis=1)
            flips[choice.question.id] = (int(changed.sum()), int(is_read.sum()))
    return flips


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
