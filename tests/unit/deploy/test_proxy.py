"""The proxy on loopback: bytes and headers pass as they are, the bias arrives once, failures are
told, nothing is mixed up.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import httpx2
import openai
import pytest
from aiohttp.test_utils import make_mocked_request
from openai import OpenAI

from blackbox_lb.bias.document import Bias
from blackbox_lb.deploy import part_requests
from blackbox_lb.deploy.injection import Injection
from blackbox_lb.deploy.part_sender import PartSender
from blackbox_lb.deploy.proxy.bodies import Edit, ServedBiases
from blackbox_lb.deploy.proxy.callers import Callers
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.deploy.proxy.served import ServedBias
from blackbox_lb.deploy.proxy.server import HEADER
from blackbox_lb.errors import InputError
from tests.support.errors import raises_naming
from tests.support.exact.listener import Request
from tests.support.proxy_upstream import (
    ANSWER,
    SENT,
    VALUES,
    Origin,
    answer_of,
    bias,
    chunks,
    connect,
    exchange,
    plain,
    proxied,
    proxy_for,
    request,
    running,
)
from tests.unit.deploy.part_host import Host
from tests.unit.deploy.test_phase_requests import forced, host_of

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
MESSAGES: Any = [{"role": "user", "content": "hello"}]


def chunk(piece: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(piece), piece)


def sdk(port: int, **options: Any) -> OpenAI:
    """The official client, through the proxy."""
    return OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-caller", max_retries=0, **options
    )


def error_of(answer: tuple[str, Any, bytes]) -> tuple[int, str, str]:
    """Status, code and message of an error answer."""
    error = json.loads(answer[2])["error"]
    return int(answer[0].split()[1]), error["code"], error["message"]


def test_a_request_arrives_as_it_was_sent() -> None:
    """Headers, repeated ones included, in their order; only those of the connection go, and none is
    added. A body that gets no bias may be compressed.
    """
    packed = gzip.compress(b"{}")
    kept = ("Authorization: Bearer sk-1", "api-key: sk-2", "X-Own: 1", "X-Own: 2", "Cookie: a=b")
    of_the_connection = (
        "Connection: keep-alive, X-Hop",
        "X-Hop: 1",
        "Keep-Alive: 5",
        "TE: trailers",
        "Proxy-Authorization: Basic eA==",
    )
    rest = ("Content-Type: application/json", "Content-Encoding: gzip")
    fields = (*kept, "X-Umlaut: h\u00e9", *of_the_connection, *rest)
    with proxied(plain()) as (origin, port, _):
        exchange(port, request("/v1/embeddings?key=a%2Fb&x", packed, *fields))
        exchange(port, request("/v1/files/%2e%41", None, method="GET"))
    first, second = origin.arrived
    host = f"Host: {origin.address.removeprefix('http://')}"
    assert first.line == "POST /v1/embeddings?key=a%2Fb&x HTTP/1.1"
    assert [f"{name}: {value}" for name, value in first.fields] == [
        host,
        *kept,
        "X-Umlaut: h\u00c3\u00a9",
        *rest,
        f"Content-Length: {len(packed)}",
    ]
    assert first.body == packed
    assert second.line == "GET /v1/files/%2e%41 HTTP/1.1"
    assert [f"{name}: {value}" for name, value in second.fields] == [host]


def test_an_answer_arrives_as_it_was_given() -> None:
    """Status, reason, repeated headers and compressed bytes pass untouched, and no cookie stays for
    the next client.
    """
    packed = gzip.compress(ANSWER)
    kept = (
        "Set-Cookie: a=1",
        "Set-Cookie: b=2; Path=/",
        "Content-Encoding: gzip",
        "Server: up",
        "Date: then",
    )
    upstream = plain("418 Short And Stout", packed, *kept, "Connection: X-Hop", "X-Hop: 1")
    with proxied(upstream) as (origin, port, _):
        status, headers, body = exchange(port, request())
        exchange(port, request())
    assert (status, body) == ("HTTP/1.1 418 Short And Stout", packed)
    assert [f"{name}: {value}" for name, value in headers] == [
        "Content-Type: application/json",
        *kept,
        f"Content-Length: {len(packed)}",
        f"{HEADER}: m",
    ]
    assert "cookie" not in origin.arrived[1].headers


def test_the_bias_arrives_once_and_exactly() -> None:
    """With every completion of its model, by name or alias, and with no other request."""
    with proxied(plain(), bias("m"), ("short", bias("m", {1: 0.5}))) as (origin, port, proxy):
        client = sdk(port)
        client.chat.completions.create(model="m", messages=MESSAGES)
        client.chat.completions.create(model="m@short", messages=MESSAGES)
        client.completions.create(model="m", prompt="x")
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert [seen.json.get("logit_bias") for seen in origin.arrived] == [
        SENT,
        {"1": 0.5},
        SENT,
        None,
    ]
    assert [seen.json["model"] for seen in origin.arrived] == ["m", "m", "m", "other"]
    assert {seen.headers["authorization"] for seen in origin.arrived} == {"Bearer sk-caller"}
    assert proxy.health["requests"] == {
        "biased": 3,
        "unbiased": 1,
        "refused": 0,
        "failed": 0,
        "other": 0,
    }


def test_a_stream_is_not_delayed_or_merged() -> None:
    """Each event arrives before the next is sent, and two that are sent in one piece arrive as the
    two chunks they were.
    """
    arrived = threading.Semaphore(0)
    events = [b'data: {"i": %d, "t": "h\xc3\xa9"}\n\n' % number for number in range(20)]

    def answer(_: Request, connection: socket.socket) -> None:
        connection.sendall(CHUNKED)
        for event in events:
            connection.sendall(chunk(event))
            assert arrived.acquire(timeout=60)
        connection.sendall(chunk(b"data: a\n\n") + chunk(b"data: b\n\n") + chunk(b""))

    with (
        proxied(answer) as (_, port, _),
        connect(port) as connection,
        connection.makefile("rb") as reader,
    ):
        connection.sendall(request())
        while reader.readline().strip():
            pass
        seen = []
        for event in chunks(reader):
            seen.append(event)
            arrived.release()
    assert seen == [*events, b"data: a\n\n", b"data: b\n\n"]


def test_bodies_in_chunks_are_read() -> None:
    """A chunked request body gets the bias and a true length; so does one whose sender waits for
    100 Continue.
    """
    with proxied(plain()) as (origin, port, _):
        head = request("/v1/chat/completions", None, "Transfer-Encoding: chunked")
        exchange(port, head + chunk(b'{"mod') + chunk(b'el":"m"}') + chunk(b""))
        with connect(port) as connection, connection.makefile("rb") as reader:
            body = b'{"model":"m"}'
            connection.sendall(
                request(
                    "/v1/completions", None, "Expect: 100-continue", f"Content-Length: {len(body)}"
                )
            )
            assert reader.readline() + reader.readline() == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(body)
            assert answer_of(reader)[0] == "HTTP/1.1 200 OK"
    assert [seen.json["logit_bias"] for seen in origin.arrived] == [SENT, SENT]
    for seen in origin.arrived:
        assert int(seen.headers["content-length"]) == len(seen.body)
        assert not {"transfer-encoding", "expect"} & set(seen.headers)


@pytest.mark.parametrize("chunked", [False, True])
def test_larger_bodies_are_refused(chunked: bool) -> None:
    """The limit itself passes, one byte more is 413, whether or not the length was declared;
    nothing of it goes upstream.
    """
    with proxied(plain(), max_body=1000) as (origin, port, _):
        for size, status in ((1000, 200), (1001, 413)):
            content = b'{"model":"m"}'.ljust(size)
            sent = request(body=content)
            if chunked:
                sent = (
                    request("/v1/completions", None, "Transfer-Encoding: chunked")
                    + chunk(content)
                    + chunk(b"")
                )
            answer = exchange(port, sent)
            assert int(answer[0].split()[1]) == status
    assert error_of(answer)[1] == "request_too_large"
    assert "1,000 bytes" in error_of(answer)[2]
    assert len(origin.arrived) == 1


def test_a_body_that_is_not_what_its_headers_say(caplog: pytest.LogCaptureFixture) -> None:
    """A bad chunk is 400; a sender that leaves in the middle of its body is no error of the
    proxy's.
    """
    head = request("/v1/completions", None, "Transfer-Encoding: chunked")
    with proxied(plain()) as (origin, port, proxy):
        assert exchange(port, head + b"zz\r\n")[0].split()[1] == "400"
        with connect(port) as connection:
            connection.sendall(head + chunk(b'{"model"'))
            time.sleep(0.05)
        assert exchange(port, request())[0] == "HTTP/1.1 200 OK"
    assert len(origin.arrived) == 1
    assert proxy.metrics.failed.total() == 0
    assert not caplog.records


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (request("http://evil.example/v1/chat/completions"), 400, "bad_path"),
        (request("evil.example:443", None, method="CONNECT"), 400, "bad_path"),
        (request("/v1/../../secret", None, method="GET"), 400, "bad_path"),
        (request("/v1/realtime", None, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eA==", method="GET"),
         501, "websocket_unsupported"),
        (request(body=b"{"), 400, "bad_body"),
        (request("/v1/responses"), 400, "unsupported_endpoint"),
        (request("/v1/x", None, "Transfer-Encoding: gzip, chunked") + b"1\r\na\r\n0\r\n\r\n", 501, "transfer_coding_unsupported"),
        (request("/v1/chat/completions", b"{}", "Content-Encoding: gzip"), 415, "compressed_body"),
        (request("/v1/completions", b"{}", "Content-Encoding: identity", "Content-Encoding: gzip"), 415, "compressed_body"),
        (request("/v1/completions", b"{}", "Content-Encoding: identity, br"), 415, "compressed_body"),
        (request(body=b'{"model":"m@x"}'), 404, "model_not_found"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_refusals_reach_nobody(sent: bytes, status: int, code: str) -> None:
    """Each is answered here with its reason, in OpenAI's shape, and never arrives upstream."""
    with proxied(plain()) as (origin, port, proxy):
        assert error_of(exchange(port, sent))[:2] == (status, code)
        assert proxy.metrics.refused == {code: 1}
    assert not origin.arrived


def test_hosts_and_forwarding_headers_steer_nothing() -> None:
    """Whatever a client says about hosts, the request goes to the upstream under the upstream's
    name.
    """
    with proxied(plain(), hosts=["Evil.example"]) as (origin, port, _):
        sent = request("/v1/models", None, "X-Forwarded-Host: evil.example", method="GET")
        exchange(port, sent.replace(b"localhost", b"evil.example"))
        exchange(port, request("//evil.example/v1/models", None, method="GET"))
    assert {seen.headers["host"] for seen in origin.arrived} == {
        origin.address.removeprefix("http://")
    }
    assert origin.arrived[1].line == "GET //evil.example/v1/models HTTP/1.1"


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("localhost", True),
        ("LOCALHOST:80", True),
        ("127.0.0.1:8080", True),
        ("127.8.0.1", True),
        ("[::1]:80", True),
        ("[::1]", True),
        ("", True),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("[::2]:80", False),
        ("localhost.evil", False),
    ],
)
def test_another_machines_name_is_refused(host: str, is_own: bool) -> None:
    """A page that lets its own name point to this machine reaches no upstream, not even the list of
    what is applied. Whatever a client here calls it by is taken; HTTP/1.0 clients call it nothing.
    """
    paths = ("/v1/chat/completions", "/v1/models", "/healthz")
    with proxied(plain()) as (origin, port, _):
        answers = [
            exchange(port, request(path).replace(b"localhost", host.encode())) for path in paths
        ]
    if is_own:
        assert all(status == "HTTP/1.1 200 OK" for status, _, _ in answers)
        return
    for answer in answers:
        status, code, message = error_of(answer)
        assert (status, code) == (421, "misdirected_request")
        assert "--allow-host" in message
    assert not origin.arrived


def test_redirects_are_not_followed() -> None:
    """Another request's redirect passes as it is; a biased one's is an error, as the client would
    follow it unbiased.
    """
    with proxied(plain("307 Temporary Redirect", b"", "Location: http://evil.example/")) as (
        origin,
        port,
        _,
    ):
        status, headers, _ = exchange(port, request("/v1/embeddings"))
        answer = exchange(port, request())
    assert status == "HTTP/1.1 307 Temporary Redirect"
    assert dict(headers)["Location"] == "http://evil.example/"
    assert error_of(answer)[:2] == (502, "upstream_redirect")
    assert len(origin.arrived) == 2


def test_nobody_answers(caplog: pytest.LogCaptureFixture) -> None:
    """502 with the reason and what to look at, logged too, without what was asked for; a page of
    this machine may read it.
    """
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with running(proxy_for(f"http://127.0.0.1:{port}/v1")) as proxy_port:
        answer = exchange(proxy_port, request("/v1/completions?key=sk-query"))
        _, fields, _ = exchange(proxy_port, request("/v1/chat/completions", b"{}", PAGE))
    status, code, message = error_of(answer)
    assert (status, code) == (502, "upstream_unreachable")
    assert not any(name.startswith("Access-Control") for name, _ in answer[1])
    assert {f"{name}: {value}" for name, value in fields} >= set(CORS)
    assert f"http://127.0.0.1:{port}/v1" in message
    assert "--upstream" in message
    assert f"502: {message}" in caplog.text
    assert "sk-query" not in caplog.text


def test_silence_ends_in_504() -> None:
    """After --timeout seconds without a byte."""
    silent = threading.Event()

    def answer(_: Request, connection: socket.socket) -> None:
        silent.wait(10)

    with proxied(answer, timeout=0.2) as (_, port, _):
        status, code, message = error_of(exchange(port, request()))
        silent.set()
    assert (status, code) == (504, "upstream_timeout")
    assert "0.2 s" in message


@pytest.mark.parametrize(
    "head", [CHUNKED + chunk(b"data: 1\n\n"), b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n12345"]
)
def test_a_broken_answer_stays_broken(head: bytes) -> None:
    """An answer without its end reaches the client without its end, not as a shorter whole one."""

    def answer(_: Request, connection: socket.socket) -> None:
        connection.sendall(head)
        time.sleep(0.05)
        connection.shutdown(socket.SHUT_RDWR)

    with proxied(answer) as (_, port, _), pytest.raises((EOFError, ConnectionError)):
        exchange(port, request())


@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_leaves_ends_the_upstreams_work(begun: bool) -> None:
    """The connection to the upstream is closed at once, before the answer began as well as in its
    middle; it counts under nginx' status 499.
    """
    closed = threading.Event()

    def answer(_: Request, connection: socket.socket) -> None:
        if begun:
            connection.sendall(CHUNKED + chunk(b"data: 1\n\n"))
        connection.settimeout(60)
        assert connection.recv(1) == b""
        closed.set()

    with proxied(answer) as (origin, port, proxy):
        with connect(port) as connection:
            connection.sendall(request())
            if begun:
                assert b"200 OK" in connection.recv(100)
            else:
                while not origin.arrived:
                    time.sleep(0.01)
        assert closed.wait(60)
        while not proxy.metrics.answered:
            time.sleep(0.01)
    assert proxy.metrics.answered == {"499": 1}


def test_a_client_that_ends_its_sending_side_gets_its_answer() -> None:
    """It is told from one that left by interim answers, which it passes over."""
    may_answer = threading.Event()

    def answer(arrived: Request, connection: socket.socket) -> None:
        assert may_answer.wait(60)
        plain()(arrived, connection)

    with proxied(answer) as (_, port, _), connect(port) as connection:
        connection.sendall(request())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as reader:
            assert reader.read(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
            may_answer.set()
            received = reader.read()  # to the end of the connection
    assert received.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").startswith(b"HTTP/1.1 200 OK")
    assert received.endswith(ANSWER)


@pytest.mark.parametrize("sent", [b"", request()[:20], request()[:-3], request()])
def test_a_client_that_goes_silent_is_let_go(sent: bytes) -> None:
    """Whether it sent nothing, half a head, half a body or a whole request: its connection ends,
    and a whole request gets its answer first. Half a body is 408.
    """
    with proxied(plain(), idle=0.3) as (_, port, proxy):
        with connect(port) as connection, connection.makefile("rb") as reader:
            connection.sendall(sent)
            received = reader.read()  # to the end of the connection
        assert exchange(port, request())[0] == "HTTP/1.1 200 OK"
    status = received[:12]
    if sent == request():
        assert status == b"HTTP/1.1 200"
    elif sent.startswith(request()[:30]):
        assert status == b"HTTP/1.1 408"
        assert proxy.metrics.refused == {"request_timeout": 1}
    else:
        assert received == b""


def test_the_longest_waiting_connection_makes_room(caplog: pytest.LogCaptureFixture) -> None:
    """At the limit a new client is served at the cost of one that sent half a request, never of
    one whose answer is under way; the log says so once.
    """
    may_answer = threading.Event()

    def answer(arrived: Request, connection: socket.socket) -> None:
        if arrived.line.startswith("POST /v1/slow"):
            may_answer.wait(60)
        plain()(arrived, connection)

    with proxied(answer, connections=4) as (origin, port, _), ExitStack() as stack:
        at_work = stack.enter_context(connect(port))
        at_work.sendall(request("/v1/slow"))
        while not origin.arrived:
            time.sleep(0.01)
        slow = [stack.enter_context(connect(port)) for _ in range(12)]
        for connection in slow:
            connection.sendall(b"POST /v1/chat/com")
        assert exchange(port, request())[0] == "HTTP/1.1 200 OK"
        with suppress(ConnectionError):
            assert slow[0].recv(1) == b""
        may_answer.set()
        with at_work.makefile("rb") as reader:
            assert answer_of(reader)[0] == "HTTP/1.1 200 OK"
    assert len([record for record in caplog.records if "ulimit" in record.getMessage()]) == 1


def test_others_are_served_while_a_large_body_is_read() -> None:
    """Reading it does not hold the event loop."""
    entered = threading.Event()
    may_go_on = threading.Event()

    class Slow(ServedBiases):
        def edit(self, target: str, content: bytes) -> Edit:
            if len(content) > 2**20:
                entered.set()
                assert may_go_on.wait(60)
            return super().edit(target, content)

    with proxied(plain()) as (origin, port, proxy), ThreadPoolExecutor(1) as pool:
        proxy.biases = Slow(proxy.biases)
        large = pool.submit(exchange, port, request(body=b'{"model":"m"}'.ljust(2**20 + 1)))
        assert entered.wait(60)
        assert exchange(port, request("/healthz", None, method="GET"))[0] == "HTTP/1.1 200 OK"
        assert exchange(port, request())[0] == "HTTP/1.1 200 OK"
        may_go_on.set()
        assert large.result()[0] == "HTTP/1.1 200 OK"
    assert [seen.json["logit_bias"] for seen in origin.arrived] == [SENT, SENT]


@pytest.mark.parametrize("grace", [0.0, 0.5])
def test_the_grace_is_all_that_an_answer_gets(grace: float) -> None:
    """A stream that outlasts it is cut after that time, none included, and not when it ends."""
    gone = threading.Event()
    ended = threading.Event()

    def answer(_: Request, connection: socket.socket) -> None:
        connection.sendall(CHUNKED + chunk(b"data: 1\n\n"))
        gone.wait(120)
        ended.set()

    with ExitStack() as stack:
        with proxied(answer, grace=grace) as (_, port, _):
            connection = stack.enter_context(connect(port))
            connection.sendall(request())
            assert b"200 OK" in connection.recv(100)
            started = time.monotonic()
        assert grace <= time.monotonic() - started
    assert not ended.is_set()
    gone.set()


def test_a_kept_connection_that_is_being_closed_loses_no_request() -> None:
    """Requests that come as the upstream closes its idle connection without a word are answered,
    each of them once.
    """
    idle = 0.002

    def answer(arrived: Request, connection: socket.socket) -> None:
        plain()(arrived, connection)
        connection.settimeout(idle)
        try:
            connection.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            connection.close()
            raise
        connection.settimeout(None)

    with (
        proxied(answer) as (origin, port, proxy),
        connect(port) as connection,
        connection.makefile("rb") as reader,
    ):
        for number in range(100):
            connection.sendall(request())
            assert answer_of(reader)[0] == "HTTP/1.1 200 OK"
            time.sleep(idle * (0.8 + number % 5 / 10))
    assert len(origin.arrived) == 100
    assert origin.connections > 1
    assert proxy.metrics.failed.total() == 0


@pytest.mark.parametrize(
    ("is_kept", "answers", "status"),
    [
        (True, [b"", None], 200),
        (True, [b"", b""], 502),
        (True, [b"H"], 502),
        (True, [b"HTTP/1.1 200 OK\r\nX: "], 502),
        (False, [b""], 502),
    ],
)
def test_a_request_is_sent_again_where_no_answer_began(
    is_kept: bool, answers: list[bytes | None], status: int
) -> None:
    """Once, over a new connection, where a kept one ended without a byte; never where a part of an
    answer had come, nor where a new one ended.
    """
    begins = iter([None] * is_kept + answers)

    def answer(given: Request, connection: socket.socket) -> None:
        begin = next(begins)
        if begin is None:
            plain()(given, connection)
        else:
            connection.sendall(begin)
            connection.shutdown(socket.SHUT_RDWR)

    with proxied(answer) as (origin, port, _):
        for _ in range(is_kept):
            assert exchange(port, request())[0] == "HTTP/1.1 200 OK"
        answered = exchange(port, request())
    assert answered[0].split()[1] == str(status)
    assert status == 200 or error_of(answered)[1] == "upstream_unreachable"
    assert len(origin.arrived) == is_kept + len(answers)


def test_two_hundred_requests_at_once_are_kept_apart() -> None:
    """Streams and plain answers, three biases and none: each caller gets the echo of its own
    request, with its own bias.
    """
    biases = {"m": SENT, "m@short": {"1": 0.5}, "n@short": {"2": 0.25}, "free": None}
    everybody = threading.Barrier(200)

    def echo(arrived: Request, connection: socket.socket) -> None:
        everybody.wait(120)
        body = arrived.json
        text = json.dumps(
            [body["messages"], arrived.headers["x-caller"], body.get("logit_bias")]
        ).encode()
        if not body["stream"]:
            return plain(body=text)(arrived, connection)
        connection.sendall(CHUNKED)
        for start in range(0, len(text), 500):
            connection.sendall(chunk(text[start : start + 500]))
        return connection.sendall(chunk(b""))

    def ask(number: int) -> None:
        model = list(biases)[number % 4]
        prompt = f"{number} " + "x" * (number * 37 % 5000)
        body = json.dumps({"model": model, "messages": prompt, "stream": number % 3 == 0}).encode()
        answer = exchange(port, request("/v1/chat/completions", body, f"X-Caller: {number}"))
        assert json.loads(answer[2]) == [prompt, str(number), biases[model]]

    served = (bias("m"), ("short", bias("m", {1: 0.5})), ("short", bias("n", {2: 0.25})))
    with proxied(echo, *served) as (origin, port, proxy), ThreadPoolExecutor(200) as pool:
        list(pool.map(ask, range(200)))
    assert len(origin.arrived) == 200
    assert proxy.health["requests"] == {
        "biased": 150,
        "unbiased": 50,
        "refused": 0,
        "failed": 0,
        "other": 0,
    }


def test_the_sdk_raises_the_proxys_errors() -> None:
    """With its own class for the status, the message and the code."""
    with proxied(plain(), others="raise") as (_, port, _), sdk(port) as client:
        with raises_naming(openai.NotFoundError, "'m@b'") as missing:
            client.chat.completions.create(model="m@b", messages=MESSAGES)
        assert missing.value.code == "model_not_found"
        with raises_naming(openai.BadRequestError, "'m'"):
            client.chat.completions.create(model="other", messages=MESSAGES)
        with raises_naming(openai.BadRequestError, "--on-conflict") as conflict:
            client.chat.completions.create(model="m", messages=MESSAGES, logit_bias={"1": 1})
        assert (conflict.value.code, conflict.value.param) == ("logit_bias_conflict", "logit_bias")
        with raises_naming(openai.BadRequestError, "logit_bias"):
            client.responses.create(model="m", input="x")


def models(*listed: dict[str, Any]) -> Any:
    """An upstream that lists models, and knows each by its id."""

    def answer(arrived: Request, connection: socket.socket) -> None:
        path = arrived.line.split()[1]
        found = [row for row in listed if path == f"/v1/models/{row['id']}"]
        if path == "/v1/models":
            body: Any = {"object": "list", "data": listed, "own": 1}
            plain(body=json.dumps(body).encode())(arrived, connection)
        elif found:
            plain(body=json.dumps(found[0]).encode())(arrived, connection)
        else:
            plain("404 Not Found", b'{"error": {"message": "theirs"}}')(arrived, connection)

    return answer


def test_models_are_the_upstreams_and_the_aliases() -> None:
    """An alias has what the upstream says of its model; the list is asked for with the caller's
    key.
    """
    model = {"id": "m", "object": "model", "created": 5, "owned_by": "up", "max_model_len": 99}
    listed = {
        **model,
        "aliases": ["m"],
    }  # llama.cpp's other names of its model, none of them biased
    with proxied(models(listed), bias("m"), ("short", bias("m"))) as (origin, port, _):
        client = sdk(port)
        assert [row.id for row in client.models.list()] == ["m", "m@short"]
        assert client.models.retrieve("m").id == "m"
        with raises_naming(openai.NotFoundError, "404", "theirs"):
            client.models.retrieve("other")
        document = json.loads(exchange(port, request("/v1/models", None, method="GET"))[2])
    assert document == {"object": "list", "data": [listed, {**model, "id": "m@short"}], "own": 1}
    assert origin.arrived[0].headers["authorization"] == "Bearer sk-caller"


@pytest.mark.parametrize(
    "answer", [plain("404 Not Found", b"{}"), plain(body=b"<html>"), plain(body=b'{"data": 1}')]
)
def test_aliases_are_listed_without_a_list(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An upstream without the route leaves the names that are known here; one that answers
    something else is told in the log.
    """
    with proxied(answer, bias("m"), ("short", bias("m"))) as (_, port, _):
        assert [row.id for row in sdk(port).models.list()] == ["m", "m@short"]
        has_route = exchange(port, request("/v1/x"))[0] == "HTTP/1.1 200 OK"
        assert ("list of models" in caplog.text) is has_route


CORS = (
    "Access-Control-Allow-Origin: http://localhost:3000",
    "Access-Control-Allow-Credentials: true",
    "Vary: Origin",
)
PAGE = "Origin: http://localhost:3000"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request("/v1/models", None, PAGE, method="GET"), "200"),
        (request("/healthz", None, PAGE, method="GET"), "200"),
        (request("/v1/chat/completions", b'{"model":"m@short"}', PAGE), "200"),
        (request("/v1/chat/completions", b'{"model":"m@typo"}', PAGE), "404"),
        (request("/v1/chat/completions", b"{", PAGE), "400"),
        (request("/v1/../x", None, PAGE, method="GET"), "400"),
    ],
)
def test_a_page_of_this_machine_can_read_every_answer(sent: bytes, status: str) -> None:
    """Forwarded ones by the upstream's headers, the proxy's own by its own."""
    body = b'{"object": "list", "data": [{"id": "m"}]}'
    with proxied(plain("200 OK", body, *CORS), ("short", bias("m"))) as (_, port, _):
        line, fields, _ = exchange(port, sent)
    assert line.split()[1] == status
    assert {f"{name}: {value}" for name, value in fields} >= set(CORS)


@pytest.mark.parametrize(
    ("fields", "origins", "status"),
    [
        (["Origin: http://localhost:3000"], [], "200"),
        (["Origin: http://127.0.0.1:3000", "Sec-Fetch-Site: cross-site"], [], "200"),
        (["Origin: http://[::1]"], [], "200"),
        (["Origin: https://named.example"], [], "200"),
        (["Sec-Fetch-Site: same-origin"], [], "200"),
        (["Sec-Fetch-Site: none"], [], "200"),
        (["Origin: https://evil.example"], [], "403"),
        (["Origin: null"], [], "403"),
        (["Origin: file://"], [], "403"),
        (["Origin: app://localhost"], [], "403"),
        (["Origin: http://localhost.evil.example"], [], "403"),
        (["Origin: http://localhost@evil.example"], [], "403"),
        (["Origin: http://[::1"], [], "403"),
        (["Origin: http://localhost", "Origin: https://evil.example"], [], "403"),
        (["Sec-Fetch-Site: cross-site"], [], "403"),
        (["Origin: https://App.example", "Sec-Fetch-Site: cross-site"], ["https://app.example/"], "200"),
        (["Origin: https://app.example:444"], ["https://app.example"], "403"),
        (["Origin: http://app.example"], ["https://app.example"], "403"),
        (["Origin: null"], ["null"], "200"),
        (["Origin: app://obsidian.md"], ["app://obsidian.md"], "200"),
        (["Origin: https://evil.example"], ["*"], "200"),
        (["Sec-Fetch-Site: cross-site"], ["*"], "200"),
        (["Sec-Fetch-Site: cross-site"], ["https://app.example"], "403"),
    ],
)  # fmt: skip
def test_pages_of_other_sites_are_refused(
    fields: list[str], origins: list[str], status: str
) -> None:
    """A foreign page, or one without an origin, could else use an upstream that asks for no key;
    nothing of it is sent on, and it cannot read the refusal. The rules hold for the proxy's own
    answers, too, which count nowhere.
    """
    asked = [(method, "/v1/embeddings") for method in ("GET", "POST", "OPTIONS")]
    own = [("GET", "/healthz"), ("GET", "/metrics?x=1")]
    with proxied(plain(), origins=origins, hosts=["named.example"]) as (origin, port, proxy):
        for method, target in (*asked, *own):
            sent = request(target, b"{}", *fields, method=method)
            line, answered, body = exchange(port, sent)
            assert (method, target, line.split()[1]) == (method, target, status)
            if status == "403":
                assert json.loads(body)["error"]["code"] == "origin_not_allowed"
                assert not any(name.lower().startswith("access-control") for name, _ in answered)
    assert len(origin.arrived) == (len(asked) if status == "200" else 0)
    assert proxy.metrics.answered == {status: len(asked)}


def test_the_proxys_own_page_may_call_it() -> None:
    """The origin that is the address by which the proxy was called."""
    sent = request("/v1/embeddings", b"{}", "Origin: https://llm.example:8443")
    sent = sent.replace(b"Host: localhost", b"Host: LLM.example:8443")
    with proxied(plain(), hosts=["llm.example"]) as (_, port, _):
        assert exchange(port, sent)[0].split()[1] == "200"


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        ("192.0.2.7:8080", True),
        ("[2001:db8::7]:8080", True),
        ("localhost:8080", True),
        (f"{socket.gethostname()}:8080", True),
        ("named.example", True),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("192.0.2.7.evil.example", False),
    ],
)
def test_a_name_that_anyone_can_own_is_not_the_proxys(host: str, passes: bool) -> None:
    """On every network a page could point its own name here and ask as its own address (DNS
    rebinding); an IP address and this machine's name are nobody else's.
    """
    sent = make_mocked_request("POST", "/", headers={"Host": host, "Origin": f"http://{host}"})
    rule = Callers(["named.example"])
    if passes:
        rule.check(sent)
        assert rule.headers(sent)
        return
    with pytest.raises(ErrorAnswer) as error:
        rule.check(sent)
    assert (error.value.status, error.value.code) == (403, "origin_not_allowed")
    assert not rule.headers(sent)


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/path", "https://", "a b"])
def test_an_origin_that_is_none_is_refused(origin: str) -> None:
    """At the start, with the form that it should have."""
    with raises_naming(InputError, "--allow-origin"):
        proxy_for("http://h/v1", origins=[origin])


def test_a_refused_key_is_told() -> None:
    """Where the upstream refuses to list, its own error is the answer."""
    refusal = b'{"error": {"message": "bad key"}}'
    served = ("short", bias("m"))
    with (
        proxied(plain("401 Unauthorized", refusal), served) as (_, port, _),
        raises_naming(openai.AuthenticationError, "401", "bad key"),
    ):
        sdk(port).models.list()


def test_health_is_answered_here() -> None:
    """What is applied, whether it was shown to help, and how often; the upstream is not asked, but
    at its own /health, and by other methods than GET.
    """
    with proxied(plain(), bias("m"), ("short", bias("m"))) as (origin, port, _):
        exchange(port, request(body=b'{"model":"m@short"}'))
        health = json.loads(exchange(port, request("/healthz", None, method="GET"))[2])
        exchange(port, request("/health", None, method="GET"))
        exchange(port, request("/healthz"))
    assert health["status"] == "ok"
    assert health["upstream"] == f"{origin.address}/v1"
    assert [
        (row["name"], row["entries"], row["status"], row["requests"]) for row in health["biases"]
    ] == [
        ("m", len(VALUES), "UNVERIFIED", 0),
        ("m@short", len(VALUES), "UNVERIFIED", 1),
    ]
    assert [seen.line.split()[1] for seen in origin.arrived] == [
        "/v1/chat/completions",
        "/health",
        "/healthz",
    ]


def test_metrics_count_what_happened() -> None:
    """Requests by status, bias and error, and the seconds of all, in Prometheus' text format; no
    key is asked for, and neither page counts itself.
    """

    def answer(arrived: Request, connection: socket.socket) -> None:
        if arrived.json["model"] == "broken":
            connection.shutdown(socket.SHUT_RDWR)
        elif arrived.json["model"] == "busy":
            plain("503 Busy")(arrived, connection)
        else:
            plain()(arrived, connection)

    names = ("m", 'm@a"', "m", "other", "busy", "broken", "m@no")
    with proxied(answer, bias("m"), ('a"', bias("m"))) as (_, port, proxy):
        answers = [
            exchange(port, request(body=json.dumps({"model": name}).encode())) for name in names
        ]
        page, again, health = (
            exchange(port, request(path, None, method="GET"))
            for path in ("/metrics", "/metrics", "/healthz")
        )
    statuses = [line.split()[1] for line, _, _ in answers]
    assert statuses == ["200", "200", "200", "200", "503", "502", "404"]
    assert page[0] == "HTTP/1.1 200 OK"
    assert dict(page[1])["Content-Type"].startswith("text/plain")
    assert again[2] == page[2]
    lines = page[2].decode().splitlines()
    for line in (
        'blb_proxy_requests_total{status="200"} 4',
        'blb_proxy_requests_total{status="404"} 1',
        'blb_proxy_requests_total{status="502"} 1',
        'blb_proxy_requests_total{status="503"} 1',
        'blb_proxy_biased_requests_total{bias="m"} 2',
        'blb_proxy_biased_requests_total{bias="m@a\\""} 1',
        'blb_proxy_unbiased_requests_total{kind="unbiased"} 3',
        'blb_proxy_refused_requests_total{code="model_not_found"} 1',
        'blb_proxy_upstream_errors_total{code="upstream_status"} 1',
        'blb_proxy_upstream_errors_total{code="upstream_unreachable"} 1',
        'blb_proxy_request_seconds_bucket{le="+Inf"} 7',
        "blb_proxy_request_seconds_count 7",
    ):
        assert line in lines
    kinds = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert kinds == {line.split()[2] for line in lines if line.startswith("# HELP")}
    samples = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r'blb_proxy_\w+(\{\w+=".*"\})? [\d.]+', line) for line in samples)
    assert json.loads(health[2])["requests"] == {
        "biased": 3, "unbiased": 3, "refused": 1, "failed": 2, "other": 0,
    }  # fmt: skip
    assert proxy.metrics.seconds > 0


def test_an_environments_proxy_server_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """For hosts beyond this machine, as other HTTP clients do; one that is none of http is refused
    at the start.
    """
    with Origin(plain()).running() as gateway:
        monkeypatch.setenv("http_proxy", gateway.address)
        monkeypatch.delenv("no_proxy", raising=False)
        with running(proxy_for("http://upstream.example:81/v1")) as port:
            assert exchange(port, request())[2] == ANSWER
        assert (
            gateway.arrived[0].line
            == "POST http://upstream.example:81/v1/chat/completions HTTP/1.1"
        )
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    with raises_naming(InputError, "http_proxy", "socks5", "NO_PROXY"):
        proxy_for("http://upstream.example:81/v1")


def in_parts(of: Bias, alias: str | None = None) -> ServedBias:
    """A bias whose answers are drawn in parts, under a name."""
    injection = Injection.of(of)
    return ServedBias("m", alias, of, injection, PartSender.of(of, injection, None))


def continuing(host: Host, *more: str, pack: Any = bytes) -> Any:
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


def test_the_parts_of_an_answer_in_phases_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole and as a stream, by an alias; a refused second part ends a stream with its error; bad
    requests are a 400.
    """
    host = host_of()
    host.refusals = {3: 503}
    monkeypatch.setattr(part_requests, "PAUSES", (0.0,))
    answer = continuing(host, "X-Own: kept", "ETag: of-a-part")
    common: dict[str, Any] = {"model": "m@short", "messages": MESSAGES, "max_tokens": 3}
    with Origin(answer).running() as origin, ExitStack() as stack:
        proxy = proxy_for(origin.address + "/v1", in_parts(forced(), "short"))
        with running(proxy) as port:
            client = stack.enter_context(sdk(port))
            raw = client.chat.completions.with_raw_response.create(**common)
            assert (raw.parse().choices[0].message.content, raw.headers[HEADER]) == (
                " b c c",
                "m@short",
            )
            assert (raw.headers["x-own"], raw.headers.get("etag")) == ("kept", None)
            for _ in range(2):
                events = list(client.chat.completions.create(**common, stream=True))
                assert "".join(event.choices[0].delta.content or "" for event in events) == " b c c"
            assert {body["model"] for body in host.bodies if body} == {"m"}
            with raises_naming(openai.BadRequestError, "phases", "several"):
                client.chat.completions.create(**common, n=2)
            with raises_naming(openai.BadRequestError, "logit_bias"):
                client.chat.completions.create(**common, logit_bias={"1": 1})
            host.refusals = {len(host.bodies) + 1: 503, len(host.bodies) + 2: 503}
            seen = list[str]()
            with raises_naming(openai.APIError, "not now"):
                seen.extend(
                    event.choices[0].delta.content or ""
                    for event in client.chat.completions.create(**common, stream=True)
                )
            host.refusals = {len(host.bodies): 503}
            with raises_naming(openai.InternalServerError, "503", "not now"):
                client.chat.completions.create(**common)
    assert proxy.health["requests"]["biased"] == 5
    assert proxy.metrics.failed["upstream_status"] == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_parts_that_come_compressed_are_decoded(coding: str, stream: bool) -> None:
    """The proxy asks for plain parts; what comes compressed all the same is joined, or refused
    where it cannot be read, and no client gets bytes without their coding.
    """
    codings: dict[str, Any] = {"gzip": gzip.compress, "deflate": zlib.compress, "br": bytes}
    answer = continuing(host_of(), f"Content-Encoding: {coding}", pack=codings[coding])
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 3, "stream": stream}
    with Origin(answer).running() as origin:
        proxy = proxy_for(origin.address, in_parts(forced()))
        with running(proxy) as port:
            line, fields, content = exchange(port, request(body=json.dumps(body).encode()))
    assert "content-encoding" not in {name.lower() for name, _ in fields}
    if coding == "br":
        status, _, message = error_of((line, fields, content))
        assert (status, "compressed" in message) == (502, True)
        return
    assert line == "HTTP/1.1 200 said"
    if stream:
        assert content.endswith(b"data: [DONE]\n\n")
        assert content.count(b'" c"') == 2
    else:
        assert json.loads(content)["choices"][0]["message"]["content"] == " b c c"


def test_a_compressed_refusal_of_a_part_can_be_read() -> None:
    """Its status stays, and its words come without the coding that was undone."""
    refusal = b'{"error":{"message":"no"}}'
    upstream = plain("429 Too Many", gzip.compress(refusal), "Content-Encoding: gzip")
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 3}
    with Origin(upstream).running() as origin:
        proxy = proxy_for(origin.address, in_parts(forced()))
        with running(proxy) as port:
            line, fields, content = exchange(port, request(body=json.dumps(body).encode()))
    assert (line, content) == ("HTTP/1.1 429 Too Many", refusal)
    assert "content-encoding" not in {name.lower() for name, _ in fields}


CALLED = {"name": "weather", "arguments": '{"city": "Oslo"}'}
OFFERED: list[Any] = [{"type": "function", "function": {"name": "weather"}}]


def test_tools_and_calls_pass_with_the_bias() -> None:
    """The upstream gets the tools, an earlier call with its result, and the bias, and the client
    the call, byte for byte.
    """
    call = {"id": "c", "type": "function", "function": CALLED}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    body = json.dumps({"id": "a", "model": "m", "choices": [choice]}).encode()
    with proxied(plain(body=body), bias()) as (origin, port, _):
        result = {"role": "tool", "tool_call_id": "c", "content": "rain"}
        asked = {"model": "m", "messages": [*MESSAGES, message, result], "tools": OFFERED}
        answered = exchange(port, request(body=json.dumps(asked).encode()))
        with sdk(port) as client:
            parsed = client.chat.completions.create(model="m", messages=MESSAGES, tools=OFFERED)
    assert answered[2] == body
    assert parsed.choices[0].message.tool_calls is not None
    assert parsed.choices[0].message.tool_calls[0].model_dump()["function"] == CALLED
    assert origin.arrived[0].json["messages"] == asked["messages"]
    for seen in origin.arrived:
        assert seen.json["tools"] == OFFERED
        assert seen.json["logit_bias"] == SENT
