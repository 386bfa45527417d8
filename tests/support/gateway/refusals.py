"""Refusals: what a provider answers to a request that it does not take, from the rows of
``refusals.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

JSON: TypeAlias = dict[str, Any]
ROWS: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("refusals.toml").read_text(encoding="utf-8")
)
SAFE = {"filtered": False, "severity": "safe"}
FILTERED = {
    "code": "ResponsibleAIPolicyViolation",
    "content_filter_result": {
        "hate": {"filtered": True, "severity": "high"},
        **dict.fromkeys(("self_harm", "sexual", "violence"), SAFE),
    },
}


class Refusal(Exception):
    """This request is answered with ``status`` and ``body``."""

    def __init__(self, status: int, body: JSON) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.body = body


def refusal(provider: str, rule: str, *, status: int | None = None, **facts: object) -> Refusal:
    """The provider's words for a broken rule.

    Args:
        provider: a table of refusals.toml.
        rule: a row of that table, or of OpenAI's.
        status: instead of the row's.
        facts: what the row's texts name in braces.
    """
    row = ROWS[provider].get(rule) or ROWS["openai"][rule]
    texts = {
        name: text.format(**facts) if isinstance(text, str) else text for name, text in row.items()
    }
    message = texts["message"]
    code = texts.get("code")
    kind = texts.get("type", "invalid_request_error")
    status = int(row.get("status", 400)) if status is None else status
    match row.get("shape"):
        case "gate":
            error = {"code": code, "message": message}
        case "fireworks":
            error = {"object": "error", "type": kind, "code": kind, "message": message}
        case _:
            error = {"message": message, "type": kind, "param": texts.get("param"), "code": code}
    if row.get("shape") == "filter":
        error = {**error, "type": None, "status": status, "innererror": FILTERED}
    return Refusal(status, {"error": error})


def complaint(code: str, **facts: object) -> JSON:
    """What a failed batch says of its file."""
    message = ROWS["complaints"][code].format(**facts)
    return {"code": code, "message": message, "line": None, "param": None}
