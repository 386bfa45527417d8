"""The exam: what the checks ask, counted against a budget that cannot be overdrawn, and what they
know so far.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.api.wire import parse_response
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.errors import ContentFiltered, CorruptResponse, NoLogprobs
from blackbox_lb.extras.doctor.findings import RowFinding, Status, claim_of
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules, Json
from blackbox_lb.types import Completion, Prompt, Sampling

WORDS = Prompt.user(
    "Write thirty random English words that have nothing to do with each other, separated by"
    " commas."
)
"""Many likely continuations at every word: what sampling is tested on."""
STORY = Prompt.user("Write the beginning of a story about something unusual. Start right away.")
"""Less even than words: where a short list of alternatives holds most of the mass at most tokens.
"""
MOST_REQUESTS = 119
"""A self-test is worth less than 120 requests, whatever it meets; retries of a busy server are not
counted.
"""
SLIPS = 2
"""Times that a request is made again whose answer came without a readable list."""
EVERYTHING = -1
"""Read with this many alternatives asked for, a list is not cut to those that are sure to be the
likeliest.
"""

Answer = TypeVar("Answer")


class NotChecked(Exception):
    """A row cannot be checked; the message says why."""


class BudgetSpent(NotChecked):
    """The requests that this check may make are used up."""


class Withheld(NotChecked):
    """The provider's content filter keeps back all that was asked for."""


@dataclass(slots=True)
class Exam:
    """A session that counts its requests, and what was learned by them.

    concurrency: requests in flight.
    most: requests of the whole self-test.
    requests, prompt_tokens, completion_tokens: made so far, as the provider counts them.
    entries, named: most entries of a bias, and the highest id in one, that were accepted.
    draws: every completion so far that was drawn at temperature 1 without a bias, with its prompt.
    top: alternatives asked for at each token unless a request says otherwise.
    vocabulary_size: tokens, None where it is not known.
    alternatives: most that may be asked for a token.
    noise: largest difference in nats between equal requests.
    step: the gaps of all logprobs to the likeliest of their list are multiples of it, in nats; 0
        where none is seen.
    works: whether a bias was seen to act, None while that is not known.
    clip: nats above which the server was seen to make less of a bias, None where it was not.
    spelled: the tokens whose bytes stand in the completions of ``draws``.
    texts: those of tokens that were looked up.
    findings: the last one of each row, in the order in which rows were first found.
    heard: called after each answer.
    """

    session: Session
    concurrency: int
    most: int
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    entries: int = 0
    named: int | None = None
    draws: list[tuple[Prompt, Completion]] = field(default_factory=list)
    top: int = 1
    vocabulary_size: int | None = None
    alternatives: int = 0
    noise: float = 0.0
    step: float = 0.0
    works: bool | None = None
    clip: int | None = None
    findings: dict[str, RowFinding] = field(default_factory=dict)
    spelled: set[int] = field(default_factory=set)
    texts: dict[int, str | None] = field(default_factory=dict)
    heard: Callable[[], None] = lambda: None
    _ceiling: int = 0

    def add(self, finding: RowFinding) -> None:
        """Keep a finding, with what the profile claims."""
        claim = claim_of(self.profile, finding.row)
        self.findings[finding.row] = replace(finding, claim=claim)

    def status(self, row: str) -> Status:
        """NOT CHECKED where nothing was found of ``row``."""
        if row in self.findings:
            return self.findings[row].status
        return "NOT CHECKED"

    def allow(self, requests: int) -> None:
        """From here on, ``requests`` more may be made, within the budget of the whole self-test."""
        self._ceiling = min(self.requests + requests, self.most)

    def count(self, requests: int = 1) -> None:
        """Take ``requests`` from the budget. Raises BudgetSpent where there are not as many
        left.
        """
        if self.requests + requests > self._ceiling:
            raise BudgetSpent(f"its share of the budget of {self.most} requests is spent")
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
        as_sent: bool = False,
    ) -> list[Completion]:
        """The completions of one request, kept as ``draws`` where they are plain ones. ``as_sent``:
        with their lists exactly as the server sent them; the usual reader drops alternatives that
        are not surely the likeliest.

        A spoilt answer is asked for twice more (llama.cpp lists nothing where the only token is a
        part of a character), and one without a list too, if others had one.

        Raises BudgetSpent, Withheld, ProviderError.
        """
        self.count()
        session = self.session
        listed = self.top if top is None else top
        draw = Draw(
            Sampling(temperature, max_tokens, listed, seed),
            to_request_bias(bias),
            endpoint or session.endpoint,
            fields or {},
        )
        reading = Sampling(temperature, max_tokens, EVERYTHING if as_sent else listed)
        completions = None
        retries = SLIPS
        while completions is None:
            try:
                answer = await session.answer(prompt, draw, n)
                completions = parse_response(
                    session.profile,
                    endpoint or session.endpoint,
                    answer,
                    reading,
                    session.vocabulary,
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
        self.heard()
        if bias:
            self.entries = max(self.entries, len(bias))
            self.named = max(*bias, -1 if self.named is None else self.named)
        if completions and all(completion.filtered for completion in completions):
            raise Withheld("the content filter kept back the answer to a test prompt")
        if temperature == 1.0 and not bias and seed is None and top is None:
            for completion in completions:
                self.draws.append((prompt, completion))
                self.spelled |= completion.token_bytes.keys()
        return completions

    async def repeat(self, times: int, prompt: Prompt, **request: Any) -> list[Completion]:
        """The completions of ``times`` equal requests in order, without those that a content
        filter withheld.

        Raises Withheld: it withheld all of them.
        """
        gate = asyncio.Semaphore(self.concurrency)

        async def ask() -> list[Completion]:
            async with gate:
                return await self.ask(prompt, **request)

        answers = await asyncio.gather(*(ask() for _ in range(times)), return_exceptions=True)
        completions: list[Completion] = []
        reason = None
        for answer in answers:
            if isinstance(answer, Withheld):
                reason = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                completions += answer
        if reason is not None and not completions:
            raise reason
        return completions

    async def winners(
        self,
        bias: Mapping[int, float],
        times: int = 1,
        temperature: float = 0.0,
        endpoint: Endpoint | None = None,
    ) -> list[int | str | None]:
        """What comes first under a bias in ``times`` equal requests: a token; where the endpoint
        names none, the text; None where the answer is empty.
        """
        completions = await self.repeat(
            times, WORDS, top=1, temperature=temperature, bias=bias, endpoint=endpoint
        )
        rules = self.profile.endpoint(endpoint or self.session.endpoint)
        if rules.ask_logprobs == "no":
            return [completion.text.strip() or None for completion in completions]
        return [first_token(completion) for completion in completions]

    async def text_of(self, token: int) -> str | None:
        """The text of a token by the vocabulary or by the server, asked once; None where neither
        knows. Raises BudgetSpent.
        """
        if token < 0:
            return None
        if token not in self.texts:
            if self.session.vocabulary is None and self.profile.tokenizer.source == "server":
                self.count()
            self.texts[token] = (await self.session.texts_of([token]))[0]
        return self.texts[token]

    @property
    def profile(self) -> Profile:
        return self.session.profile

    @property
    def rules(self) -> EndpointRules:
        """Of the endpoint where completions are collected."""
        return self.profile.endpoint(self.session.endpoint)

    @property
    def high(self) -> float:
        """The largest bias, in nats, that acts in full, by the profile or by what was seen."""
        if self.clip is None:
            return self.profile.bias.high
        return float(self.clip)

    def even_bias(self, tokens: Sequence[int], nats: float) -> dict[int, float]:
        """``nats`` on each of these tokens, or as much as acts in full; on the first ones alone
        where the profile says that a bias has fewer entries.
        """
        return dict.fromkeys(tokens[: self.profile.bias.entries], min(nats, self.high))

    @property
    def slack(self) -> float:
        """Mean deviation in nats of equal gaps: noise, or that of gaps between rounded logprobs,
        one of them doubled.
        """
        return max(self.noise, 1.5 * self.step)

    @property
    def trusted(self) -> bool:
        """Whether no id in an answer was seen to be another than the tokenizer's."""
        return self.status("tokens.id") != "CONTRADICTED"

    @property
    def end_listed(self) -> bool | None:
        """Whether the end token is listed, as claimed until it has been seen."""
        finding = self.findings.get("logprobs.end_token_listed")
        if finding is not None and isinstance(finding.found, bool):
            return finding.found
        return self.profile.logprobs.end_token_listed

    @property
    def highest_id(self) -> int | None:
        """The highest id that a bias may name, by the profile or by the size of the vocabulary."""
        highest = self.session.highest_id
        if highest is None and self.vocabulary_size:
            return self.vocabulary_size - 1
        return highest

    def completions(self) -> Iterator[Completion]:
        """All that were drawn neutrally."""
        return (completion for _, completion in self.draws)

    def openings(self) -> list[dict[int, float]]:
        """The list at the first position of every neutral completion of ``WORDS``: id -> logprob in
        nats.
        """
        return opening_lists([completion for prompt, completion in self.draws if prompt is WORDS])

    def biasable(self) -> dict[int, float]:
        """Ids that are in all openings and that a bias may name, most likely first, with their mean
        logprob.
        """
        named = [pair for pair in mean_logprobs(self.openings()).items() if self.may_name(pair[0])]
        return dict(sorted(named, key=lambda pair: -pair[1]))

    def listed_ids(self) -> list[int]:
        """Every id in the lists of neutral completions, as often as it is listed."""
        return [
            token
            for completion in self.completions()
            for token in completion.top_ids.ravel().tolist()
        ]

    def outside(self) -> list[int]:
        """Ids that a bias may name and that no opening lists, as far as they are known from later
        positions.
        """
        tokens = set(self.listed_ids()).difference(*self.openings())
        return sorted(filter(self.may_name, tokens))

    def may_name(self, token: int) -> bool:
        """Whether a bias may name a token and would leave something to see: it has text."""
        return (
            token >= 0
            and (self.highest_id is None or token <= self.highest_id)
            and self.has_text(token)
        )

    def has_text(self, token: int) -> bool:
        """Whether a token is known to stand for text, or nothing is known of any; end tokens stand
        for none.
        """
        if self.with_text:
            return token in self.with_text
        return token >= 0

    @property
    def with_text(self) -> Set[int]:
        """The tokens that are known to stand for text; empty where nobody tells."""
        if self.session.vocabulary is not None:
            return self.session.vocabulary.ordinary.keys()
        return self.spelled


async def attempt(answer: Awaitable[Answer], *faults: type[Exception]) -> Answer | Exception:
    """The answer, or in its place the error where it is one of ``faults``."""
    try:
        return await answer
    except faults as error:
        return error


def first_token(completion: Completion) -> int | None:
    """The first listed token; None where none is listed."""
    if len(completion.token_ids):
        return int(completion.token_ids[0])
    return None


def listed(completion: Completion, t: int) -> dict[int, float]:
    """The alternatives with an id at one position: id -> logprob in nats, most likely first."""
    pairs = zip(completion.top_ids[t].tolist(), completion.top_logprobs[t].tolist(), strict=True)
    return {token: value for token, value in pairs if token >= 0}


def opening_lists(completions: Sequence[Completion]) -> list[dict[int, float]]:
    """The list at the first position of each completion, as in ``listed``. Where any completion
    lists all its tokens, only such completions count.

    llama.cpp leaves a fragment of a character out of the list: where that was the first token, the
    first list is of the second.
    """
    begun = [completion for completion in completions if len(completion.token_ids)]
    chosen = [completion for completion in begun if completion.whole] or begun
    return [row for row in (listed(completion, 0) for completion in chosen) if row]


def mean_logprobs(rows: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Mean logprob in nats of each id that all of these lists hold."""
    common = set.intersection(*map(set, rows)) if rows else set()
    return {token: float(np.mean([row[token] for row in rows])) for token in common}
