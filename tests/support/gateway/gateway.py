"""RulesGateway: a provider's rules, kept to the letter by an HTTP server on 127.0.0.1 in front of a
real or an exact engine.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import TypeAdapter, ValidationError

from tests.support.exact.listener import Listener, Reply, Request
from tests.support.gateway.batches import BatchDesk
from tests.support.gateway.engine import (
    Endpoint,
    Fault,
    UpstreamEngine,
    UpstreamFailed,
    as_told,
    want_of,
)
from tests.support.gateway.refusals import JSON, Refusal, refusal
from tests.support.gateway.rules import PARAMS, PROVIDERS, OpenAIRules


@dataclass(slots=True)
class Call:
    """One request: ``body`` None where it was no JSON object; ``status``: what was answered, "drop"
    for a planted broken connection, None while the answer is being made.
    """

    method: str
    path: str
    body: JSON | None
    status: int | Literal["drop"] | None = None


@dataclass(frozen=True, slots=True)
class InvalidRequest:
    """A request that the official schema does not allow: where in the body, and why."""

    path: str
    where: str
    why: str
    body: JSON


class RulesGateway:
    """``with RulesGateway("openai", engine) as gateway: client = OpenAI(base_url=gateway.base_url,
    api_key=gateway.key)``.

    rules: openai, azure, fireworks, openrouter or together. upstream: a llama.cpp server: LocalEngine,
    ExactServer or a base URL with /v1. Its vocabulary is asked for once, beside the first
    completion. options: see ``RequestSettings``. faults: planted failures.

    requests: the JSON body of every POST in order of arrival. calls: every request.
    invalid_requests: where a body departed from OpenAI's official schema (openai, azure), whether
    it was refused or not. batches: files and batches (openai, azure), see ``BatchDesk``.
    """

    def __init__(
        self,
        rules: str,
        upstream: Any,
        *,
        faults: Fault | None = None,
        concurrency: int = 16,
        **options: Any,
    ) -> None:
        self._provider = PROVIDERS[rules]
        self._upstream = upstream
        self._concurrency = concurrency
        self._settings = replace(self._provider.defaults, **options)
        self._faults = faults
        self._accepted = 0
        self._lock = threading.Lock()
        self.requests: list[JSON] = []
        self.calls: list[Call] = []
        self.invalid_requests: list[InvalidRequest] = []
        self.batches: BatchDesk | None = None
        if self._provider.batches is not None:
            self.batches = BatchDesk(rules, self._provider.batches, self._answer_line)

    def __enter__(self) -> RulesGateway:
        self._engine = UpstreamEngine(self._upstream, self._concurrency)
        self._rules = self._provider(self._settings, self._engine)
        self._listener = Listener(self._reply)
        self._listener.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._listener.stop()
        self._engine.close()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``, which is also an ``azure_endpoint``."""
        return self._listener.url

    @property
    def base_url(self) -> str:
        """Where an OpenAI client finds the provider: with /v1, /openai/v1 or /inference/v1."""
        return self.url + self._provider.prefix

    @property
    def key(self) -> str:
        """The right key."""
        return self._settings.key

    @property
    def statuses(self) -> list[int | Literal["drop"] | None]:
        """What was answered to each of ``calls``."""
        with self._lock:
            return [call.status for call in self.calls]

    def _reply(self, request: Request) -> Reply | Literal["drop"]:
        """The answer to one request; called from many threads."""
        call = Call(request.method, request.path, _parsed(request.body))
        with self._lock:
            self.calls.append(call)
            if call.body is not None:
                self.requests.append(call.body)
        reply: Reply | Literal["drop"]
        try:
            reply = self._handle(request, call)
        except Refusal as refused:
            reply = Reply(refused.status, refused.body)
        except Exception as error:  # noqa: BLE001  # a closed connection would hide a fault of the gateway itself
            message = f"the rules gateway itself failed: {error!r}"
            reply = Reply(500, {"error": {"message": message, "type": "gateway_failed"}})
        call.status = reply.status if isinstance(reply, Reply) else reply
        return reply

    def _handle(self, request: Request, call: Call) -> Reply | Literal["drop"]:
        rules = self._rules
        url = urlsplit(request.path)
        query = dict(parse_qsl(url.query))
        route = rules.route(url.path, query)
        rules.authorise(request.headers)
        if route.to == "batches" and self.batches is not None:
            return self.batches.reply(route.rest, query, request)
        if route.to == "models":
            return Reply(200, rules.listing())
        assert route.to != "batches"
        body = call.body or {}
        answer = self._serve(route.to, rules.model(route, body), body, call.path)
        return Reply(200, answer, rules.headers)

    def _answer_line(self, endpoint: Endpoint, body: JSON) -> tuple[int, JSON]:
        """Status and answer of one line of a batch: as of a live request."""
        try:
            return 200, self._serve(endpoint, body["model"], body, "/batches")
        except Refusal as refused:
            return refused.status, refused.body

    def _serve(self, endpoint: Endpoint, model: str, body: JSON, path: str) -> JSON:
        rules = self._rules
        if rules.official_schema:
            departures = [
                InvalidRequest(path, where, why, body) for where, why in _departures(endpoint, body)
            ]
            with self._lock:
                self.invalid_requests += departures
        rules.check(endpoint, model, body)
        body = rules.routed(body)
        with self._lock:
            number = self._accepted
            self._accepted += 1
        fault = None if self._faults is None else self._faults(number)
        if fault is not None:
            raise refusal(rules.name, "server error", status=fault, reason="planted fault")
        return self._complete(rules, endpoint, model, body)

    def _complete(self, rules: OpenAIRules, endpoint: Endpoint, model: str, body: JSON) -> JSON:
        whole = rules.whole(body)
        post = rules.post(body)
        want = want_of(self._settings, endpoint, body, whole=whole, post=post)
        stop = body.get("stop") or []
        stops = [stop] if isinstance(stop, str) else stop
        try:
            drawn = self._engine.draw(want)
        except UpstreamFailed as error:
            reason = f"the engine behind the gateway failed: {error}"
            raise refusal(rules.name, "server error", reason=reason) from error
        completions = [
            as_told(self._settings, self._engine, completion, want, stops) for completion in drawn
        ]
        return rules.answer(endpoint, model, body, want, completions)


def _parsed(body: bytes) -> JSON | None:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _departures(endpoint: Endpoint, body: JSON) -> Iterator[tuple[str, str]]:
    """Where ``body`` departs from the official schema of ``endpoint``, and why."""
    for name in sorted(set(body) - set(PARAMS[endpoint].__annotations__)):
        yield name, "not a field of the schema"
    try:
        _drain(_adapter(endpoint).validate_python(body, strict=True))
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            yield ".".join(map(str, fault["loc"])), fault["msg"]


@cache
def _adapter(endpoint: Endpoint) -> TypeAdapter[Any]:
    return TypeAdapter(PARAMS[endpoint])


def _drain(value: object) -> None:
    """pydantic checks an Iterable only while it is iterated."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Iterator | list):
        for member in value:
            _drain(member)
