"""ExactServer: an ExactModel behind HTTP on 127.0.0.1, speaking the llama.cpp server's dialect,
with faults on request.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from tests.support.exact.listener import Listener, Reply, Request
from tests.support.exact.llamacpp_answers import COMPLETIONS, JSON, Dialect, RefusedRequest
from tests.support.exact.model import ExactModel

Answer: TypeAlias = JSON | int | Literal["drop"]
"""A response body, an HTTP status with an error body, or "drop": close the connection without an
answer.
"""
Fault: TypeAlias = Callable[[int, JSON], Answer]
"""(number of this completion request, from 0; the honest response) -> what to answer instead."""


class ExactServer:
    """A context manager: ``with ExactServer(model) as server: client =
    OpenAI(base_url=server.base_url, ...)``.

    requests: the JSON body of every POST so far, in order of arrival; calls: the same as (path,
    body). delay: seconds before each completion. prompt_of maps the text of a request to a prompt
    number of the model; the default hashes it. Every token has a text of its own in ``texts`` ("
    a", " b", ...); the end token has text "" and no bytes, and ``call_token`` begins a call of a
    tool.
    """

    def __init__(
        self,
        model: ExactModel,
        *,
        name: str = "exact",
        faults: Fault | None = None,
        delay: float = 0.0,
        prompt_of: Callable[[str], int] | None = None,
        seed: int = 0,
        call_token: int | None = None,
    ) -> None:
        self.model, self.name, self.faults, self.delay = model, name, faults, delay
        self.requests: list[JSON] = []
        self.calls: list[tuple[str, JSON]] = []
        self._dialect = Dialect(model, name, prompt_of, seed, call_token)
        self._completions, self._lock = 0, threading.Lock()
        self._http: Listener | None = None

    def __enter__(self) -> ExactServer:
        self._http = Listener(self._reply)
        self._http.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._http is not None:
            self._http.stop()
            self._http = None

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``; the port is free again after the ``with`` block."""
        if self._http is None:
            raise RuntimeError("the server is not running; use it in a with block")
        return self._http.url

    @property
    def base_url(self) -> str:
        """``url`` with /v1, as an OpenAI client wants it."""
        return f"{self.url}/v1"

    @property
    def texts(self) -> list[str]:
        """(v) the text of each token."""
        return self._dialect.texts

    @property
    def completions(self) -> list[JSON]:
        """The bodies of the requests for completions so far."""
        return [body for path, body in self.calls if path in COMPLETIONS]

    def forget(self) -> None:
        """Draw as at the start, whatever was asked."""
        self._dialect.forget()

    def tokenize(self, text: str) -> list[int]:
        """The answer to POST /tokenize."""
        return self._dialect.tokenize(text)

    def get(self, path: str) -> Answer:
        """The answer to GET ``path``."""
        return self._dialect.get(path)

    def post(self, path: str, body: JSON) -> Answer:
        """The answer to POST ``path``, faults included; the request is recorded before it is looked
        at.
        """
        generates = path in COMPLETIONS
        with self._lock:
            self.requests.append(body)
            self.calls.append((path, body))
            number, self._completions = self._completions, self._completions + generates
        if generates and self.delay:
            time.sleep(self.delay)
        answer = self._dialect.post(path, body, number)
        return self.faults(number, answer) if generates and self.faults is not None else answer

    def _reply(self, request: Request) -> Reply | Literal["drop"]:
        try:
            answer = (
                self.get(request.path)
                if request.method == "GET"
                else self.post(request.path, _parsed(request.body))
            )
        except RefusedRequest as error:
            return Reply(error.status, _error(error.status, str(error)))
        except (TypeError, ValueError) as error:
            return Reply(400, _error(400, f"bad value in the request: {error}"))
        if answer == "drop":
            return "drop"
        return (
            Reply(answer, _error(answer, "planted fault"))
            if isinstance(answer, int)
            else Reply(200, answer)
        )


def _parsed(raw: bytes) -> JSON:
    body = json.loads(raw)
    if not isinstance(body, dict):
        raise RefusedRequest(400, "the request body must be a JSON object")
    return body


def _error(status: int, message: str) -> JSON:
    kind = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_exceeded"}.get(
        status, "server_error"
    )
    return {"error": {"code": status, "message": message, "type": kind}}
