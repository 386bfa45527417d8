"""The exam: what the checks know so far, and what several of them ask."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blackbox_lb.extras.doctor.asking.findings import Findings
from blackbox_lb.extras.doctor.asking.probe import Probe
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.types import NO_TOKEN, Completion, Prompt

WORDS = Prompt.user(
    "Write thirty random English words that have nothing to do with each other, separated by"
    " commas."
)
"""Many likely continuations at every word: what sampling is tested on."""
STORY = Prompt.user("Write the beginning of a story about something unusual. Start right away.")
"""Less even than words: where a short list of alternatives holds most of the mass at most tokens.
"""
EMOJI = Prompt.user("Repeat these five emoji and write nothing else: 🦜🧶🪁🫖🧭")
"""Characters of several tokens each, in most vocabularies."""
SCRIPTS = Prompt.user(
    "Repeat this line and write nothing else: Donaudampfschifffahrt, Привет мир, 你好世界, नमस्ते"
    " दुनिया, γειά σου κόσμε"
)
"""Words that vocabularies split differently: most common English ones are a token in all of them.
"""
STOP = Prompt.user("Reply with the single word yes.")
"""Ends by itself after a token or two."""


@dataclass(slots=True)
class Exam:
    """``alternatives``: how many are asked for a token. ``noise``: largest difference in nats
    between equal requests.
    ``step``: the gaps of all logprobs to the likeliest of their list are multiples of it, in nats;
    0 where none is seen.

    ``thorough``: whether more is asked to see a temperature close to 1. ``trusted``: False where
    ids in answers are not those of the tokenizer. ``works``: whether a bias was seen to act, None
    while that is not known. ``clip``: nats above which the server was seen to make less of a bias,
    None where it was not. ``n``: completions that one request is known to give. ``end_listed``:
    whether the end token is listed, as claimed until it has been seen.
    """

    probe: Probe
    findings: Findings
    vocabulary_size: int | None = None
    alternatives: int = 0
    noise: float = 0.0
    step: float = 0.0
    thorough: bool = False
    trusted: bool = True
    works: bool | None = None
    clip: int | None = None
    n: int = 1
    end_listed: bool | None = None
    texts: dict[int, str | None] = field(default_factory=dict)

    @property
    def profile(self) -> Profile:
        return self.probe.session.profile

    @property
    def high(self) -> float:
        """The largest bias, in nats, that acts in full, by the profile or by what was seen."""
        if self.clip is None:
            return self.profile.bias.high
        return float(self.clip)

    @property
    def slack(self) -> float:
        """Mean deviation in nats of equal gaps: noise, or that of gaps between rounded logprobs,
        one of them doubled.
        """
        return max(self.noise, 1.5 * self.step)

    @property
    def rules(self) -> EndpointRules:
        """Of the endpoint where completions are collected."""
        return self.profile.endpoint(self.probe.session.endpoint)

    @property
    def highest_id(self) -> int | None:
        """The highest id that a bias may name, by the profile or by the size of the vocabulary."""
        highest = self.probe.session.highest_id
        if highest is None and self.vocabulary_size:
            return self.vocabulary_size - 1
        return highest

    def completions(self) -> Iterator[Completion]:
        """All that were drawn neutrally."""
        return (completion for _, completion in self.probe.draws)

    def openings(self) -> list[dict[int, float]]:
        """The list at the first position of every neutral completion of ``WORDS``: id -> logprob in
        nats.
        """
        return opening_lists(
            [completion for prompt, completion in self.probe.draws if prompt is WORDS]
        )

    def biasable(self) -> dict[int, float]:
        """Ids that are in all openings and that a bias may name, most likely first, with their mean
        logprob.
        """
        named = [pair for pair in mean_logprobs(self.openings()).items() if self.may_name(pair[0])]
        return dict(sorted(named, key=lambda pair: -pair[1]))

    def outside(self) -> list[int]:
        """Ids that a bias may name and that no opening lists, as far as they are known from later
        positions.
        """
        tokens = {
            token
            for completion in self.completions()
            for token in completion.top_ids.ravel().tolist()
        }
        return sorted(filter(self.may_name, tokens.difference(*self.openings())))

    def may_name(self, token: int) -> bool:
        """Whether a bias may name a token and would leave something to see: it has text."""
        return (
            token >= 0
            and (self.highest_id is None or token <= self.highest_id)
            and self.has_text(token)
        )

    def has_text(self, token: int) -> bool:
        """Whether a token is known to stand for text, or nothing is known of it; end tokens stand
        for none.
        """
        vocabulary = self.probe.session.vocabulary
        if vocabulary is not None:
            return token in vocabulary.ordinary
        if not self.knows_texts:
            return token >= 0
        return any(token in completion.token_bytes for completion in self.completions())

    @property
    def knows_texts(self) -> bool:
        """Whether ``has_text`` rests on knowledge."""
        with_bytes = any(completion.token_bytes for completion in self.completions())
        return with_bytes or self.probe.session.vocabulary is not None

    async def text_of(self, token: int) -> str | None:
        """The text of a token by the vocabulary or by the server, asked once; None where neither
        knows. Raises ProbesSpent.
        """
        if token < 0:
            return None
        session = self.probe.session
        if token not in self.texts:
            self.probe.count(
                session.vocabulary is None and session.profile.tokenizer.source == "server"
            )
            self.texts[token] = (await session.texts_of([token]))[0]
        return self.texts[token]


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


def gaps(rows: Sequence[Mapping[int, float]]) -> npt.NDArray[np.float64]:
    """How far each listed token is below the likeliest of its list, in nats, the likeliest left
    out.
    """
    distances = [
        np.sort(-np.array(list(row.values())))[1:] - -max(row.values()) for row in rows if row
    ]
    if distances:
        return np.concatenate(distances)
    return np.zeros(0)


def count_listed(completion: Completion) -> int:
    """The longest list of alternatives of a completion, tokens without an id included."""
    if completion.top_ids.size:
        return int((completion.top_ids != NO_TOKEN).sum(axis=1).max())
    return 0
