"""Refusals: what a provider answers to a request that it does not take, from the rows of
``refusals.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["JSON", "Refusal", "complaint", "first_of", "refusal"]

JSON: TypeAlias = dict[str, Any]

SAFE = {"filtered": False, "severity": "safe"}
FILTERED = {
    "code": "ResponsibleAIPolicyViolation",
    "content_filter_result": {
        "hate": {"filtered": True, "severity": "high"},
        **dict.fromkeys(("self_harm", "sexual", "violence"), SAFE),
    },
}


class Refusal(Exception):
    """This request is answered with ``status`` and ``body``; ``rule`` is the row that says so."""

    def __init__(self, rule: str, status: int, body: JSON) -> None:
        super().__init__(f"{status} {body}")
        self.rule = rule
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
    table = _rows()[provider]
    row = table["rules"].get(rule) or _rows()["openai"]["rules"][rule]
    texts = {
        name: text.format(**facts) if isinstance(text, str) else text for name, text in row.items()
    }
    shape = row.get("shape", table["shape"])
    code = int(row.get("status", 400)) if status is None else status
    return Refusal(rule, code, _body(shape, code, texts))


def first_of(provider: str, refusals: Sequence[Refusal]) -> Refusal:
    """What is answered when several rules are broken: the first; of Fireworks all in one
    sentence.
    """
    first = refusals[0]
    if provider == "fireworks" and len(refusals) > 1:
        sentences = "; ".join(broken.body["error"]["message"] for broken in refusals)
        first.body["error"]["message"] = f"{len(refusals)} request validation errors: {sentences}"
    return first


def complaint(code: str, line: int | None = None, **facts: object) -> JSON:
    """What a failed batch says of its file, or of one line of it."""
    row = _rows()["complaints"][code]
    message = row["message"].format(**facts)
    return {"code": code, "message": message, "line": line, "param": row.get("param")}


def _body(shape: str, status: int, texts: JSON) -> JSON:
    """The answer's body in one of the providers' shapes."""
    message = texts["message"]
    code = texts.get("code")
    kind = texts.get("type", "invalid_request_error")
    if shape == "flat":
        return {"statusCode": status, "message": message}
    if shape == "gate":
        return {"error": {"code": code, "message": message}}
    if shape == "fireworks":
        return {
            "error": {"object": "error", "type": kind, "code": code or kind, "message": message}
        }
    error = {"message": message, "type": kind, "param": texts.get("param"), "code": code}
    if shape == "filter":
        error = {**error, "type": None, "status": status, "innererror": FILTERED}
    return {"error": error}


@cache
def _rows() -> Mapping[str, Any]:
    """The tables of refusals.toml."""
    text = Path(__file__).with_name("refusals.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
