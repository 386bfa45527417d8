"""The probe: requests of the self-test, each counted against a budget that cannot be overdrawn."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.api.wire import parse_response
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.errors import ContentFiltered, CorruptResponse, NoLogprobs
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.schema import Json
from blackbox_lb.types import Completion, Prompt, Sampling

MOST_REQUESTS = 119
"""A self-test is worth less than 120 requests, whatever it meets; retries of a busy server are not
counted.
"""
MOST_THOROUGH = 269
"""Requests of a self-test that was asked to look more closely."""
IN_FLIGHT = 8
"""Requests at a time: gentle on a small server, and a hosted API answers 99 in seconds."""
SLIPS = 2
"""Times that a request is made again whose answer came without a readable list."""
EVERYTHING = -1
"""Read with this many alternatives asked for, a list is not cut to those that are sure to be the
likeliest.
"""


class ProbesSpent(Exception):
    """The requests that this part of the self-test may make are used up."""


class Withheld(Exception):
    """The provider's content filter keeps back all that was asked for: this says nothing of any
    row.
    """


@dataclass(slots=True)
class Probe:
    """A session that counts. ``draws``: all completions so far that were drawn at temperature 1
    without a bias.

    ``top``: alternatives asked for at each token unless a request says otherwise. ``concurrency``:
    requests in flight. ``most``: requests of the whole self-test.
    ``entries``, ``named``: most entries of a bias, and the highest id in one, that were accepted.
    """

    session: Session
    concurrency: int = IN_FLIGHT
    top: int = 1
    most: int = MOST_REQUESTS
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    entries: int = 0
    named: int | None = None
    draws: list[tuple[Prompt, Completion]] = field(default_factory=list)
    _ceiling: int = MOST_REQUESTS

    def allow(self, requests: int) -> None:
        """From here on, ``requests`` more may be made, within the budget of the whole self-test."""
        self._ceiling = min(self.requests + requests, self.most)

    def count(self, requests: int = 1) -> None:
        """Take ``requests`` from the budget. Raises ProbesSpent where there are not as many
        left.
        """
        if self.requests + requests > self._ceiling:
            raise ProbesSpent(f"its share of the budget of {self.most} requests is spent")
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
        fields: Mapping[str, Json] | None = None,
    ) -> list[Completion]:
        """The completions of one request. Raises ProbesSpent, Withheld, ProviderError."""
        self.count()
        sampling = Sampling(temperature, max_tokens, self.top if top is None else top, seed)
        draw = Draw(sampling, to_request_bias(bias), endpoint, fields or {})
        completions = await self._read(prompt, draw, n)
        if temperature == 1.0 and not bias and seed is None and top is None:
            self.draws += [(prompt, completion) for completion in completions]
        return completions

    async def repeat(self, times: int, prompt: Prompt, **request: Any) -> list[Completion]:
        """The completions of ``times`` equal requests in order, without those that a content
        filter withheld.

        Raises Withheld: it withheld all of them.
        """
        gate = asyncio.Semaphore(self.concurrency)

        async def one() -> list[Completion] | Withheld:
            async with gate:
                try:
                    return await self.ask(prompt, **request)
                except Withheld as reason:
                    return reason

        answers = await asyncio.gather(*(one() for _ in range(times)))
        reasons = [answer for answer in answers if isinstance(answer, Withheld)]
        if reasons and len(reasons) == times:
            raise reasons[0]
        return [
            completion
            for answer in answers
            if not isinstance(answer, Withheld)
            for completion in answer
        ]

    async def uncut(self, prompt: Prompt, *, top: int, bias: Mapping[int, float]) -> Completion:
        """One token, with its list of alternatives exactly as the server sent it. The usual reader
        drops alternatives that are not surely the likeliest.
        """
        self.count()
        reading = Sampling(1.0, 1, EVERYTHING)
        draw = Draw(Sampling(1.0, 1, top), to_request_bias(bias))
        return (await self._read(prompt, draw, reading=reading))[0]

    async def _read(
        self, prompt: Prompt, draw: Draw, n: int = 1, reading: Sampling | None = None
    ) -> list[Completion]:
        """The answer to one request, read as one to ``reading``. A spoilt one is asked for twice
        more (llama.cpp lists nothing where the only token is a part of a character), and one
        without a list too, if others had one.
        """
        session = self.session
        where = draw.endpoint or self.session.endpoint
        biased = draw.bias.token_ids
        completions = None
        retries = SLIPS
        while completions is None:
            try:
                answer = await session.answer(prompt, draw, n)
                completions = parse_response(
                    session.profile, where, answer, reading or draw.sampling, session.vocabulary
                )
            except ContentFiltered as refusal:
                raise Withheld(
                    f"a test prompt was refused by the content filter: {refusal}"
                ) from refusal
            except (NoLogprobs, CorruptResponse) as slip:
                if not retries or (isinstance(slip, NoLogprobs) and not self.completion_tokens):
                    raise
                self.count()
                retries -= 1
        if completions:
            self.prompt_tokens += completions[0].prompt_tokens
        self.completion_tokens += sum(completion.n_tokens for completion in completions)
        self.entries = max(self.entries, len(biased))
        self.named = max([*biased, *([] if self.named is None else [self.named])], default=None)
        if completions and all(completion.filtered for completion in completions):
            raise Withheld("the content filter kept back the answer to a test prompt")
        return completions
