"""The probe: requests of the self-test, each counted against a budget that cannot be overdrawn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blackbox_lb.session import Session
from blackbox_lb.types import Completion, Endpoint, Prompt, Sampling
from blackbox_lb.wire import parse_response

__all__ = ["MOST_REQUESTS", "Probe", "Spent"]

MOST_REQUESTS = 99
"""A self-test is worth less than 100 requests, whatever it meets; retries of a busy server are not counted."""
IN_FLIGHT = 8
"""Requests at a time: gentle on a small server, and a hosted API answers 99 in seconds."""
EVERYTHING = 1_000_000
"""Read with this many alternatives asked for, a list is not cut to those that are sure to be the likeliest."""


class Spent(Exception):
    """The requests that this part of the self-test may make are used up."""


@dataclass(slots=True)
class Probe:
    """A session that counts. ``draws``: all completions so far that were drawn at temperature 1 without a bias.

    ``top``: alternatives asked for at each token unless a request says otherwise. ``concurrency``: requests in flight.
    """

    session: Session
    concurrency: int = IN_FLIGHT
    top: int = 1
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    draws: list[tuple[Prompt, Completion]] = field(default_factory=list)
    _ceiling: int = MOST_REQUESTS

    def allow(self, requests: int) -> None:
        """From here on, ``requests`` more may be made, within the budget of the whole self-test."""
        self._ceiling = min(self.requests + requests, MOST_REQUESTS)

    def count(self, requests: int = 1) -> None:
        """Take ``requests`` from the budget. Raises Spent where there are not as many left."""
        if self.requests + requests > self._ceiling:
            raise Spent(f"its share of the budget of {MOST_REQUESTS} requests is spent")
        self.requests += requests

    async def ask(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 1,
        temperature: float = 1.0,
        top: int | None = None,
        bias: Mapping[int, float] | None = None,
        n: int = 1,
        seed: int | None = None,
        endpoint: Endpoint | None = None,
    ) -> list[Completion]:
        """The completions of one request. Raises Spent, ProviderError."""
        self.count()
        sampling = Sampling(temperature, max_tokens, self.top if top is None else top, seed)
        completions = await self.session.complete_many(prompt, sampling, bias, n, endpoint)
        self._account(completions)
        if temperature == 1.0 and not bias and seed is None and top is None:
            self.draws += [(prompt, completion) for completion in completions]
        return completions

    async def repeat(self, times: int, prompt: Prompt, **request: Any) -> list[Completion]:
        """The completions of ``times`` equal requests, all of them, in order."""
        gate = asyncio.Semaphore(self.concurrency)

        async def one() -> list[Completion]:
            async with gate:
                return await self.ask(prompt, **request)

        answers = await asyncio.gather(*(one() for _ in range(times)))
        return [completion for answer in answers for completion in answer]

    async def uncut(self, prompt: Prompt, *, top: int, bias: Mapping[int, float]) -> Completion:
        """One token, with its list of alternatives exactly as the server sent it; the usual reading drops what is not sure."""
        self.count()
        session = self.session
        answer = await session.answer(prompt, Sampling(1.0, 1, top), bias)
        reading = Sampling(1.0, 1, EVERYTHING)
        completions = parse_response(session.profile, session.endpoint, answer, reading, session.vocabulary)
        self._account(completions)
        return completions[0]

    def _account(self, completions: list[Completion]) -> None:
        self.prompt_tokens += completions[0].prompt_tokens if completions else 0
        self.completion_tokens += sum(completion.n_tokens for completion in completions)
