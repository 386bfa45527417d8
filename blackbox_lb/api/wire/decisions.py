"""Requests to an endpoint that decides between labels, and its answers, kept as they came."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from blackbox_lb.api.draw import Draw
from blackbox_lb.errors import CorruptResponse, InputError, ProfileError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import DecisionRules
from blackbox_lb.questions.answers import DecisionAnswer, read_answer
from blackbox_lb.questions.question import Json, Question
from blackbox_lb.questions.requests import request_body
from blackbox_lb.types import STATE, Completion, Prompt


def decision_rules(profile: Profile) -> DecisionRules:
    """The rows of the provider's endpoint. Raises ProfileError: it has none."""
    if profile.decisions is None:
        raise ProfileError(
            f"{profile.name} has no endpoint that decides between labels; leave out"
            " ``endpoint=decisions``, and the question is put as a prompt"
        )
    return profile.decisions


def check_questions(profile: Profile, questions: Sequence[Question]) -> None:
    """Raise InputError where the host takes fewer questions, options or levels."""
    rules = decision_rules(profile)
    most = rules.questions
    if most is not None and len(questions) > most:
        raise InputError(
            f"{profile.name} takes at most {most} questions a request, and {len(questions)} are"
            " asked; give a file with fewer ``question``s"
        )
    for question in questions:
        most = rules.options
        noun = "options"
        if question.kind == "score":
            most = rules.levels
            noun = "levels"
        size = len(question.options)
        if most is not None and question.kind != "noul" and size > most:
            raise InputError(
                f"question {question.id!r} has {size} {noun}, and {profile.name} takes at most"
                f" {most}; merge some, or ask a host that takes more"
            )


def state_of(prompt: Prompt) -> Json:
    """The state of a request: the text of a single user message, the JSON of a message of the role
    ``state``, and several messages as a list of ``{role, content}``.
    """
    if len(prompt.messages) == 1 and prompt.messages[0].role == STATE:
        state: Json = json.loads(prompt.messages[0].content)
        return state
    if len(prompt.messages) == 1 and prompt.messages[0].role == "user":
        return prompt.messages[0].content
    return [message.as_json for message in prompt.messages]


def decision_body(profile: Profile, draw: Draw, *, model: str, prompt: Prompt) -> dict[str, Any]:
    """The JSON body that asks the draw's questions about a prompt.

    Raises ProfileError, InputError: see ``check_questions``.
    """
    check_questions(profile, draw.questions)
    body = request_body(decision_rules(profile).shape, model, state_of(prompt), draw.questions)
    return {**body, **draw.fields}


def decision_completion(profile: Profile, draw: Draw, answer: Any) -> Completion:
    """The answer as a completion without tokens, whose text is the answer's own JSON.

    Raises CorruptResponse: it does not answer the questions.
    """
    read = answer_to(profile, draw.questions, answer)
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    completion = Completion.empty("stop", read.model)
    return replace(completion, text=text, whole=True, generated=0, prompt_tokens=read.input_tokens)


def answer_to(profile: Profile, questions: Sequence[Question], answer: Any) -> DecisionAnswer:
    """The probabilities in an answer. Raises CorruptResponse: it does not answer the questions."""
    try:
        return read_answer(answer, questions, decision_rules(profile).decimals)
    except CorruptResponse as error:
        raise CorruptResponse(f"{profile.name}: {error}") from error
