"""Fields: which request fields a provider knows, their types and ranges, and what of them the
gateway can really do, from the rows of ``fields.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from openai.types import completion_create_params as legacy_params
from openai.types.chat import completion_create_params as chat_params

__all__ = ["PARAMS", "SERVED", "STOPS", "Endpoint", "Field", "Fields", "fields_of"]

Endpoint: TypeAlias = Literal["chat", "completions"]
Kind: TypeAlias = Literal["integer", "number", "boolean", "string", "array", "object", "other"]
PARAMS: Mapping[Endpoint, Any] = {
    "chat": chat_params.CompletionCreateParamsNonStreaming,
    "completions": legacy_params.CompletionCreateParamsNonStreaming,
}
"""OpenAI's official schema, as types of its package."""
STOPS = 4
"""Most stop sequences: schema StopConfiguration.maxItems."""


@dataclass(frozen=True, slots=True)
class Field:
    """``low`` and ``high`` are the range of a number, None where there is no limit."""

    kind: Kind
    low: float | None = None
    high: float | None = None


Fields: TypeAlias = Mapping[str, Field]
ROWS: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("fields.toml").read_text(encoding="utf-8")
)
SERVED: Mapping[str, list[object]] = ROWS["served"]
"""Known fields that the gateway cannot act on -> the values, besides null, that ask for nothing."""


def fields_of(provider: str) -> Mapping[Endpoint, Fields]:
    """The fields of each endpoint of a provider that has a table."""
    return {endpoint: _fields(provider, endpoint) for endpoint in get_args(Endpoint)}


def _fields(provider: str, endpoint: Endpoint) -> Fields:
    """The fields of one endpoint."""
    names = list(PARAMS[endpoint].__annotations__) if provider == "openai" else []
    rows: dict[str, Any] = {}
    for table in (ROWS["common"], ROWS[provider].get("both", {}), ROWS[provider][endpoint]):
        names += table.get("other", [])
        rows |= {name: row for name, row in table.items() if name != "other"}
    others = dict.fromkeys(names, Field("other"))
    return {**others, **{name: Field(*row) for name, row in rows.items()}}
