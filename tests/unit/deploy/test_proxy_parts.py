"""Answers that the proxy joins of parts, of biases with phases and with phrases, with real clients
and an upstream that packs them, is cut off, goes on for ever, or breaks.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx2
import openai
import pytest

from blackbox_lb.bias.document import Bias
from blackbox_lb.deploy import part_requests
from blackbox_lb.deploy.injection import Injection
from blackbox_lb.deploy.part_sender import PartSender
from blackbox_lb.deploy.proxy.served import ServedBias
from blackbox_lb.deploy.proxy.server import HEADER, Proxy
from tests.support.errors import raises_naming
from tests.support.exact.listener import Request
from tests.support.proxy_upstream import (
    Answering,
    Origin,
    exchange,
    plain,
    proxy_for,
    request,
    running,
)
from tests.unit.deploy.part_host import Host, text_in
from tests.unit.deploy.test_phase_requests import forced, host_of
from tests.unit.deploy.test_phrase_requests import STEP, bias_of, scripted
from tests.unit.deploy.test_proxy import MESSAGES, error_of, sdk

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@contextmanager
def serving(answer: Answering, bias: Bias, alias: str | None = None) -> Iterator[tuple[Proxy, int]]:
    """A proxy, and its port, before an upstream, with a bias whose answers are drawn in parts."""
    injection = Injection.of(bias)
    served = ServedBias("m", alias, bias, injection, PartSender.of(bias, injection, None))
    with Origin(answer).running() as origin:
        proxy = proxy_for(origin.address + "/v1", served)
        with running(proxy) as port:
            yield proxy, port


def continuing(host: Host, *more: str, pack: Any = bytes) -> Answering:
    """An upstream that continues messages as the host does, its answers packed and with more header
    fields.
    """

    def answer(arrived: Request, connection: socket.socket) -> None:
        assert arrived.headers["accept-encoding"] == "identity"
        asked = httpx2.Request("POST", "http://h/v1/chat/completions", content=arrived.body)
        given = host.handle(asked)
        kind = f"Content-Type: {given.headers['content-type']}"
        status = f"{given.status_code} said"
        plain(status, pack(given.content), kind, *more)(arrived, connection)

    return answer


def said(events: Any) -> str:
    """The text of a stream."""
    return "".join(event.choices[0].delta.content or "" for event in events)


def test_the_parts_of_an_answer_in_phases_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole and as a stream, by an alias; a refused second part ends a stream with its error; bad
    requests are a 400.
    """
    host = host_of()
    host.refusals = {3: 503}
    monkeypatch.setattr(part_requests, "PAUSES", (0.0,))
    answer = continuing(host, "X-Own: kept", "ETag: of-a-part")
    common: dict[str, Any] = {"model": "m@short", "messages": MESSAGES, "max_tokens": 3}
    with serving(answer, forced(), "short") as (proxy, port):
        create = sdk(port).chat.completions.create
        raw = sdk(port).chat.completions.with_raw_response.create(**common)
        assert raw.parse().choices[0].message.content == " b c c"
        fields = [raw.headers.get(name) for name in (HEADER, "x-own", "etag")]
        assert fields == ["m@short", "kept", None]
        for _ in range(2):
            assert said(create(**common, stream=True)) == " b c c"
        assert {body["model"] for body in host.bodies if body} == {"m"}
        with raises_naming(openai.BadRequestError, "phases", "several"):
            create(**common, n=2)
        with raises_naming(openai.BadRequestError, "logit_bias"):
            create(**common, logit_bias={"1": 1})
        host.refusals = {len(host.bodies) + 1: 503, len(host.bodies) + 2: 503}
        with raises_naming(openai.APIError, "not now"):
            said(create(**common, stream=True))
        host.refusals = {len(host.bodies): 503}
        with raises_naming(openai.InternalServerError, "503", "not now"):
            create(**common)
    assert proxy.health["requests"]["biased"] == 5
    assert proxy.metrics.failed["upstream_status"] == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "refused"])
def test_parts_that_come_compressed_are_decoded(coding: str, stream: bool) -> None:
    """The proxy asks for plain parts; what comes compressed all the same is joined, or refused
    where it cannot be read; a refusal keeps its status. No client gets bytes without their coding.
    """
    pack: Any = {"deflate": zlib.compress, "br": bytes}.get(coding, gzip.compress)
    field = f"Content-Encoding: {coding.replace('refused', 'gzip')}"
    refusal = b'{"error":{"message":"no"}}'
    answer = continuing(host_of(), field, pack=pack)
    if coding == "refused":
        answer = plain("429 Too Many", pack(refusal), field)
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 3, "stream": stream}
    with serving(answer, forced()) as (_, port):
        line, fields, content = exchange(port, request(body=json.dumps(body).encode()))
    assert "content-encoding" not in {name.lower() for name, _ in fields}
    if coding == "refused":
        assert (line, content) == ("HTTP/1.1 429 Too Many", refusal)
    elif coding == "br":
        status, _, message = error_of((line, fields, content))
        assert (status, "compressed" in message) == (502, True)
    elif stream:
        assert content.endswith(b"data: [DONE]\n\n")
        assert content.count(b'" c"') == 2
    else:
        assert json.loads(content)["choices"][0]["message"]["content"] == " b c c"


def scripts(*parts: str, events: int | None = None) -> Answering:
    """Answers by a script, an event a packet, and breaks off after so many of them."""
    host = scripted(*parts)

    def answer(arrived: Request, connection: socket.socket) -> None:
        connection.sendall(HEAD)
        for piece in list(host.pieces(arrived.json))[:events]:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_RDWR)

    return answer


def in_turn(*answers: Answering) -> Answering:
    """Each answers one request."""
    rest = iter(answers)
    return lambda arrived, connection: next(rest)(arrived, connection)


def test_an_unmodified_client_gets_answers_without_phrases() -> None:
    """Whole and as a stream; /metrics and /healthz tell what it took."""
    with serving(scripts(*STEP, *STEP), bias_of(sky=1.5)) as (_, port):
        create = sdk(port).chat.completions.create
        answer = create(model="m", messages=MESSAGES)
        assert answer.choices[0].message.content == " sky blue fish"
        assert said(create(model="m", messages=MESSAGES, stream=True)) == " sky blue fish"
        metrics = httpx2.get(f"http://127.0.0.1:{port}/metrics").text
        [row] = httpx2.get(f"http://127.0.0.1:{port}/healthz").json()["biases"]
    counts = {"answers": 2, "steps": 2, "delivered": 8, "discarded": 6, "requests": 6}
    for name, count in counts.items():
        assert f'blb_proxy_phrases_{name}_total{{bias="m"}} {count}' in metrics
    assert row["phrases"] == {"lines": 3, "let_through": 0, **counts}


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


def test_an_upstream_is_left_when_nobody_wants_more() -> None:
    """As soon as a phrase is complete, so that it draws little that nobody gets, and when the client
    leaves in the middle of a stream.
    """
    endless = [Endless("sky red fish"), Endless()]
    rest = scripts("blue", "fish .")
    answer = in_turn(endless[0], rest, rest, endless[1])
    with serving(answer, bias_of(sky=1.5)) as (_, port):
        create = sdk(port).chat.completions.create
        whole = create(model="m", messages=MESSAGES)
        assert whole.choices[0].message.content == " sky blue fish"
        assert endless[0].left.wait(60)
        events = create(model="m", messages=MESSAGES, stream=True)
        assert next(iter(events)).choices
        events.close()
        assert endless[1].left.wait(60)


@pytest.mark.parametrize("events", range(2))
def test_a_connection_that_breaks_takes_nothing_back(events: int) -> None:
    """Wherever the upstream breaks off in the part after a cut, a stream ends without its end, and
    what came of it is the begin of an answer without phrases.
    """
    broken = [scripts("blue", events=events) for _ in range(4)]
    answer = in_turn(scripts(STEP[0]), *broken)
    raw = b""
    with serving(answer, bias_of(sky=1.5)) as (_, port), suppress(httpx2.TransportError):
        body = {"model": "m", "messages": MESSAGES, "stream": True}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        with httpx2.stream("POST", url, json=body, timeout=60) as streamed:
            for piece in streamed.iter_raw():
                raw += piece
    lines = [line[6:] for line in raw.decode().split("\n\n") if line.startswith("data: {")]
    assert " sky blue blue blue blue".startswith(text_in([json.loads(line) for line in lines]))
    assert b"[DONE]" not in raw
