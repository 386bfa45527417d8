"""Recorded answers of real servers, of whatever recorded them.

The recordings are others' and not part of this repository: the folder is ``$BLB_RECORDINGS``, or
``shared/recordings`` beside it.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(
    os.environ.get("BLB_RECORDINGS") or Path(__file__).parents[2].parent / "shared" / "recordings"
)
REQUESTS = "decisions"
"""The folder of requests that clients sent, in which there is no answer to read."""
FILES = sorted(
    path
    for path in FOLDER.rglob("*")
    if path.suffix in (".json", ".jsonl", ".yaml", ".sse") and path.parent.name != REQUESTS
)
Exchange = tuple[int | None, Any]
"""Status, None where it was not recorded, and body, unpacked."""


def documents(path: Path) -> list[Any]:
    """The values that a file holds, none of a stream."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        return list(pytest.importorskip("yaml").safe_load_all(text))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines() if line]
    return [json.loads(text)] if path.suffix == ".json" else []


def exchanges(value: Any) -> Iterator[Exchange]:
    """Every answer in a recording of vcr, httpmock, the Azure test proxy or llama-stack, printed
    as an error by the SDK, or alone.
    """
    if isinstance(value, list):
        for part in value:
            yield from exchanges(part)
    if not isinstance(value, dict):
        return
    answer = value.get("response") or value.get("then") or value
    printed = value.get("error") or value.get("exception_message")
    if "StatusCode" in value:
        yield value["StatusCode"], value.get("ResponseBody")
    elif isinstance(printed, str) and (
        match := re.fullmatch(r"Error code: (\d+) - (.*)", printed, re.DOTALL)
    ):
        yield int(match[1]), ast.literal_eval(match[2])
    elif isinstance(answer, dict) and answer.get("body") is not None:
        status = answer.get("status", 200)
        yield status["code"] if isinstance(status, dict) else status, _plain(answer["body"])
    elif "choices" in value:
        yield 200, value
    elif isinstance(value.get("error"), dict):
        yield None, value
    else:
        yield from exchanges([part for name, part in value.items() if name != "request"])


def _plain(body: Any) -> Any:
    """A body as it was sent, unpacked; SDK objects as the JSON that they were made of."""
    if isinstance(body, list):
        return [_plain(part) for part in body]
    if isinstance(body, dict):
        body = body.get("string", body.get("__data__", body))
    if isinstance(body, bytes) and body.startswith(b"\x1f\x8b"):
        body = gzip.decompress(body)
    return body.decode() if isinstance(body, bytes) else body
