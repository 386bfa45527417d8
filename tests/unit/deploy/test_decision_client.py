"""``apply`` with a file that mends decisions: the client's own requests go out as they are, and the
answers to its questions come back mended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import openai
import pytest

import blackbox_lb
from blackbox_lb.bias.decisions import MendedQuestion
from blackbox_lb.bias.document import Bias
from blackbox_lb.errors import BiasError
from blackbox_lb.questions.answers import read_answer
from blackbox_lb.questions.requests import Shape, request_body
from tests.support.biases import FIELDS
from tests.support.deciding_upstream import MODEL, NOW, TEAM, deciding, mended, raw
from tests.support.proxy_upstream import Origin

STATE = "The lift is stuck."
PATHS: dict[Shape, str] = {
    "systemone": "/systemone",
    "openai": "/decisions",
    "sglang": "/decisions",
}


def file_of(*rows: MendedQuestion) -> Bias:
    """A file that mends these questions."""
    return Bias(**FIELDS | {"model": MODEL, "rollouts": 100, "decisions": rows, "entries": ()})


@contextmanager
def upstream() -> Iterator[tuple[Origin, openai.OpenAI]]:
    """A server that decides, and a client of it."""
    with Origin(deciding).running() as origin:
        base_url = f"{origin.address}/v1"
        yield origin, openai.OpenAI(api_key="made-up", base_url=base_url, max_retries=0)


def ask(client: openai.OpenAI, shape: Shape, *questions: Any, **fields: Any) -> Any:
    """The parsed answer to questions."""
    body = request_body(shape, MODEL, STATE, list(questions)) | fields
    return client.post(PATHS[shape], body=body, cast_to=httpx2.Response).json()


@pytest.mark.parametrize("shape", ["systemone", "openai", "sglang"])
def test_a_learned_question_is_mended_and_another_is_not(shape: Shape) -> None:
    """The request on the wire is the caller's; the answer has the mended probabilities, the raw
    ones beside them, and all else as it came.
    """
    mends = mended(TEAM, shape)
    with upstream() as (origin, client):
        plain = ask(client, shape, TEAM, NOW)
        biased = ask(blackbox_lb.apply(client, file_of(mends)), shape, TEAM, NOW)
        first, second = (arrived.body for arrived in origin.arrived)
    assert first == second
    answers = biased["answers"]
    rows = answers.values() if isinstance(answers, dict) else answers
    assert [row["x_mended"] for row in rows] == [True, False]
    expected = mends.decide([math.log(value) for value in raw(STATE, TEAM)]).probabilities
    found = read_answer(biased, (TEAM, NOW), None).scores["team"].logprobs
    assert [math.exp(logprob) for logprob in found] == pytest.approx(expected)
    assert {**biased, "answers": None} == {**plain, "answers": None}


def test_an_asynchronous_client_and_its_copies_mend_too() -> None:
    body = request_body("systemone", MODEL, STATE, [TEAM])

    async def answers(base_url: str) -> list[Any]:
        own = openai.AsyncOpenAI(api_key="made-up", base_url=base_url, max_retries=0)
        client = blackbox_lb.apply(own, file_of(mended(TEAM)))
        copies = (client, client.with_options(timeout=20.0))
        responses = [
            await copy.post("/systemone", body=body, cast_to=httpx2.Response) for copy in copies
        ]
        await own.close()
        return [response.json() for response in responses]

    with Origin(deciding).running() as origin:
        for document in asyncio.run(answers(f"{origin.address}/v1")):
            assert document["answers"]["team"]["x_mended"] is True


def test_other_answers_stay_as_they_came(caplog: pytest.LogCaptureFixture) -> None:
    """Another model and another endpoint are said once in the log; a field by which the server
    reads something else, an error, and a request that is none, too, pass.
    """
    with upstream() as (_, client), caplog.at_level(logging.WARNING):
        other_model = blackbox_lb.apply(client, file_of(mended(TEAM, model="m-2")))
        assert ask(other_model, "systemone", TEAM)["answers"]["team"]["x_mended"] is False
        assert "was learned from" in caplog.text
        caplog.clear()
        other_shape = blackbox_lb.apply(client, file_of(mended(TEAM, "openai")))
        assert ask(other_shape, "systemone", TEAM)["answers"]["team"]["x_mended"] is False
        assert "asked at another endpoint" in caplog.text
        same = blackbox_lb.apply(client, file_of(mended(TEAM)))
        plain = ask(client, "systemone", TEAM, instructions="Answer as a pirate.")
        assert ask(same, "systemone", TEAM, instructions="Answer as a pirate.") == plain
        with pytest.raises(openai.APIStatusError):
            same.post("/systemone", body={"model": MODEL, "state": "a"}, cast_to=httpx2.Response)


@pytest.mark.parametrize("reading", ["letters", "words"])
def test_a_question_that_takes_other_requests_is_refused(reading: str) -> None:
    """First tokens, or both orders of the options: the sentence names what does it."""
    client = openai.OpenAI(api_key="made-up")
    for row in (mended(TEAM, reading), mended(TEAM, both_orders=True)):
        with pytest.raises(BiasError, match=r"mends decisions.*Run\.decide.*proxy --decide"):
            blackbox_lb.apply(client, file_of(row))


def test_chat_requests_of_such_a_client_go_out_as_they_are() -> None:
    with upstream() as (origin, client):
        biased = blackbox_lb.apply(client, file_of(mended(TEAM)))
        messages = [{"role": "user", "content": "hello"}]
        body = {
            "model": MODEL,
            "messages": messages,
            "logprobs": True,
            "top_logprobs": 5,
            "max_tokens": 1,
        }
        biased.post("/chat/completions", body=body, cast_to=httpx2.Response)
        assert json.loads(origin.arrived[-1].body) == body
