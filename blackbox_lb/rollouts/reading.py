"""The stored completions to learn from, read and scored in blocks, here or in another process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from blackbox_lb.api.limits.interrupts import computing
from blackbox_lb.errors import NoLogprobs
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.rollouts.columns import LISTED, columns, resolve_end_tokens, sampled_ids
from blackbox_lb.rollouts.position_costs import costs_of
from blackbox_lb.rollouts.scratch import Scratch
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward
from blackbox_lb.types import Completion, EndTokens, Example

BLOCK_BYTES = 1 << 23
"""Bytes of listed ids and logprobs read from the store at a time; turning them into a table takes
about eight times as much.
"""

KEPT_IN_MEMORY = 1 << 26
"""Bytes of the lists that ``ReadOnce`` keeps in memory. The rest goes to a scratch file."""

Encode: TypeAlias = Callable[[str], Sequence[int]]


class CompletionSource(Protocol):
    """A source of stored completions: a ``RolloutStore``, or ``ReadOnce`` over one."""

    @property
    def path(self) -> Path:
        """The file of the store; scratch files go beside it."""

    def again(self, keys: Collection[str]) -> Callable[[], RolloutStore]:
        """A function that opens the store again, in any process with access to its file."""

    def order(self, keys: Collection[str]) -> dict[str, Any]:
        """The keys in the cheapest order to read."""

    def completions(self, keys: Iterable[str]) -> Iterator[Completion]:
        """The completions with these keys, in this order."""

    def token_bytes_for(self, key: str) -> Mapping[int, bytes]:
        """The bytes of every token of the tokenizer of this completion, as far as they are
        stored.
        """


class ReadOnce:
    """A store and some of its completions, which are read once and then kept, their lists in memory
    or a scratch file.
    """

    def __init__(self, store: RolloutStore) -> None:
        self._store = store
        self._kept = dict[str, Completion]()
        self._scratch = Scratch(store.path.parent, KEPT_IN_MEMORY)
        self.path = store.path
        self.again = store.again
        self.order = store.order
        self.token_bytes_for = store.token_bytes_for

    def keep(self, keys: Iterable[str]) -> None:
        """Read the completions with these keys and keep them until ``let_go``."""
        new = [key for key in dict.fromkeys(keys) if key not in self._kept]
        for key, completion in zip(new, self._store.completions(new), strict=True):
            lists = self._copied(completion.top_ids), self._copied(completion.top_logprobs)
            self._kept[key] = replace(completion, top_ids=lists[0], top_logprobs=lists[1])

    def let_go(self) -> None:
        self._kept.clear()

    def completions(self, keys: Iterable[str]) -> Iterator[Completion]:
        """The completions with these keys, in this order, from the store where they are not
        kept.
        """
        keys = list(keys)
        others = self._store.completions(key for key in keys if key not in self._kept)
        for key in keys:
            if key in self._kept:
                yield self._kept[key]
            else:
                yield next(others)

    def _copied(self, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A copy of the table with the same memory order, so that sums over it agree to the last
        bit.
        """
        copy = self._scratch(table.size, table.dtype.type).reshape(
            table.shape, order="F" if table.flags.fnc else "C"
        )
        copy[:] = table
        return copy


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
    encode: Encode | None = None
    vocab_size: int | None = None

    def blocks(self, store: CompletionSource, count: Counter[str]) -> Iterator[Rollouts]:
        """The rollouts, scored, so many at a time; ``count`` receives the category of each
        completion.
        """
        token_bytes = cache(lambda: store.token_bytes_for(next(iter(self.owner))))
        for batch in _batches(kept_completions(store, self.owner, self.encode, count)):
            prompts = [self.owner[key] for key in batch]
            completions = list(batch.values())
            with computing():
                measured = [
                    self.reward.measure(self.examples[prompt], completion)
                    for prompt, completion in zip(prompts, completions, strict=True)
                ]
                costs = None
                if self.encode is None:  # such tokens have lists, which credit needs
                    costs = costs_of(completions, measured, self.reward, token_bytes, count)
            rewards = [located.reward for located in measured]
            yield columns(batch, prompts, rewards, self.end_tokens, costs)

    def nothing(self, count: Counter[str]) -> NoLogprobs:
        """The error where ``blocks``, after reporting to ``count``, hold no position."""
        return nothing_to_learn(len(self.owner), count["filtered"], self.encode)

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
    store: CompletionSource,
    examples: Sequence[Example],
    keys: Sequence[Sequence[str]],
    reward: Reward,
    end_tokens: EndTokens = LISTED,
    *,
    encode: Encode | None = None,
    vocab_size: int | None = None,
) -> Reading:
    """The reading of ``training_set`` from ``store``, in the cheapest order."""
    owner = {key: p for p, row in enumerate(keys) for key in row}
    owner = {key: owner[key] for key in store.order(owner)}
    if end_tokens.listed is None or end_tokens.stop_prefix_ids:
        end_tokens = resolve_end_tokens(
            end_tokens, sampled_ids(kept_completions(store, owner, encode, Counter()))
        )
    again = store.again(owner)
    return Reading(dict(enumerate(examples)), owner, reward, end_tokens, again, encode, vocab_size)


def _read(completion: Completion, encode: Encode | None) -> tuple[str, Completion]:
    """The category of a completion, and the completion to learn from."""
    if completion.filtered:
        return "filtered", completion
    if completion.text and not len(completion.token_ids):
        if encode is None:
            return "incomplete", completion
        return "encoded", _encoded(completion, encode)
    if not completion.whole:
        return "incomplete", completion
    return "listed", completion


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


def kept_completions(
    store: CompletionSource, keys: Collection[str], encode: Encode | None, count: Counter[str]
) -> Iterator[tuple[str, Completion]]:
    """The completions to learn from by key; ``count`` receives the category of each."""
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
            batch = {}
            size = 0
    if batch:
        yield batch


def nothing_to_learn(drawn: int, filtered: int, encode: Encode | None) -> NoLogprobs:
    remedy = ""
    if encode is None:
        remedy = ", take ``estimator=ratio`` with ``tokenizer``, which needs none"
    return NoLogprobs(
        f"none of {drawn} completions has a complete list of token logprobs ({filtered} were"
        f" stopped by a content filter); choose a model or server that gives them{remedy}, or other"
        " prompts; of a model that thinks, turn the thinking off"
    )


def _cut(completion: Completion) -> bool:
    """Whether a completion counts as whole although more tokens were generated than it lists."""
    stopped = completion.whole and completion.finish_reason == "stop"
    return (
        stopped
        and completion.generated is not None
        and completion.generated > len(completion.token_ids)
    )
