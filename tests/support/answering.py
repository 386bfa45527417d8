"""What stands in for the network: a function that answers requests."""

from __future__ import annotations

import json
from collections.abc import Callable

from multidict import CIMultiDict

from blackbox_lb.safety.http.clients import HttpAnswer, HttpRequest
from tests.support.exact.listener import Reply


class Answering:
    """Answers each request by a function."""

    def __init__(self, answer: Callable[[HttpRequest], Reply]) -> None:
        self._answer = answer

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """See ``Transport``."""
        reply = self._answer(request)
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        return HttpAnswer(reply.status, CIMultiDict(reply.headers), body, request.place)

    async def close(self) -> None:
        """See ``Transport``."""
