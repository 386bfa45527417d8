"""From stored completions to what estimators read: examples, their completions and a reward become ``Rollouts``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from blackbox_lb.bias import Censored
from blackbox_lb.errors import NoLogprobs
from blackbox_lb.estimate.checks import Ids
from blackbox_lb.estimate.diagnostics import Censoring
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.rollouts import Rollouts, padded
from blackbox_lb.estimate.shares import Whole
from blackbox_lb.estimate.statistics import Unobserved
from blackbox_lb.scratch import Scratch
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward
from blackbox_lb.types import NO_TOKEN, UNNAMED, BoolArray, Completion, EndTokens, Example, FloatArray

__all__ = [
    "Engine",
    "Reading",
    "Training",
    "censored",
    "columns",
    "openers",
    "reading_of",
    "scored",
    "spread_training",
    "training_set",
]

LISTED = EndTokens()


BLOCK_BYTES = 1 << 23
"""Of listed ids and logprobs that are read from the store at a time; turning them into a table takes about eight times as much."""
LISTS_IN_MEMORY = 1 << 28
"""Bytes of the table that stay in memory: 20 listed tokens at a million positions. What is more goes to a scratch file."""

Encode: TypeAlias = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """Scored rollouts without their lists, which are in ``next_token``, and how many completions were left out.

    The lists are in memory or in a scratch file beside the store, which goes with the last ``NextToken`` that shares them.
    ``base``: (n,) which of them the base model drew, None for all. ``incomplete``: the provider listed fewer tokens than it
    generated, or one without an id; ``filtered``: its content filter kept text back; ``encoded``: it listed no token, and those of
    the text were taken; ``cut``: the tokens of the stop text that ended it are counted and not listed.
    ``whole``: all rollouts, where an engine holds them; ``rollouts`` and ``next_token`` are then a sample of them, on the support
    of all.
    """

    rollouts: Rollouts
    next_token: NextToken
    incomplete: int
    filtered: int
    encoded: int = 0
    base: BoolArray | None = None
    cut: int = 0
    whole: Whole | None = None

    def leaving(self, count: Counter[str], reading: Reading) -> Training:
        """With what became of all completions of ``reading``."""
        return replace(
            self,
            incomplete=count["incomplete"],
            filtered=count["filtered"],
            encoded=count["encoded"],
            cut=count["cut"] if reading.end_tokens.openers else 0,
        )

    @property
    def everything(self) -> Rollouts:
        """All rollouts that are learned from, wherever their lists are."""
        return self.rollouts if self.whole is None else self.whole.rollouts

    def seen(self, token_ids: Ids) -> Ids:
        """(k,) how often each of ``token_ids`` was sampled."""
        sampled = self.everything.token_ids
        counts = np.bincount(sampled, minlength=1 + int(token_ids.max(initial=0)))
        return counts[token_ids].astype(np.int64)

    @property
    def left_out(self) -> list[str]:
        """A sentence for each reason why completions were left out."""
        reasons = (
            (
                self.incomplete,
                "the provider did not list all of their tokens, or not with ids (as of characters split over several)",
            ),
            (self.filtered, "the provider's content filter stopped them"),
        )
        return [f"{count} completions are left out: {why}" for count, why in reasons if count]

    @property
    def remarks(self) -> list[str]:
        """``left_out``, and a sentence on the completions whose tokens are not the provider's own list."""
        reasons = (
            (
                self.encoded,
                "came without token logprobs: their tokens are those of the text under the vocabulary, the end token not among "
                "them",
            ),
            (
                self.cut,
                "ended at a stop text whose tokens the provider does not list: nothing is learned of stopping there",
            ),
        )
        return [*self.left_out, *(f"{count} completions {what}" for count, what in reasons if count)]


class Engine(Protocol):
    """Who reads and sums what is too much for this process."""

    def whole(self, reading: Reading) -> tuple[Whole, Counter[str]]:
        """All rollouts of ``reading``, and what became of the completions."""


def spread_training(engine: Engine, store: RolloutStore, reading: Reading, most: int, seed: int = 0) -> Training:
    """``training_set`` of what ``reading`` names, with all of it in the engine, and here a sample of about ``most`` positions."""
    whole, count = engine.whole(reading)
    positions, keys = whole.positions.n_positions, list(whole.rollouts.keys)
    if positions > most:
        chosen = np.random.default_rng(seed).random(len(keys)) < most / positions
        keys = [key for key, taken in zip(keys, chosen.tolist(), strict=True) if taken]
    sample = _gathered(store, reading.only(keys))
    table = sample.next_token.with_tokens(whole.positions.token_ids)
    return replace(sample, next_token=table, whole=whole).leaving(count, reading)


def training_set(
    store: RolloutStore,
    examples: Sequence[Example],
    keys: Sequence[Sequence[str]],
    reward: Reward,
    end_tokens: EndTokens = LISTED,
    *,
    encode: Encode | None = None,
    vocab_size: int | None = None,
) -> Training:
    """Score the completions ``keys[p]`` of ``examples[p]``. A completion that two equal prompts share counts once.

    The store is read in blocks, so that memory grows with the positions and not with what is listed at each.
    encode: the ids of a text in the vocabulary, for completions that came without any token; their positions have no list, and
    logprobs 0 that are bounds. Without it they are left out. vocab_size: lists of that many tokens are complete.

    Raises:
        NoLogprobs: no completion has a complete list of tokens with alternatives.
    """
    return _gathered(store, reading_of(store, examples, keys, reward, end_tokens, encode=encode, vocab_size=vocab_size))


def _gathered(store: RolloutStore, reading: Reading) -> Training:
    """All that ``reading`` names, in this process."""
    count: Counter[str] = Counter()
    parts: list[Rollouts] = []

    def blocks() -> Iterator[Rollouts]:
        for block in reading.blocks(store, count):
            parts.append(block.without_lists())
            yield block
        if not any(part.token_ids.size for part in parts):
            raise reading.nothing(count)

    scratch = Scratch(store.path.parent, LISTS_IN_MEMORY)
    next_token = NextToken.gather(blocks(), vocab_size=reading.vocab_size, allocate=scratch)
    return Training(Rollouts.join(parts), next_token, 0, 0).leaving(count, reading)


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Which stored completions are learned from, and as what; it can be sent to whatever process reaches the same files.

    owner: key -> number of its example, in the order of reading. open: opens the store that holds them.
    """

    examples: Mapping[int, Example]
    owner: Mapping[str, int]
    reward: Reward
    end_tokens: EndTokens
    open: Callable[[], RolloutStore]
    encode: Encode | None = None
    vocab_size: int | None = None

    def blocks(self, store: RolloutStore, count: Counter[str]) -> Iterator[Rollouts]:
        """The rollouts, scored, so many at a time; ``count`` is told what became of the completions."""
        for batch in _batches(_kept(store, self.owner, self.encode, count)):
            prompts = [self.owner[key] for key in batch]
            scored_as = zip(prompts, batch.values(), strict=True)
            rewards = [self.reward.score(self.examples[p], each) for p, each in scored_as]
            yield columns(batch, prompts, rewards, self.end_tokens)

    def nothing(self, count: Counter[str]) -> NoLogprobs:
        """The error where ``blocks``, which told ``count``, hold no position."""
        return _nothing(len(self.owner), count["filtered"], self.encode)

    def parts(self, count: int) -> list[Reading]:
        """Up to ``count`` parts of about as many completions each, in order."""
        keys, size = list(self.owner), max(1, math.ceil(len(self.owner) / count))
        return [self.only(keys[start : start + size]) for start in range(0, len(keys), size)]

    def only(self, keys: Sequence[str]) -> Reading:
        """The same of these completions alone, in this order."""
        owner = {key: self.owner[key] for key in keys}
        return replace(self, owner=owner, examples={p: self.examples[p] for p in set(owner.values())})


def reading_of(
    store: RolloutStore,
    examples: Sequence[Example],
    keys: Sequence[Sequence[str]],
    reward: Reward,
    end_tokens: EndTokens = LISTED,
    *,
    encode: Encode | None = None,
    vocab_size: int | None = None,
) -> Reading:
    """What ``training_set`` reads of ``store``, in the order in which that costs least."""
    owner = {key: p for p, row in enumerate(keys) for key in row}
    owner = {key: owner[key] for key in store.order(owner)}
    if end_tokens.listed is None or end_tokens.openers:
        end_tokens = _settled(end_tokens, _sampled(_kept(store, owner, encode, Counter())))
    again = store.again(owner)
    return Reading(dict(enumerate(examples)), owner, reward, end_tokens, again, encode, vocab_size)


def _read(completion: Completion, encode: Encode | None) -> tuple[str, Completion]:
    """What becomes of a completion, and the completion to learn from."""
    if completion.filtered:
        return "filtered", completion
    if completion.text and not len(completion.token_ids):
        return ("incomplete", completion) if encode is None else ("encoded", _encoded(completion, encode))
    return "listed" if completion.whole else "incomplete", completion


def _encoded(completion: Completion, encode: Encode) -> Completion:
    ids = np.array(encode(completion.text), dtype=np.int32)
    table = np.zeros((len(ids), 0))
    return replace(
        completion,
        token_ids=ids,
        logprobs=np.zeros(len(ids), dtype=np.float32),
        top_ids=table.astype(np.int32),
        top_logprobs=table.astype(np.float32),
        whole=True,
        propensities=None,
        bounded=np.ones(len(ids), dtype=np.bool_),
    )


def _kept(
    store: RolloutStore, keys: Collection[str], encode: Encode | None, count: Counter[str]
) -> Iterator[tuple[str, Completion]]:
    """The completions to learn from by key; ``count`` is told what became of all."""
    for key, completion in zip(keys, store.completions(keys), strict=True):
        what, read = _read(completion, encode)
        count[what] += 1
        count["cut"] += _cut(completion)
        if what in ("listed", "encoded"):
            yield key, read


def _batches(kept: Iterable[tuple[str, Completion]]) -> Iterator[dict[str, Completion]]:
    batch: dict[str, Completion] = {}
    size = 0
    for key, completion in kept:
        batch[key] = completion
        size += completion.top_ids.nbytes + completion.top_logprobs.nbytes
        if size >= BLOCK_BYTES:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def _nothing(drawn: int, filtered: int, encode: Encode | None) -> NoLogprobs:
    remedy = "" if encode is not None else ", take --estimator ratio with --tokenizer, which needs none"
    return NoLogprobs(
        f"none of {drawn} completions has a complete list of token logprobs ({filtered} were stopped by a content filter); choose "
        f"a model or server that gives them{remedy}, or other prompts"
    )


def scored(
    store: RolloutStore,
    examples: Sequence[Example],
    keys: Sequence[Sequence[str]],
    reward: Reward,
    end_tokens: EndTokens = LISTED,
) -> tuple[Rollouts, Counter[str]]:
    """The completions ``keys[p]`` of ``examples[p]`` that list all of their tokens, scored, with their lists in memory.

    And how many were left out, ``incomplete`` or ``filtered``.

    Raises:
        NoLogprobs: no completion has a complete list of tokens with alternatives.
    """
    owner = {key: p for p, row in enumerate(keys) for key in row}
    count: Counter[str] = Counter(incomplete=0, filtered=0)
    kept = dict(_kept(store, owner, None, count))
    if not any(each.top_ids.size for each in kept.values()):
        raise _nothing(len(owner), count["filtered"], None)
    prompts = [owner[key] for key in kept]
    rewards = [reward.score(examples[p], each) for p, each in zip(prompts, kept.values(), strict=True)]
    return columns(kept, prompts, rewards, end_tokens), count


def columns(
    completions: dict[str, Completion],
    prompts: Sequence[int],
    rewards: Sequence[float],
    end_tokens: EndTokens = LISTED,
) -> Rollouts:
    """Completions by key, with the number of the prompt and the reward in nats of each, laid end to end.

    The logprob of a sampled token is the one of the policy that sampled it, where the provider tells it apart. End tokens, and
    tokens that begin a stop text, that stand among the alternatives and never among the sampled tokens lose their ids: nothing can
    be learned of them, and a fit that saw them predicted and never drawn would take them for forbidden.
    """
    each = list(completions.values())
    width = max((completion.top_ids.shape[1] for completion in each), default=0)
    return Rollouts(
        keys=tuple(completions),
        prompts=np.array(prompts, dtype=np.int64),
        rewards=np.array(rewards, dtype=np.float64),
        lengths=np.array([len(completion.token_ids) for completion in each], dtype=np.int64),
        token_ids=np.concatenate([completion.token_ids for completion in each]),
        logprobs=np.concatenate([_propensities(completion) for completion in each]),
        top_ids=_without(
            _stacked([completion.top_ids for completion in each], width, NO_TOKEN),
            _hidden(completions.items(), end_tokens),
        ),
        top_logprobs=_stacked([completion.top_logprobs for completion in each], width, -np.inf),
        bounded=np.concatenate([_bounded(completion) for completion in each]),
    )


def censored(rollouts: Rollouts, next_token: NextToken, unobserved: Unobserved | None = None) -> Censored:
    """What the provider kept back of these rollouts, as the bias file records it; ``unobserved`` is the rule of ``ips``."""
    return Censored(**asdict(Censoring.of(rollouts, next_token)), unobserved=unobserved)


def _stacked(tables: Sequence[npt.NDArray[Any]], width: int, fill: float) -> npt.NDArray[Any]:
    """One below the other, ``width`` columns of each, the last ones ``fill`` where it has fewer."""
    return np.concatenate([each if each.shape[1] == width else padded(each, width, fill) for each in tables])


def _propensities(completion: Completion) -> FloatArray:
    return completion.logprobs if completion.propensities is None else completion.propensities


def _bounded(completion: Completion) -> BoolArray:
    return np.zeros(len(completion.token_ids), dtype=np.bool_) if completion.bounded is None else completion.bounded


def openers(known: Mapping[int, bytes], stop: Sequence[str]) -> frozenset[int]:
    """The tokens of ``known`` (id -> bytes) that a stop text may begin in: they hold it, or end with a part that it begins with."""
    texts = [text.encode() for text in stop]
    return frozenset(token for token, raw in known.items() if any(_opens(raw, text) for text in texts))


def _opens(raw: bytes, text: bytes) -> bool:
    return text in raw or any(raw.endswith(text[:size]) for size in range(1, min(len(raw), len(text)) + 1))


def _sampled(completions: Iterable[tuple[str, Completion]]) -> frozenset[int]:
    """Every token id that was sampled."""
    seen: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
    for _, completion in completions:
        seen = np.union1d(seen, completion.token_ids)
    return frozenset(seen.tolist())


def _settled(end_tokens: EndTokens, sampled: frozenset[int]) -> EndTokens:
    """With what the ``sampled`` ids tell: whether end tokens are listed, and which openers are never sampled."""
    listed = end_tokens.listed
    if listed is None:
        listed = not end_tokens.ids.isdisjoint(sampled)
    return replace(end_tokens, listed=listed, openers=end_tokens.openers - sampled)


def _hidden(completions: Iterable[tuple[str, Completion]], end_tokens: EndTokens) -> frozenset[int]:
    """The ids that a completion may end with and never lists."""
    if end_tokens.listed and not end_tokens.openers:
        return frozenset()
    settled = _settled(end_tokens, _sampled(completions))
    return settled.openers if settled.listed else settled.openers | settled.ids


def _cut(completion: Completion) -> bool:
    """Whether it counts as whole although more tokens were generated than it lists."""
    stopped = completion.whole and completion.finish_reason == "stop"
    return stopped and completion.generated is not None and completion.generated > len(completion.token_ids)


def _without(ids: npt.NDArray[np.int32], hidden: frozenset[int]) -> npt.NDArray[np.int32]:
    return np.where(np.isin(ids, list(hidden)), UNNAMED, ids).astype(np.int32) if hidden else ids
