"""Collection: nothing is asked for twice, nothing received is lost, and faults are retried or
named.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.limits.concurrency import MOST_IN_FLIGHT, AdaptiveConcurrency
from blackbox_lb.api.session import Session
from blackbox_lb.api.wire.envelope import CUT, UNLISTED
from blackbox_lb.bias.request_bias import RequestBias, to_request_bias
from blackbox_lb.errors import BlbError, CorruptResponse, NoLogprobs
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.providers.schema import SamplingRules
from blackbox_lb.rollouts.collect import Collection, Series, collect_all, keys_of, missing_requests
from blackbox_lb.safety.http.retries import MORE_SLIPS
from blackbox_lb.store import RolloutStore
from blackbox_lb.types import Completion, Prompt, Sampling
from tests.support.collecting import collect
from tests.support.commands import asking, blb, options
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import questions, write_questions, write_rows

pytestmark = pytest.mark.usefixtures("quick_retries")
MODEL = ExactModel(12, 6, end=True, prompts=3)
PROMPTS = [Prompt.user(f"question {number}") for number in range(5)]
SAMPLING = Sampling(max_tokens=6, top_logprobs=4)
COMPLETIONS = "/v1/chat/completions"


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model behind HTTP."""
    with ExactServer(MODEL) as running:
        yield running


def asked(server: ExactServer) -> list[dict[str, Any]]:
    """Bodies of the completion requests that arrived."""
    return [body for path, body in server.calls if path == COMPLETIONS]


def run(
    server: ExactServer,
    folder: Path,
    samples: int = 2,
    *,
    prompts: list[Prompt] = PROMPTS,
    sampling: Sampling = SAMPLING,
    bias: dict[int, float] | None = None,
    profile: Profile | None = None,
    **more: Any,
) -> tuple[Collection, list[Completion]]:
    """Collect into the folder's store; also the stored completions in order."""

    async def go() -> tuple[Collection, list[Completion]]:
        row = profile or load_profile("llamacpp")
        async with Session(row, base_url=server.base_url) as session:
            with RolloutStore(folder / "s.db") as store:
                tokenizer = await session.tokenizer()
                draw = Draw(sampling, to_request_bias(bias))
                done = await collect(
                    session, store, tokenizer, prompts, draw, samples=samples, **more
                )
                return done, list(store.completions(key for row in done.keys for key in row))

    return asyncio.run(go())


def test_every_prompt_gets_its_samples_once(server: ExactServer, tmp_path: Path) -> None:
    """Completions with logprobs in order of prompt and sample. A second run asks for nothing; more
    samples ask for the new ones only; other settings ask for all; equal prompts are one question.
    """
    done, completions = run(server, tmp_path)
    assert done.received == 10
    assert [len(row) for row in done.keys] == [2] * 5
    texts = Counter(body["messages"][0]["content"] for body in asked(server))
    assert texts == {f"question {n}": 2 for n in range(5)}
    assert all(completion.n_tokens for completion in completions)
    assert {completion.top_ids.shape[1] for completion in completions} == {4}
    assert run(server, tmp_path)[0].received == 0
    assert run(server, tmp_path, samples=3)[0].received == 5
    assert run(server, tmp_path, bias={1: 2.0})[0].received == 10
    assert run(server, tmp_path, sampling=Sampling(max_tokens=5, top_logprobs=4))[0].received == 10
    done, _ = run(server, tmp_path, prompts=[Prompt.user("new"), Prompt.user("new")])
    assert done.received == 2
    assert done.keys[0] == done.keys[1]


class Told(AdaptiveConcurrency):
    """Remembers its bounds."""

    bounds = (0, 0)

    def begin(self, requests: int, least: int, most: int = MOST_IN_FLIGHT) -> None:
        """Remember them."""
        self.bounds = (least, most)
        super().begin(requests, least, most)


def test_requests_in_flight_are_bounded(server: ExactServer, tmp_path: Path) -> None:
    """By the number that is asked for; by the slots that an embedded engine was started with; else
    by what helps.
    """
    profile = load_profile("llamacpp")
    slots = profile.connection.concurrency
    connection = profile.connection.model_copy(update={"embedded": True})
    embedded = profile.model_copy(update={"connection": connection})
    for using, concurrency, bounds in (
        (profile, None, (slots, MOST_IN_FLIGHT)),
        (embedded, None, (slots, slots)),
        (profile, 2, (2, 2)),
    ):
        pace = Told()
        run(server, tmp_path, profile=using, concurrency=concurrency, pace=pace)
        assert pace.bounds == bounds


def test_missing_samples_are_asked_for_once() -> None:
    """In runs of at most so many of one prompt, gaps aside, and equal prompts once."""
    prompts = [Prompt.user("a"), Prompt.user("b"), Prompt.user("a")]
    series = Series(prompts, Draw(Sampling(1.0, 4096, 5)), 7)
    keys = keys_of("r", series)
    covered = {keys[0][0], keys[0][4]}
    requests = missing_requests(load_profile("openai"), "chat", covered, series, keys)
    assert [(request.prompt.text, request.samples) for request in requests] == [
        ("a", (1, 2)),
        ("a", (3,)),
        ("a", (5, 6)),
        ("b", (0, 1)),
        ("b", (2, 3)),
        ("b", (4, 5)),
        ("b", (6,)),
    ]
    assert sum(len(request.keys) for request in requests) == 12
    assert covered == {key for row in keys for key in row}


def test_series_are_in_flight_together(tmp_path: Path) -> None:
    """The requests of two biases arrive at once, a series that is like another asks for nothing of
    its own, and each series has its own completions.
    """
    all_here = threading.Barrier(6)

    def wait(number: int, answer: Any) -> Any:
        all_here.wait(timeout=60)
        return answer

    draws = [Draw(SAMPLING), Draw(SAMPLING, RequestBias({1: 2.0})), Draw(SAMPLING)]

    async def go(base_url: str) -> list[Collection]:
        async with Session(load_profile("llamacpp"), base_url=base_url) as session:
            with RolloutStore(tmp_path / "s.db") as store:
                tokenizer = await session.tokenizer()
                series = [Series(PROMPTS[:3], draw, 1) for draw in draws]
                return await collect_all(session, store, tokenizer, series)

    with ExactServer(MODEL, faults=wait) as server:
        base, biased, again = asyncio.run(go(server.base_url))
    biases = Counter(json.dumps(body.get("logit_bias")) for body in asked(server))
    assert sorted(biases.values()) == [3, 3]
    assert (base.received, biased.received, again.received) == (3, 3, 0)
    assert again.keys == base.keys
    first, second = ({key for row in one.keys for key in row} for one in (base, biased))
    assert (len(first), len(second), first & second) == (3, 3, set())


def _nan(answer: dict[str, Any]) -> dict[str, Any]:
    answer["choices"][0]["logprobs"]["content"][0]["logprob"] = float("nan")
    return answer


def _positive(answer: dict[str, Any]) -> dict[str, Any]:
    answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["logprob"] = 0.7
    return answer


def _none(answer: dict[str, Any]) -> dict[str, Any]:
    answer["choices"][0]["logprobs"] = None
    return answer


def _part(answer: dict[str, Any]) -> dict[str, Any]:
    """As llama.cpp answers where the only token is a part of a character."""
    message = {"role": "assistant", "content": "\ufffd"}
    return {**answer, "choices": [{"index": 0, "message": message, "finish_reason": "length"}]}


@pytest.mark.parametrize(
    ("spoil", "error", "tries"),
    [
        (_nan, CorruptResponse, 3),
        (_positive, CorruptResponse, 3),
        (_part, CorruptResponse, 3),
        (_none, NoLogprobs, 1),
    ],
)
def test_a_bad_answer_is_asked_for_again_and_bad_answers_stop_the_run(
    tmp_path: Path, spoil: Any, error: type[BlbError], tries: int
) -> None:
    """One bad answer is asked for again, once, and nothing is missing. Where all are bad from the
    fifth on, an error of the tree comes after a few tries, and the good four are in the store.
    Three unreadable answers at the start tell as much as thousands, and one without logprobs that
    the model gives none.
    """
    with ExactServer(MODEL, faults=lambda n, answer: spoil(answer) if n == 9 else answer) as server:
        done, completions = run(server, tmp_path / "one")
        assert (done.received, len(asked(server))) == (10, 11)
    assert all(completion.whole for completion in completions)
    with ExactServer(MODEL, faults=lambda n, answer: spoil(answer) if n >= 4 else answer) as server:
        with pytest.raises(error):
            run(server, tmp_path / "all")
        assert 4 + MORE_SLIPS < len(asked(server)) <= 4 + MORE_SLIPS + 2 + 10
    with RolloutStore(tmp_path / "all" / "s.db") as store:
        assert store.size().completions == 4
    with ExactServer(MODEL, faults=lambda number, answer: spoil(answer)) as server:
        with pytest.raises(error):
            run(server, tmp_path / "none", samples=1, prompts=PROMPTS[:1])
        assert len(asked(server)) == tries


def _without_number(choice: dict[str, Any]) -> Any:
    first, *others = choice["logprobs"]["content"]
    return {"content": [{**first, "logprob": float("nan")}, *others]}


@pytest.mark.parametrize(
    ("spoil", "whole"),
    [
        (lambda choice: {"message": {"content": ""}, "logprobs": None}, True),
        (lambda choice: {"logprobs": None}, False),
        (lambda choice: {"logprobs": _without_number(choice)}, False),
    ],
    ids=["blank", "silent", "no number"],
)
def test_a_paid_answer_is_paid_once(
    server: ExactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any, whole: bool
) -> None:
    """One of four choices cannot be read: all four are stored, three of them whole, and a second
    run asks for nothing.
    """
    single = Session.answer

    async def several(self: Session, *request: Any) -> Any:
        prompt, draw, n, read, _ = request
        answers = [await single(self, prompt, draw) for _ in range(n)]
        choices = [{**answer["choices"][0], "index": index} for index, answer in enumerate(answers)]
        total = sum(len(choice["logprobs"]["content"]) for choice in choices[: 3 if whole else 4])
        choices[-1] |= {"finish_reason": "stop"} | spoil(choices[-1])
        usage = {"completion_tokens": total}
        return read({**answers[0], "choices": choices, "usage": usage})

    monkeypatch.setattr(Session, "answer", several)
    rules = SamplingRules(n=4, shares_prompt=True)
    profile = load_profile("llamacpp").model_copy(update={"sampling": rules})
    done, completions = run(server, tmp_path, samples=4, profile=profile)
    assert (done.received, len(asked(server))) == (20, 20)
    assert [completion.whole for completion in completions] == [True, True, True, whole] * 5
    assert all(len(completion.token_ids) == 0 for completion in completions[3::4])
    assert run(server, tmp_path, samples=4, profile=profile)[0].received == 0


def test_completions_that_are_not_whole_are_noted_with_the_reason(tmp_path: Path) -> None:
    """Thoughts that are counted and not listed, and an answer that was cut inside its listed
    thoughts; a person reads both.
    """

    def thinking(number: int, answer: dict[str, Any]) -> dict[str, Any]:
        message = answer["choices"][0]["message"]
        if number % 3 == 0:
            message["reasoning_content"], message["content"] = "so far", None
            answer["choices"][0]["finish_reason"] = "length"
        elif number % 3 == 1:
            answer["usage"]["completion_tokens"] += 40
            answer["usage"]["completion_tokens_details"] = {"reasoning_tokens": 40}
        return answer

    with ExactServer(MODEL, faults=thinking) as server:
        one, _ = run(server, tmp_path, samples=3)
        assert one.notes == Counter({CUT: 5, UNLISTED: 5})
        assert not run(server, tmp_path, samples=3)[0].notes, "stored completions have none"
        data = write_questions(tmp_path / "data.jsonl", 30)
        words = asking(server, data=data, reward="length", max_tokens=6)
        done = blb("collect", *words, "--samples-per-prompt", "1", "--out", tmp_path / "run")
    said = " ".join(done.stderr.split())
    assert done.exit_code == 0, said
    for sentence in (
        "were cut inside their thinking, .* raise --max-tokens",
        "are not whole: tokens of their thinking are counted and not listed",
    ):
        assert re.search(rf"training: \d+ completions {sentence}", said)


@pytest.mark.parametrize("cut_after", [1, 4, 9])
def test_what_a_cut_off_collection_received_is_stored(
    cut_after: int, server: ExactServer, tmp_path: Path
) -> None:
    """Cancelled while an answer is on its way to the store: no answer that was received is lost,
    and the same collection asks for the others alone.
    """
    received = list[Completion]()

    async def go() -> int:
        async with Session(load_profile("llamacpp"), base_url=server.base_url) as session:
            complete_many = session.complete_many

            async def cutting(
                prompt: Prompt | Sequence[int], draw: Draw, n: int = 1
            ) -> list[Completion]:
                completions = await complete_many(prompt, draw, n)
                received.extend(completions)
                if len(received) == cut_after:
                    collection.cancel()
                return completions

            session.complete_many = cutting  # type: ignore[method-assign]
            tokenizer = await session.tokenizer()
            with RolloutStore(tmp_path / "s.db") as store:
                collection = asyncio.ensure_future(
                    collect(session, store, tokenizer, PROMPTS, Draw(SAMPLING), samples=2)
                )
                with pytest.raises(asyncio.CancelledError):
                    await collection
                return store.size().completions

    stored = asyncio.run(go())
    assert stored == len(received) >= cut_after
    assert run(server, tmp_path)[0].received == 10 - stored


def test_kill_minus_nine_and_run_again(tmp_path: Path) -> None:
    """Killed in the middle, run again: no received answer is asked for twice, and the store equals
    an uninterrupted run's.

    Answers depend only on prompt and seed, so both stores must hold the same completions under the
    same keys.
    """
    samples, prompts = 6, 12
    command = [sys.executable, "-m", "blackbox_lb", "collect", "--provider", "llamacpp"]
    command += ["--quiet", "--json"]
    data = write_rows(tmp_path / "data.jsonl", questions(prompts, 1, 1, answer="x"))
    command += options(data=data, reward="length", max_tokens=6, top_logprobs=4, seed=3)
    command += options(samples_per_prompt=samples, concurrency=4)
    dead = threading.Event()

    def stuck(number: int, answer: Any) -> Any:
        if number >= 25:
            dead.wait()
        return answer

    with ExactServer(MODEL, faults=stuck) as server:
        victim = subprocess.Popen(
            [*command, "--base-url", server.base_url, "--out", str(tmp_path / "cut")],
            stdout=subprocess.DEVNULL,
        )
        while len(asked(server)) < 26:
            assert victim.poll() is None, "finished before it could be killed"
            time.sleep(0.01)
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        dead.set()
    with RolloutStore(tmp_path / "cut" / "rollouts.db") as store:
        kept = store.size().completions
    assert 25 - 4 < kept <= 25, "only what was in flight may be asked for again"
    with ExactServer(MODEL) as server:
        again = [*command[3:], "--base-url", server.base_url]
        assert blb(*again, "--out", tmp_path / "cut").exit_code == 0
        assert len(asked(server)) == samples * prompts - kept
        assert blb(*again, "--out", tmp_path / "whole").exit_code == 0
        assert len({body["seed"] for body in asked(server)}) == samples * prompts
    assert _contents(tmp_path / "cut") == _contents(tmp_path / "whole")


def _contents(folder: Path) -> list[Any]:
    with closing(sqlite3.connect(folder / "rollouts.db")) as db:
        columns = "key, text, finish_reason, tokens"
        return db.execute(f"SELECT {columns} FROM completions ORDER BY key").fetchall()
