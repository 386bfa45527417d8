"""Cassettes are evidence: no network while replaying, matching on method, path and body, and no header that could hold a key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HEADERS = {"content-type"}


def _allowed(headers: Any) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if name.lower() in HEADERS}


def _request(request: Any) -> Any:
    request.headers = _allowed(request.headers)
    return request


def _response(response: dict[str, Any]) -> dict[str, Any]:
    response["headers"] = _allowed(response["headers"])
    return response


def _same_body(one: Any, other: Any) -> None:
    first, second = (json.loads(each.body) if each.body else None for each in (one, other))
    if first != second:
        raise AssertionError(f"{first} is not {second}")


def pytest_recording_configure(config: pytest.Config, vcr: Any) -> None:
    """Compare bodies as JSON values."""
    vcr.register_matcher("json_body", _same_body)


@pytest.fixture(scope="module")
def vcr_config() -> dict[str, Any]:
    """How every cassette is recorded and matched."""
    return {
        "match_on": ["method", "path", "json_body"],
        "before_record_request": _request,
        "before_record_response": _response,
        "decode_compressed_response": True,
        "allow_playback_repeats": False,
    }


@pytest.fixture
def default_cassette_name(request: pytest.FixtureRequest) -> str:
    """One file a test and provider."""
    name = getattr(request.function, "__name__", "")
    return str(name.removeprefix("test_"))


@pytest.fixture(scope="module")
def vcr_cassette_dir() -> str:
    """The tests name their provider's folder themselves."""
    return str(ROOT / "cassettes")
