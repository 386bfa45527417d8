"""Answers of decision endpoints, read whatever their shape."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from blackbox_lb.errors import CorruptResponse
from blackbox_lb.questions.fields import kind_of
from blackbox_lb.questions.question import Question
from blackbox_lb.safety.printable import shorten

UNROUNDED_FLOOR = 1e-6
"""The probability that a 0 of an endpoint that does not round stands for."""
SLACK = 0.01
"""Difference of a sum of unrounded probabilities from 1, and of one from 0 or 1, that is rounding.
"""
FEWEST_DECIMALS = (2, 3, 4)
"""Roundings that are seen in the values themselves, where the host tells none."""
_REMEDY = "see whether the address is a decision endpoint, and ask again"


@dataclass(frozen=True, slots=True)
class OptionScores:
    """One question's answer about one row, options in the question's order.

    logprobs: nats, () of a refusal. What the endpoint printed as 0 has its bound: the log of half
        the last decimal, of 1e-6 where it does not round.
    floored: whether the endpoint printed 0.
    label_mass: share of the whole next-token distribution that the options had; None where it is
        not told.
    refused: whether the model refused this question.
    """

    logprobs: tuple[float, ...]
    floored: tuple[bool, ...]
    label_mass: float | None = None
    refused: bool = False


REFUSAL = OptionScores((), (), refused=True)


@dataclass(frozen=True, slots=True)
class DecisionAnswer:
    """The answers about one row.

    model: as the endpoint names it. scores: question id -> its answer. input_tokens: by the
    endpoint's count, 0 where it gives none.
    """

    model: str
    scores: Mapping[str, OptionScores]
    input_tokens: int


def read_answer(
    answer: object, questions: Sequence[Question], decimals: int | None
) -> DecisionAnswer:
    """The answers of an endpoint, whatever its shape.

    Args:
        answer: the parsed body.
        questions: those of the request, in its order.
        decimals: that the endpoint rounds probabilities to; None where that is not known, and then
            values of at most four decimals count as rounded.

    Raises:
        CorruptResponse: it is no such answer; the message says what is wrong.
    """
    if not isinstance(answer, dict):
        _corrupt(f"it is {kind_of(answer)}, not an object")
    model = answer.get("model")
    if not isinstance(model, str) or not model:
        _corrupt(f"its `model` is {kind_of(model)}")
    reader = _Reader(decimals)
    answers = answer.get("answers")
    if isinstance(answers, list):
        scores = reader.listed(answers, questions)
    elif isinstance(answers, dict):
        scores = reader.by_id(answers, questions, _masses(answer))
    else:
        _corrupt(f"its `answers` is {kind_of(answers)}, neither a list nor an object")
    return DecisionAnswer(model, scores, _input_tokens(answer.get("usage")))


def _masses(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The label masses by question, as vLLM tells them."""
    diagnostics = answer.get("diagnostics")
    if not isinstance(diagnostics, dict):
        return {}
    return {
        id: fields.get("label_mass")
        for id, fields in diagnostics.items()
        if isinstance(fields, dict)
    }


def _input_tokens(usage: object) -> int:
    if not isinstance(usage, dict):
        return 0
    tokens = usage.get("input_tokens", usage.get("prompt_tokens", 0))
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        _corrupt(f"its count of input tokens is {shorten(tokens)}")
    return tokens


class _Reader:
    """Reads the answers of one body, by the endpoint's rounding."""

    def __init__(self, decimals: int | None) -> None:
        self.decimals = decimals

    def listed(
        self, answers: Sequence[Any], questions: Sequence[Question]
    ) -> dict[str, OptionScores]:
        """OpenAI's list, in the order of the questions."""
        if len(answers) != len(questions):
            _corrupt(f"it has {len(answers)} answers to {len(questions)} questions")
        scores = {}
        for question, fields in zip(questions, answers, strict=True):
            self._check(fields, question)
            if fields.get("name") not in (None, question.id):
                _corrupt(
                    f"the answer in the place of {shorten(question.id)} is named"
                    f" {shorten(fields['name'])}"
                )
            if fields.get("type") == "refusal":
                scores[question.id] = REFUSAL
                continue
            self._check_type(fields, question, {"noul": "predicate"})
            if question.kind == "noul":
                values = self._two_sides(fields.get("probability"), question)
            else:
                values = self._of_list(fields.get("probabilities"), question)
            scores[question.id] = self._scores(values, question, fields.get("x_label_mass"))
        return scores

    def by_id(
        self,
        answers: Mapping[str, Any],
        questions: Sequence[Question],
        masses: Mapping[str, Any],
    ) -> dict[str, OptionScores]:
        """System One's and SGLang's map from question id to answer."""
        scores = {}
        for question in questions:
            if question.id not in answers:
                _corrupt(f"it has no answer to the question {shorten(question.id)}")
            fields = answers[question.id]
            self._check(fields, question)
            if fields.get("type") == "refusal" or fields.get("x_refused") is True:
                scores[question.id] = REFUSAL
                continue
            is_yes_no = fields.get("type") == "yes_no"
            self._check_type(fields, question, {"noul": "yes_no"} if is_yes_no else {})
            if is_yes_no:
                values = self._of_map(fields.get("probabilities"), ("yes", "no"), question)
            elif question.kind == "noul":
                values = self._two_sides(fields.get("noul"), question)
            else:
                values = self._of_map(fields.get("probabilities"), question.names, question)
            mass = fields.get("label_mass", fields.get("x_label_mass", masses.get(question.id)))
            scores[question.id] = self._scores(values, question, mass)
        return scores

    def _check(self, fields: object, question: Question) -> None:
        if not isinstance(fields, dict):
            _corrupt(f"the answer to {shorten(question.id)} is {kind_of(fields)}, not an object")

    def _check_type(
        self, fields: Mapping[str, Any], question: Question, names: Mapping[str, str]
    ) -> None:
        expected = names.get(question.kind, question.kind)
        if fields.get("type") != expected:
            _corrupt(
                f"the answer to {shorten(question.id)} has the type {shorten(fields.get('type'))},"
                f" not {expected}"
            )

    def _of_map(
        self, probabilities: object, names: Sequence[str], question: Question
    ) -> list[float]:
        if not isinstance(probabilities, dict):
            _corrupt(
                f"the probabilities of {shorten(question.id)} are {kind_of(probabilities)}, not an"
                " object"
            )
        return self._in_order(probabilities, names, question)

    def _of_list(self, probabilities: object, question: Question) -> list[float]:
        if not isinstance(probabilities, list):
            _corrupt(
                f"the probabilities of {shorten(question.id)} are {kind_of(probabilities)}, not a"
                " list"
            )
        by_value = {}
        for fields in probabilities:
            self._check(fields, question)
            value = fields.get("value")
            by_value[json.dumps(value)] = fields.get("probability")
        values = [
            option.name
            if option.is_boolean or question.kind == "score"
            else json.dumps(option.name)
            for option in question.options
        ]
        return self._in_order(by_value, values, question)

    def _in_order(
        self, probabilities: Mapping[str, Any], names: Iterable[str], question: Question
    ) -> list[float]:
        values = []
        for name in names:
            if name not in probabilities:
                _corrupt(f"the answer to {shorten(question.id)} lacks the option {shorten(name)}")
            values.append(self._probability(probabilities[name], question))
        if len(probabilities) > len(values):
            _corrupt(
                f"the answer to {shorten(question.id)} has {len(probabilities)} options, and the"
                f" question {len(values)}"
            )
        return values

    def _two_sides(self, probability: object, question: Question) -> list[float]:
        is_true = self._probability(probability, question)
        is_false = 1.0 - is_true
        if self.decimals is not None:
            is_false = round(is_false, self.decimals)
        return [is_true, max(is_false, 0.0)]

    def _probability(self, value: object, question: Question) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not -1e-9 <= float(value) <= 1 + SLACK:  # type: ignore[arg-type]
            _corrupt(
                f"a probability of {shorten(question.id)} is {shorten(value)}, not a number from 0"
                " to 1"
            )
        return min(max(float(value), 0.0), 1.0)  # type: ignore[arg-type]

    def _scores(self, values: Sequence[float], question: Question, mass: object) -> OptionScores:
        total = math.fsum(values)
        decimals = self.decimals if self.decimals is not None else _printed_decimals(values)
        floor = UNROUNDED_FLOOR if decimals is None else 10.0**-decimals / 2
        rounding = 0.0 if decimals is None else floor * len(values)
        if abs(total - 1) > SLACK + rounding:
            _corrupt(f"the probabilities of {shorten(question.id)} sum to {total:.4g}, not to 1")
        return OptionScores(
            tuple(math.log(value) if value > 0 else math.log(floor) for value in values),
            tuple(value <= 0 for value in values),
            None if mass is None else self._probability(mass, question),
        )


def _printed_decimals(values: Sequence[float]) -> int | None:
    """The decimals to which all values look rounded; None where they look like none."""
    for decimals in FEWEST_DECIMALS:
        if all(round(value, decimals) == value for value in values):
            return decimals
    return None


def _corrupt(reason: str) -> NoReturn:
    raise CorruptResponse(f"the answer holds no decisions that can be read: {reason}; {_REMEDY}")
