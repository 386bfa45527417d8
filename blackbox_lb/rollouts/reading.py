"""The stored completions to learn from, read and scored in blocks, here or in another process, and
what each of their tokens adds to the reward.

A span's amount falls on the token that holds the first byte of its first character, also where that
character, or the span, goes over several tokens.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from blackbox_lb.api.limits.concurrency import computing
from blackbox_lb.errors import NoLogprobs
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.rollouts.columns import LISTED, columns, resolve_end_tokens, sampled_ids
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward, Score
from blackbox_lb.tasks.rewards.forms.formulas import TOKEN_COST
from blackbox_lb.types import Completion, EndTokens, Example, Span

INCOMPLETE = "incomplete"
"""The tally of completions with fewer listed than generated tokens, or with one without an id."""
FILTERED = "filtered"
"""The tally of completions of which a content filter withheld text."""
BROKEN_OFF = "broken off: "
"""The tally of completions that the host broke off, before their finish reason."""
END_UNKNOWN = "end unknown: "
"""The tally of completions through a provider that is not known to list end tokens, before its
name.
"""
CUT = "cut"
"""The tally of completions that a stop text ended whose tokens are counted and not listed."""
WITH_SPANS = "with spans"
WITHOUT_SPANS = "without spans"
"""The tallies of completions by the answers of a reward that may give spans."""
UNLOCATED = "unlocated"
"""The tally of completions with an amount that has no token."""

Costs = npt.NDArray[np.float64]


def costs_of(
    completions: Sequence[Completion],
    scores: Sequence[Score],
    reward: Reward,
    token_bytes: Callable[[], Mapping[int, bytes]],
    count: Counter[str],
) -> Costs | None:
    """What each position of these completions adds to their rewards.

    Args:
        completions: as they are laid end to end.
        scores: of each.
        reward: what gave them.
        token_bytes: gives the bytes of tokens; it is called once, and only where they are needed.
        count: receives the completions with and without spans, and those with an amount that is on
            the last position for want of a better one.

    Returns:
        (m,) nats; None where a reward is no sum over places.
    """
    if reward.credit == "tokens":
        return _joined(
            [
                _of_every_token(completion, score.value, -TOKEN_COST)
                for completion, score in zip(completions, scores, strict=True)
            ]
        )
    spans = [score.spans for score in scores if score.spans is not None]
    count[WITH_SPANS] += len(spans)
    count[WITHOUT_SPANS] += len(scores) - len(spans)
    if len(spans) < len(scores):
        return None
    spellings: Mapping[int, bytes] = {}
    if any(spans):
        spellings = token_bytes()
    costs = []
    for completion, places in zip(completions, spans, strict=True):
        values, are_located = position_costs(completion, places, spellings)
        costs.append(values)
        if not are_located:
            count[UNLOCATED] += 1
    return _joined(costs)


def position_costs(
    completion: Completion, spans: Sequence[Span], token_bytes: Mapping[int, bytes]
) -> tuple[Costs, bool]:
    """What each position of one completion adds to its reward.

    Args:
        completion: t listed tokens.
        spans: the places of its text and their amounts.
        token_bytes: id -> bytes of its tokens, as far as they are known.

    Returns:
        (t,) nats, whose sum is that of the amounts; and whether there is a token for every span.
        What has none falls on the last position, as does a span where the text ends.
    """
    ids = completion.token_ids.tolist()
    costs = np.zeros(len(ids))
    if not spans:
        return costs, True
    if not ids:
        return costs, False
    are_located = True
    begins, ends = token_places(
        completion.text,
        [token_bytes.get(token) for token in ids],
        has_ended=not completion.cut,
    )
    holding = [position for position, begin in enumerate(begins) if begin < ends[position]]
    first_bytes = [begins[position] for position in holding]
    for span in spans:
        byte = len(completion.text[: span.start].encode("utf-8", "surrogatepass"))
        before = bisect.bisect_right(first_bytes, byte) - 1
        position = len(ids) - 1
        if before >= 0 and byte < ends[holding[before]]:
            position = holding[before]
        elif span.start < len(completion.text):
            are_located = False
        costs[position] += span.amount
    return costs, are_located


def token_spans(completion: Completion, spelled: Mapping[int, bytes]) -> list[tuple[int, int]]:
    """(t,) the characters of the text that each token holds: the first, and the one behind the
    last. A character of several tokens belongs to the last of them; see ``token_places``.

    spelled: token id -> bytes, as far as they are known.
    """
    text = completion.text
    tokens = [spelled.get(token) for token in completion.token_ids.tolist()]
    begins, ends = token_places(text, tokens, has_ended=not completion.cut)
    raw = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    begins_character = (raw & 0xC0) != 0x80
    character_of = np.append(np.cumsum(begins_character) - 1, len(text))
    return list(zip(character_of[begins].tolist(), character_of[ends].tolist(), strict=True))


def tokens_within(spans: Sequence[tuple[int, int]], start: int, end: int) -> list[int]:
    """The positions whose tokens hold some of the characters from ``start`` to before ``end``.

    spans: see ``token_spans``.
    """
    return [
        position
        for position, (first, behind) in enumerate(spans)
        if max(first, start) < min(behind, end)
    ]


def token_places(
    text: str, spelled: Sequence[bytes | None], *, has_ended: bool
) -> tuple[list[int], list[int]]:
    """The bytes of ``text`` that each token holds: where they begin, and where they end.

    Tokens are laid along the text from its beginning. Behind one that is not known (None) or does
    not fit they go on where the known ones that follow stand, if that is a single place; else they
    hold nothing. A single token between two parts, or at the end, holds what is between them, and
    several in a row that cannot be told apart hold nothing. Nor do tokens behind the text, such as
    those of a stop text. A server may leave out the first space of a text, or that of a single
    token.

    Args:
        text: of a completion.
        spelled: (t,) the bytes of its tokens.
        has_ended: the last token may be an end token, which is not in the text.

    Returns:
        (t,) the first byte of each token, and (t,) the byte behind its last; equal for a token that
        holds nothing.
    """
    raw = text.encode("utf-8", "surrogatepass")
    begins = [0] * len(spelled)
    ends = [0] * len(spelled)
    place = 0
    first = 0
    while first < len(spelled):
        size = _size_at(raw, place, spelled[first])
        if size is None:
            after, place_after = _next_known(raw, place, spelled, first)
            if after is None:
                rest = spelled[first + 1 :]
                is_end_token = has_ended and len(rest) == 1 and not raw.endswith(rest[0] or b"\0")
                if not rest or is_end_token:
                    begins[first] = place
                    ends[first] = len(raw)
                break
            size = 0
            if after == first + 1:
                size = place_after - place
            begins[first] = place
            ends[first] = place + size
            first = after
            place = place_after
            continue
        begins[first] = place
        place += size
        ends[first] = place
        first += 1
    return begins, ends


def _next_known(
    raw: bytes, place: int, spelled: Sequence[bytes | None], stuck: int
) -> tuple[int | None, int]:
    """The first known token behind ``stuck``, and the byte where it and those after it stand; None
    where they stand nowhere behind ``place``, or at several places.
    """
    after = stuck + 1
    while after < len(spelled) and not spelled[after]:
        after += 1
    run = itertools.takewhile(bool, spelled[after:])
    joined = b"".join(token for token in run if token)
    begin = raw.find(joined, place) if joined else -1
    if begin < 0 or raw.find(joined, begin + 1) >= 0:
        return None, place
    return after, begin


def _size_at(raw: bytes, place: int, token: bytes | None) -> int | None:
    """The bytes of ``raw`` that ``token`` holds from ``place`` on; None where it does not fit."""
    if place == len(raw):
        return 0
    if not token:
        return None
    if raw.startswith(token, place):
        return len(token)
    if raw.startswith(b" " + token, place):
        return len(token) + 1
    if place == 0 and token.startswith(b" ") and raw.startswith(token[1:]):
        return len(token) - 1
    if token.startswith(raw[place:]):  # a stop text begins inside of it
        return len(raw) - place
    return None


def _of_every_token(completion: Completion, reward: float, cost: float) -> Costs:
    """``cost`` at each position; the tokens that are counted and not listed cost at the last."""
    costs = np.full(len(completion.token_ids), cost)
    if len(costs):
        costs[-1] += reward - cost * len(costs)
    return costs


def _joined(costs: Sequence[Costs]) -> Costs:
    return np.concatenate([np.zeros(0), *costs])


BLOCK_BYTES = 1 << 23
"""Bytes of listed ids and logprobs read from the store at a time; turning them into a table takes
about eight times as much.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The stored completions to learn from, and their treatment; it can be sent to any process with
    access to the same files.

    owner: key -> number of its example, in the order of reading. open: opens the store that holds
    them.
    """

    examples: Mapping[int, Example]
    owner: Mapping[str, int]
    reward: Reward
    end_tokens: EndTokens
    open: Callable[[], RolloutStore]
    vocab_size: int | None = None

    def blocks(self, store: RolloutStore, count: Counter[str]) -> Iterator[Rollouts]:
        """The rollouts, scored, so many at a time; ``count`` receives the category of each
        completion.
        """
        token_bytes = cache(lambda: store.token_bytes(store.tokenizer_of(next(iter(self.owner)))))
        for batch in _batches(kept_completions(store, self.owner, count)):
            prompts = [self.owner[key] for key in batch]
            completions = list(batch.values())
            if self.end_tokens.stop_prefix_ids:
                count[CUT] += sum(map(_is_cut, completions))
            with computing():
                scores = [
                    self.reward.score(self.examples[prompt], completion)
                    for prompt, completion in zip(prompts, completions, strict=True)
                ]
                costs = costs_of(completions, scores, self.reward, token_bytes, count)
            rewards = [score.value for score in scores]
            yield columns(batch, prompts, rewards, self.end_tokens, costs)

    def nothing(self, count: Counter[str]) -> NoLogprobs:
        """The error where ``blocks``, after reporting to ``count``, hold no position."""
        return NoLogprobs(
            f"none of {len(self.owner)} completions has a complete list of token logprobs"
            f" ({count[FILTERED]} were stopped by a content filter); choose a model or server that"
            " gives them, or other prompts; of a model that thinks, turn the thinking off"
        )

    def parts(self, count: int) -> list[Reading]:
        """Up to ``count`` parts of about as many completions each, in order."""
        keys = list(self.owner)
        size = max(1, math.ceil(len(self.owner) / count))
        return [self.only(keys[start : start + size]) for start in range(0, len(keys), size)]

    def only(self, keys: Sequence[str]) -> Reading:
        """The reading of these completions alone, in this order."""
        owner = {key: self.owner[key] for key in keys}
        return replace(
            self, owner=owner, examples={p: self.examples[p] for p in set(owner.values())}
        )


def reading_of(
    store: RolloutStore,
    examples: Sequence[Example],
    keys: Sequence[Sequence[str]],
    reward: Reward,
    end_tokens: EndTokens = LISTED,
    *,
    vocab_size: int | None = None,
) -> Reading:
    """The reading of ``training_set`` from ``store``, in the cheapest order."""
    owner = {key: p for p, row in enumerate(keys) for key in row}
    owner = {key: owner[key] for key in store.order(owner)}
    if end_tokens.listed is None or end_tokens.stop_prefix_ids:
        end_tokens = resolve_end_tokens(
            end_tokens, sampled_ids(kept_completions(store, owner, Counter()))
        )
    again = store.again(owner)
    return Reading(dict(enumerate(examples)), owner, reward, end_tokens, again, vocab_size)


def _category(completion: Completion) -> str:
    """What is counted of a completion; one to learn from is "listed"."""
    if completion.filtered:
        return FILTERED
    if completion.broken_off:
        return f"{BROKEN_OFF}{completion.finish_reason}"
    has_no_list = bool(completion.text) and not len(completion.token_ids)
    if has_no_list or not completion.whole:
        return INCOMPLETE
    return "listed"


def kept_completions(
    store: RolloutStore, keys: Collection[str], count: Counter[str]
) -> Iterator[tuple[str, Completion]]:
    """The completions to learn from by key; ``count`` receives the category of each."""
    for key, completion in zip(keys, store.completions(keys), strict=True):
        category = _category(completion)
        count[category] += 1
        if category == "listed":
            yield key, completion


def _batches(completions: Iterable[tuple[str, Completion]]) -> Iterator[dict[str, Completion]]:
    batch: dict[str, Completion] = {}
    size = 0
    for key, completion in completions:
        batch[key] = completion
        size += completion.top_ids.nbytes + completion.top_logprobs.nbytes
        if size >= BLOCK_BYTES:
            yield batch
            batch = {}
            size = 0
    if batch:
        yield batch


def _is_cut(completion: Completion) -> bool:
    """Whether a completion counts as whole although more tokens were generated than it lists."""
    stopped = completion.whole and completion.finish_reason == "stop"
    return (
        stopped
        and completion.generated is not None
        and completion.generated > len(completion.token_ids)
    )
