"""``blb check BIAS`` of a file that mends decisions: whether it still holds on other rows.

Index letters: ``n`` rows, ``c`` options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from blackbox_lb.bias.decisions import MendedQuestion
from blackbox_lb.bias.document import Bias
from blackbox_lb.binomial import upper_bound
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.rechecking import energy_test, error_evidence, rows_to_show
from blackbox_lb.jobs.decisions.applying import (
    check_reading,
    questions_to_ask,
    read_mended,
    right_places,
    way_of,
)
from blackbox_lb.jobs.decisions.reading import ReadRows, list_width, parts_to_read
from blackbox_lb.jobs.decisions.rows import NO_ANSWER
from blackbox_lb.rollouts.judging.trials import StagePart, Trials
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks import Task
from blackbox_lb.types import Example

MOST_ROWS = 400
"""Rows that are looked at: they give a share to about 5 %."""
LEVEL = 0.05
"""Chance of a false alarm, over all questions."""
WORST_FIRST = ("BROKEN", "DRIFTED", "NOT SHOWN", "HOLDS", "STEADY")
"""Words of questions: the worst is that of the file."""


@dataclass(frozen=True, slots=True)
class ErrorCheck:
    """The wrong decisions on rows with an answer.

    Attributes:
        limit: the largest share of wrong ones: that of the promise, else the 95 % bound of the
            fit's own test rows.
        is_promised: which of both.
        rows: with an answer, in the order of the data.
        decided: of these, those on which the file does not abstain.
        wrong: of the decided ones.
        above, below: evidence that more, and that less, than the limit is wrong.
        word: HOLDS, NOT SHOWN or BROKEN.
        needed: about how many decided rows would show it, if they were decided as these; None
            where they would not.
    """

    limit: float
    is_promised: bool
    rows: int
    decided: int
    wrong: int
    above: float
    below: float
    word: str
    needed: int | None

    @property
    def sentence(self) -> str:
        """The check in words."""
        sentence = f"{self.wrong:,} of {self.decided:,} decisions are wrong"
        limit = f"at most {100 * self.limit:.3g} %"
        if self.is_promised:
            return f"{sentence} ({self.rows - self.decided:,} abstain); promised: {limit}"
        return f"{sentence}; on the test rows of the fit: {limit}"


@dataclass(frozen=True, slots=True)
class QuestionCheck:
    """One question on other rows.

    Attributes:
        question: its id.
        rows: that were read. refused: the others.
        distance: energy distance of the log-probabilities to those of the fit, in standard
            deviations; None where the file holds no sample.
        p: the chance of such a distance where nothing has changed, times the number of questions.
        moved: the option whose mean of log p moved most, with that mean then and now, in nats.
        errors: None without an answer, or without anything to compare with.
    """

    question: str
    rows: int
    refused: int
    distance: float | None
    p: float
    moved: tuple[str, float, float]
    errors: ErrorCheck | None

    @property
    def has_drifted(self) -> bool:
        """Whether the probabilities are shown to be others than those of the fit."""
        return self.p < LEVEL

    @property
    def word(self) -> str:
        """HOLDS, NOT SHOWN or BROKEN, of the errors; without answers DRIFTED, or STEADY where no
        drift is shown.
        """
        if self.errors is not None:
            return self.errors.word
        return "DRIFTED" if self.has_drifted else "STEADY"

    @property
    def lines(self) -> Iterator[str]:
        """The check in words."""
        if self.errors is not None:
            yield self.errors.sentence
        if self.distance is not None:
            drift = "they have drifted" if self.has_drifted else "no drift is shown"
            yield f"probabilities: {drift} (energy distance {self.distance:.2f}, p {self.p:.2g})"
        name, then, now = self.moved
        yield f"mean log p of {shorten(name)}: {then:.2f} in the fit, {now:.2f} now"
        if self.refused:
            yield f"{self.refused:,} rows came back as refusals or without an option"


@dataclass(frozen=True, slots=True)
class MendingCheck:
    """All questions of a file on other rows."""

    questions: tuple[QuestionCheck, ...]

    @property
    def verdict(self) -> str:
        """The worst word of a question."""
        return min((question.word for question in self.questions), key=WORST_FIRST.index)

    @property
    def has_drifted(self) -> bool:
        """Whether a question has."""
        return any(question.has_drifted for question in self.questions)

    @property
    def shortage(self) -> str:
        """Why it is not shown that the file holds, and what would show it; "" elsewhere."""
        if self.verdict != "NOT SHOWN":
            return ""
        open_checks = [
            question.errors
            for question in self.questions
            if question.errors is not None and question.errors.word == "NOT SHOWN"
        ]
        checked = max(open_checks, key=lambda errors: errors.needed or 0)
        sentence = f"{checked.decided:,} decisions do not show it"
        if checked.needed is None:
            return f"{sentence}, and they are wrong more often than that themselves"
        return f"{sentence}; about {checked.needed:,}, decided as these, would"

    def as_json(self) -> dict[str, Any]:
        """The check for JSON."""
        rows = [
            {**asdict(question), "verdict": question.word, "drifted": question.has_drifted}
            for question in self.questions
        ]
        return {"verdict": self.verdict, "questions": rows}


def fresh_rows(task: Task, bias: Bias) -> tuple[Example, ...]:
    """The rows of a task that nothing of a bias file was learned from or chosen on, at most
    ``MOST_ROWS``: all of other data, with those without an answer; the test rows of the fit's own.
    """
    if bias.data_hash == task.data_hash:
        return task.test[:MOST_ROWS]
    rows = (*task.train, *task.validation, *task.test, *task.unlabelled)
    return rows[:MOST_ROWS]


def check_parts(trials: Trials, examples: Sequence[Example], bias: Bias) -> Iterator[StagePart]:
    """All that ``check_mended`` may ask for.

    Raises BiasError: see ``check_reading``.
    """
    session = trials.session
    check_reading(bias, session)
    width = list_width(session.profile, session.endpoint)
    for mended in bias.decisions:
        questions = questions_to_ask(bias, mended)
        yield from parts_to_read(trials.draw, examples, questions, way_of(mended), width)


async def check_mended(trials: Trials, examples: Sequence[Example], bias: Bias) -> MendingCheck:
    """Read the rows as the fit did, drawn unless stored, and compare.

    Raises InputError: an answer that is no option, or nothing could be read. BiasError: another
    model answered, or another endpoint. ProviderError: the API failed.
    """
    checks = []
    for mended in bias.decisions:
        places = right_places(bias, mended, examples)
        read_rows = await read_mended(trials, "check", examples, bias, mended)
        checks.append(_check(bias, mended, read_rows, places))
    return MendingCheck(tuple(checks))


def _check(bias: Bias, mended: MendedQuestion, read_rows: ReadRows, answers: Ids) -> QuestionCheck:
    is_read = read_rows.is_read
    logprobs = read_rows.logprobs[is_read]
    if not len(logprobs):
        raise InputError(
            f"none of {len(is_read)} answers to the question {shorten(mended.question.id)} could be"
            " read: refusals, or no option among the listed first tokens"
        )
    distance = None
    p = 1.0
    if mended.sample:
        drift = energy_test(np.array(mended.sample), logprobs)
        distance = drift.distance
        p = min(drift.p * len(bias.decisions), 1.0)
    is_judged = answers[is_read] != NO_ANSWER
    return QuestionCheck(
        question=mended.question.id,
        rows=len(logprobs),
        refused=int((~is_read).sum()),
        distance=distance,
        p=p,
        moved=_moved(mended, logprobs),
        errors=_errors(bias, mended, logprobs[is_judged], answers[is_read][is_judged]),
    )


def _moved(mended: MendedQuestion, logprobs: Vector) -> tuple[str, float, float]:
    """The option whose mean moved by most deviations, and its mean then and now."""
    then = np.array(mended.mean_logprobs)
    now = logprobs.mean(axis=0)
    deviations = np.maximum(np.array(mended.deviations), 1e-6)
    place = int(np.abs((now - then) / deviations).argmax())
    return mended.question.names[place], float(then[place]), float(now[place])


def _errors(
    bias: Bias, mended: MendedQuestion, logprobs: Vector, answers: Ids
) -> ErrorCheck | None:
    """The wrong decisions; None without rows, or without a limit."""
    limit = mended.promise.error if mended.promise is not None else _tested_limit(bias, mended)
    if not len(answers) or limit is None:
        return None
    decisions = [mended.decide(row) for row in logprobs.tolist()]
    is_decided: Bools = np.array([not decision.abstains for decision in decisions], np.bool_)
    places = np.array([decision.place for decision in decisions], np.int64)
    is_wrong = (places != answers)[is_decided]
    evidence = error_evidence(is_wrong, limit)
    word = "NOT SHOWN"
    if evidence.is_kept():
        word = "HOLDS"
    if evidence.is_broken():
        word = "BROKEN"
    needed = None
    if word == "NOT SHOWN":
        needed = rows_to_show(float(is_wrong.mean()) if len(is_wrong) else 0.0, limit)
    return ErrorCheck(
        limit=limit,
        is_promised=mended.promise is not None,
        rows=len(answers),
        decided=len(is_wrong),
        wrong=int(is_wrong.sum()),
        above=evidence.above,
        below=evidence.below,
        word=word,
        needed=needed,
    )


def _tested_limit(bias: Bias, mended: MendedQuestion) -> float | None:
    """The 95 % bound of the share of wrong decisions on the test rows of the fit; None without
    such rows, and where it says nothing.
    """
    names = ("accuracy", f"accuracy of {mended.question.id}")
    row = next((row for row in bias.verdict if row.metric in names), None)
    if row is None:
        return None
    wrong = round((1 - row.biased) * row.n_prompts)
    limit = upper_bound(wrong, row.n_prompts)
    return limit if limit < 1 else None
