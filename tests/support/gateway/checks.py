"""Checks: which rules a request breaks, in the order in which the real service reports them.

Order recorded 2026-08 for OpenAI: a missing model, missing messages, unknown fields, then the
fields by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tests.support.gateway.fields import PARAMS, SERVED, STOPS, Endpoint, Field, Fields
from tests.support.gateway.refusals import JSON, Refusal, refusal

__all__ = ["InvalidRequest", "ModelLimits", "broken_rules", "invalid_fields"]

TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "integer": ((int,), "an integer"),
    "number": ((int, float), "a decimal"),
    "boolean": ((bool,), "a boolean"),
    "string": ((str,), "a string"),
    "array": ((list,), "an array of objects"),
    "object": ((dict,), "an object"),
}
REFUSED_WHILE_REASONING = ("logit_bias", "max_tokens", "stop")
NEUTRAL_WHILE_REASONING: Mapping[str, float] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "top_p": 1,
}
BIAS = Field("number", -100, 100)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What holds for one model. ``entries`` and ``properties`` of a bias: None for no limit;
    ``largest`` token id.
    """

    largest: int
    entries: int | None
    properties: int | None
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class InvalidRequest:
    """A request that the official schema does not allow: where in the body, and why."""

    path: str
    where: str
    why: str
    body: JSON


def invalid_fields(endpoint: Endpoint, path: str, body: JSON) -> list[InvalidRequest]:
    """Every place where ``body`` departs from the official schema of ``endpoint``."""
    departures = [
        (name, "not a field of the schema")
        for name in sorted(set(body) - set(PARAMS[endpoint].__annotations__))
    ]
    try:
        _drain(_adapter(endpoint).validate_python(body, strict=True))
    except ValidationError as error:
        departures += [
            (".".join(map(str, fault["loc"])), fault["msg"])
            for fault in error.errors(include_url=False)
        ]
    return [InvalidRequest(path, where, why, body) for where, why in departures]


@cache
def _adapter(endpoint: Endpoint) -> TypeAdapter[Any]:
    return TypeAdapter(PARAMS[endpoint])


def _drain(value: object) -> None:
    """pydantic checks an Iterable only while it is iterated."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Iterator | list):
        for member in value:
            _drain(member)


def broken_rules(
    provider: str, endpoint: Endpoint, fields: Fields, limits: ModelLimits, body: JSON
) -> Iterator[Refusal]:
    """Every rule of ``fields`` and ``limits`` that ``body`` breaks."""
    prompt = "messages" if endpoint == "chat" else "prompt"
    if not body.get(prompt) and body.get(prompt) != "":
        yield refusal(provider, "required", name=prompt)
    for name in sorted(set(body) - set(fields)):
        yield refusal(provider, "unknown field", name=name, value=body[name])
    if endpoint == "chat":
        yield from _messages(provider, body.get("messages"))
    else:
        yield from _prompt(provider, body.get("prompt"), limits)
    for name in sorted(set(body) & set(fields)):
        if body[name] is not None:
            yield from _field(provider, name, fields[name], limits, body)
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        yield refusal(provider, "two token limits")
    for name in sorted(set(SERVED) & set(body)):
        if body[name] is not None and body[name] not in SERVED[name]:
            yield refusal(provider, "not served", what=f"{name} = {str(body[name])[:60]}")
    if body.get("max_tokens") == 0 or body.get("max_completion_tokens") == 0:
        yield refusal(provider, "not served", what="a limit of 0 tokens")


def _field(
    provider: str, name: str, field: Field, limits: ModelLimits, body: JSON
) -> Iterator[Refusal]:
    """What is wrong with one field that the provider knows."""
    value = body[name]
    if limits.reasoning and _is_refused_while_reasoning(name, value):
        yield refusal(provider, "reasoning: parameters", name=name)
    elif limits.reasoning and name == "temperature" and value != 1:
        yield refusal(provider, "reasoning: values", name=name, value=value)
    elif name == "logit_bias":
        yield from _bias(provider, value, limits)
    elif name == "stop":
        if isinstance(value, list) and len(value) > STOPS:
            yield refusal(provider, "stop", length=len(value), most=STOPS)
        elif not isinstance(value, str | list):
            yield _wrong_type(provider, name, "one of a string or array of strings", value)
    elif name == "logprobs" and field.kind == "other" and not isinstance(value, bool):
        # Fireworks: true or false, or a number as in the legacy API.
        yield from _value(provider, name, value, Field("integer", 0, 5))
    elif field.kind != "other":
        yield from _value(provider, name, value, field)
    if name == "top_logprobs" and body.get("logprobs") in (None, False):
        yield refusal(provider, "top_logprobs without logprobs")


def _is_refused_while_reasoning(name: str, value: object) -> bool:
    """Whether a model that reasons refuses a well-formed field."""
    if name == "logprobs":
        return value is True
    neutral = NEUTRAL_WHILE_REASONING.get(name, value)
    return name in REFUSED_WHILE_REASONING or value != neutral


def _value(provider: str, name: str, value: object, field: Field) -> Iterator[Refusal]:
    """A value of another type, or outside its range."""
    types, expected = TYPES[field.kind]
    if not isinstance(value, types) or (isinstance(value, bool) and field.kind != "boolean"):
        yield _wrong_type(provider, name, expected, value)
        return
    if not isinstance(value, int | float) or field.kind == "boolean":
        return
    facts: JSON = {"name": name, "value": value, "number": "integer"}
    if field.kind == "number":
        facts["number"] = "decimal"
    if field.high is not None and (value > field.high or math.isnan(value)):
        bound = f"<= {field.high:g}"
        yield refusal(
            provider, "range", edge="above_max", side="above maximum", bound=bound, **facts
        )
    elif field.low is not None and value < field.low:
        bound = f">= {field.low:g}"
        yield refusal(
            provider, "range", edge="below_min", side="below minimum", bound=bound, **facts
        )


def _wrong_type(provider: str, name: str, expected: str, value: object) -> Refusal:
    """A value of the wrong JSON type."""
    return refusal(provider, "type", name=name, expected=expected, value=value)


def _bias(provider: str, value: object, limits: ModelLimits) -> Iterator[Refusal]:
    """The first rule that the bias breaks, not one refusal for every entry."""
    if not isinstance(value, dict):
        yield _wrong_type(provider, "logit_bias", "an object", value)
        return
    if limits.properties is not None and len(value) > limits.properties:
        yield refusal(provider, "bias properties", entries=len(value), most=limits.properties)
        return
    for key, number in value.items():
        broken = _entry(provider, key, number, limits)
        if broken is not None:
            yield broken
            return
    if limits.entries is not None and len(value) > limits.entries:
        yield refusal(provider, "bias entries", entries=len(value), most=limits.entries)


def _entry(provider: str, key: str, number: object, limits: ModelLimits) -> Refusal | None:
    """What is wrong with one entry of a bias."""
    if not (key.isascii() and key.isdigit()):
        return refusal(provider, "bias keys", key=key)
    if int(key) > limits.largest:
        return refusal(provider, "bias largest id", token=int(key), largest=limits.largest)
    return next(_value(provider, f"logit_bias.{key}", number, BIAS), None)


def _messages(provider: str, messages: object) -> Iterator[Refusal]:
    """Messages without a role, and content that is no text."""
    if not isinstance(messages, list):
        return
    for number, message in enumerate(messages):
        name = f"messages[{number}]"
        if not isinstance(message, dict):
            yield _wrong_type(provider, name, "an object", message)
            continue
        if message.get("role") is None:
            yield refusal(provider, "required", name=f"{name}.role")
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            expected = "one of a string or array of objects"
            yield _wrong_type(provider, f"{name}.content", expected, content)
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict) or part.get("type") != "text":
                yield refusal(provider, "not served", what=f"a part of {name} that is no text")


def _prompt(provider: str, prompt: object, limits: ModelLimits) -> Iterator[Refusal]:
    """One text, or one list of token ids; several prompts at once are not served."""
    if not isinstance(prompt, list) or not prompt:
        return
    if all(type(token) is int for token in prompt):
        for token in prompt:
            if not 0 <= token <= limits.largest:
                yield refusal(provider, "prompt token", token=token, largest=limits.largest)
                return
    elif len(prompt) != 1 or not isinstance(prompt[0], str):
        yield refusal(provider, "not served", what="several prompts in one request")
