"""Request and token budgets: read from recorded headers, kept, and used up."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox_lb.api.transport.channel import OPENAI_HEADERS, RateLimiter
from blackbox_lb.safety.http.header_values import retry_after

FIREWORKS_HEADERS = {
    "rate-prompt-tokens": "x-ratelimit-limit-tokens-prompt",
    "rate-generated-tokens": "x-ratelimit-limit-tokens-generated",
}
same = settings(derandomize=True)
amounts = st.integers(0, 10**6)
texts = (
    st.text(max_size=12)
    | st.integers(-3, 10**7).map(str)
    | st.sampled_from(["-1", "1s", "6m0s", "nan", "inf", "1e5"])
)
header_sets = st.dictionaries(
    st.sampled_from([*OPENAI_HEADERS.values(), "retry-after", "Date"]), texts, max_size=8
)


def told(**facts: object) -> dict[str, str]:
    """Response headers: ``remaining_tokens=5`` is ``x-ratelimit-remaining-tokens: 5``."""
    return {
        f"X-RateLimit-{name.replace('_', '-').title()}": str(value) for name, value in facts.items()
    }


def minute(limit: int, remaining: float) -> dict[str, str]:
    """A bucket of requests that is refilled within a minute."""
    reset = f"{(limit - remaining) / limit * 60:.3f}s"
    return told(limit_requests=limit, remaining_requests=int(remaining), reset_requests=reset)


NOON = {"Date": "Tue, 30 Dec 2025 12:00:00 GMT"}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "2"}, 2),
        ({"Retry-After-Ms": "976", "Retry-After": "1"}, 0.976),
        ({"retry-after-ms": "0", "retry-after": "0"}, 0),
        ({"retry-after-ms": "0", "retry-after": "1"}, 1),
        ({"retry-after-ms": "0", "retry-after": "Tue, 30 Dec 2025 12:00:07 GMT"}, 7),
        ({"retry-after-ms": "0"}, 0),
        ({"retry-after-ms": "soon", "retry-after": "18.642"}, 18.642),
        ({"retry-after-ms": "-5", "retry-after": "3"}, 3),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Tue, 30 Dec 2025 12:00:07 GMT"}, 7),
        ({"retry-after": "Tue, 30 Dec 2025 11:59:59 GMT"}, None),
        ({"retry-after": "Tue, 30 Dec 2025 12:00:07"}, 7),
        ({"retry-after": "tomorrow"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    """Milliseconds before seconds before dates, which count from the server's own clock; what is
    negative, past or no number is ignored.
    """
    assert retry_after(headers | NOON) == seconds
    if "Tue" in headers.get("retry-after", ""):
        assert not retry_after(headers), "by the clock of this machine it has passed"


@same
@given(header_sets | st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=4))
def test_headers_never_raise(headers: dict[str, str]) -> None:
    """Whatever a server sends."""
    asked = retry_after(headers)
    assert asked is None or 0 <= asked < math.inf
    RateLimiter().update(headers, 1.0)


def emptied(headers: dict[str, str]) -> RateLimiter:
    """Budgets that know ``headers``, with nothing left."""
    budgets = RateLimiter()
    budgets.update(headers, 0.0)
    assert any(budgets.wait(0, 0.0) for _ in range(200_000))
    return budgets


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        # gpt-3.5-turbo-instruct, gpt-5-mini, gpt-4o-mini: one request returns in a minute's share
        # of the limit.
        (told(limit_requests=3500, remaining_requests=3498, reset_requests="17ms"), 60 / 3500),
        (told(limit_requests=5000, remaining_requests=4999, reset_requests="12ms"), 60 / 5000),
        (told(limit_requests=30000, remaining_requests=29999, reset_requests="2ms"), 60 / 30000),
        # Azure: bare milliseconds, and the length of the window.
        (told(limit_requests=120, remaining_requests=119, reset_requests="500", renewalperiod_requests=60, limit_tokens=120_000), 60 / 120),
        (told(limit_requests=120, remaining_requests=119, reset_requests="500"), 60 / 120),
        # Azure before 2025: only what remains.
        (told(remaining_requests=119, remaining_tokens=119_984), 60 / 119),
        (told(remaining_requests=0), 60),
        # Limits per day: OpenAI's, and Groq's thirtieth request of 14,400.
        (told(limit_requests=200, remaining_requests=199, reset_requests="7m12s"), 432),
        (told(limit_requests=1, remaining_requests=0, reset_requests="1h2m3.5s"), 3723.5),
        (told(limit_requests=1, remaining_requests=0, reset_requests="1d"), 86_400),
        (told(limit_requests=10_000, remaining_requests=9_999, reset_requests="8.64s"), 8.64),
        (told(limit_requests=14_400, remaining_requests=14_370, reset_requests="2m59.56s"), 5.985),
        # OpenAI's documentation: consistent for requests, and no possible window for tokens.
        (told(limit_requests=60, remaining_requests=59, reset_requests="1s"), 1),
        (told(limit_requests=150_000, remaining_requests=149_984, reset_requests="6m0s"), 60 / 150_000),
        # What is no duration counts as none.
        *(
            (told(limit_requests=1, remaining_requests=0, reset_requests=text), 60)
            for text in ("", "-1d", "nan", "inf", "1e5", "90_000", "3s2d", "1 d", "soon", "9" * 400)
        ),
    ],
)  # fmt: skip
def test_recorded_headers(headers: dict[str, str], seconds: float) -> None:
    """How long one request waits once nothing remains, by headers that were recorded or
    documented.
    """
    assert emptied(headers).wait(0, 0.0) == pytest.approx(max(seconds, 0.001), rel=1e-3)


def test_recorded_tokens() -> None:
    """A model with 200,000 tokens a minute: 4,337 are left, 7,592 are wanted, OpenAI says to come
    back in 976 ms.
    """
    budgets = RateLimiter()
    budgets.update(told(limit_tokens=200_000, remaining_tokens=200_000 - 195_663), 5.0)
    assert budgets.wait(7592, 5.0) == pytest.approx(0.976, abs=0.001)
    assert budgets.wait(7592, 5.0 + 0.977) == 0


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "application/json"},
        {"x-ratelimit-limit": "1"},
        told(limit_requests="many", reset_requests="1s"),
        # Azure's Responses API, for a limit that it does not know.
        told(limit_tokens=-1, remaining_tokens=-1, reset_tokens=0),
    ],
)
def test_what_is_unknown_is_open(headers: dict[str, str]) -> None:
    """Without a limit nothing waits."""
    budgets = RateLimiter()
    budgets.update(headers, 0.0)
    assert all(budgets.wait(10**9, 0.0) == 0 for _ in range(10_000))
    assert RateLimiter({}).wait(10**9, 0.0) == 0


def test_fireworks_counts_prompt_and_generated_tokens_apart() -> None:
    """Its limits are a second's and are enforced per minute: 600 generated tokens a second are
    36,000 a minute.
    """
    budgets = RateLimiter(FIREWORKS_HEADERS)
    budgets.update(
        {"X-Ratelimit-Limit-Tokens-Prompt": "60000", "X-Ratelimit-Limit-Tokens-Generated": "600"},
        0.0,
    )
    assert budgets.wait(1_036_000, 0.0, generated=36_000) == 0
    assert budgets.wait(1_000_000, 0.0) == 0, "no generated token"
    assert budgets.wait(1_000_300, 0.0, generated=300) == pytest.approx(0.5)


def test_a_key_shared_with_others() -> None:
    """What others have taken is seen, and seen again when they give way."""
    budgets = RateLimiter()
    budgets.update(minute(60, 59), 0.0)
    assert budgets.wait(1, 0.0) == 0
    budgets.update(minute(60, 2), 0.5, started=0.0, tokens=1)
    assert [budgets.wait(1, 0.5) for _ in range(3)] == [0, 0, pytest.approx(1, abs=0.5)]
    budgets.update(minute(60, 40), 1.5, started=1.4, tokens=1)
    assert [budgets.wait(1, 1.5) for _ in range(41)] == [0] * 40 + [pytest.approx(1)]


@pytest.mark.parametrize(
    ("known", "remaining", "started", "left"),
    [
        pytest.param(60, 59, 0.0, 50, id="counted when it admitted the first"),
        pytest.param(60, 50, 0.0, 50, id="counted when it answered"),
        pytest.param(None, 59, 0.0, 50, id="nothing was known, and it was the first's answer"),
        pytest.param(None, 59, None, 49, id="nothing was known, and it was nobody's answer"),
    ],
)
def test_what_started_before_an_answer_is_counted_once(
    known: int | None, remaining: int, started: float | None, left: int
) -> None:
    """Of ten requests at once the first is answered: so many more may start."""
    budgets = RateLimiter()
    if known is not None:
        budgets.update(minute(60, known), 0.0)
    assert [budgets.wait(0, 0.0) for _ in range(10)] == [0] * 10
    budgets.update(minute(60, remaining), 0.0, started=started)
    waits = [budgets.wait(0, 0.0) for _ in range(left + 1)]
    assert waits == [0] * left + [pytest.approx(1, rel=0.1)]


def test_reserved_tokens_that_were_not_charged_come_back() -> None:
    """A provider that counts 100 tokens where 4,000 were reserved says so in the answer."""
    budgets = RateLimiter()
    budgets.update(told(limit_tokens=10_000, remaining_tokens=10_000), 0.0)
    assert [budgets.wait(4000, 0.0) for _ in range(3)] == [0, 0, pytest.approx(12)]
    budgets.update(told(limit_tokens=10_000, remaining_tokens=9_800), 1.0, started=0.0, tokens=4000)
    assert budgets.wait(4000, 1.0) == 0
    budgets.update(told(limit_tokens=10_000, remaining_tokens=9_700), 1.5)
    assert budgets.wait(8000, 1.5) > 0, "an answer to nobody knows what cannot raise the count"


def test_a_request_larger_than_the_limit_starts_when_the_bucket_is_full() -> None:
    """It waits no longer than a full minute, and empties the bucket."""
    budgets = RateLimiter()
    budgets.update(told(limit_tokens=1000, remaining_tokens=400), 0.0)
    assert budgets.wait(10**9, 0.0) == pytest.approx(36)
    assert budgets.wait(10**9, 36.0) == 0
    assert budgets.wait(500, 36.0) == pytest.approx(30)


def test_after_a_refusal_everything_waits() -> None:
    """The longest pause counts, and what is no number is no pause."""
    budgets = RateLimiter()
    for seconds in (20.0, 5.0, math.nan, -math.inf, math.inf, -3.0):
        budgets.refused(seconds, 100.0)
    assert budgets.wait(0, 100.0) == 20
    assert budgets.wait(0, 119.0) == 1
    assert budgets.wait(0, 120.0) == 0


@dataclass
class Known:
    """Budgets with a history, and the moment that it ends."""

    budgets: RateLimiter
    now: float


@st.composite
def known(draw: st.DrawFn) -> Known:
    """Any history of requests, answers and refusals."""
    budgets, now = RateLimiter(), draw(st.floats(0, 1e6))
    for _ in range(draw(st.integers(0, 12))):
        now += draw(st.floats(0, 100))
        match draw(st.integers(0, 2)):
            case 0:
                assert budgets.wait(draw(amounts), now) >= 0
            case 1:
                limit = draw(st.integers(1, 10**6))
                headers = told(
                    limit_tokens=limit, remaining_tokens=draw(st.integers(0, limit))
                ) | draw(header_sets)
                ago = draw(st.none() | st.floats(0, 300))
                started = None if ago is None else max(0.0, now - ago)
                budgets.update(headers, now, started=started, tokens=draw(amounts))
            case _:
                budgets.refused(draw(st.floats(0, 60)), now)
    return Known(budgets, now)


@same
@given(known(), amounts, amounts)
def test_who_waits_as_told_starts(history: Known, one: int, other: int) -> None:
    """Waits are finite, never negative, and monotone in the size of the request. Where nothing else
    happens meanwhile, the time told is enough; where it is short, at most a millisecond is missing.
    """
    few, many = sorted((one, other))
    short, long = (deepcopy(history.budgets).wait(size, history.now) for size in (few, many))
    assert 0 <= short <= long < math.inf
    wait = history.budgets.wait(few, history.now)
    assert wait == 0 or history.budgets.wait(few, history.now + wait) == 0


@same
@given(known(), st.lists(st.tuples(st.floats(0, 30), amounts), min_size=1, max_size=30))
def test_no_more_starts_than_the_bucket_holds(
    history: Known, requests: list[tuple[float, int]]
) -> None:
    """Between two answers, what starts is at most a full bucket and its refill (a request beyond
    the bucket counts as one).
    """
    history.budgets.update(
        told(limit_tokens=1000, remaining_tokens=600, renewalperiod_tokens=60), history.now
    )
    now, started = history.now, 0
    for pause, tokens in requests:
        now += pause
        if history.budgets.wait(tokens, now) == 0:
            started += min(tokens, 1000)
    assert started <= 1000 + 1000 / 60 * (now - history.now) + 1
