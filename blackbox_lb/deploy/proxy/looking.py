"""A look at the upstream by the proxy itself, without a key: whether it answers, and whether it
knows the models of the biases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from blackbox_lb.deploy.injection import quoted
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.deploy.proxy.limits import PREFIX
from blackbox_lb.deploy.proxy.models import read_object
from blackbox_lb.deploy.proxy.upstream import Upstream
from blackbox_lb.safety.printable import did_you_mean, printable

LOOK_SECONDS = 5.0
"""Longest wait for an answer."""
_SHOWN = 3
"""Models that a sentence names."""


async def unready(upstream: Upstream) -> str:
    """Why the upstream does not answer; "" where it does, whatever its status below 500."""
    try:
        status, _ = await _models(upstream, upstream.base)
    except ErrorAnswer as error:
        return str(error)
    if status >= 500:
        return f"{upstream.base}/models answers {status}"
    return ""


async def trouble(upstream: Upstream, models: Iterable[str]) -> str:
    """What will go wrong with the upstream, in a sentence; "" where nothing is seen.

    models: the names under which requests with a bias are sent on. A server that wants a key, or
    has no list of models, tells nothing.
    """
    try:
        status, document = await _models(upstream, upstream.base)
        if status == 404 and not upstream.base.endswith(PREFIX):
            below, listed = await _models(upstream, upstream.base + PREFIX)
            if below == 200 and _names(listed):
                return (
                    f"{upstream.base} has no list of models, and {upstream.base}{PREFIX} has: give"
                    f" --upstream {upstream.base}{PREFIX}"
                )
    except ErrorAnswer as error:
        return f"{error}; until it answers, requests get {error.status}"
    if status >= 500:
        return f"{upstream.base}/models answers {status}: the upstream is not ready, or broken"
    if status == 200 and not document:
        return (
            f"{upstream.base}/models answers 200 and no JSON object: see whether --upstream is the"
            " address of an API"
        )
    names = _names(document)
    missing = [model for model in dict.fromkeys(models) if names and model not in names]
    if not missing:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    near = did_you_mean(missing[0], names)
    remedy = f"use --model {printable(names[0])}" if len(names) == 1 else "use --model NAME"
    return (
        f"the server lists no {', '.join(map(quoted, missing))} (it has"
        f" {', '.join(printable(name) for name in names[:_SHOWN])}{more}): {remedy} where it is"
        f" the same model{near}"
    )


async def _models(upstream: Upstream, base: str) -> tuple[int, dict[str, Any]]:
    """Status and document of the list of models below ``base``. Raises ErrorAnswer: no answer."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            with upstream.faults():
                async with await upstream.get(f"{base}/models") as answer:
                    document = {}
                    if answer.status == 200:
                        document = await read_object(answer)
                    return answer.status, document
    except TimeoutError:
        raise ErrorAnswer(
            504,
            f"no answer from {upstream.base} within {LOOK_SECONDS:g} s; see whether it runs",
            code="upstream_timeout",
        ) from None


def _names(document: dict[str, Any]) -> list[str]:
    """The ids in a list of models, and the aliases that llama.cpp lists beside them."""
    rows = document.get("data")
    if not isinstance(rows, list):
        return []
    names = []
    for row in rows:
        if isinstance(row, dict):
            aliases = row.get("aliases")
            names += [row.get("id"), *(aliases if isinstance(aliases, list) else ())]
    return [name for name in dict.fromkeys(names) if isinstance(name, str)]
