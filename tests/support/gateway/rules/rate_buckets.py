"""Budget: requests and tokens a minute as two leaking buckets, and the x-ratelimit headers that
tell of them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.gateway.refusals import JSON, Refusal, refusal

__all__ = ["Level", "Over", "RateBucket", "duration"]

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Level:
    """One bucket now: ``limit`` a minute, ``remaining``, and ``reset``: seconds until it is full
    again.
    """

    limit: int
    remaining: int
    reset: float


@dataclass(frozen=True, slots=True)
class Over:
    """Why a request does not fit: ``kind`` requests or tokens; ``wait`` seconds, infinite where it
    never will.
    """

    kind: str
    limit: int
    used: int
    asked: int
    wait: float

    def refusal(self, provider: str, model: str) -> Refusal:
        """What the provider says, with headers that name the wait; a request that never fits has
        none.
        """
        facts: JSON = {
            "kind": self.kind,
            "limit": self.limit,
            "requested": self.asked,
            "model": model,
        }
        if math.isinf(self.wait):
            return refusal(provider, "too large", **facts)
        headers = {
            "retry-after": str(math.ceil(self.wait)),
            "retry-after-ms": str(math.ceil(self.wait * 1000)),
        }
        facts |= {"used": self.used, "seconds": math.ceil(self.wait), "wait": duration(self.wait)}
        return refusal(provider, "rate", headers=headers, **facts)


class _Bucket:
    def __init__(self, limit: int, now: float) -> None:
        self.limit, self.left, self.at = limit, float(limit), now

    def refill(self, now: float) -> None:
        self.left = min(float(self.limit), self.left + (now - self.at) * self.limit / MINUTE)
        self.at = now

    def level(self) -> Level:
        return Level(
            self.limit, max(int(self.left), 0), (self.limit - self.left) * MINUTE / self.limit
        )

    def over(self, kind: str, asked: int) -> Over | None:
        if asked <= self.left:
            return None
        wait = (asked - self.left) * MINUTE / self.limit if asked <= self.limit else float("inf")
        return Over(kind, self.limit, min(self.limit, self.limit - int(self.left)), asked, wait)


class RateBucket:
    """``requests`` and ``tokens`` a minute, full at the start; safe to use from many threads."""

    def __init__(
        self, requests: int, tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._buckets = {"requests": _Bucket(requests, clock()), "tokens": _Bucket(tokens, clock())}

    def admit(self, tokens: int) -> Over | None:
        """Take one request of ``tokens`` tokens, or say why it does not fit and take nothing."""
        asked = {"requests": 1, "tokens": tokens}
        with self._lock:
            self._refill()
            for kind, bucket in self._buckets.items():
                over = bucket.over(kind, asked[kind])
                if over is not None:
                    return over
            for kind, bucket in self._buckets.items():
                bucket.left -= asked[kind]
        return None

    def charge(self, tokens: int) -> None:
        """Take the tokens that an admitted request has generated; the bucket may go below zero."""
        with self._lock:
            self._refill()
            self._buckets["tokens"].left -= tokens

    def levels(self) -> dict[str, Level]:
        """Both buckets now, by name."""
        with self._lock:
            self._refill()
            return {kind: bucket.level() for kind, bucket in self._buckets.items()}

    def _refill(self) -> None:
        now = self._clock()
        for bucket in self._buckets.values():
            bucket.refill(now)


def duration(seconds: float) -> str:
    """As OpenAI prints it: 17ms, 1s, 8.64s, 6m0s, 1h0m0s; below a millisecond 0s."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    shown = f"{rest / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{shown}"
    return f"{minutes}m{shown}" if minutes else shown
