"""Checks: which rules a request breaks, in the order in which the real service reports them
(recorded 2026-08 for OpenAI): unknown fields, then the fields by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tests.support.gateway.fields import PARAMS, SERVED, Endpoint, Fields, Range
from tests.support.gateway.refusals import JSON, Refusal, refusal

__all__ = ["InvalidRequest", "ModelLimits", "broken_rules", "invalid_fields"]

REFUSED_WHILE_REASONING = ("logit_bias", "max_tokens", "stop")
NEUTRAL_WHILE_REASONING: Mapping[str, float] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "top_p": 1,
}
BIAS = (-100, 100)


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
    provider: str, fields: Fields, limits: ModelLimits, body: JSON
) -> Iterator[Refusal]:
    """Every rule of ``fields`` and ``limits`` that ``body`` breaks, of those that a request of this
    package could: ``invalid_fields`` tells the others.
    """
    for name in sorted(set(body) - set(fields)):
        yield refusal(provider, "unknown field", name=name, value=body[name])
    for name in sorted(set(body) & set(fields)):
        value = body[name]
        if value is None:
            continue
        if limits.reasoning and _is_refused_while_reasoning(name, value):
            yield refusal(provider, "reasoning: parameters", name=name)
        elif limits.reasoning and name == "temperature" and value != 1:
            yield refusal(provider, "reasoning: values", name=name, value=value)
        elif name == "logit_bias":
            yield from _bias(provider, value, limits)
        else:
            yield from _value(provider, name, value, fields[name])
    for name in sorted(set(SERVED) & set(body)):
        if body[name] is not None and body[name] not in SERVED[name]:
            yield refusal(provider, "not served", what=f"{name} = {str(body[name])[:60]}")


def _is_refused_while_reasoning(name: str, value: object) -> bool:
    """Whether a model that reasons refuses a well-formed field."""
    if name == "logprobs":
        return value is True
    neutral = NEUTRAL_WHILE_REASONING.get(name, value)
    return name in REFUSED_WHILE_REASONING or value != neutral


def _value(provider: str, name: str, value: object, bounds: Range) -> Iterator[Refusal]:
    """A number outside its range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high = bounds
    number = "integer" if isinstance(value, int) else "decimal"
    facts: JSON = {"name": name, "value": value, "number": number}
    if high is not None and (value > high or math.isnan(value)):
        facts |= {"edge": "above_max", "side": "above maximum", "bound": f"<= {high:g}"}
        yield refusal(provider, "range", **facts)
    elif low is not None and value < low:
        facts |= {"edge": "below_min", "side": "below minimum", "bound": f">= {low:g}"}
        yield refusal(provider, "range", **facts)


def _bias(provider: str, value: JSON, limits: ModelLimits) -> Iterator[Refusal]:
    """The first rule that the bias breaks, not one refusal for every entry."""
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
