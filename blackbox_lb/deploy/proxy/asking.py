"""Whole answers of the upstream to requests that are made here, in the name of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from aiohttp import web

from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.deploy.proxy.upstream import REWRITTEN, Upstream, check_no_redirect
from blackbox_lb.safety.untrusted import strict_json

DECODED = frozenset(("content-encoding",))
"""The header that is not sent on where the body is sent decompressed."""

Result = TypeVar("Result")


class Unusable(Exception):
    """The upstream's answer is no 200, and becomes the client's."""

    def __init__(self, answer: web.Response) -> None:
        super().__init__()
        self.answer = answer


async def whole_answer(
    upstream: Upstream,
    request: web.BaseRequest,
    target: str,
    content: bytes,
    dropped: frozenset[str] = DECODED,
) -> web.Response:
    """The upstream's answer to a body, with the client's headers but those ``dropped``.

    Raises ErrorAnswer: no answer, or a redirect.
    """
    answer = await upstream.ask(request, target, content, is_plain=True, dropped=dropped)
    async with answer:
        check_no_redirect(answer)
        headers = upstream.headers_of(answer, REWRITTEN)
        with upstream.faults():
            body = await answer.read()
    return web.Response(
        status=answer.status, body=body, headers=headers, content_type=answer.content_type
    )


def body_of(answer: web.Response) -> bytes:
    """The body of a whole answer."""
    assert isinstance(answer.body, bytes)
    return answer.body


async def json_answer(
    upstream: Upstream, request: web.BaseRequest, target: str, content: bytes
) -> tuple[Mapping[str, str], Any]:
    """Headers and parsed body of the upstream's 200.

    Raises Unusable: another status. ErrorAnswer: no answer, or none in JSON.
    """
    answer = await whole_answer(upstream, request, target, content)
    if answer.status != web.HTTPOk.status_code:
        raise Unusable(answer)
    try:
        parsed = strict_json(body_of(answer))
    except ValueError as error:
        raise ErrorAnswer(
            502,
            f"the upstream answers {target} with 200 and no JSON; see whether --upstream is the"
            " address of an API that decides",
            code="upstream_no_decisions",
        ) from error
    del answer.headers["Content-Type"]
    return answer.headers, parsed


async def all_of(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of coroutines that run at once; where one fails the others are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as faults:
        raise faults.exceptions[0] from None
    return [task.result() for task in tasks]
