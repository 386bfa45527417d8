"""Trying again: which faults pass by themselves, and how long to leave the other side alone."""

from __future__ import annotations

from collections.abc import Mapping

from tenacity import RetryCallState, wait_exponential_jitter

from blackbox_lb.errors import ConnectionFailed, QuotaExhausted, RateLimited, ServerFailed
from blackbox_lb.rate_limits import retry_after

__all__ = ["ATTEMPTS", "asked_pause", "is_passing", "retry_pause"]

ATTEMPTS = 6
"""Tries of one request: with exponential waits these span about half a minute, the time a server takes to restart."""
LONGEST_WAIT = 20.0
"""Seconds; a provider's own retry-after may ask for more and gets it, up to ``LONGEST_RETRY_AFTER``."""
LONGEST_RETRY_AFTER = 120.0


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later. A spent quota answers 429 too, and never does."""
    return isinstance(error, RateLimited | ConnectionFailed | ServerFailed) and not isinstance(error, QuotaExhausted)


def asked_pause(headers: Mapping[str, str]) -> float:
    """Seconds that the other side wants to be left alone."""
    return min(retry_after(headers) or 0.0, LONGEST_RETRY_AFTER)


backoff = wait_exponential_jitter(multiplier=0.5, max=LONGEST_WAIT, jitter=1.0)


def retry_pause(state: RetryCallState) -> float:
    """Seconds until the next try: exponential with jitter, or longer where the other side says so."""
    error = state.outcome.exception() if state.outcome else None
    response = getattr(error.__cause__ if error else None, "response", None)
    return max(backoff(state), 0.0 if response is None else asked_pause(response.headers))
