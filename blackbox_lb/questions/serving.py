"""The side of a server: requests of clients read, and answers written in the request's shape."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from blackbox_lb.questions.fields import (
    Json,
    Loc,
    RequestFault,
    dotted,
    field,
    fields_of,
    kind_of,
    list_field,
    needed_prose,
    prose,
    text_field,
    unknown_type,
)
from blackbox_lb.questions.question import (
    AnswerOption,
    Question,
    checked_question,
    distinct_ids,
    questions_of_openai,
    questions_of_system_one,
)
from blackbox_lb.questions.requests import PROMPT_FORMAT, Shape

MOST_QUESTIONS = 400
"""Questions of one request, as at OpenAI."""


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """What a client asks.

    shape: the form of its body. model: as it names it. state: what the questions are about.
    questions: in order. names: the names that the answers repeat, None for a question of OpenAI's
    form without one.
    """

    shape: Shape
    model: str
    state: Json
    questions: tuple[Question, ...]
    names: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """The answer to one question, options in the question's order.

    probabilities: with sum 1. raw: those of the model, where ``probabilities`` are others; None
        elsewhere. mended: whether a learned mending was applied. abstains: whether a certified cut
        leaves this answer to somebody else. label_mass: as in ``OptionScores``. refused: whether
        the model refused the question; the probabilities are then equal.
    """

    probabilities: tuple[float, ...]
    raw: tuple[float, ...] | None = None
    mended: bool = False
    abstains: bool = False
    label_mass: float | None = None
    refused: bool = False


# Requests -------------------------------------------------------------------------------------


def shape_of(body: object, path: str) -> Shape:
    """The shape of a request by its questions, by the end of its path where these do not tell."""
    questions = body.get("questions") if isinstance(body, dict) else None
    if isinstance(questions, dict):
        return "systemone"
    if isinstance(questions, list) and questions:
        first = questions[0]
        if isinstance(first, dict) and ("question" in first or first.get("type") == "yes_no"):
            return "sglang"
        return "openai"
    return "systemone" if path.rstrip("/").endswith("/systemone") else "openai"


def parse_request(body: object, path: str) -> DecisionRequest:
    """A client's request; fields beside those of questions are left alone.

    Args:
        body: the parsed JSON.
        path: of the request; it decides where the body does not tell its shape.

    Raises:
        RequestFault: it cannot be read.
    """
    shape = shape_of(body, path)
    fields = fields_of(body, ())
    model = text_field(fields, "model", ())
    state_name = "state" if shape == "systemone" else "input"
    state = field(fields, state_name, ())
    if not isinstance(state, str | dict | list):
        raise RequestFault(
            (state_name,), f"it is {kind_of(state)}; give a text, an object or a list"
        )
    raw = field(fields, "questions", ())
    if isinstance(raw, dict | list) and len(raw) > MOST_QUESTIONS:
        raise RequestFault(
            ("questions",),
            f"there are {len(raw)} questions; send at most {MOST_QUESTIONS} in a request",
            "too_long",
        )
    loc: Loc = ("questions",)
    if shape == "systemone":
        questions = questions_of_system_one(raw, loc)
    elif shape == "sglang":
        questions = _questions_of_sglang(raw, loc)
    else:
        questions = questions_of_openai(raw, loc)
        state = _state_of_input(state)
    names: list[str | None] = [question.id for question in questions]
    if shape == "openai" and isinstance(raw, list):
        names = [
            None if isinstance(item, dict) and item.get("name") is None else name
            for item, name in zip(raw, names, strict=True)
        ]
    return DecisionRequest(shape, model, state, questions, tuple(names))


def _state_of_input(state: Json) -> Json:
    """What OpenAI's ``input`` is about: the text or the JSON of a single message of a user, else
    the whole.
    """
    if not isinstance(state, list) or len(state) != 1:
        return state
    message = state[0]
    if not isinstance(message, dict) or message.get("role") != "user":
        return state
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.get("type") == "input_text" and isinstance(part.get("text"), str):
            return part["text"]
        if part.get("type") == "input_json" and isinstance(part.get("data"), dict | list):
            return part["data"]
    return state


_OF_SGLANG = {
    "choice": ("id", "type", "question", "options"),
    "score": ("id", "type", "question", "levels"),
    "yes_no": ("id", "type", "question", "yes", "no"),
}


def _questions_of_sglang(raw: Json, loc: Loc) -> tuple[Question, ...]:
    items = cast("list[Json]", raw)  # ``shape_of`` has seen it
    questions = [_question_of_sglang(item, (*loc, place)) for place, item in enumerate(items)]
    return distinct_ids(questions, loc)


def _question_of_sglang(raw: Json, loc: Loc) -> Question:
    kind = field(fields_of(raw, loc), "type", loc)
    if not isinstance(kind, str) or kind not in _OF_SGLANG:
        raise unknown_type(kind, tuple(_OF_SGLANG), loc)
    fields = fields_of(raw, loc, _OF_SGLANG[kind])
    id = text_field(fields, "id", loc)
    instructions = needed_prose(field(fields, "question", loc), (*loc, "question"))
    if kind == "yes_no":
        options = [
            AnswerOption(name=name, description=prose(fields.get(side), (*loc, side)))
            for name, side in (("true", "yes"), ("false", "no"))
        ]
        return checked_question(id, "noul", instructions, options, loc)
    if kind == "score":
        where = (*loc, "levels")
        levels = [
            AnswerOption(name=str(place), description=needed_prose(level, (*where, place)))
            for place, level in enumerate(list_field(fields, "levels", loc))
        ]
        return checked_question(id, "score", instructions, levels, where)
    where = (*loc, "options")
    options = []
    for place, item in enumerate(list_field(fields, "options", loc)):
        inside = (*where, place)
        option = fields_of(item, inside, ("name", "description"))
        description = prose(option.get("description"), (*inside, "description"))
        options.append(
            AnswerOption(name=text_field(option, "name", inside), description=description)
        )
    return checked_question(id, "choice", instructions, options, where)


def fault_body(shape: Shape, fault: RequestFault) -> tuple[int, dict[str, Any]]:
    """Status and body of the answer to a request that cannot be read: FastAPI's 422 for System
    One, OpenAI's 400 for the others.
    """
    if shape == "systemone":
        detail = {"loc": ["body", *fault.loc], "msg": fault.msg, "type": fault.type}
        return 422, {"detail": [detail]}
    error = {
        "message": str(fault),
        "type": "invalid_request_error",
        "param": dotted(fault.loc) or None,
        "code": fault.type,
    }
    return 400, {"error": error}


# Answers --------------------------------------------------------------------------------------


def confidence(question: Question, probabilities: Sequence[float]) -> float:
    """The confidence of a choice or a score, from 0 to 1, as TypeSafe publishes it.

    Of a choice ``(p_max - 1/n) / (1 - 1/n)``; of a score 1 less the expected distance from the
    likeliest level, over its mean from the middle of the scale. 1 where there is one option.
    """
    size = len(probabilities)
    if size == 1:
        return 1.0
    largest = max(probabilities)
    if question.kind == "score":
        mode = probabilities.index(largest)
        distance = math.fsum(
            probability * abs(level - mode) for level, probability in enumerate(probabilities)
        )
        scale = math.fsum(abs(level - (size - 1) / 2) for level in range(size)) / size
        value = 1 - distance / scale
    else:
        value = (largest - 1 / size) / (1 - 1 / size)
    return min(max(value, 0.0), 1.0)


def expected_level(probabilities: Sequence[float]) -> float:
    """The mean level of a score, from 0."""
    return math.fsum(level * probability for level, probability in enumerate(probabilities))


def answer_body(
    request: DecisionRequest,
    served_model: str,
    decided: Mapping[str, QuestionAnswer],
    input_tokens: int,
) -> dict[str, Any]:
    """The body of the answer, in the request's shape; numbers are not rounded.

    Args:
        request: the client's.
        served_model: the model that answered.
        decided: question id -> its answer.
        input_tokens: read by the model for all questions.
    """
    listed = [
        answer_fields(request.shape, question, name, decided[question.id])
        for question, name in zip(request.questions, request.names, strict=True)
    ]
    ids = [question.id for question in request.questions]
    if request.shape == "openai":
        usage = {
            "input_tokens": input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input_tokens,
        }
        return {"model": served_model, "answers": listed, "usage": usage}
    if request.shape == "sglang":
        return {
            "object": "decisions",
            "model": served_model,
            "prompt_format_version": PROMPT_FORMAT,
            "answers": dict(zip(ids, listed, strict=True)),
            "usage": {"prompt_tokens": input_tokens, "total_tokens": input_tokens},
        }
    return {
        "model": served_model,
        "answers": dict(zip(ids, listed, strict=True)),
        "usage": {"input_tokens": input_tokens, "output_tokens": len(listed)},
    }


def answer_fields(
    shape: Shape, question: Question, name: str | None, decision: QuestionAnswer
) -> dict[str, Any]:
    """One answer in a shape; ``name``: of a question in OpenAI's list."""
    if shape == "openai":
        return _of_openai(question, name, decision)
    if shape == "sglang":
        return _of_sglang(question, decision)
    return _of_system_one(question, decision)


def _extra(names: Sequence[str], decision: QuestionAnswer) -> dict[str, Any]:
    """The fields beside those of the shape; names of other servers' fields cannot begin so."""
    fields: dict[str, Any] = {"x_mended": decision.mended, "x_abstain": decision.abstains}
    if decision.raw is not None:
        fields["x_raw_probabilities"] = dict(zip(names, decision.raw, strict=True))
    if decision.label_mass is not None:
        fields["x_label_mass"] = decision.label_mass
    if decision.refused:
        fields["x_refused"] = True
    return fields


def _likeliest(question: Question, decision: QuestionAnswer) -> AnswerOption:
    probabilities = decision.probabilities
    return question.options[probabilities.index(max(probabilities))]


def _of_system_one(question: Question, decision: QuestionAnswer) -> dict[str, Any]:
    probabilities = decision.probabilities
    extra = _extra(question.names, decision)
    if question.kind == "noul":
        return {"type": "noul", "noul": probabilities[0], **extra}
    by_name = dict(zip(question.names, probabilities, strict=True))
    fields: dict[str, Any] = {"type": question.kind}
    if question.kind == "choice":
        fields["choice"] = _likeliest(question, decision).name
    else:
        fields["score"] = expected_level(probabilities)
        fields["legend"] = {option.name: option.description for option in question.options}
    fields["confidence"] = confidence(question, probabilities)
    fields["probabilities"] = by_name
    return fields | extra


def _of_openai(question: Question, name: str | None, decision: QuestionAnswer) -> dict[str, Any]:
    probabilities = decision.probabilities
    if decision.refused:
        return {"type": "refusal", "name": name}
    extra = _extra(question.names, decision)
    if question.kind == "noul":
        return {"type": "predicate", "name": name, "probability": probabilities[0], **extra}
    fields: dict[str, Any] = {"type": question.kind, "name": name}
    if question.kind == "choice":
        fields["choice"] = _value(_likeliest(question, decision))
        listed = [
            {"value": _value(option), "probability": probability}
            for option, probability in zip(question.options, probabilities, strict=True)
        ]
    else:
        fields["score"] = expected_level(probabilities)
        listed = [
            {"value": level, "label": option.level_text, "probability": probability}
            for level, (option, probability) in enumerate(
                zip(question.options, probabilities, strict=True)
            )
        ]
    fields["confidence"] = confidence(question, probabilities)
    fields["probabilities"] = listed
    return fields | extra


def _value(option: AnswerOption) -> str | bool:
    return bool(json.loads(option.name)) if option.is_boolean else option.name


def _of_sglang(question: Question, decision: QuestionAnswer) -> dict[str, Any]:
    names: Sequence[str] = question.names
    kind: str = question.kind
    if kind == "noul":
        names = ("yes", "no")
        kind = "yes_no"
    probabilities = decision.probabilities
    fields: dict[str, Any] = {
        "type": kind,
        "probabilities": dict(zip(names, probabilities, strict=True)),
        "label_mass": decision.label_mass,
    }
    if kind == "choice":
        fields["choice"] = _likeliest(question, decision).name
    elif kind == "score":
        fields["score"] = expected_level(probabilities)
    extra = _extra(names, decision)
    extra.pop("x_label_mass", None)
    return fields | extra
