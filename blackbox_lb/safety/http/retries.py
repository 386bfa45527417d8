"""Retries: the faults that pass by themselves, and the pause before the next try."""

from collections.abc import Mapping

import httpx2
from tenacity import RetryCallState, wait_exponential_jitter

from blackbox_lb.errors import (
    ConnectionFailed,
    CorruptResponse,
    NoLogprobs,
    QuotaExhausted,
    RateLimited,
    ServerFailed,
)
from blackbox_lb.safety.http.header_values import retry_after
from blackbox_lb.safety.network import untrusted_certificate

ATTEMPTS = 6
"""Tries of one request: with exponential waits these span about half a minute, the time a server
takes to restart.
"""
RATE_LIMIT_ATTEMPTS = 20
"""Tries of a request refused for its rate alone: each waits as long as the service asks, and one of
them will pass.
"""
SLOW_ATTEMPTS = 2
"""Tries of a request that nobody answers in time, where each takes many minutes."""
FIRST_SLIPS = 2
MORE_SLIPS = 5
SLIPS_A_GOOD = 0.25
"""Unreadable answers that are asked for again: before the first readable one, after it, and more
for each readable one.
"""
LONGEST_WAIT = 20.0
"""Seconds; a provider's own retry-after may be longer, up to ``LONGEST_RETRY_AFTER``."""
LONGEST_RETRY_AFTER = 120.0


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later. A spent quota answers 429 too, and never does;
    nor does a server whose certificate is not trusted.
    """
    if isinstance(error, QuotaExhausted) or untrusted_certificate(error) is not None:
        return False
    return isinstance(error, RateLimited | ConnectionFailed | ServerFailed)


def most_attempts(error: BaseException | None, attempts: int) -> int:
    """Tries of a request that ended with ``error``, where others get ``attempts``."""
    most = attempts
    if isinstance(error, RateLimited) and attempts > 1:
        most = RATE_LIMIT_ATTEMPTS
    if error is not None and isinstance(error.__cause__, httpx2.TimeoutException | TimeoutError):
        most = min(most, SLOW_ATTEMPTS)
    return most


class MalformedResponseTolerance:
    """Separates a damaged answer, which a second one replaces, from a server that never speaks its
    dialect.

    Every answer costs money. So the first unreadable ones are asked for again ``FIRST_SLIPS`` times
    in all, and after readable ones as long as at most one in five is bad. ``good``, ``bad``:
    completion requests so far with such an answer.
    """

    def __init__(self) -> None:
        self.good = 0
        self.bad = 0

    def passing(self, error: BaseException) -> bool:
        """Whether to ask for an unreadable answer again; counts it. A model without logprobs never
        had any.
        """
        if not isinstance(error, CorruptResponse | NoLogprobs):
            return False
        self.bad += 1
        if not self.good:
            return isinstance(error, CorruptResponse) and self.bad <= FIRST_SLIPS
        return self.bad <= MORE_SLIPS + SLIPS_A_GOOD * self.good


def asked_pause(headers: Mapping[str, str]) -> float:
    """The pause that the server asks for, in seconds."""
    return min(retry_after(headers) or 0.0, LONGEST_RETRY_AFTER)


backoff = wait_exponential_jitter(multiplier=0.5, max=LONGEST_WAIT, jitter=1.0)


def retry_pause(state: RetryCallState) -> float:
    """Seconds until the next try: exponential with jitter, or longer where the server asks for
    it.
    """
    error = state.outcome.exception() if state.outcome else None
    response = getattr(error.__cause__ if error else None, "response", None)
    return max(backoff(state), 0.0 if response is None else asked_pause(response.headers))
