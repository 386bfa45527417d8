"""RulesGateway: a provider's rules, kept to the letter by an HTTP server on 127.0.0.1 in front of a
real or an exact engine.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Protocol
from urllib.parse import parse_qsl, urlsplit

from tests.support.exact import ExactServer
from tests.support.exact.listener import Listener, Reply, Request
from tests.support.gateway.batches import BatchDesk
from tests.support.gateway.checks import InvalidRequest, invalid_fields
from tests.support.gateway.engine.completion_view import CompletionView, read
from tests.support.gateway.engine.from_request import stops_of, want_of
from tests.support.gateway.engine.settings import Fault
from tests.support.gateway.engine.upstream import UpstreamEngine, UpstreamFailed
from tests.support.gateway.fields import Endpoint
from tests.support.gateway.refusals import JSON, Refusal, first_of, refusal
from tests.support.gateway.rules.azure import AzureRules
from tests.support.gateway.rules.fireworks import FireworksRules
from tests.support.gateway.rules.openai import OpenAIRules, Route
from tests.support.gateway.rules.openrouter import OpenRouterRules
from tests.support.gateway.rules.together import TogetherRules

__all__ = ["Call", "RulesGateway", "ServedEngine"]

PROVIDERS: Mapping[str, type[OpenAIRules]] = {
    "openai": OpenAIRules,
    "azure": AzureRules,
    "fireworks": FireworksRules,
    "openrouter": OpenRouterRules,
    "together": TogetherRules,
}
KEEP_OUT = {"authorization", "api-key", "x-api-key", "cookie"}


class ServedEngine(Protocol):
    """Anything with the address of a llama.cpp server, such as LocalEngine or ExactServer."""

    @property
    def base_url(self) -> str:
        """With /v1."""
        ...


@dataclass(slots=True)
class Call:
    """One request: ``headers`` without those that carry keys, ``body`` None where it was no JSON
    object.

    ``status``: what was answered, "drop" for a planted broken connection, None while the answer is
    being made. ``rule``: the row of refusals.toml that refused it.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: JSON | None
    status: int | Literal["drop"] | None = None
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    listener: Listener
    upstream: UpstreamEngine
    rules: OpenAIRules


class RulesGateway:
    """``with RulesGateway("openai", engine) as gateway: client = OpenAI(base_url=gateway.base_url,
    api_key=gateway.key)``.

    rules: openai, azure, fireworks, openrouter or together. upstream: a llama.cpp server: LocalEngine,
    ExactServer or a base URL with /v1. Its vocabulary is asked for once, beside the first
    completion. options: see ``RequestSettings``. faults: planted failures.

    requests: the JSON body of every POST in order of arrival. calls: every request.
    invalid_requests: where a body departed from OpenAI's official schema (openai, azure), whether
    it was refused or not. batches: files and batches (openai, azure), see
    ``BatchDesk``.
    """

    def __init__(
        self,
        rules: str,
        upstream: str | ServedEngine,
        *,
        faults: Fault | None = None,
        concurrency: int = 16,
        **options: Any,
    ) -> None:
        self._provider, self._upstream, self._concurrency = PROVIDERS[rules], upstream, concurrency
        self._settings = replace(self._provider.defaults, **options)
        self.faults = faults
        self.requests: list[JSON] = []
        self.calls: list[Call] = []
        self.invalid_requests: list[InvalidRequest] = []
        self._accepted, self._lock = 0, threading.Lock()
        self._running: _Running | None = None
        limits = self._provider.batches
        self.batches = (
            None
            if limits is None
            else BatchDesk(rules, limits, self._answer_line, self._cost_of_line)
        )

    def __enter__(self) -> RulesGateway:
        """InputError if no llama.cpp server answers upstream."""
        at = self._upstream if isinstance(self._upstream, str) else self._upstream.base_url
        upstream = UpstreamEngine(
            at,
            self._concurrency,
            self._upstream if isinstance(self._upstream, ExactServer) else None,
        )
        self._running = _Running(
            Listener(self._reply), upstream, self._provider(self._settings, upstream)
        )
        self._running.listener.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.listener.stop()
            running.upstream.close()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``, which is also an ``azure_endpoint``."""
        return self._now().listener.url

    @property
    def base_url(self) -> str:
        """Where an OpenAI client finds the provider: with /v1, /openai/v1 or /inference/v1."""
        return self.url + self._provider.prefix

    @property
    def key(self) -> str:
        """The right key."""
        return self._settings.key

    @property
    def token(self) -> str:
        """The right Entra token."""
        return self._settings.token

    @property
    def statuses(self) -> list[int | Literal["drop"] | None]:
        """What was answered to each of ``calls``."""
        with self._lock:
            return [call.status for call in self.calls]

    def _now(self) -> _Running:
        if self._running is None:
            raise RuntimeError("the gateway is not running; use it in a with block")
        return self._running

    def _reply(self, request: Request) -> Reply | Literal["drop"]:
        """The answer to one request; called from many threads."""
        call = self._record(request)
        reply: Reply | Literal["drop"]
        try:
            reply = self._handle(request, call)
        except Refusal as refused:
            call.rule = refused.rule
            reply = Reply(refused.status, refused.body)
        except Exception as error:  # noqa: BLE001  # a closed connection would hide a fault of the gateway itself
            reply = Reply(
                500,
                {
                    "error": {
                        "message": f"the rules gateway itself failed: {error!r}",
                        "type": "gateway_failed",
                    }
                },
            )
        call.status = reply.status if isinstance(reply, Reply) else reply
        return reply

    def _record(self, request: Request) -> Call:
        headers = {name: value for name, value in request.headers.items() if name not in KEEP_OUT}
        call = Call(request.method, request.path, headers, _parsed(request.body))
        with self._lock:
            self.calls.append(call)
            if call.body is not None:
                self.requests.append(call.body)
        return call

    def _handle(self, request: Request, call: Call) -> Reply | Literal["drop"]:
        rules, url = self._now().rules, urlsplit(request.path)
        query = dict(parse_qsl(url.query))
        batch = None if self.batches is None else rules.batch_path(url.path, query)
        if batch is not None and self.batches is not None:
            rules.authorise(Route("models", version=query.get("api-version", "")), request.headers)
            return self.batches.reply(request.method, batch, query, request.headers, request.body)
        route = rules.route(request.method, url.path, query)
        rules.authorise(route, request.headers)
        if route.to == "models":
            return Reply(200, rules.listing(route))
        if call.body is None:
            raise refusal(rules.name, "JSON")
        model = rules.model(route, call.body)
        return Reply(200, self._serve(rules, route.to, model, call), rules.headers)

    def _serve(self, rules: OpenAIRules, endpoint: Endpoint, model: str, call: Call) -> JSON:
        self._check(rules, endpoint, model, call)
        body = rules.routed(call.body or {})
        number = self._number()
        fault = None if self.faults is None else self.faults(number)
        if fault is not None:
            raise refusal(rules.name, "server error", status=fault, reason="planted fault")
        return self._complete(rules, endpoint, model, body, number)

    def _answer_line(self, endpoint: Endpoint, body: JSON) -> tuple[int, JSON]:
        """Status and answer of one line of a batch: as of a live request."""
        rules = self._now().rules
        try:
            model = rules.model(Route(endpoint), body)
            call = Call("POST", f"{rules.prefix}/batches", {}, body)
            return 200, self._serve(rules, endpoint, model, call)
        except Refusal as refused:
            return refused.status, refused.body

    def _cost_of_line(self, endpoint: Endpoint, body: JSON) -> int:
        return self._now().rules.cost(endpoint, body)

    def _check(self, rules: OpenAIRules, endpoint: Endpoint, model: str, call: Call) -> None:
        body = call.body or {}
        if rules.official_schema:
            found = invalid_fields(endpoint, call.path, body)
            with self._lock:
                self.invalid_requests += found
        refusals = list(rules.faults(endpoint, model, body))
        if refusals:
            raise first_of(rules.name, refusals)
        refused = rules.check_prompt(body)
        if refused is not None:
            raise refused

    def _number(self) -> int:
        with self._lock:
            number, self._accepted = self._accepted, self._accepted + 1
        return number

    def _complete(
        self, rules: OpenAIRules, endpoint: Endpoint, model: str, body: JSON, number: int
    ) -> JSON:
        want = want_of(
            self._settings, endpoint, body, whole=rules.whole(body), post=rules.post(body)
        )
        try:
            draws = self._now().upstream.draw(want)
            readings: list[CompletionView] = [
                read(self._settings, rules.shown, draw, want, stops_of(body)) for draw in draws
            ]
            return rules.answer(endpoint, model, body, want, readings, number)
        except UpstreamFailed as error:
            reason = f"the engine behind the gateway failed ({error.status}): {error}"
            raise refusal(rules.name, "server error", reason=reason) from error


def _parsed(body: bytes) -> JSON | None:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
