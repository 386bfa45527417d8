"""Parts of characters that llama.cpp leaves out of its lists are asked for, and nothing is lost
where they cannot be had.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.errors import ServerFailed
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.collect import settings_of
from blackbox_lb.rollouts.fragments import FILLED, places_of
from blackbox_lb.store import RolloutStore, request_hash
from blackbox_lb.types import Completion, Prompt, Sampling
from tests.support.collecting import collect
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.llamacpp_answers import JSON, Dialect, RefusedRequest
from tests.support.exact.model import log_softmax
from tests.support.exact.server import Answer

pytestmark = pytest.mark.usefixtures("quick_retries")
PIECES = ("\udce2", "\udc82", "\udcac")
"""The three tokens of a euro sign; each stands for one byte."""


class Spelling(ExactModel):
    """Begins a euro sign often, and hardly ever leaves one without its end."""

    def logprobs(self, prefix: Sequence[int] = (), prompt: int = 0) -> Any:
        scores = super().logprobs(prefix, prompt).copy()
        before = -1 if not len(prefix) else int(prefix[-1])
        scores[[0, 1, 2]] -= 6.0
        if before in (0, 1):
            scores[before + 1] += 12.0
        else:
            scores[0] += 8.0
        return log_softmax(scores)


MODEL = Spelling(8, 12, end=True, prompts=3, sharpness=0.4)
PROMPTS = [Prompt.user(f"question {number}") for number in range(3)]
SAMPLING = Sampling(max_tokens=12, top_logprobs=3, seed=1)


class Fragments(Dialect):
    """Three tokens are parts of a character. As in llama.cpp, the text ends before a character that
    is not complete, and the lists lack each token that leaves one so, where ``drops``.
    """

    drops = True

    def __init__(self, model: ExactModel) -> None:
        super().__init__(model, "exact", None, 0)
        self.texts[: len(PIECES)] = PIECES
        self._known_texts = {text: token for token, text in enumerate(self.texts) if text}

    def tokenize(self, text: str) -> list[int]:
        return super().tokenize(text.replace("\N{EURO SIGN}", "".join(PIECES)))

    def _complete(self, body: JSON, number: int, *, chat: bool) -> JSON:
        answer = super()._complete(body, number, chat=chat)
        [choice] = answer["choices"]
        holder = choice["message"] if chat else choice
        field = "content" if chat else "text"
        raw = holder[field].encode("utf-8", "surrogateescape")
        holder[field] = _complete_part(raw).decode("utf-8", "replace")
        lists = choice.get("logprobs")
        if lists and self.drops:
            entries = []
            raw = b""
            for entry in lists["content"]:
                raw += bytes(entry["bytes"])
                if _complete_part(raw) == raw:
                    entries.append(entry)
            lists["content"] = entries
        return answer

    def _entry(self, token: int, logprob: float) -> JSON:
        raw = self.texts[token].encode("utf-8", "surrogateescape")
        text = raw.decode("utf-8", "replace")
        return {"id": token, "token": text, "bytes": list(raw), "logprob": logprob}


class Listing(Fragments):
    """The same with every token listed."""

    drops = False


class FailingAtIds(ExactServer):
    """Answers a prompt of token ids with the status ``failing``."""

    failing = 400

    def post(self, path: str, body: JSON) -> Answer:
        if isinstance(body.get("prompt"), list):
            self.calls.append((path, body))
            raise RefusedRequest(self.failing, "no prompt of token ids here")
        return super().post(path, body)


def _complete_part(raw: bytes) -> bytes:
    """Without a begun euro sign at its end."""
    for begun in (b"\xe2\x82", b"\xe2"):
        if raw.endswith(begun):
            return raw.removesuffix(begun)
    return raw


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """A server that leaves parts of characters out."""
    with ExactServer(MODEL) as running:
        running._dialect = Fragments(MODEL)
        yield running


def collected(
    server: ExactServer, folder: Path, failure: type[Exception] | None = None, **sampling: Any
) -> tuple[list[Completion], Counter[str]]:
    """Up to 20 completions of each prompt, out of the store, and the notes on them; ``failure``
    ends the collection.
    """

    async def go() -> tuple[list[Completion], Counter[str]]:
        notes = Counter[str]()
        async with Session(load_profile("llamacpp"), base_url=server.base_url) as session:
            draw = Draw(replace(SAMPLING, **sampling))
            tokenizer = await session.tokenizer()
            with RolloutStore(folder / "s.db") as store:
                with nullcontext() if failure is None else pytest.raises(failure):
                    done = await collect(session, store, tokenizer, PROMPTS, draw, samples=20)
                    notes = done.notes
                stored = store.keys(request_hash(settings_of(session, tokenizer, draw)))
                return list(store.completions(sorted(stored))), notes

    folder.mkdir(exist_ok=True)
    return asyncio.run(go())


def by_ids(server: ExactServer) -> int:
    """Requests with a prompt of token ids so far."""
    return sum(isinstance(body.get("prompt"), list) for _, body in server.calls)


def test_completions_get_the_tokens_and_lists_that_were_left_out(
    server: ExactServer, tmp_path: Path
) -> None:
    """Token for token and list for list they are those of a server that leaves nothing out; only a
    text that ends inside a character or holds a broken one stays as it is.
    """
    plain, _ = collected(server, tmp_path / "plain", temperature=0.7)
    assert by_ids(server) == 0, "lists of another temperature are not read"
    assert not all(completion.whole for completion in plain)
    filled, notes = collected(server, tmp_path / "filled")
    asked = by_ids(server)
    with ExactServer(MODEL) as listing:
        listing._dialect = Listing(MODEL)
        honest, _ = collected(listing, tmp_path / "honest")
    assert len(filled) == len(honest) == 60
    spoilt = 0
    left_out = 0
    for found, wanted in zip(filled, honest, strict=True):
        raw = b"".join(
            MODEL_TEXTS[token].encode("utf-8", "surrogateescape") for token in wanted.token_ids
        )
        if _complete_part(raw) != raw or "\N{REPLACEMENT CHARACTER}" in wanted.text:
            spoilt += 1
            continue
        assert found.whole
        left_out += 2 * wanted.text.count("\N{EURO SIGN}")
        assert found.token_ids.tolist() == wanted.token_ids.tolist()
        np.testing.assert_allclose(found.logprobs, wanted.logprobs, atol=1e-6)
        assert found.top_ids.tolist() == wanted.top_ids.tolist()
        np.testing.assert_allclose(found.top_logprobs, wanted.top_logprobs, atol=1e-6)
        assert found.bounded is None or not found.bounded.any()
    assert spoilt <= 25
    assert asked >= left_out > 150
    assert notes[FILLED] >= 20


MODEL_TEXTS = Fragments(MODEL).texts


@pytest.mark.parametrize("status", [400, 500])
def test_a_completion_that_was_received_is_kept(tmp_path: Path, status: int) -> None:
    """A server that refuses prompts of ids leaves completions as they came; one that fails ends the
    collection, and what came before is in the store.
    """
    failing = FailingAtIds(MODEL)
    with failing as server:
        server._dialect = Fragments(MODEL)
        failing.failing = status
        completions, _ = collected(server, tmp_path, ServerFailed if status == 500 else None)
        assert len(completions) == 60 or status == 500
        assert any("\N{EURO SIGN}" in completion.text for completion in completions)
        assert not any(
            completion.whole and "\N{EURO SIGN}" in completion.text for completion in completions
        )
        assert by_ids(server) > 0


def test_places_are_certain_or_not_told() -> None:
    """Where the listed tokens stand in all of them, unless another way is as good."""
    assert places_of([2, 5, 2], [1, 2, 5, 1, 2]) == [1, 2, 4]
    assert places_of([], []) == []
    assert places_of([5], [5, 1, 5]) is None
    assert places_of([5, 6], [6, 5]) is None
