"""Fields: which request fields a provider knows, their ranges, and what of them the gateway can
really do, from the rows of ``fields.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from openai.types import completion_create_params as legacy_params
from openai.types.chat import completion_create_params as chat_params

__all__ = ["PARAMS", "SERVED", "Endpoint", "Fields", "Range", "fields_of"]

Endpoint: TypeAlias = Literal["chat", "completions"]
PARAMS: Mapping[Endpoint, Any] = {
    "chat": chat_params.CompletionCreateParamsNonStreaming,
    "completions": legacy_params.CompletionCreateParamsNonStreaming,
}
"""OpenAI's official schema, as types of its package."""
Range: TypeAlias = tuple[float | None, float | None]
"""Lowest and highest value of a number, None for no limit."""
Fields: TypeAlias = Mapping[str, Range]
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
    ranges: dict[str, Range] = {name: (low, high) for name, (low, high) in rows.items()}
    return {**dict.fromkeys(names, (None, None)), **ranges}
