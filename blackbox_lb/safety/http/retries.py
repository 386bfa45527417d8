"""Retries: the faults that pass by themselves, and the pause before the next try."""

from collections import Counter

from tenacity import RetryCallState, wait_exponential_jitter

from blackbox_lb.errors import (
    ConnectionFailed,
    CorruptResponse,
    NoLogprobs,
    ProviderError,
    QuotaExhausted,
    RateLimited,
    ServerFailed,
)
from blackbox_lb.safety.network import speaks_plain_http, untrusted_certificate
from blackbox_lb.safety.printable import causes

ATTEMPTS = 6
"""Tries of one request. With exponential waits they span about half a minute, the time in which a
server restarts.
"""
RATE_LIMIT_ATTEMPTS = 20
"""Tries of a request refused for its rate alone. Each waits as long as the service asks, so one of
them will pass.
"""
PATIENCE = 3_600.0
"""Most seconds that one request waits in all. Limits by the minute and by the hour are free again
by then. A service that asks for more has a limit by the day, and the same command goes on after it.
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


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later.

    A spent quota (429, too) does not come back, nor does trust in a server's certificate, and a
    server of http does not learn https.
    """
    if isinstance(error, QuotaExhausted):
        return False
    if untrusted_certificate(error) is not None or speaks_plain_http(error):
        return False
    return isinstance(error, RateLimited | ConnectionFailed | ServerFailed)


def is_timeout(error: BaseException | None) -> bool:
    """Whether an error is that a service took too long."""
    return any(isinstance(cause, TimeoutError) for cause in causes(error))


def is_enough(state: RetryCallState, attempts: int) -> bool:
    """Whether a request is given up: after ``attempts`` tries, for most errors, or where the next
    wait would pass ``PATIENCE``.
    """
    error = failure_of(state)
    if state.idle_for + _asked_pause(error) > PATIENCE:
        return True
    most = attempts
    if isinstance(error, RateLimited) and attempts > 1:
        most = RATE_LIMIT_ATTEMPTS
    if is_timeout(error):
        most = min(most, SLOW_ATTEMPTS)
    return state.attempt_number >= most


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


backoff = wait_exponential_jitter(multiplier=0.5, max=LONGEST_WAIT, jitter=1.0)


def retry_pause(state: RetryCallState) -> float:
    """Seconds until the next try: exponential with jitter, or longer where the server asks."""
    return max(backoff(state), _asked_pause(failure_of(state)))


def _asked_pause(error: BaseException | None) -> float:
    if isinstance(error, ProviderError):
        return error.pause
    return 0.0


def failure_of(state: RetryCallState) -> BaseException | None:
    """The error of the last try; None where it has not ended, or ended well."""
    if state.outcome is None:
        return None
    return state.outcome.exception()
