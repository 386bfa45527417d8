"""Completions without phrases, drawn in parts: their distribution, and what is sent for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts import stepped
from blackbox_lb.rollouts.stepped import complete_in_parts, spelled_along
from blackbox_lb.types import Completion, Prompt, Sampling
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.llamacpp_answers import JSON
from tests.support.exact.model import log_softmax
from tests.unit.bias.test_phases import fits
from tests.unit.deploy.test_phrase_requests import (
    END,
    MODEL,
    PHRASES,
    WORDS,
    by_text,
    law,
    text_of,
)
from tests.unit.rollouts.test_fragments import Fragments

PROMPT = Prompt.user("go")
DRAWS = 400


class WordServer(ExactServer):
    """The model of the senders' tests, with their words as its tokens."""

    def __init__(self, **options: Any) -> None:
        super().__init__(MODEL, **options)
        dialect = self._dialect
        dialect.texts[:] = WORDS
        dialect._known_texts = {text: token for token, text in enumerate(WORDS) if text}


def draw_of(phrases: Sequence[str] = PHRASES, **sampling: Any) -> Draw:
    """Completions without phrases."""
    common = {"temperature": 1.0, "max_tokens": MODEL.horizon, "top_logprobs": 5}
    bias = RequestBias({}, phrase_entries=tuple(phrases))
    return Draw(Sampling(**{**common, **sampling}), bias)


def completed(server: ExactServer, draws: Sequence[Draw]) -> list[Completion]:
    """One completion for each draw."""

    async def go() -> list[Completion]:
        async with Session(load_profile("llamacpp"), base_url=server.base_url) as session:
            return [await complete_in_parts(session, PROMPT, draw) for draw in draws]

    return asyncio.run(go())


@pytest.mark.parametrize("part", [2, 32])
def test_completions_have_the_distribution_of_stepping_back(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By chi-square over whole texts, however long a part is; the logprobs are those of the model
    without a bias or a ban, and what was thrown away is counted beside what is left. The parts have
    seeds of their own: with the random numbers of the first draw, the second would be tied to it.
    """
    monkeypatch.setattr(stepped, "PART", part)
    with WordServer() as server:
        completions = completed(server, [draw_of(seed=1_000 * n) for n in range(DRAWS)])
        seeds = [body["seed"] for path, body in server.calls if path.endswith("completions")]
    assert len(set(seeds)) == len(seeds) > DRAWS
    assert fits(Counter(completion.text for completion in completions), by_text(law())) > 1e-4
    discarded = 0
    for completion in completions:
        tokens = completion.token_ids.tolist()
        expected = [MODEL.logprobs(tokens[:place])[token] for place, token in enumerate(tokens)]
        assert completion.logprobs == pytest.approx(expected, abs=1e-5)
        assert (completion.text, completion.whole) == (text_of(tokens), True)
        assert completion.finish_reason == ("stop" if END in tokens else "length")
        discarded += completion.n_tokens - len(tokens)
    assert discarded > DRAWS / 10


class Scripted:
    """A session whose completions are these tokens, one list for each request; texts: of these."""

    def __init__(self, *parts: Sequence[int], texts: Sequence[str | bytes] = WORDS) -> None:
        logprobs = SimpleNamespace(stop_text_listed=True, drops_fragments=False)
        self.profile = SimpleNamespace(
            reference=SimpleNamespace(endpoint="completions"),
            logprobs=logprobs,
            bias=SimpleNamespace(low=-100.0, entries=None),
        )
        self.sent = list[tuple[list[int], Draw]]()
        self._parts = iter(parts)
        self._spelled = [text.encode() if isinstance(text, str) else text for text in texts]

    async def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The prompt is one token."""
        return [90]

    async def bytes_of(self, tokens: Sequence[int]) -> list[bytes]:
        """The bytes of each."""
        return [self._spelled[token] for token in tokens]

    async def complete_many(self, prompt: Sequence[int], draw: Draw) -> list[Completion]:
        """One completion, cut at its limit or before a stop text."""
        self.sent.append((list(prompt[1:]), draw))
        tokens = list(next(self._parts))[: draw.sampling.max_tokens]
        raw = b"".join(self._spelled[token] for token in tokens)
        text = raw.decode(errors="replace")
        is_over = not tokens or not self._spelled[tokens[-1]]
        for stop in draw.sampling.stop:
            is_over = is_over or stop in text
            text = text.partition(stop)[0]
        count = len(tokens)
        return [
            Completion(
                text,
                "stop" if is_over else "length",
                np.array(tokens, np.int32),
                np.full(count, -1.0, np.float32),
                np.array(tokens, np.int32).reshape(-1, 1),
                np.full((count, 1), -1.0, np.float32),
                prompt_tokens=len(prompt),
                generated=count,
            )
        ]


def words(*names: str) -> list[int]:
    """The tokens of words; "" is the end."""
    return [WORDS.index(f" {name}" if name else "") for name in names]


def completion_of(session: Any, draw: Draw) -> Completion:
    """One completion."""
    return asyncio.run(complete_in_parts(session, PROMPT, draw))


def test_a_step_back_takes_one_token_and_goes_on() -> None:
    """Its first token is banned there alone; all requests are paid for, those of dropped parts,
    too.
    """
    session = Scripted(words("sky", "red", "fish", "sky"), words("blue"), words("fish", ""))
    completion = completion_of(session, draw_of(max_tokens=9))
    assert (completion.text, completion.finish_reason) == (" sky blue fish", "stop")
    assert completion.token_ids.tolist() == words("sky", "blue", "fish", "")
    assert [begun for begun, _ in session.sent] == [[], words("sky"), words("sky", "blue")]
    limits = [draw.sampling.max_tokens for _, draw in session.sent]
    assert limits == [9, 1, 7]
    assert [draw.bias.common for _, draw in session.sent] == [{}, {0: -100.0}, {}]
    assert completion.prompt_tokens == 1 + 2 + 3
    assert completion.n_tokens == 4 + 3  # a stream would have stopped at the second " sky"


@pytest.mark.parametrize(
    ("part", "parts", "options", "text", "reason"),
    [
        (32, (("sky", "red", "fish", ""), ("blue",), ("",)), {}, " sky blue", "stop"),
        (32, (("sky", "red", "fish"), ("blue",), ("",)), {"max_tokens": 3}, " sky blue", "stop"),
        (32, (("red", "fish", "sky"), ("blue",), ("",)), {}, " blue", "stop"),
        (32, (("red", "fish", "sky"), ("blue",), ("",)), {"stop": (" sky",)}, " blue", "stop"),
        (2, (("sky", "fish"),), {"stop": (" fish",)}, " sky", "stop"),
        (2, (("red", "sky"), ("blue", "red")), {"stop": ("y bl",)}, " red sk", "stop"),
        (2, (("red", "sky"), ("fish", "red")), {"stop": (" sky fish",)}, " red", "stop"),
        (2, (("sky", "sky"), ("sky", "sky"), ("sky",)), {"stop": ("x",)}, " sky" * 5, "length"),
    ],
)
def test_phrases_stop_texts_and_limits_hold_across_parts(
    monkeypatch: pytest.MonkeyPatch,
    part: int,
    parts: Sequence[Sequence[str]],
    options: dict[str, Any],
    text: str,
    reason: str,
) -> None:
    """Where the answer ends by itself, at its limit or at a stop text, no more letters of a phrase
    can follow. A stop text ends it within a part, across the end of one and within a token, as at a
    server without parts. What is dropped is paid for, though no token of its part is left.
    """
    monkeypatch.setattr(stepped, "PART", part)
    session = Scripted(*(words(*row) for row in parts))
    completion = completion_of(session, draw_of(**{"max_tokens": 5, **options}))
    assert (completion.text, completion.finish_reason) == (text, reason)
    assert text_of(completion.token_ids.tolist()).startswith(text)
    assert completion.prompt_tokens == sum(1 + len(begun) for begun, _ in session.sent)
    room = options.get("max_tokens", 5)
    limits = [draw.sampling.max_tokens for _, draw in session.sent]
    assert len(limits) == len(parts)
    assert limits[0] == min(part, room)
    assert part > 2 or limits == [2, 2, 1][: len(parts)]


SIGNS = (b" x", b"\xe2", b"\x82", b"\xac", b"", b"!")
"""A euro sign is three tokens."""


def test_a_character_may_stand_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens are one piece of the text, whose first is banned where a phrase begins there, and
    nowhere within.
    """
    monkeypatch.setattr(stepped, "PART", 2)
    session = Scripted([0, 1], [2, 3], [4], texts=SIGNS)
    assert completion_of(session, draw_of(max_tokens=9)).text == " x€"
    session = Scripted([0, 1], [2, 3], [5], [0], [4], texts=SIGNS)
    completion = completion_of(session, draw_of(["€"], max_tokens=9))
    assert completion.text == " x x"
    banned = [draw.bias.common for _, draw in session.sent]
    assert banned == [{}, {}, {}, {1: -100.0}, {}]
    session = Scripted([0, 0], [5, 4], [1], [2, 3], [4], texts=SIGNS)
    completion = completion_of(session, draw_of(["!"], max_tokens=9))
    assert completion.text == " x x€"
    assert [draw.bias.common for _, draw in session.sent][2:4] == [{5: -100.0}, {}]


class Signs(ExactModel):
    """Tokens 0 to 2 are the bytes of a euro sign, which come in their order and never alone; 3 to 6
    are " d" to " g".
    """

    def logprobs(self, prefix: Sequence[int] = (), prompt: int = 0) -> Any:
        """See ``ExactModel``."""
        scores = super().logprobs(prefix, prompt).copy()
        scores[[1, 2]] = -50.0
        if len(prefix) and int(prefix[-1]) < 2:
            scores[:] = -50.0
            scores[int(prefix[-1]) + 1] = 0.0
        return log_softmax(scores)


FRAGMENTS = Signs(8, 6, end=True, sharpness=0.4, unigram=(1.0, 0, 0, 0, 0, 0, 0, -2.0))


class Dropping(Fragments):
    """Parts of a character are printed as such a server prints them."""

    def post(self, path: str, body: JSON, number: int) -> JSON:
        """See ``Dialect``."""
        answer = super().post(path, body, number)
        if path == "/detokenize":
            raw = str(answer["content"]).encode("utf-8", "surrogateescape")
            answer = {"content": raw.decode("utf-8", "replace")}
        return answer


@cache
def chances_without(banned: str) -> dict[str, float]:
    """Text -> its probability, where the one word ``banned`` is never drawn: a ban at its place is
    the model without that word there. What is not a whole character at the end has no text.
    """
    token = " abcdefg".index(banned) - 1
    total = Counter[str]()

    def follow(tokens: tuple[int, ...], chance: float) -> None:
        if len(tokens) == FRAGMENTS.horizon or tokens[-1:] == (7,):
            names = [b"\xe2", b"\x82", b"\xac", b" d", b" e", b" f", b" g", b""]
            raw = b"".join(names[each] for each in tokens)
            total[raw.decode(errors="ignore")] += chance  # type: ignore[assignment]
            return
        shares = np.exp(FRAGMENTS.logprobs(tokens))
        shares[token] = 0.0
        for following, share in enumerate((shares / shares.sum()).tolist()):
            if chance * share > 1e-7:
                follow((*tokens, following), chance * share)

    follow((), 1.0)
    return dict(total)


@pytest.mark.parametrize("part", [2, 32])
def test_characters_of_several_tokens_are_as_frequent_as_in_the_model(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp lists no token that leaves a character incomplete: by chi-square over the number of
    such characters in a text, however long a part is. A token without a list has no logprob.
    """
    monkeypatch.setattr(stepped, "PART", part)
    with ExactServer(FRAGMENTS) as server:
        server._dialect = Dropping(FRAGMENTS)
        draws = [draw_of(["e"], max_tokens=FRAGMENTS.horizon)] * DRAWS
        completions = completed(server, draws)
    texts = Counter(completion.text for completion in completions)
    exact = chances_without("e")
    assert set(texts) <= set(exact)
    signs = Counter[int]()
    wanted = Counter[int]()
    for text, count in texts.items():
        signs[text.count("€")] += count
    for text, chance in exact.items():
        wanted[text.count("€")] += chance * DRAWS  # type: ignore[assignment]
    numbers = sorted(wanted)
    assert min(wanted.values()) > 5
    observed = [signs[number] for number in numbers]
    expected = [wanted[number] for number in numbers]
    assert stats.chisquare(observed, expected, sum_check=False).pvalue > 1e-4
    for completion in completions:
        if "€" in completion.text:
            assert completion.bounded is not None
            bounded = completion.token_ids[completion.bounded].tolist()
            assert set(bounded) <= {0, 1}
            assert not completion.whole


def test_bytes_of_parts_of_characters_are_read_off_the_text() -> None:
    """Where the server prints each as U+FFFD."""
    lost = "\ufffd".encode()
    euro = [b"a", b"\xe2\x82", b"", b"\xac", b"b"]
    assert spelled_along("a€b", [b"a", lost, lost, b"\xac", b"b"]) == euro
    assert spelled_along("€", [lost, lost, lost]) == [b"\xe2\x82\xac", b"", b""]
    assert spelled_along("ab", [b"a", b"b", b""]) == [b"a", b"b", b""]
