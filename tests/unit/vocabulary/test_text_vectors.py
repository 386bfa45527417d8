"""Embeddings from an API: asked once a text, tried again where that helps, and no key for a
stranger.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.errors import BlbError
from blackbox_lb.safety.http import retries
from blackbox_lb.store import RolloutStore
from blackbox_lb.vocabulary.embedding import TextVectors
from tests.support.errors import raises_naming
from tests.support.exact.listener import Listener, Reply, Request

Answer = Callable[[dict[str, Any]], tuple[int, Any]]


@contextmanager
def embeddings(
    answer: Answer,
) -> Iterator[tuple[str, list[tuple[dict[str, Any], Mapping[str, str]]]]]:
    """A server: its address, and the bodies and headers that it was sent."""
    seen: list[tuple[dict[str, Any], Mapping[str, str]]] = []

    def reply(request: Request) -> Reply:
        body = json.loads(request.body)
        seen.append((body, request.headers))
        return Reply(*answer(body))

    listener = Listener(reply)
    listener.start()
    try:
        yield f"{listener.url}/v1", seen
    finally:
        listener.stop()


def lengths(body: dict[str, Any]) -> tuple[int, Any]:
    """Vectors that tell texts by their lengths, the last text first."""
    rows = [
        {"index": place, "embedding": [len(text), 1]} for place, text in enumerate(body["input"])
    ]
    return 200, {"data": rows[::-1], "usage": {"total_tokens": 2 * len(rows)}}


def test_each_text_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In requests of at most 64, vectors of length 1 in the order asked, tokens counted; the OpenAI
    key goes to OpenAI alone.
    """
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with embeddings(lengths) as (url, seen):
        vectors = TextVectors(f"small@{url}")
        texts = ["abc", "", *("x" * n for n in range(1, 100)), "abc"]
        found = vectors.of(texts)
        assert found[0] == found[-1] == pytest.approx((3 / 10**0.5, 1 / 10**0.5), abs=1e-6)
        assert found[1] == ()
        assert found[12] == pytest.approx((11 / 122**0.5, 1 / 122**0.5), abs=1e-6)
        assert vectors.of(texts) == found
        assert [len(body["input"]) for body, _ in seen] == [64, 36]
        assert vectors.tokens == 200
        assert not any("authorization" in headers for _, headers in seen)
        monkeypatch.setenv("EMBEDDINGS_API_KEY", "own")
        vectors.of(["new"])
        assert seen[-1][0] == {"model": "small", "input": ["new"]}
        assert seen[-1][1]["authorization"] == "Bearer own"


def test_what_was_paid_for_is_stored(tmp_path: Path) -> None:
    """A second run asks for new texts alone; another model's vectors are others."""
    with embeddings(lengths) as (url, seen), RolloutStore(tmp_path / "s.db") as store:
        first = TextVectors(f"small@{url}", store).of(["abc", "de"])
        again = TextVectors(f"small@{url}", store)
        assert again.of(["de", "abc", "f"])[:2] == first[::-1]
        assert again.tokens == 2
        TextVectors(f"large@{url}", store).of(["abc"])
        assert [(body["model"], body["input"]) for body, _ in seen] == [
            ("small", ["abc", "de"]),
            ("small", ["f"]),
            ("large", ["abc"]),
        ]


@pytest.mark.parametrize(
    ("answer", "facts", "tries"),
    [
        (
            (401, {"error": {"message": "bad key s3cret-of-a-user"}}),
            ("401", "EMBEDDINGS_API_KEY"),
            1,
        ),
        ((404, {"error": "no model m"}), ("404", "no model m"), 1),
        ((200, {"error": {"code": 401, "message": "bad key"}}), ("401", "bad key"), 1),
        ((200, {"data": []}), ("0 vectors", "1 texts"), 3),
        ((200, []), ("vectors", "list indices"), 3),
        ((200, {"data": [{"index": 0, "embedding": ["x"]}]}), ("vectors", "'x'"), 3),
        ((200, {"data": [{"index": 0, "embedding": [math.inf]}]}), ("Infinity",), 3),
        ((200, {"data": [{"index": 0, "embedding": [0.0, 0.0]}]}), ("length 0.0",), 1),
    ],
)
def test_what_is_no_embedding_is_refused(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, Any], facts: tuple[str, ...], tries: int
) -> None:
    """With what was answered, without a key in it, and what to check; an unreadable answer is asked
    for again as often as a model's is before its first readable one.
    """
    monkeypatch.setattr(retries, "retry_pause", lambda state: 0.0)
    monkeypatch.setenv("EMBEDDINGS_API_KEY", "s3cret-of-a-user")
    with embeddings(lambda _body: answer) as (url, seen):
        with raises_naming(BlbError, url, *facts) as caught:
            TextVectors(f"m@{url}").of(["a"])
        assert len(seen) == tries
    assert "s3cret" not in str(caught.value)
