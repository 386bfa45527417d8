"""Requests of decision endpoints, in the three shapes that servers speak.

``systemone`` is TypeSafe's ``/v1/systemone`` (https://api.typesafe.ai/openapi.json), which vLLM,
SGLang, llama.cpp, Ollama and others serve, Perplexity at ``/v1/decisions``. ``openai`` is OpenAI's
``/v1/decisions`` (``openai`` 3.57, ``client.decisions``), ``sglang`` the one of SGLang 0.5.23 at
the same path.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, NoReturn, TypeAlias

from blackbox_lb.errors import InputError
from blackbox_lb.questions.fields import kind_of
from blackbox_lb.questions.question import AnswerOption, Json, Question
from blackbox_lb.safety.printable import shorten

Shape: TypeAlias = Literal["systemone", "openai", "sglang"]

PROMPT_FORMAT = 1
"""The version of SGLang's layout (``prompt_format_version``) that is asked for."""


def request_body(
    shape: Shape, model: str, state: Json, questions: Sequence[Question]
) -> dict[str, Any]:
    """The body of a request that asks all questions about one state.

    Raises:
        InputError: the shape has no place for a part of a question, as OpenAI's predicate has none
            for what yes and no mean.
    """
    if shape == "systemone":
        by_id = {question.id: question.as_json() for question in questions}
        return {"model": model, "state": state, "questions": by_id}
    if shape == "openai":
        listed = [_to_openai(question) for question in questions]
        return {"model": model, "input": input_of_state(state), "questions": listed}
    listed = [_to_sglang(question) for question in questions]
    return {
        "model": model,
        "input": state,
        "questions": listed,
        "prompt_format_version": PROMPT_FORMAT,
    }


def adapted(shape: Shape, question: Question) -> Question:
    """The question in a form that the shape has a place for.

    One that has this form already stays the same. Of any other the model reads something else than
    before: instructions and descriptions become texts, and those of true and false stand in the
    instructions.
    """
    try:
        request_body(shape, "", "", [question])
    except InputError:
        return _in_plain_text(question)
    return question


def _in_plain_text(question: Question) -> Question:
    instructions = _as_text(question.instructions) or "Choose what fits."
    options = []
    for option in question.options:
        description = _as_text(option.description)
        if question.kind == "noul" and description:
            side = "Yes" if option.name == "true" else "No"
            instructions = f"{instructions}\n{side}: {description}"
        keeps = option.description is not None and question.kind != "noul"
        options.append(option.replacing(description=description if keeps else None))
    return question.replacing(instructions=instructions, options=tuple(options))


def _as_text(value: Json) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def input_of_state(state: Json) -> Json:
    """A state as OpenAI's ``input``: a text and a list of messages as they are, other JSON as a
    part of a user's message.
    """
    if isinstance(state, str) or is_messages(state):
        return state
    return [{"role": "user", "content": [{"type": "input_json", "data": state}]}]


def is_messages(state: Json) -> bool:
    """Whether a state is a list of OpenAI's input items."""
    return (
        isinstance(state, list)
        and bool(state)
        and all(isinstance(item, dict) and ("role" in item or "type" in item) for item in state)
    )


def _to_openai(question: Question) -> dict[str, Any]:
    instructions = question.instructions
    if not instructions or isinstance(instructions, dict):
        _no_place(question, f"instructions that are {kind_of(instructions)}", "give a text")
    fields: dict[str, Any] = {"name": question.id, "instructions": instructions}
    if question.kind == "choice":
        fields["choices"] = [_to_choice(question, option) for option in question.options]
        return {"type": "choice", **fields}
    if question.kind == "score":
        fields["levels"] = [_to_level(question, option) for option in question.options]
        return {"type": "score", **fields}
    if any(option.description is not None for option in question.options):
        _no_place(
            question, "descriptions of true and false", "write them into the ``instructions``"
        )
    return {"type": "predicate", **fields}


def _to_choice(question: Question, option: AnswerOption) -> dict[str, Any]:
    value = json.loads(option.name) if option.is_boolean else option.name
    return {"value": value, **_described(question, option.description)}


def _to_level(question: Question, option: AnswerOption) -> dict[str, Any]:
    text = option.description
    if isinstance(text, dict) and text.keys() == {"label", "description"}:
        return {"label": text["label"], **_described(question, text["description"])}
    if not isinstance(text, str) or not text:
        _no_place(question, f"a level that is {kind_of(text)}", "give a text")
    return {"label": text}


def _described(question: Question, description: Json) -> dict[str, Any]:
    if description is None:
        return {}
    if not isinstance(description, str):
        _no_place(question, f"a description that is {kind_of(description)}", "give a text")
    return {"description": description}


def _to_sglang(question: Question) -> dict[str, Any]:
    if not question.instructions:
        _no_place(question, "a question without ``instructions``", "give some")
    fields: dict[str, Any] = {"id": question.id, "question": question.instructions}
    if question.kind == "choice":
        fields["options"] = [
            {"name": option.name}
            if option.description is None
            else {"name": option.name, "description": option.description}
            for option in question.options
        ]
        return {"type": "choice", **fields}
    if question.kind == "score":
        fields["levels"] = [option.description for option in question.options]
        return {"type": "score", **fields}
    for side, option in zip(("yes", "no"), question.options, strict=True):
        if option.description is not None:
            fields[side] = option.description
    return {"type": "yes_no", **fields}


def _no_place(question: Question, part: str, remedy: str) -> NoReturn:
    raise InputError(
        f"the question {shorten(question.id)} has {part}, and the endpoint's shape has no place for"
        f" it; {remedy}"
    )
