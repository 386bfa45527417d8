"""Writes the cassettes that nobody recorded: ``python -m tests.cassettes.construct``. A test
compares.

What is in them: ``scenes``; how a provider answers: ``answers``; what the model says: ``toy``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tests.cassettes.scenes import PROVIDERS, Exchange

__all__ = ["FOLDER", "SOURCES", "cassettes"]

FOLDER = Path(__file__).parents[2] / "cassettes"
DATE = "2026-11-21"
SCHEMA = "openai/openai-openapi 2.3.0"
AZURE = (
    "azure-rest-api-specs AzureOpenAI inference 2024-10-21, learn.microsoft.com reference and"
    " content-filter"
)
SOURCES = {
    "openai": f"{SCHEMA}, platform.openai.com/docs/guides error-codes and rate-limits",
    "azure": f"{AZURE} and api-version-lifecycle",
    "azure-classic": AZURE,
    "fireworks": (
        "fw-ai-external/python-sdk of 2026-07-21, docs.fireworks.ai/guides/inference-error-codes"
    ),
    "lmstudio": f"lmstudio-ai/docs of 2026-04-29, lmstudio.ai/blog/openresponses, {SCHEMA}",
}
"""Folder of constructed cassettes -> what they were built from."""
WIDTH = 110
"""Characters of JSON that stay on one line: a token with its bytes does."""


def cassettes() -> dict[str, str]:
    """Path under the folder ``cassettes`` -> content, of every constructed cassette."""
    return {
        f"{provider}/{name}.yaml": _file(SOURCES[provider], exchanges)
        for provider, scenes in PROVIDERS.items()
        for name, exchanges in scenes().items()
    }


def _file(sources: str, exchanges: Sequence[Exchange]) -> str:
    title = f"# Constructed from documentation, not recorded: {sources}, {DATE}\n"
    return f"{title}interactions:\n{''.join(map(_interaction, exchanges))}version: 1\n"


def _interaction(exchange: Exchange) -> str:
    method, body, headers = "GET", " ''", " {}"
    if exchange.body is not None:
        method, body, headers = "POST", _block(exchange.body, 6), _headers({})
    return (
        f"- request:\n    body:{body}\n    headers:{headers}\n    method: {method}\n    uri:"
        f" {exchange.url}\n  response:\n    body:\n      string:{_block(exchange.answer, 8)}\n   "
        f" headers:{_headers(exchange.headers)}\n    status:\n      code: {exchange.status}\n     "
        f" message: {HTTPStatus(exchange.status).phrase}\n"
    )


def _headers(more: Mapping[str, str]) -> str:
    all_of_them = {"content-type": "application/json", **more}
    return "".join(f"\n      {name}:\n      - '{value}'" for name, value in all_of_them.items())


def _block(value: Any, indent: int) -> str:
    """JSON as a literal block of YAML."""
    return " |-" + "".join(f"\n{' ' * indent}{line}" for line in _lines(value, ""))


def _lines(value: Any, name: str) -> list[str]:
    """``value`` behind ``name``, in as many lines as it needs."""
    whole = name + json.dumps(value)
    if len(whole) <= WIDTH or not isinstance(value, dict | list):
        return [whole]
    inner = (
        [_lines(part, f"{json.dumps(key)}: ") for key, part in value.items()]
        if isinstance(value, dict)
        else [_lines(part, "") for part in value]
    )
    separated = [[*lines[:-1], f"{lines[-1]},"] for lines in inner[:-1]] + inner[-1:]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return [name + opening, *(f" {line}" for lines in separated for line in lines), closing]


def write() -> None:
    """Write all files, and remove those that are no longer made."""
    made = cassettes()
    for provider in SOURCES:
        for path in (FOLDER / provider).glob("*.yaml"):
            if f"{provider}/{path.name}" not in made:
                path.unlink()
    for name, content in made.items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write()
