"""The pages that the proxy answers of itself, and its access log."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from typing import Any

from aiohttp import web

from blackbox_lb._version import __version__
from blackbox_lb.deploy.proxy.bodies import ServedBiases
from blackbox_lb.deploy.proxy.decisions import ServedQuestions
from blackbox_lb.deploy.proxy.metrics import Metrics
from blackbox_lb.deploy.proxy.served import ServedBias
from blackbox_lb.safety.printable import printable

HEALTH = "/healthz"
METRICS = "/metrics"
READY = "/ready"
"""The paths that the proxy answers of itself, and the upstream's of these names are hidden by."""


def health_page(
    upstream: str, biases: ServedBiases, questions: ServedQuestions | None, metrics: Metrics
) -> dict[str, Any]:
    """What ``/healthz`` answers. upstream: its address."""
    return {
        "status": "ok",
        "version": __version__,
        "upstream": upstream,
        "biases": [
            {
                "name": row.name,
                "model": row.model,
                "alias": row.alias,
                "entries": len(row.bias.entries),
                **_phrases(row),
                "status": row.bias.status,
                "requests": metrics.biased[row.name],
            }
            for row in biases
        ],
        "questions": [
            {
                "id": row.question.id,
                "model": row.model,
                "reading": row.reading,
                "mending": row.mending,
                "fingerprint": row.question.fingerprint,
                "promise": None if row.promise is None else row.promise.sentence,
            }
            for row in questions or ()
        ],
        "decisions": dict(metrics.decisions),
        "requests": metrics.counts,
        "unbiased_models": dict(metrics.without),
    }


def _phrases(row: ServedBias) -> dict[str, Any]:
    """The number of phrases that are kept out, and what that took; nothing where there are none."""
    if row.parts is None or row.parts.phrases is None:
        return {}
    return {"phrases": {"lines": len(row.bias.phrases), **asdict(row.parts.counts)}}


def is_own(request: web.BaseRequest) -> bool:
    """Whether the proxy answers of itself."""
    path = request.raw_path.partition("?")[0]
    return path in (HEALTH, READY, METRICS) and request.method in ("GET", "HEAD")


def log_line(request: web.BaseRequest, status: int, seconds: float) -> str:
    """The line of an access log: no query, header or body, because keys and prompts stand there."""
    time = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
    path = printable(request.raw_path.partition("?")[0])
    return f"{time} {request.remote} {request.method} {path} {status} {seconds:.3f} s"
