"""What the proxy sees of its upstream by itself, and requests that go out without a bias."""

from __future__ import annotations

import asyncio
import json
import logging
import socket

import pytest

from blackbox_lb.deploy.proxy.looking import trouble, unready
from blackbox_lb.deploy.proxy.upstream import Upstream
from tests.support.exact.listener import Request
from tests.support.proxy_upstream import (
    Answering,
    Origin,
    bias,
    exchange,
    plain,
    proxied,
    request,
)

NONE_HERE = "http://127.0.0.1:9"


def listing(*names: str, path: str = "/v1/models", **more: object) -> Answering:
    """An upstream with a list of models at one path, and 404 elsewhere."""
    rows = [{"id": name, **more} for name in names]
    listed = plain(body=json.dumps({"object": "list", "data": rows}).encode())
    missing = plain("404 Not Found", b"{}")

    def answer(arrived: Request, connection: socket.socket) -> None:
        serves = arrived.line.split()[1] == path
        (listed if serves else missing)(arrived, connection)

    return answer


def seen(address: str, *models: str) -> tuple[str, str]:
    """What will go wrong, and why the upstream is not ready."""

    async def look() -> tuple[str, str]:
        upstream = Upstream(address)
        async with upstream.connected():
            return await trouble(upstream, models or ("m",)), await unready(upstream)

    return asyncio.run(look())


@pytest.mark.parametrize(
    ("answer", "base", "words", "is_ready"),
    [
        (listing("m", "other"), "/v1", (), True),
        (listing("other", aliases=["m"]), "/v1", (), True),
        (plain("401 Unauthorized", b"{}"), "/v1", (), True),
        (plain("404 Not Found", b"{}"), "/v1", (), True),
        (listing("MODEL.gguf"), "/v1", ("no 'm'", "it has MODEL.gguf", "use --model MODEL.gguf"), True),
        (listing(*(f"{name}-model" for name in "abcde")), "/v1", ("it has a-model, b-model, c-model and 2 more", "use --model NAME"), True),
        (listing("m", path="/api/v1/models"), "/api", ("give --upstream", "/api/v1"), True),
        (plain(body=b"<html>"), "/v1", ("no JSON object", "--upstream"), True),
        (plain("503 Service Unavailable", b"{}"), "/v1", ("answers 503",), False),
    ],
)  # fmt: skip
def test_one_sentence_says_what_will_go_wrong(
    answer: Answering, base: str, words: tuple[str, ...], is_ready: bool
) -> None:
    """With the remedy; nothing where nothing is seen. What answers at all is ready, but for 5xx."""
    with Origin(answer).running() as origin:
        sentence, reason = seen(origin.address + base)
    assert bool(sentence) is bool(words)
    for word in words:
        assert word in sentence
    assert (reason == "") is is_ready


def test_a_dead_upstream_is_said() -> None:
    """At the start, and by /ready, until it answers."""
    sentence, reason = seen(f"{NONE_HERE}/v1")
    assert "no answer from" in sentence
    assert "until it answers, requests get 502" in sentence
    assert reason.startswith("no answer from")


def test_ready_follows_the_upstream() -> None:
    """200 while it answers, 503 with the reason while not; neither is counted."""
    broken: list[bool] = []

    def answer(arrived: Request, connection: socket.socket) -> None:
        plain("503 Service Unavailable" if broken else "200 OK")(arrived, connection)

    with proxied(answer) as (_, port, proxy):
        status, _, body = exchange(port, request("/ready", None, method="GET"))
        assert (status, json.loads(body)) == ("HTTP/1.1 200 OK", {"status": "ok"})
        broken.append(True)
        status, _, body = exchange(port, request("/ready", None, method="GET"))
        assert status == "HTTP/1.1 503 Service Unavailable"
        assert "answers 503" in json.loads(body)["reason"]
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
