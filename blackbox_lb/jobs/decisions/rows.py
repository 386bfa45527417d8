"""The rows of a decision: which option each one's answer names, and the questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.mending import FEWEST_ANSWERS
from blackbox_lb.questions.question import Question, question_of_labels, read_questions
from blackbox_lb.safety.files import exists
from blackbox_lb.tasks import Task
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example

NO_ANSWER = -1
"""In place of an option, of a row without an answer."""


@dataclass(frozen=True, slots=True, eq=False)
class DecisionRows:
    """Rows in their splits, with the place of the right option of each question.

    train, test: the examples. places: question id -> (n,) of the train rows, then of the test
    rows; ``NO_ANSWER`` where a row has none.
    """

    train: tuple[Example, ...]
    test: tuple[Example, ...]
    questions: tuple[Question, ...]
    places: dict[str, npt.NDArray[np.int64]]

    @classmethod
    def of(cls, task: Task, questions: Sequence[Question], limit: int | None) -> DecisionRows:
        """The rows of a task; all that are no test rows teach, the first ``limit`` of them.

        Raises InputError: an answer is no option, or a question has no rows with an answer.
        """
        train = task.pooled().train[:limit]
        rows = (*train, *task.test)
        places = {}
        for question in questions:
            alone = len(questions) == 1
            numbers = [answer_place(question, example, alone=alone) for example in rows]
            places[question.id] = np.array(numbers, np.int64)
            _check_taught(question, [number for number in numbers[: len(train)] if number >= 0])
        return cls(train, task.test, tuple(questions), places)

    def learned(self, question: Question) -> npt.NDArray[np.int64]:
        """(n,) places of the train rows."""
        return self.places[question.id][: len(self.train)]

    def judged(self, question: Question) -> npt.NDArray[np.int64]:
        """(n,) places of the test rows."""
        return self.places[question.id][len(self.train) :]


def _check_taught(question: Question, places: Sequence[int]) -> None:
    """Raise InputError where the answers of the rows that teach are none, too few, or all one."""
    if not places:
        raise InputError(
            f"no row has an answer to the question {question.id!r}; name the column of its answers"
            f" {question.id!r}, or leave the question out of ``question``"
        )
    if len(places) < FEWEST_ANSWERS:
        raise InputError(
            f"{len(places)} rows that teach have an answer to the question {question.id!r}, and"
            f" mending takes at least {FEWEST_ANSWERS}; give more rows"
        )
    if len(set(places)) == 1:
        raise InputError(
            f"all {len(places)} rows that teach have the answer {question.names[places[0]]!r} to"
            f" the question {question.id!r}; give rows of at least two of its options"
        )


def answer_place(question: Question, example: Example, *, alone: bool) -> int:
    """The place of the right option, ``NO_ANSWER`` without one; ``alone``: whether no other
    question is asked. Raises InputError: the answer is no option.
    """
    answer = example.prompt.columns.get(question.id, "")
    if alone and example.answers:
        answer = example.answers[0]
    if not answer.strip():
        return NO_ANSWER
    try:
        return question.place_of(answer)
    except InputError as error:
        raise InputError(f"{example.place}: {error}") from error


def questions_of(spec: str, labels: Labels | None) -> tuple[Question, ...]:
    """The questions of a file, or the one that ``spec`` asks with the labels as its options.

    Raises InputError: the file cannot be read or holds no question; a text without labels.
    """
    path = Path(spec)
    if path.suffix == ".json" or (exists(path) and path.is_file()):
        return read_questions(path)
    if labels is None:
        raise InputError(
            f"``question={spec!r}`` is no .json file, so it is the question itself, and its"
            " options are not known: name them with ``labels``, as in ``labels=yes,no``"
        )
    return (question_of_labels(labels.names, spec),)
