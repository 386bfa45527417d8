"""Cassettes are evidence: no network while replaying, matching on method, path, query and body, no
header that could hold a key.

What is kept of addresses and answers goes through the same layer as every message of the package.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.safety.secrets import environment_secrets, masked_answer, redacted

FOLDER = Path(__file__).parents[2] / "cassettes"
HEADERS = re.compile(r"content-type|retry-after(-ms)?|x-ratelimit-[a-z-]+")
"""All that is kept, names in small letters."""


def _allowed(headers: Any) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if HEADERS.fullmatch(name.lower())}


def _request(request: Any) -> Any:
    request.headers = _allowed(request.headers)
    request.uri = redacted(request.uri)
    return request


def _response(response: dict[str, Any]) -> dict[str, Any]:
    response["headers"] = _allowed(response["headers"])
    body = response["body"].get("string") or b""
    if isinstance(body, bytes):
        response["body"]["string"] = masked_answer(body, environment_secrets())
    return response


def _same_body(one: Any, other: Any) -> None:
    # As text, because 5 and 5.0 are equal and a provider that wants whole numbers takes only one of
    # them.
    first, second = (
        json.dumps(json.loads(each.body), sort_keys=True) if each.body else ""
        for each in (one, other)
    )
    if first != second:
        raise AssertionError(f"{first} is not {second}")


def pytest_recording_configure(config: pytest.Config, vcr: Any) -> None:
    """Compare bodies as JSON values."""
    vcr.register_matcher("json_body", _same_body)


@pytest.fixture(scope="module")
def vcr_config() -> dict[str, Any]:
    """How every cassette is recorded and matched."""
    return {
        "match_on": ["method", "path", "query", "json_body"],
        "before_record_request": _request,
        "before_record_response": _response,
        "decode_compressed_response": True,
        "allow_playback_repeats": False,
    }


@pytest.fixture(scope="module")
def vcr_cassette_dir() -> str:
    """The tests name their provider's folder themselves."""
    return str(FOLDER)
