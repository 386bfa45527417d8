"""SpendLimit: the limits of one command's requests, reserved before a request goes out and settled
by its answer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from operator import add, attrgetter
from typing import Any

from blackbox_lb.api.wire.envelope import count
from blackbox_lb.errors import (
    BudgetExhausted,
    ConnectionFailed,
    ContentFiltered,
    CorruptResponse,
    InputError,
    Interrupted,
)
from blackbox_lb.providers.prices import Prices
from blackbox_lb.safety.http.clients import NoAnswer
from blackbox_lb.safety.http.waits import current_wait
from blackbox_lb.safety.printable import causes

TEMPLATE_TOKENS = 64
"""Most tokens that a chat template adds to a prompt: markers, dates, a default system message."""
MESSAGE_TOKENS = 8
"""Tokens that a template adds to each message."""


@dataclass(frozen=True, slots=True)
class SpendingLimits:
    """Most requests, tokens (prompts and completions together) and US dollars; None: any number."""

    requests: int | None = None
    tokens: int | None = None
    dollars: float | None = None

    def __post_init__(self) -> None:
        """Raise InputError: the dollars are no number, which no price would ever pass."""
        if self.dollars is not None and math.isnan(self.dollars):
            raise InputError("``max_cost`` is nan; give a number of US dollars, or leave it out")

    def passed_by(self, total: Spent) -> str | None:
        """The first option whose limit ``total`` passes; None where it passes none."""
        if self.requests is not None and total.requests > self.requests:
            return f"``max_requests={self.requests:,}``"
        if self.tokens is not None and total.tokens > self.tokens:
            return f"``max_tokens_total={self.tokens:,}``"
        if self.dollars is not None and total.dollars > self.dollars:
            return f"``max_cost={self.dollars:g}``"
        return None


@dataclass(frozen=True, slots=True)
class Spent:
    """Requests sent, with failed tries, their tokens and their price in US dollars; sums by ``+``.

    guessed: answers lost on the way or without usage, which count with their possible maximum.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0
    guessed: int = 0

    @property
    def tokens(self) -> int:
        """Of prompts and completions."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Spent) -> Spent:
        return Spent(*map(add, _amounts(self), _amounts(other)))

    def __str__(self) -> str:
        price = ""
        if self.dollars:
            price = f", ${self.dollars:.4f}"
        guessed = ""
        if self.guessed:
            guessed = f" ({self.guessed:,} without usage, counted in full)"
        return (
            f"{self.requests:,} requests{guessed}, {self.prompt_tokens:,} prompt and"
            f" {self.completion_tokens:,} completion tokens{price}"
        )


_amounts = attrgetter(*(amount.name for amount in fields(Spent)))


def prompt_bound(texts: list[str]) -> int:
    """Most tokens of a prompt of these messages: none is shorter than a byte, and a template adds
    some.
    """
    return TEMPLATE_TOKENS + sum(
        len(text.encode("utf-8", "replace")) + MESSAGE_TOKENS for text in texts
    )


class SpendLimit:
    """The account of one command's requests.

    spent: grows with each answer.
    prices, judge_prices: of the model and of the judging model, None where not known.
    opening: called before the first request.
    droppers: each cancels the waiting requests of one session.

    A request reserves its possible maximum. Where that does not fit, it waits for those in flight,
    which mostly take less; with none in flight the budget is exhausted. So no limit is passed while
    the provider's usage is honest, and less than the maximum of one request is left at the end.
    """

    def __init__(self, limits: SpendingLimits | None = None, prices: Prices | None = None) -> None:
        self.limits = limits or SpendingLimits()
        self.prices = prices
        self.judge_prices = prices
        self.opening: Callable[[], None] | None = None
        self.spent = Spent()
        self.in_flight = 0
        self.closed = False
        self._waited = ""
        self.droppers: list[Callable[[], None]] = []
        self._reserved: dict[object, Spent] = {}
        self._waiting: dict[asyncio.Task[Any] | None, asyncio.Future[None]] = {}

    async def metered(
        self,
        once: Callable[[], Awaitable[Any]],
        prompt: int,
        completion: int,
        prices: Prices | None = None,
    ) -> Any:
        """Return the answer of ``once``, one try of a request of at most so many tokens;
        ``prices``: by default the budget's.

        Raises BudgetExhausted: it could pass a limit. Interrupted: the budget was closed. Nothing
        was sent in either case.
        """
        rates = prices or self.prices
        most = _priced(prompt, completion, rates)
        ticket = object()
        await self._reserve(most, ticket)
        usage = Spent()
        try:
            answer = await once()
            usage = used_by(answer, prompt, completion, rates)
        except Exception as error:
            usage = _lost(error, most, _priced(prompt, 0, rates))
            raise
        finally:
            del self._reserved[ticket]
            self.in_flight -= 1
            self.spent += usage
            for future in self._waiting.values():
                if not future.done():
                    future.set_result(None)
        return answer

    def close(self) -> None:
        """Stop new requests: those in flight go on, those waiting are dropped."""
        self.closed = True
        self._waited = current_wait()
        self.drop_waiting()

    def check(self) -> None:
        """Raise Interrupted where the budget is closed."""
        if self.closed:
            raise self.interruption()

    def interruption(self) -> Interrupted:
        """The error of a closed budget; it names the wait for a service that was cut off."""
        if self._waited:
            return Interrupted(f"Interrupted ({self._waited})")
        return Interrupted("Interrupted")

    def drop_waiting(self) -> None:
        """Cancel the tasks of waiting requests, here or in a session: none of them has been
        sent.
        """
        for task in self._waiting:
            if task is not None:
                task.cancel()
        for drop in self.droppers:
            drop()

    async def _reserve(self, most: Spent, ticket: object) -> None:
        self.check()
        if self.opening is not None:
            self.opening()
            self.opening = None
        is_limited = self.limits != SpendingLimits()  # else there is nothing to sum up
        while is_limited:
            limit = self.limits.passed_by(sum(self._reserved.values(), self.spent) + most)
            if limit is None:
                break
            if not self.in_flight:
                raise self._exhausted(limit, most)
            await self._settlement()
            self.check()
        self._reserved[ticket] = most
        self.in_flight += 1

    def _exhausted(self, limit: str, most: Spent) -> BudgetExhausted:
        size = f"up to {most.tokens:,} tokens"
        if most.dollars:
            size += f" or ${most.dollars:.4f}"
        return BudgetExhausted(
            f"stopped at {limit}: sent were {self.spent}, and the next request could take"
            f" {size}; raise the limit in the same command to go on, which pays only for what"
            " is missing"
        )

    async def _settlement(self) -> None:
        """Wait until a request in flight is settled."""
        task = asyncio.current_task()
        future = asyncio.get_running_loop().create_future()
        self._waiting[task] = future
        try:
            await future
        finally:
            del self._waiting[task]


def _priced(prompt: int, completion: int, prices: Prices | None) -> Spent:
    dollars = 0.0
    if prices is not None:
        dollars = prices.dollars(prompt, completion)
    return Spent(1, prompt, completion, dollars)


def used_by(answer: Any, prompt: int, completion: int, prices: Prices | None) -> Spent:
    """The usage that an answer reports, else its possible maximum."""
    usage: dict[str, Any] = {}
    if isinstance(answer, dict):
        usage = answer
    prompt_count = count(usage, "prompt_tokens", "input_tokens")
    completion_count = count(usage, "completion_tokens", "output_tokens")
    if prompt_count is not None:
        prompt = prompt_count
    if completion_count is None:
        return _priced(prompt, completion, prices) + Spent(guessed=1)
    return _priced(prompt, completion_count, prices)


def _lost(error: Exception, most: Spent, prompt: Spent) -> Spent:
    """The most that a failed try can have cost. A refusal costs the request only; an answer that
    did not arrive may be billed.

    Azure bills the prompt that its content filter refuses: learn.microsoft.com, Azure OpenAI, "Plan
    to manage costs".
    """
    if isinstance(error, ContentFiltered):
        return prompt
    never_sent = any(isinstance(cause, NoAnswer) and cause.never_sent for cause in causes(error))
    if isinstance(error, ConnectionFailed | CorruptResponse) and not never_sent:
        return most + Spent(guessed=1)
    return Spent(requests=1)
