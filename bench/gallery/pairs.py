"""A blind judge: a model that reads two texts for one prompt, in both orders, and does not learn
whose they are.

Models prefer a place, most often the first (Zheng et al. 2023, "Judging LLM-as-a-Judge with
MT-Bench and Chatbot Arena", section 3.3). So each pair is asked twice, with the texts exchanged.
The preference for a text is the mean of both answers, in which a preference for a place cancels; a
flip is a pair whose two answers name different texts, as they do where only the place counts.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from blackbox_lb.api.session import Session
from blackbox_lb.errors import CorruptResponse
from blackbox_lb.jobs.evaluation.compare import mean_of
from blackbox_lb.jobs.evaluation.document import Mean
from blackbox_lb.types import Completion, Draw, Prompt, Sampling

__all__ = [
    "Ask",
    "Judged",
    "Verdicts",
    "first_letter",
    "judged",
    "question",
    "shuffled",
    "verdicts",
]

Ask: TypeAlias = Callable[[str], Awaitable[float]]
"""A question to the probability, from 0 to 1, that its answer is A and not B."""
QUESTION = """Two writers were given the same task.

Task: {prompt}

Text A:
{first}

Text B:
{second}

Both texts may be cut off at the end. Which text is better written? Answer with one letter, A or B, and nothing else."""  # noqa: E501
LISTED = 20


@dataclass(frozen=True, slots=True)
class Judged:
    """The probabilities, from 0 to 1, that the judge prefers the text in question: read as A, and
    read as B.
    """

    as_first: float
    as_second: float

    @property
    def preference(self) -> float:
        """The mean of both: .5 where the judge goes by the place alone."""
        return (self.as_first + self.as_second) / 2

    @property
    def winner(self) -> int:
        """1 where both answers name the text in question, -1 where both name the other one, 0 for a
        flip.
        """
        signs = {(each > 0.5) - (each < 0.5) for each in (self.as_first, self.as_second)}
        return signs.pop() if len(signs) == 1 else 0


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a judge says of the texts of one policy.

    preference: mean over pairs, with its 95 % interval. wins, losses, flips: shares of the pairs,
    together 1. first: mean probability of the text that is read first, .5 for a judge without a
    preference for a place. pairs: their number.
    """

    preference: Mean
    wins: float
    losses: float
    flips: float
    first: float
    pairs: int

    @property
    def tells(self) -> bool:
        """Whether the judge prefers the texts in question, beyond chance and in both orders in most
        pairs.
        """
        return self.preference.low > 0.5 and self.wins > 0.5


def question(prompt: str, first: str, second: str) -> str:
    """The question about two texts for a prompt; where each ends is to be seen, however it ends."""
    return QUESTION.format(prompt=prompt, first=first.strip(), second=second.strip())


async def judged(ask: Ask, prompt: str, text: str, other: str) -> Judged:
    """The judge's answers about ``text`` beside ``other``, in both orders."""
    first, second = await asyncio.gather(
        ask(question(prompt, text, other)), ask(question(prompt, other, text))
    )
    return Judged(first, 1 - second)


def verdicts(pairs: Sequence[Judged]) -> Verdicts:
    """All pairs of one policy, one a prompt. Raises InputError: there are none."""
    winners = np.array([each.winner for each in pairs])
    return Verdicts(
        preference=mean_of([np.array([each.preference]) for each in pairs]),
        wins=float((winners == 1).mean()),
        losses=float((winners == -1).mean()),
        flips=float((winners == 0).mean()),
        first=float(np.mean([(each.as_first + 1 - each.as_second) / 2 for each in pairs])),
        pairs=len(pairs),
    )


def shuffled(text: str, seed: int) -> str:
    """The words of the text in a random order: a worse text whose words are the same."""
    words = text.split()
    random.Random(seed).shuffle(words)
    return " ".join(words)


def first_letter(completion: Completion) -> float:
    """The probability of A among A and B, by the logprobs of the first token; an unlisted letter
    has none.

    Raises CorruptResponse: neither is listed.
    """
    mass = {"A": 0.0, "B": 0.0}
    for token, logprob in zip(
        completion.top_ids[:1].ravel().tolist(),
        completion.top_logprobs[:1].ravel().tolist(),
        strict=True,
    ):
        letter = completion.token_bytes.get(token, b"").decode("utf-8", "replace").strip()
        if letter in mass:
            mass[letter] += math.exp(logprob)
    total = sum(mass.values())
    if not total:
        raise CorruptResponse(
            f"the judge lists neither A nor B for its first token, and says {completion.text!r};"
            " take another judge"
        )
    return mass["A"] / total


def asking(session: Session) -> Ask:
    """The judge behind a session: one token of its answer."""

    async def ask(text: str) -> float:
        found = await session.complete_many(Prompt.user(text), Draw(Sampling(0.0, 1, LISTED)))
        return first_letter(found[0])

    return ask
