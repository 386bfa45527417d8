"""What the proxy sees of its upstream by itself, and requests that go out without a bias."""

from __future__ import annotations

import asyncio
import json
import logging
import socket

import pytest

from blackbox_lb.deploy.proxy.server import Proxy
from tests.support.exact.listener import Request
from tests.support.proxy_upstream import (
    Answering,
    Origin,
    bias,
    exchange,
    plain,
    proxied,
    proxy_for,
    request,
    running,
)


def listing(*names: str, path: str = "/v1/models", **more: object) -> Answering:
    """An upstream with a list of models at one path, and 404 elsewhere."""
    rows = [{"id": name, **more} for name in names]
    listed = plain(body=json.dumps({"object": "list", "data": rows}).encode())
    missing = plain("404 Not Found", b"{}")

    def answer(arrived: Request, connection: socket.socket) -> None:
        serves = arrived.line.split()[1] == path
        (listed if serves else missing)(arrived, connection)

    return answer


def dead(_: Request, connection: socket.socket) -> None:
    """An upstream that hangs up."""
    connection.shutdown(socket.SHUT_RDWR)


NO_MODEL = ("no 'm'", "it has MODEL.gguf", "use --model MODEL.gguf")
FIVE = ("it has a-model, b-model, c-model and 2 more", "use --model NAME")


@pytest.mark.parametrize(
    ("answer", "base", "words", "is_ready"),
    [
        (listing("m", "other"), "/v1", (), True),
        (listing("other", aliases=["m"]), "/v1", (), True),
        (plain("401 Unauthorized", b"{}"), "/v1", (), True),
        (plain("404 Not Found", b"{}"), "/v1", (), True),
        (listing("MODEL.gguf"), "/v1", NO_MODEL, True),
        (listing(*(f"{name}-model" for name in "abcde")), "/v1", FIVE, True),
        (listing("m", path="/api/v1/models"), "/api", ("give --upstream", "/api/v1"), True),
        (plain(body=b"<html>"), "/v1", ("no JSON object", "--upstream"), True),
        (plain("503 Service Unavailable", b"{}"), "/v1", ("answers 503",), False),
        (dead, "/v1", ("no answer from", "until it answers, requests get 502"), False),
    ],
)
def test_one_sentence_says_what_will_go_wrong(
    answer: Answering,
    base: str,
    words: tuple[str, ...],
    is_ready: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the remedy; nothing where nothing is seen. What answers at all is ready, but for 5xx;
    /ready says why not, and counts nowhere.
    """

    async def look(proxy: Proxy) -> None:
        async with proxy.upstream.connected():
            await proxy.look()

    with Origin(answer).running() as origin:
        asyncio.run(look(proxy_for(origin.address + base)))
        proxy = proxy_for(origin.address + base)
        with running(proxy) as port:
            status, _, body = exchange(port, request("/ready", None, method="GET"))
    assert len(caplog.records) == bool(words)
    for word in words:
        assert word in caplog.text
    ready = json.loads(body)
    assert int(status.split()[1]) == (200 if is_ready else 503)
    assert ready["status"] == ("ok" if is_ready else "not ready")
    assert is_ready or words[0] in ready["reason"]
    assert proxy.metrics.counts == dict.fromkeys(proxy.metrics.counts, 0)


def test_requests_without_a_bias_are_counted_and_logged_once_a_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By the names that clients choose; the plain name beside an alias is meant, and not logged."""
    with (
        caplog.at_level(logging.WARNING),
        proxied(plain(), bias(), ("short", bias("n")), others="warn") as (_, port, proxy),
    ):
        for model in ("other", "other", "third", "n", "m"):
            body = json.dumps({"model": model, "messages": []}).encode()
            exchange(port, request("/v1/chat/completions", body))
        health = json.loads(exchange(port, request("/healthz", None, method="GET"))[2])
        assert health["unbiased_models"] == {"'other'": 2, "'third'": 1}
        assert proxy.metrics.counts["unbiased"] == 4
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "is for 'other', and blb proxy has a bias for 'm', 'n@short'" in lines[0]


def test_nothing_is_logged_where_others_pass(caplog: pytest.LogCaptureFixture) -> None:
    """``others="pass"`` counts alone; clients' names are kept up to a number."""
    with (
        caplog.at_level(logging.WARNING),
        proxied(plain(), others="pass") as (_, port, proxy),
    ):
        for number in range(102):
            body = json.dumps({"model": f"other{number}", "messages": []}).encode()
            exchange(port, request("/v1/chat/completions", body))
        assert len(proxy.metrics.without) == 100
        assert proxy.metrics.unbiased == 102
    assert not caplog.records
