"""Phrases that ``blb proxy`` keeps out of answers, with real clients and an upstream that is cut
off, goes on for ever, or breaks.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from tests.support.exact.listener import Request
from tests.support.proxy_upstream import Origin, proxy_for, running
from tests.unit.deploy.test_phrase_requests import STEP, bias_of, scripted
from tests.unit.deploy.test_proxy import MESSAGES, in_parts, sdk

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@contextmanager
def upstream(answer: Callable[[Request, socket.socket], None]) -> Iterator[tuple[Origin, int]]:
    """An origin, and the port of a proxy before it that keeps phrases out."""
    with (
        Origin(answer).running() as origin,
        running(proxy_for(origin.address + "/v1", in_parts(bias_of(sky=1.5)))) as port,
    ):
        yield origin, port


def from_script(*parts: str) -> Callable[[Request, socket.socket], None]:
    """Answers by a script, an event a packet."""
    host = scripted(*parts)

    def answer(arrived: Request, connection: socket.socket) -> None:
        connection.sendall(HEAD)
        for piece in host.pieces(arrived.json):
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_RDWR)

    return answer


def test_an_unmodified_client_gets_answers_without_phrases() -> None:
    """Whole and as a stream; /metrics and /healthz tell what it took."""
    with upstream(from_script(*STEP, *STEP)) as (_, port):
        client = sdk(port)
        answer = client.chat.completions.create(model="m", messages=MESSAGES)
        assert answer.choices[0].message.content == " sky blue fish"
        events = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        assert "".join(event.choices[0].delta.content or "" for event in events) == " sky blue fish"
        base = f"http://127.0.0.1:{port}"
        metrics = httpx2.get(f"{base}/metrics").text
        for line in (
            'blb_proxy_phrases_answers_total{bias="m"} 2',
            'blb_proxy_phrases_steps_total{bias="m"} 2',
            'blb_proxy_phrases_discarded_total{bias="m"} 6',
            'blb_proxy_phrases_requests_total{bias="m"} 6',
        ):
            assert line in metrics
        [row] = httpx2.get(f"{base}/healthz").json()["biases"]
        assert row["phrases"] == {
            "lines": 3,
            "answers": 2,
            "steps": 2,
            "delivered": 8,
            "discarded": 6,
            "let_through": 0,
            "requests": 6,
        }


class Endless:
    """An upstream that sends words until nobody listens.

    left: set once its connection is closed by the other side.
    """

    def __init__(self, begin: str = "") -> None:
        self.begin = begin
        self.left = threading.Event()

    def __call__(self, arrived: Request, connection: socket.socket) -> None:
        host = scripted(f"{self.begin} {'sky ' * 200_000}")
        connection.sendall(HEAD)
        try:
            for piece in host.pieces({**arrived.json, "max_tokens": 200_000}):
                connection.sendall(piece)
        except OSError:
            self.left.set()


def test_an_upstream_is_left_as_soon_as_a_phrase_is_complete() -> None:
    """So that it draws little that nobody gets."""
    endless = Endless("sky red fish")
    rest = from_script("blue", "fish .")
    answers: Iterator[Any] = iter([endless, rest, rest])
    with upstream(lambda arrived, connection: next(answers)(arrived, connection)) as (_, port):
        answer = sdk(port).chat.completions.create(model="m", messages=MESSAGES)
        assert answer.choices[0].message.content == " sky blue fish"
        assert endless.left.wait(60)


def test_an_upstream_is_left_when_the_client_leaves() -> None:
    """In the middle of a stream."""
    endless = Endless()
    with upstream(endless) as (_, port):
        events = sdk(port).chat.completions.create(model="m", messages=MESSAGES, stream=True)
        assert next(iter(events)).choices
        events.close()
        assert endless.left.wait(60)


@pytest.mark.parametrize("events", range(2))
def test_a_connection_that_breaks_takes_nothing_back(events: int) -> None:
    """Wherever the upstream breaks off in the part after a cut, a stream ends without its end, and
    what came of it is the begin of an answer without phrases.
    """
    first = from_script(STEP[0])

    def broken(arrived: Request, connection: socket.socket) -> None:
        host = scripted("blue")
        connection.sendall(HEAD)
        for _, piece in zip(range(events), host.pieces(arrived.json), strict=False):
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_RDWR)

    answers = iter([first, broken, *[broken] * 3])
    with upstream(lambda arrived, connection: next(answers)(arrived, connection)) as (_, port):
        raw = b""
        body = {"model": "m", "messages": MESSAGES, "stream": True}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        try:
            with httpx2.stream("POST", url, json=body, timeout=60) as answer:
                for piece in answer.iter_raw():
                    raw += piece
        except httpx2.TransportError:
            pass
        lines = [line[6:] for line in raw.decode().split("\n\n") if line.startswith("data: {")]
        told = [json.loads(line) for line in lines]
        choices = [choice for event in told for choice in event.get("choices", ())]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert " sky blue blue blue blue".startswith(text)
        assert b"[DONE]" not in raw
