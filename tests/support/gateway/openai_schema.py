"""Schema: is a request valid against OpenAI's official schema, as the types generated from it in
the openai package say?

The types name every field and its type but no ranges; those are in ``fields``. Unknown top-level
fields are invalid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from openai.types import completion_create_params as legacy_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import TypeAdapter, ValidationError

from tests.support.gateway.errors.openai import JSON
from tests.support.gateway.requests.fields import Endpoint

__all__ = ["InvalidRequest", "invalid"]

PARAMS: Mapping[Endpoint, Any] = {
    "chat": chat_params.CompletionCreateParamsNonStreaming,
    "completions": legacy_params.CompletionCreateParamsNonStreaming,
}


@dataclass(frozen=True, slots=True)
class InvalidRequest:
    """A request that the official schema does not allow: where in the body, and why."""

    path: str
    where: str
    why: str
    body: JSON


def invalid(endpoint: Endpoint, path: str, body: JSON) -> list[InvalidRequest]:
    """Every place where ``body`` departs from the schema of ``endpoint``; empty if it is valid."""
    found = [
        (name, "not a field of the schema")
        for name in sorted(set(body) - set(PARAMS[endpoint].__annotations__))
    ]
    try:
        _drain(_adapter(endpoint).validate_python(body, strict=True))
    except ValidationError as error:
        found += [
            (".".join(map(str, each["loc"])), each["msg"])
            for each in error.errors(include_url=False)
        ]
    return [InvalidRequest(path, where, why, body) for where, why in found]


@cache
def _adapter(endpoint: Endpoint) -> TypeAdapter[Any]:
    return TypeAdapter(PARAMS[endpoint])


def _drain(value: object) -> None:
    """pydantic checks an Iterable only while it is iterated."""
    if isinstance(value, Mapping):
        for each in value.values():
            _drain(each)
    elif isinstance(value, Iterator | list):
        for each in value:
            _drain(each)
