"""A bias for a list of words and phrases, without a fit, and what it would cost: tokens that are
whole words are banned, and everything in the list is kept out by stepping back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.limits.budget import SpendLimit, prompt_bound
from blackbox_lb.api.limits.concurrency import run_all
from blackbox_lb.api.session import Session
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.limits import check_limits, most_entries
from blackbox_lb.bias.phrases import Hit, PhraseLine, PhraseList, forms_of
from blackbox_lb.bias.records import Entry, SamplingRecord
from blackbox_lb.bias.stepping import REQUESTS_A_STEP
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.forecast import Forecast, likely_tokens
from blackbox_lb.providers.profile import Profile
from blackbox_lb.rollouts.reading import token_spans, tokens_within
from blackbox_lb.tasks.rewards.forms.avoid import PER_WORDS, count_words
from blackbox_lb.types import Completion, Prompt, Sampling

ESTIMATOR = "words"
"""The name of the estimator in a bias file that nothing was learned for."""
PROMPTS = tuple(
    Prompt.user(text)
    for text in (
        "Write a short story about a lighthouse keeper.",
        "Write a short story about a letter that arrives too late.",
        "Write a short story about two sisters who run a bakery.",
        "Write a short story about a ship in the ice.",
        "Write a short story about a robot that learns to paint.",
        "Write a short story about a village with one well.",
        "Write a short story about a thief who returns something.",
        "Write a short story about the last train of the night.",
        "Write a short story about a child who cannot sleep.",
        "Write a short story about an old map.",
        "Describe a market in the early morning.",
        "Describe a city after rain.",
        "Write a paragraph about why people keep gardens.",
        "Write a paragraph about the history of bread.",
        "Write a paragraph about how bridges are built.",
        "Write a paragraph about friendship in old age.",
        "Write an introduction to an article about remote work.",
        "Write an introduction to an article about learning languages.",
        "Write a letter of thanks to a teacher.",
        "Write a review of a small restaurant.",
    )
)
"""Prompts for stories and paragraphs, on which the cost is estimated."""
MOST_ASKED = 4_000
"""Spellings of words that are asked of a server, one request each."""
BEHIND = 1
"""Tokens after a phrase before it is known to be complete."""
REDRAWN = 1
"""Tokens that are drawn in the place of its first one."""


@dataclass(frozen=True, slots=True)
class WordTokens:
    """The tokens of a list's words.

    banned: token id -> its text, within the provider's limit of entries.
    words: lines with a banned token.
    left_out: lines of which a token found no room, the least weighty last.
    """

    banned: Mapping[int, str]
    words: tuple[PhraseLine, ...]
    left_out: tuple[PhraseLine, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a list would cost on some prompts, estimated from completions of the base.

    completions, tokens, words: of them. hits: of the list in them. banned: those that are a banned
    token. stepped: the others, each of which is a step back. redrawn: tokens
    that the steps would draw beside those delivered.
    """

    completions: int
    tokens: int
    words: int
    hits: int
    banned: int
    redrawn: int

    @property
    def stepped(self) -> int:
        """Hits that are left to stepping back."""
        return self.hits - self.banned

    @property
    def per_words(self) -> float:
        """Hits a hundred words."""
        return PER_WORDS * self.hits / max(self.words, 1)

    @property
    def drawn_a_token(self) -> float:
        """Tokens drawn a token delivered."""
        return (self.tokens + self.redrawn) / max(self.tokens, 1)

    @property
    def lines(self) -> list[str]:
        """The estimate in words."""
        by_tokens = self.banned / max(self.hits, 1)
        requests = REQUESTS_A_STEP * self.stepped / max(self.completions, 1)
        return [
            f"base {self.per_words:.1f} hits a hundred words, {by_tokens:.0%} of them banned"
            " tokens",
            f"stepping back from the rest: about {self.drawn_a_token:.2f} tokens drawn a token"
            f" delivered, {requests:.1f} requests more a completion",
            f"an estimate from {self.completions} completions of the base without a bias"
            f" ({self.tokens:,} tokens); what comes after a step may hit again",
        ]

    def as_json(self) -> dict[str, Any]:
        """The numbers, for a program."""
        return {
            **asdict(self),
            "stepped": self.stepped,
            "hits_per_100_words": self.per_words,
            "drawn_per_delivered": self.drawn_a_token,
        }


def checked_value(profile: Profile, value: float | None) -> float:
    """The bias of a banned token in nats: ``value``, else the lowest that the provider takes.

    Raises InputError: it is not below 0, or the provider does not take it.
    """
    rules = profile.bias
    if value is None:
        return rules.low
    is_whole = value == int(value)
    if not rules.low <= value < 0 or not (is_whole or rules.fractions):
        kind = "a number" if rules.fractions else "a whole number"
        raise InputError(
            f"``value={value:g}`` is the bias of a banned token, and {profile.name} takes {kind}"
            f" from {rules.low:g} to below 0; correct it, or leave it out for {rules.low:g}"
        )
    return value


async def word_tokens(
    session: Session, phrases: PhraseList, entries: int | None, in_flight: int
) -> WordTokens:
    """The tokens that hold a whole word or phrase of a list, those of the weightiest lines first.

    Where the vocabulary is at hand every token of it is read; elsewhere the spellings of each word
    (as it is, capitalised, in upper case, behind a space) are asked of the server.

    Args:
        session: with the model.
        phrases: the list. A pattern has no tokens.
        entries: most tokens; None for the provider's limit.
        in_flight: questions to the server at a time.

    Raises:
        InputError: the spellings cannot be asked for. BiasError: more entries than the provider
            takes.
    """
    texts = session.texts_of_vocabulary()
    tokens: dict[int, tuple[str, PhraseLine]] = {}
    if texts:
        for token, raw in texts.items():
            text = raw.decode("utf-8", "ignore")
            for hit in phrases.hits(text):
                if not hit.line.is_pattern:
                    tokens[token] = (text, hit.line)
                    break
    else:
        tokens = await _asked(session, phrases, in_flight)
    highest = session.highest_id
    allowed = {token: row for token, row in tokens.items() if highest is None or token <= highest}
    limit = most_entries(session.profile, entries)

    def place(token: int) -> tuple[float, int, int]:
        """The weightiest first, then as the list has them."""
        line = allowed[token][1]
        return -line.weight, line.number, token

    ranked = sorted(allowed, key=place)
    banned = ranked[:limit]
    left_out = [tokens[token][1] for token in (*ranked[len(banned) :], *(tokens.keys() - allowed))]
    return WordTokens(
        banned={token: allowed[token][0] for token in sorted(banned)},
        words=tuple(dict.fromkeys(allowed[token][1] for token in banned)),
        left_out=tuple(dict.fromkeys(left_out)),
    )


async def _asked(
    session: Session, phrases: PhraseList, in_flight: int
) -> dict[int, tuple[str, PhraseLine]]:
    """Token -> its text and the line of its word, by the server's own route.

    Raises InputError: it has none, or there are too many words.
    """
    words = [line for line in phrases.lines if not line.is_pattern and " " not in line.entry]
    spelled = {text: line for line in words for form in forms_of(line) for text in _spellings(form)}
    if len(spelled) > MOST_ASKED:
        raise InputError(
            f"the list has {len(spelled):,} spellings of words, which would be asked of the server"
            f" one by one, at most {MOST_ASKED:,}; give the model's vocabulary with ``tokenizer``,"
            " its tokenizer.json"
        )
    tokens: dict[int, tuple[str, PhraseLine]] = {}
    gate = asyncio.Semaphore(in_flight)

    async def ask(line: PhraseLine, text: str) -> None:
        async with gate:
            ids = await session.encode(text)
            if len(ids) == 1 and await session.decode(ids) == text:
                tokens[ids[0]] = (text, line)

    await asyncio.gather(*(ask(line, text) for text, line in spelled.items()))
    return tokens


def _spellings(word: str) -> list[str]:
    """A word as it is, capitalised and in upper case, each with and without a space before it."""
    cases = dict.fromkeys([word, word.lower(), word[:1].upper() + word[1:], word.upper()])
    return [f"{space}{text}" for text in cases for space in ("", " ")]


async def words_bias(
    session: Session,
    phrases: PhraseList,
    tokens: WordTokens,
    value: float,
    *,
    name: str,
    max_tokens: int,
    keeps_phrases: bool,
) -> Bias:
    """The bias file of a list.

    Args:
        session: with the model.
        phrases: the list, which the sender keeps out.
        tokens: those of its words.
        value: nats, the bias of each.
        name: of the reward that counts the list's hits.
        max_tokens: of the completions that it is for.
        keeps_phrases: whether the file holds the list for stepping back.

    Raises:
        InputError: nothing would be in the file. BiasError: see ``check_limits``.
    """
    if not tokens.banned and not keeps_phrases:
        raise InputError(
            f"no entry of the list is one token of {session.model}, so there is no token to ban;"
            " keep the list out by stepping back, without ``only_tokens``"
        )
    values = dict.fromkeys(tokens.banned, value)
    check_limits(values, session.profile, session.highest_id)
    tokenizer = await session.tokenizer()
    sampling = None
    if session.endpoint != "decisions":
        sampling = SamplingRecord(max_tokens=max_tokens, top_logprobs=0, endpoint=session.endpoint)
    entries = tuple(
        Entry(id=token, bytes=text.encode().hex(), text=text, bias=value)
        for token, text in tokens.banned.items()
    )
    return Bias(
        provider=session.profile.name,
        model=session.model,
        tokenizer=tokenizer.fingerprint,
        vocab_size=tokenizer.vocabulary_size,
        reward=name,
        estimator=ESTIMATOR,
        settings={"value": value},
        sampling=sampling,
        phrases=phrases.entries if keeps_phrases else (),
        entries=entries,
    )


def words_forecast(prompts: Sequence[Prompt], max_tokens: int) -> Forecast:
    """What the estimate of the cost asks for."""
    return Forecast(
        requests=len(prompts),
        completions=len(prompts),
        prompt_tokens=sum(map(likely_tokens, prompts)),
        most_prompt_tokens=sum(prompt_bound(list(prompt.sent_texts)) for prompt in prompts),
        most_completion_tokens=len(prompts) * max_tokens,
        completion_tokens=len(prompts) * max_tokens,
    )


async def plain_completions(
    session: Session,
    prompts: Sequence[Prompt],
    max_tokens: int,
    seed: int | None,
    budget: SpendLimit,
    in_flight: int,
) -> list[Completion]:
    """One completion of the base for each prompt, at temperature 1, in any order; ``in_flight`` at
    a time.
    """
    completions: list[Completion] = []
    draw = Draw(Sampling(1.0, max_tokens, 1, seed), endpoint=session.biased_endpoint)

    async def receive(prompt: Prompt) -> None:
        completions.extend(await session.complete_many(prompt, draw))

    await run_all(prompts, receive, in_flight, budget)
    return completions


def estimated_cost(
    session: Session, completions: Sequence[Completion], phrases: PhraseList, tokens: WordTokens
) -> Cost:
    """What the list would cost on these completions of the base."""
    spelled = session.texts_of_vocabulary()
    hits = 0
    banned = 0
    redrawn = 0
    for completion in completions:
        spans = token_spans(completion, spelled or completion.token_bytes)
        for hit in phrases.hits(completion.text):
            hits += 1
            first, last = _tokens_of(hit, completion, spans)
            if first == last and int(completion.token_ids[first]) in tokens.banned:
                banned += 1
            else:
                redrawn += last - first + 1 + BEHIND + REDRAWN
    return Cost(
        completions=len(completions),
        tokens=sum(completion.n_tokens for completion in completions),
        words=sum(count_words(completion.text) for completion in completions),
        hits=hits,
        banned=banned,
        redrawn=redrawn,
    )


def _tokens_of(
    hit: Hit, completion: Completion, spans: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """The first and the last token of a hit; by the share of the text where they are not known."""
    holding = tokens_within(spans, hit.start, hit.end)
    if holding:
        return holding[0], holding[-1]
    most = max(len(completion.token_ids) - 1, 0)
    share = (most + 1) / max(len(completion.text), 1)
    return min(int(hit.start * share), most), min(int((hit.end - 1) * share), most)
