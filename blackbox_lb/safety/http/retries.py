"""Retries: the faults that pass by themselves, and the pause before the next try."""

from collections import Counter
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
"""Tries of one request. With exponential waits they span about half a minute, the time in which a
server restarts.
"""
RATE_LIMIT_ATTEMPTS = 20
"""Tries of a request refused for its rate alone. Each waits as long as the service asks, so one of
them will pass.
"""
SLOW_ATTEMPTS = 2
"""Tries of a request that times out; each takes many minutes."""
FIRST_SLIPS = 2
"""Unreadable answers that are asked for again before the first readable one."""
MORE_SLIPS = 5
"""Unreadable answers that are asked for again once there is a readable one."""
SLIPS_A_GOOD = 0.25
"""More of them for each readable answer."""
MOST_FAULTS = 3
"""Kinds of faults in one sentence."""
MOST_SAID = 160
"""Characters of the beginning of a fault."""
LONGEST_WAIT = 20.0
"""Seconds between tries, where the server asks for none."""
LONGEST_RETRY_AFTER = 120.0
"""Seconds between tries, where the server asks for as much or more."""


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later.

    A spent quota (429, too) does not come back, nor does trust in a server's certificate.
    """
    if isinstance(error, QuotaExhausted) or untrusted_certificate(error) is not None:
        return False
    return isinstance(error, RateLimited | ConnectionFailed | ServerFailed)


def most_attempts(error: BaseException | None, attempts: int) -> int:
    """Tries of a request that ended with ``error``; ``attempts`` for most errors."""
    most = attempts
    if isinstance(error, RateLimited) and attempts > 1:
        most = RATE_LIMIT_ATTEMPTS
    if error is not None and isinstance(error.__cause__, httpx2.TimeoutException | TimeoutError):
        most = min(most, SLOW_ATTEMPTS)
    return most


class MalformedResponseTolerance:
    """Tells a damaged answer, which is asked for again, from a server that never answers readably.

    Every answer costs money. So at most ``FIRST_SLIPS`` unreadable answers are asked for again
    before the first readable one, and later about one in five answers may be unreadable.

    good: completion requests so far with a readable answer.
    bad: completion requests so far with an unreadable answer.
    faults: the beginnings of their errors, up to the first colon, each with its number.
    """

    def __init__(self) -> None:
        self.good = 0
        self.bad = 0
        self.faults = Counter[str]()

    def passing(self, error: BaseException) -> bool:
        """Count an unreadable answer, and return whether to ask for it again.

        Missing logprobs before the first readable answer are the model's own, and will not come.
        """
        if not isinstance(error, CorruptResponse | NoLogprobs):
            return False
        self.bad += 1
        self.faults[str(error).partition(":")[0][:MOST_SAID]] += 1
        if not self.good:
            return isinstance(error, CorruptResponse) and self.bad <= FIRST_SLIPS
        return self.bad <= MORE_SLIPS + SLIPS_A_GOOD * self.good


def asked_again(faults: Counter[str]) -> str:
    """The end of a sentence on unreadable answers: that they were asked for again, and why, the
    commonest faults first.
    """
    total = faults.total()
    reasons = "; ".join(f"{fault} ({number})" for fault, number in faults.most_common(MOST_FAULTS))
    return (
        f"{total} answers could not be read and were asked for again; each was paid for: {reasons}"
    )


def asked_pause(headers: Mapping[str, str]) -> float:
    """Seconds that the server asks to wait, at most ``LONGEST_RETRY_AFTER``; 0 for none."""
    return min(retry_after(headers) or 0.0, LONGEST_RETRY_AFTER)


backoff = wait_exponential_jitter(multiplier=0.5, max=LONGEST_WAIT, jitter=1.0)


def retry_pause(state: RetryCallState) -> float:
    """Seconds until the next try: exponential with jitter, or longer where the server asks."""
    pause = backoff(state)
    error = failure_of(state)
    if error is not None:
        response = getattr(error.__cause__, "response", None)
        if response is not None:
            pause = max(pause, asked_pause(response.headers))
    return pause


def failure_of(state: RetryCallState) -> BaseException | None:
    """The error of the last try; None where it has not ended, or ended well."""
    if state.outcome is None:
        return None
    return state.outcome.exception()
