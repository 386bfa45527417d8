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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import openai
import pytest
from aiohttp.test_utils import make_mocked_request
from openai import OpenAI

from blackbox_lb.deploy.proxy.bodies import Edit, ServedBiases
from blackbox_lb.deploy.proxy.callers import Callers
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
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

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
IN_CHUNKS = request("/v1/completions", None, "Transfer-Encoding: chunked")
MESSAGES: Any = [{"role": "user", "content": "hello"}]


def chunk(piece: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(piece), piece)


def sdk(port: int) -> OpenAI:
    """The official client, through the proxy."""
    return OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-caller", max_retries=0)


def error_of(answer: tuple[str, Any, bytes]) -> tuple[int, str, str]:
    """Status, code and message of an error answer."""
    error = json.loads(answer[2])["error"]
    return int(answer[0].split()[1]), error["code"], error["message"]


def get(port: int, path: str) -> tuple[str, Any, bytes]:
    """The answer to a GET."""
    return exchange(port, request(path, None, method="GET"))


def test_bytes_and_headers_pass_as_they_are() -> None:
    """Repeated headers in their order, compressed bodies, status and reason; only the headers of
    the connection go, none is added to a request, and no cookie stays for the next client.
    """
    packed = gzip.compress(b"{}")
    asked = ("Authorization: Bearer sk-1", "api-key: sk-2", "X-Own: 1", "X-Own: 2", "Cookie: a=b")
    coded = ("Content-Type: application/json", "Content-Encoding: gzip")
    hop = ("Connection: keep-alive, X-Hop", "X-Hop: 1", "Keep-Alive: 5", "TE: trailers")
    told = (
        "Set-Cookie: a=1",
        "Set-Cookie: b=2; Path=/",
        "Server: up",
        "Content-Encoding: gzip",
        "Date: then",
    )
    upstream = plain("418 Short And Stout", packed, *told, "Connection: X-Hop", "X-Hop: 1")
    sent = request("/v1/embeddings?key=a%2Fb&x", packed, *asked, "X-Umlaut: hé", *hop, *coded)
    with proxied(upstream) as (origin, port, _):
        status, headers, body = exchange(port, sent)
        get(port, "/v1/files/%2e%41")
    first, second = origin.arrived
    host = f"Host: {origin.address.removeprefix('http://')}"
    length = f"Content-Length: {len(packed)}"
    assert first.line == "POST /v1/embeddings?key=a%2Fb&x HTTP/1.1"
    assert [f"{name}: {value}" for name, value in first.fields] == [
        *(host, *asked, "X-Umlaut: h\u00c3\u00a9", *coded, length)
    ]
    assert first.body == packed
    assert second.line == "GET /v1/files/%2e%41 HTTP/1.1"
    assert [f"{name}: {value}" for name, value in second.fields] == [host]
    assert (status, body) == ("HTTP/1.1 418 Short And Stout", packed)
    assert [f"{name}: {value}" for name, value in headers] == [
        *("Content-Type: application/json", *told, length)
    ]


def test_the_bias_arrives_once_and_exactly() -> None:
    """With every completion of its model, by name or alias, and with no other request."""
    with proxied(plain(), bias("m"), ("short", bias("m", {1: 0.5}))) as (origin, port, _):
        client = sdk(port)
        raw = client.chat.completions.with_raw_response
        names = [
            raw.create(model=name, messages=MESSAGES).headers.get(HEADER)
            for name in ("m", "m@short", "other")
        ]
        client.completions.create(model="m", prompt="x")
    assert names == ["m", "m@short", None]
    sent = [(seen.json["model"], seen.json.get("logit_bias")) for seen in origin.arrived]
    assert sent == [("m", SENT), ("m", {"1": 0.5}), ("other", None), ("m", SENT)]
    assert {seen.headers["authorization"] for seen in origin.arrived} == {"Bearer sk-caller"}


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


def test_bodies_in_chunks_are_read(caplog: pytest.LogCaptureFixture) -> None:
    """They get the bias and a true length; so does one whose sender waits for 100 Continue. A bad
    chunk is 400, and a sender that leaves within its body is no error of the proxy's.
    """
    body = b'{"model":"m"}'
    expecting = ("Expect: 100-continue", f"Content-Length: {len(body)}")
    with proxied(plain()) as (origin, port, proxy):
        exchange(port, IN_CHUNKS + chunk(body[:6]) + chunk(body[6:]) + chunk(b""))
        with connect(port) as connection, connection.makefile("rb") as reader:
            connection.sendall(request("/v1/completions", None, *expecting))
            assert reader.readline() + reader.readline() == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(body)
            assert answer_of(reader)[0] == "HTTP/1.1 200 OK"
        assert exchange(port, IN_CHUNKS + b"zz\r\n")[0].split()[1] == "400"
        with connect(port) as connection:
            connection.sendall(IN_CHUNKS + chunk(body[:6]))
        while not proxy.metrics.answered["499"]:
            time.sleep(0.01)
    assert [seen.json["logit_bias"] for seen in origin.arrived] == [SENT, SENT]
    for seen in origin.arrived:
        assert int(seen.headers["content-length"]) == len(seen.body)
        assert not {"transfer-encoding", "expect"} & set(seen.headers)
    assert proxy.metrics.failed.total() == 0
    assert not caplog.records


@pytest.mark.parametrize("chunked", [False, True])
def test_larger_bodies_are_refused(chunked: bool) -> None:
    """The limit itself passes, one byte more is 413, whether or not the length was declared;
    nothing of it goes upstream.
    """
    with proxied(plain(), max_body=1000) as (origin, port, _):
        for size, status in ((1000, 200), (1001, 413)):
            content = b'{"model":"m"}'.ljust(size)
            sent = IN_CHUNKS + chunk(content) + chunk(b"") if chunked else request(body=content)
            answer = exchange(port, sent)
            assert int(answer[0].split()[1]) == status
    assert error_of(answer)[1] == "request_too_large"
    assert "1,000 bytes" in error_of(answer)[2]
    assert len(origin.arrived) == 1


UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eA==")


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (request("http://evil.example/v1/chat/completions"), 400, "bad_path"),
        (request("evil.example:443", None, method="CONNECT"), 400, "bad_path"),
        (request("/v1/../../secret", None, method="GET"), 400, "bad_path"),
        (request("/v1/realtime", None, *UPGRADE, method="GET"), 501, "websocket_unsupported"),
        *((request(path), 400, "unsupported_endpoint") for path in ("/v1/responses", "/V1/RESPONSES")),
        (request("/v1/x", None, "Transfer-Encoding: gzip, chunked") + b"1\r\na\r\n0\r\n\r\n", 501, "transfer_coding_unsupported"),
        (request("/v1/chat/completions", b"{}", "Content-Encoding: gzip"), 415, "compressed_body"),
        (request("/v1/completions", b"{}", "Content-Encoding: identity", "Content-Encoding: gzip"), 415, "compressed_body"),
        (request("/v1/completions", b"{}", "Content-Encoding: identity, br"), 415, "compressed_body"),
        *((request(body=body), 400, "bad_body") for body in (b"", b"{", b"[1]", b'"m"', b"\xff", b'\xef\xbb\xbf{"model":"m"}', b"[" * 100_000, b'{"model":"o","model":"m"}')),
        *((request(body=b'{"model":"%s"}' % name), 404, "model_not_found") for name in (b"m@x", b"m@", b"n@a", b"m@a@a")),
    ],
)  # fmt: skip
def test_refusals_reach_nobody(sent: bytes, status: int, code: str) -> None:
    """Each is answered here with its reason, in OpenAI's shape, and never arrives upstream."""
    with proxied(plain(), bias(), ("a", bias())) as (origin, port, proxy):
        assert error_of(exchange(port, sent))[:2] == (status, code)
        assert proxy.metrics.refused == {code: 1}
    assert not origin.arrived


def test_the_sdk_raises_the_proxys_errors() -> None:
    """With its own class for the status, the message with the names that exist, and the code."""
    with proxied(plain(), bias(), ("a", bias()), others="raise") as (_, port, _):
        create = sdk(port).chat.completions.create
        with raises_naming(openai.NotFoundError, "'m@b'", "'m', 'm@a'") as missing:
            create(model="m@b", messages=MESSAGES)
        with raises_naming(openai.BadRequestError, "'other'", "'m'"):
            create(model="other", messages=MESSAGES)
        with raises_naming(openai.BadRequestError, "--others") as long:
            create(model="x" * 100_000, messages=MESSAGES)
        with raises_naming(openai.BadRequestError, "--on-conflict") as conflict:
            create(model="m", messages=MESSAGES, logit_bias={"1": 1})
        with raises_naming(openai.BadRequestError, "logit_bias"):
            sdk(port).responses.create(model="m", input="x")
    assert missing.value.code == "model_not_found"
    assert len(str(long.value)) < 1_000
    assert (conflict.value.code, conflict.value.param) == ("logit_bias_conflict", "logit_bias")


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        *((host, True) for host in ("localhost", "LOCALHOST:80", "127.0.0.1:8080", "127.8.0.1", "[::1]:80", "[::1]", "", "named.example")),
        *((host, False) for host in ("evil.example:8080", "127.0.0.1.evil.example", "[::2]:80", "localhost.evil")),
    ],
)  # fmt: skip
def test_another_machines_name_is_refused(host: str, is_own: bool) -> None:
    """A page that lets its own name point to this machine reaches no upstream, not even the list of
    what is applied. Whatever is taken, the request goes to the upstream under the upstream's name.
    """
    paths = ("/v1/chat/completions", "//evil.example/v1/models", "/healthz")
    with proxied(plain(), hosts=["Named.example"]) as (origin, port, _):
        sent = [request(path, b'{"model":"m"}', "X-Forwarded-Host: evil.example") for path in paths]
        answers = [exchange(port, row.replace(b"localhost", host.encode())) for row in sent]
    if is_own:
        assert all(status == "HTTP/1.1 200 OK" for status, _, _ in answers)
        hosts = {seen.headers["host"] for seen in origin.arrived}
        assert hosts == {origin.address.removeprefix("http://")}
        return
    for answer in answers:
        status, code, message = error_of(answer)
        assert (status, code) == (421, "misdirected_request")
        assert "--allow-host" in message
    assert not origin.arrived


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


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        *((host, True) for host in ("192.0.2.7:8080", "[2001:db8::7]:8080", f"{socket.gethostname()}:8080", "named.example")),
        *((host, False) for host in ("evil.example", "evil.example:8080", "192.0.2.7.evil.example")),
    ],
)  # fmt: skip
def test_a_name_that_anyone_can_own_is_not_the_proxys(host: str, passes: bool) -> None:
    """On every network a page could point its own name here and ask as its own address (DNS
    rebinding); an IP address and this machine's name are nobody else's.
    """
    sent = make_mocked_request("POST", "/", headers={"Host": host, "Origin": f"http://{host}"})
    rule = Callers(["named.example"])
    assert bool(rule.headers(sent)) is passes
    if passes:
        rule.check(sent)
        return
    with pytest.raises(ErrorAnswer) as error:
        rule.check(sent)
    assert (error.value.status, error.value.code) == (403, "origin_not_allowed")


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


def test_redirects_are_not_followed() -> None:
    """Another request's redirect passes as it is; a biased one's is an error, as the client would
    follow it unbiased.
    """
    elsewhere = plain("307 Temporary Redirect", b"", "Location: http://evil.example/")
    with proxied(elsewhere) as (origin, port, _):
        status, headers, _ = exchange(port, request("/v1/embeddings"))
        answer = exchange(port, request())
    assert status == "HTTP/1.1 307 Temporary Redirect"
    assert dict(headers)["Location"] == "http://evil.example/"
    assert error_of(answer)[:2] == (502, "upstream_redirect")
    assert len(origin.arrived) == 2


def test_nobody_answers(caplog: pytest.LogCaptureFixture) -> None:
    """502 with the reason and what to look at, logged too, without what was asked for; a page of
    this machine may read it. After --timeout seconds of silence: 504.
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
    silent = threading.Event()

    def wait(_: Request, connection: socket.socket) -> None:
        silent.wait(60)

    with proxied(wait, timeout=0.2) as (_, port, _):
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


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"", b""), (request()[:20], b""), (request()[:-3], b"HTTP/1.1 408"), (request(), b"HTTP/1.1 200")],
    ids=["nothing", "half a head", "half a body", "all"],
)  # fmt: skip
def test_a_client_that_goes_silent_is_let_go(sent: bytes, status: bytes) -> None:
    """Its connection ends, and a whole request gets its answer first."""
    with proxied(plain(), idle=0.3) as (_, port, _):
        with connect(port) as connection, connection.makefile("rb") as reader:
            connection.sendall(sent)
            received = reader.read()  # to the end of the connection
        assert exchange(port, request())[0] == "HTTP/1.1 200 OK"
    assert received[:12] == status


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
        assert get(port, "/healthz")[0] == "HTTP/1.1 200 OK"
        assert exchange(port, request())[0] == "HTTP/1.1 200 OK"
        may_go_on.set()
        assert large.result()[0] == "HTTP/1.1 200 OK"
    assert [seen.json["logit_bias"] for seen in origin.arrived] == [SENT, SENT]


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
        echoed = [body["messages"], arrived.headers["x-caller"], body.get("logit_bias")]
        text = json.dumps(echoed).encode()
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
    with proxied(echo, *served) as (origin, port, _), ThreadPoolExecutor(200) as pool:
        list(pool.map(ask, range(200)))
    assert len(origin.arrived) == 200


def test_models_are_the_upstreams_and_the_aliases() -> None:
    """An alias has what the upstream says of its model; the list is asked for with the caller's
    key, and one model by the upstream's own route.
    """
    model = {"id": "m", "object": "model", "created": 5, "owned_by": "up", "max_model_len": 99}
    listed = {
        **model,
        "aliases": ["m"],
    }  # llama.cpp's other names of its model, none of them biased
    body = json.dumps({"object": "list", "data": [listed], "own": 1}).encode()
    with proxied(plain(body=body), bias("m"), ("short", bias("m"))) as (origin, port, _):
        assert [row.id for row in sdk(port).models.list()] == ["m", "m@short"]
        document = json.loads(get(port, "/v1/models")[2])
        assert get(port, "/v1/models/m")[2] == body
    assert document == {"object": "list", "data": [listed, {**model, "id": "m@short"}], "own": 1}
    assert origin.arrived[0].headers["authorization"] == "Bearer sk-caller"


@pytest.mark.parametrize(
    ("answer", "is_logged"),
    [
        (plain("404 Not Found", b"{}"), False),
        (plain(body=b"<html>"), True),
        (plain(body=b'{"data": 1}'), True),
    ],
)
def test_aliases_are_listed_without_a_list(
    answer: Any, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An upstream without the route leaves the names that are known here; one that answers
    something else is told in the log; one that refuses the key answers itself.
    """
    aliased = ("short", bias("m"))
    with proxied(answer, bias("m"), aliased) as (_, port, _):
        assert [row.id for row in sdk(port).models.list()] == ["m", "m@short"]
    assert ("list of models" in caplog.text) is is_logged
    refusal = plain("401 Unauthorized", b'{"error": {"message": "bad key"}}')
    with (
        proxied(refusal, aliased) as (_, port, _),
        raises_naming(openai.AuthenticationError, "401", "bad key"),
    ):
        sdk(port).models.list()


def test_health_and_metrics_tell_what_happened() -> None:
    """What is applied, whether it was shown to help, and requests by status, bias and error, in
    Prometheus' text format. Neither page asks the upstream or counts itself; the upstream's own
    /health, and other methods, pass.
    """

    def answer(arrived: Request, connection: socket.socket) -> None:
        model = arrived.json["model"] if arrived.body else ""
        if model == "broken":
            connection.shutdown(socket.SHUT_RDWR)
        elif model == "busy":
            plain("503 Busy")(arrived, connection)
        else:
            plain()(arrived, connection)

    names = ("m", 'm@a"', "m", "other", "busy", "broken", "m@no")
    with proxied(answer, bias("m"), ('a"', bias("m"))) as (origin, port, _):
        statuses = [
            exchange(port, request(body=json.dumps({"model": name}).encode()))[0].split()[1]
            for name in names
        ]
        page, again, health_page = (
            get(port, path) for path in ("/metrics", "/metrics", "/healthz")
        )
        exchange(port, request("/healthz"))
        get(port, "/health")
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
    health = json.loads(health_page[2])
    assert health["requests"] == {
        "biased": 3, "unbiased": 3, "refused": 1, "failed": 2, "other": 0,
    }  # fmt: skip
    assert (health["status"], health["upstream"]) == ("ok", f"{origin.address}/v1")
    rows = [
        (row["name"], row["entries"], row["status"], row["requests"]) for row in health["biases"]
    ]
    assert rows == [("m", len(VALUES), "UNVERIFIED", 2), ('m@a"', len(VALUES), "UNVERIFIED", 1)]
    paths = [seen.line.split()[1] for seen in origin.arrived]
    assert paths[-2:] == ["/healthz", "/health"]
    assert not {"/metrics"} & set(paths)


def test_an_environments_proxy_server_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """For hosts beyond this machine, as other HTTP clients do; one that is none of http is refused
    at the start.
    """
    with Origin(plain()).running() as gateway:
        monkeypatch.setenv("http_proxy", gateway.address)
        monkeypatch.delenv("no_proxy", raising=False)
        with running(proxy_for("http://upstream.example:81/v1")) as port:
            assert exchange(port, request())[2] == ANSWER
    line = "POST http://upstream.example:81/v1/chat/completions HTTP/1.1"
    assert gateway.arrived[0].line == line
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    with raises_naming(InputError, "http_proxy", "socks5", "NO_PROXY"):
        proxy_for("http://upstream.example:81/v1")
