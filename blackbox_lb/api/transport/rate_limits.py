"""RateLimiter of requests and tokens: the remainder by a provider's answers, and the wait where it
is too small.

The provider keeps a bucket for requests and one for tokens. A bucket holds ``limit``, a request
takes its share out when it is admitted, and it fills up again at ``limit`` per minute without
pause: the header ``reset`` is the time until it is full, so one request of 5,000 a minute resets in
12 ms (https://platform.openai.com/docs/guides/rate-limits, "Rate limits in headers"; tokens are the
prompt's and ``max_tokens``, and refused requests count). Limits per day look the same but for a
longer reset: one of 10,000 a day resets in 8.64 s. Azure sends the same headers with resets in bare
milliseconds, or only what remains
(https://learn.microsoft.com/azure/ai-services/openai/how-to/quota). Fireworks sends no more than
tokens per second, of the prompt and generated, and enforces them per minute
(https://docs.fireworks.ai/serverless/rate-limits).

``RateLimiter`` mirrors these buckets. Its own count moves with every request that it lets through,
at once, so that workers who ask together do not all see the same remainder. Headers are late: they
may or may not count requests sent after theirs. So they bound the count, and it is moved only as
far as a bound requires.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping

from blackbox_lb.errors import ProfileError
from blackbox_lb.safety.http.header_values import (
    DAY,
    MINUTE,
    lowered,
    parse_duration,
    parse_number,
)

FACTS = ("limit", "rate", "remaining", "reset", "window")
"""Facts of a bucket: its limit for each window, or per second; its remainder; the time until it is
full; the window, in seconds.
"""
KINDS = ("requests", "tokens", "prompt-tokens", "generated-tokens")

OPENAI_HEADERS: Mapping[str, str] = {
    f"{fact}-{kind}": f"x-ratelimit-{word}-{kind}"
    for kind in ("requests", "tokens")
    for fact, word in zip(FACTS, ("limit", "", "remaining", "reset", "renewalperiod"), strict=True)
    if word
}
"""The headers of OpenAI and Azure; only Azure sends the window (``renewalperiod``)."""

MEMORY = 600.0
"""Seconds for which requests are remembered: a later answer has timed out."""
SHORTEST = 0.001
"""Shortest wait in seconds; a caller who sleeps for less burns the processor for nothing."""
NOW = 1e-6
"""Seconds that count as none: clocks of uptime or of the epoch resolve no finer."""
ROUNDING = 2.0
"""Seconds by which a reset may be rounded up."""


class RateLimiter:
    """The waits of requests that avoid a provider's refusals. No clock of its own: ``now`` is in
    seconds.

    ``names``: ``FACT-KIND`` -> a header's name, where FACT is limit (for each window, by default a
    minute), rate (a limit per second), remaining, reset or window, and KIND requests, tokens,
    prompt-tokens or generated-tokens. Where only ``remaining`` is sent, the largest seen value
    stands for the limit. A kind without any header is open.

    Not for several threads. Workers that ask one at a time, first come first served, keep large
    requests from being overtaken.

    Raises ProfileError: ``names`` has a key that is no such pair.
    """

    def __init__(self, names: Mapping[str, str] = OPENAI_HEADERS) -> None:
        self._buckets: dict[str, _Bucket] = {}
        self._names: dict[str, dict[str, str]] = {}
        for key, header in names.items():
            fact, _, kind = key.partition("-")
            if fact not in FACTS or kind not in KINDS:
                raise ProfileError(
                    f"no rate limit is called {key!r}: give one of {', '.join(FACTS)}, a hyphen,"
                    f" and one of {', '.join(KINDS)}"
                )
            self._buckets.setdefault(kind, _Bucket())
            self._names.setdefault(kind, {})[fact] = header.lower()
        self._paused_until = -math.inf

    def wait(self, tokens: int, now: float, *, generated: int = 0) -> float:
        """Seconds until a request may start; 0.0 means now, and then it is counted as started.

        ``tokens``: the prompt's and the most that may be generated (``max_tokens`` times ``n``);
        ``generated``: the latter alone. A request larger than a whole bucket starts when the bucket
        is full.
        """
        shares = _shares(tokens, generated)
        waits = (bucket.wait(shares[kind], now) for kind, bucket in self._buckets.items())
        longest = max(self._paused_until - now, *waits, 0.0)
        if longest > NOW:
            return max(longest, SHORTEST)
        for kind, bucket in self._buckets.items():
            bucket.take(shares[kind], now)
        return 0.0

    def update(
        self,
        headers: Mapping[str, str],
        now: float,
        *,
        started: float | None = None,
        tokens: int = 0,
        generated: int = 0,
    ) -> None:
        """Learn from an answer's headers, refusals included.

        ``started``: the ``now`` at which ``wait`` let the answered request through, with the same
        ``tokens`` and ``generated``. It shows which requests the headers cannot count; without it
        headers only ever lower the budget.
        """
        fields = lowered(headers)
        shares = _shares(tokens, generated)
        for kind, bucket in self._buckets.items():
            facts = {fact: fields.get(name) for fact, name in self._names[kind].items()}
            bucket.learn(facts, now, started, shares[kind])

    def refused(self, seconds: float, now: float) -> None:
        """Let nothing start for ``seconds`` after a 429 (those of ``retry_after``, or the caller's
        own); no number counts as 0.
        """
        if math.isfinite(seconds):
            self._paused_until = max(self._paused_until, now + seconds)


class _Bucket:
    """One of the provider's buckets as far as it is known. ``level``: the amount that may start
    now, up to the limit; None: any.
    """

    def __init__(self) -> None:
        self._limit: float | None = None
        self._most_seen = 1.0
        self._window = MINUTE
        self._level: float | None = None
        self._at = -math.inf
        self._started = _Log()

    @property
    def _size(self) -> float:
        if self._limit is None:
            return self._most_seen
        return self._limit

    @property
    def _rate(self) -> float:
        """Refill in units a second."""
        return self._size / self._window

    def wait(self, share: float, now: float) -> float:
        level = self._refilled(now)
        if level is None:
            return 0.0
        return max(0.0, (min(share, self._size) - level) / self._rate)

    def take(self, share: float, now: float) -> None:
        self._started.add(share, now)
        level = self._refilled(now)
        if level is not None:
            self._level = max(0.0, level - share)

    def learn(
        self, told: Mapping[str, str | None], now: float, started: float | None, share: float
    ) -> None:
        remaining = parse_number(told.get("remaining"))
        limit = _positive(told.get("limit"))
        reset = told.get("reset")
        self._window = (
            _positive(told.get("window")) or _window(limit, remaining, reset) or self._window
        )
        rate = _positive(told.get("rate"))
        if limit or rate:
            self._limit = limit or (rate or 0.0) * self._window
        self._most_seen = max(self._most_seen, remaining or 0.0)
        if remaining is not None:
            self._level = self._corrected(remaining, now, started, share)
        elif self._limit is not None and self._level is None:
            self._level = self._limit - self._started.since(now - self._window)
        if self._level is not None:
            self._level = min(max(0.0, self._level), self._size)
            self._at = max(now, self._at)

    def _corrected(
        self, remaining: float, now: float, started: float | None, share: float
    ) -> float:
        """This client's count, clamped to the bounds that ``remaining`` sets.

        The provider counted when it admitted the request, so that ``remaining`` lacks later ones
        and the refill since, or when it answered, so that it lacks neither: the truth lies between.
        """
        level = self._refilled(now)
        if started is None:
            if level is None:
                return remaining - self._started.since(-math.inf)
            return min(level, remaining)
        low = max(0.0, remaining - max(0.0, self._started.since(started) - share))
        high = max(remaining, low + self._rate * max(0.0, now - started))
        if level is None:
            return low
        return min(max(level, low), high)

    def _refilled(self, now: float) -> float | None:
        if self._level is not None and now > self._at:
            self._level = min(self._size, self._level + self._rate * (now - self._at))
            self._at = now
        return self._level


class _Log:
    """The amount started since any moment of the last ``MEMORY`` seconds."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._sums = [0.0]

    def add(self, share: float, now: float) -> None:
        self._times.append(max(now, self._times[-1]) if self._times else now)
        self._sums.append(self._sums[-1] + share)
        old = bisect_left(self._times, now - MEMORY)
        if old > len(self._times) // 2:
            del self._times[:old], self._sums[:old]

    def since(self, time: float) -> float:
        """The sum of shares started at ``time`` or later."""
        return self._sums[-1] - self._sums[bisect_left(self._times, time)]


def _window(limit: float | None, remaining: float | None, reset: str | None) -> float | None:
    """Seconds in which the bucket fills, by the time until it is full; None where the headers do
    not show it.

    Only a reset far beyond a minute's shows a longer window; a bare number may be seconds or
    milliseconds and shows nothing.
    """
    if limit is None or remaining is None or reset is None or parse_number(reset) is not None:
        return None
    seconds = parse_duration(reset)
    used = limit - remaining
    if seconds is None or used < 1:
        return None
    window = seconds * limit / used
    if seconds > ROUNDING + 10 * MINUTE * used / limit and window < 1.1 * DAY:
        return window
    return MINUTE


def _shares(tokens: int, generated: int) -> dict[str, float]:
    amounts = (1, tokens, tokens - generated, generated)
    return {kind: max(0.0, float(amount)) for kind, amount in zip(KINDS, amounts, strict=True)}


def _positive(text: str | None) -> float | None:
    return parse_number(text) or None
