"""From stored completions to the estimators' data: examples, their completions and a reward become
``Rollouts``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np

from blackbox_lb.api.limits.concurrency import computing
from blackbox_lb.estimate.counting.distributed import ShardedDataset
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.rollouts.columns import LISTED, columns
from blackbox_lb.rollouts.reading import (
    BROKEN_OFF,
    UNLOCATED,
    WITH_SPANS,
    WITHOUT_SPANS,
    CompletionSource,
    Reading,
    costs_of,
    kept_completions,
    nothing_to_learn,
    reading_of,
)
from blackbox_lb.rollouts.scratch import Scratch
from blackbox_lb.tasks import Reward
from blackbox_lb.types import EndTokens, Example, broken_off_by_host

LISTS_IN_MEMORY = 1 << 28
"""Bytes of the table that stay in memory: 20 listed tokens at a million positions. The rest goes to
a scratch file.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """Scored rollouts without their lists, which are in ``next_token``, and counts of the
    completions left out.

    The lists are in memory or in a scratch file beside the store, which goes with the last
    ``NextToken`` that shares them.
    ``given``: they are the answers of the data, and no completions. ``incomplete``: the provider
    listed fewer tokens than it generated, or one without an id; ``filtered``: its content filter
    withheld text; ``broken_off``: finish reason -> those that the host broke off; ``cut``: the
    tokens of the stop text that ended it are counted and not listed; ``without_spans``: the reward
    gave none, and gave some for others; ``unlocated``: no token was found for a part of the reward.
    ``whole``: all rollouts, where an engine holds them; ``rollouts`` and ``next_token`` are then a
    sample of them, on the support of all.
    """

    rollouts: Rollouts
    next_token: NextToken
    incomplete: int
    filtered: int
    given: bool = False
    cut: int = 0
    whole: ShardedDataset | None = None
    without_spans: int = 0
    unlocated: int = 0
    broken_off: Mapping[str, int] = field(default_factory=dict)

    def leaving(self, count: Counter[str], reading: Reading) -> Training:
        """The same with the tally of all completions of ``reading``."""
        return replace(
            self,
            incomplete=count["incomplete"],
            filtered=count["filtered"],
            cut=count["cut"] if reading.end_tokens.stop_prefix_ids else 0,
            without_spans=count[WITHOUT_SPANS] if count[WITH_SPANS] else 0,
            unlocated=count[UNLOCATED],
            broken_off={
                category.removeprefix(BROKEN_OFF): number
                for category, number in count.items()
                if category.startswith(BROKEN_OFF)
            },
        )

    @property
    def everything(self) -> Rollouts:
        """All rollouts to learn from, wherever their lists are."""
        return self.rollouts if self.whole is None else self.whole.rollouts

    def seen(self, token_ids: Ids) -> Ids:
        """(k,) times each of ``token_ids`` was sampled."""
        sampled = self.everything.token_ids
        counts = np.bincount(sampled, minlength=1 + int(token_ids.max(initial=0)))
        return counts[token_ids].astype(np.int64)

    @property
    def left_out(self) -> list[str]:
        """A sentence for each reason why completions were left out."""
        reasons = (
            (
                self.incomplete,
                (
                    "the provider did not list all of their tokens (thoughts, say), or not with ids"
                    " (characters split over several)"
                ),
            ),
            (self.filtered, "the provider's content filter stopped them"),
            (sum(self.broken_off.values()), broken_off_by_host(self.broken_off)),
        )
        return [f"{count} completions are left out: {why}" for count, why in reasons if count]

    @property
    def notices(self) -> list[str]:
        """``left_out``, and a sentence on the completions that are learned from in part."""
        reasons = (
            (
                self.cut,
                (
                    "ended at a stop text whose tokens the provider does not list: nothing is"
                    " learned of stopping there"
                ),
            ),
            (
                self.without_spans,
                (
                    "have a reward without spans and others have spans, so that all of them are"
                    " weighed by their whole reward"
                ),
            ),
            (
                self.unlocated,
                (
                    "have a part of their reward on the last token, because the bytes of their"
                    " tokens do not add up to their text; give the vocabulary with ``tokenizer``"
                ),
            ),
        )
        return [
            *self.left_out,
            *(f"{count} completions {reason}" for count, reason in reasons if count),
        ]


class FitEngine(Protocol):
    """An engine that reads and sums more than this process can."""

    def whole(self, reading: Reading) -> tuple[ShardedDataset, Counter[str]]:
        """All rollouts of ``reading``, and the tally of the completions."""


def spread_training(
    engine: FitEngine, store: CompletionSource, reading: Reading, most: int, seed: int = 0
) -> Training:
    """``training_set`` of ``reading``, with all of it in the engine, and here a sample of about
    ``most`` positions.
    """
    dataset, count = engine.whole(reading)
    positions = dataset.positions.n_positions
    keys = list(dataset.rollouts.keys)
    if positions > most:
        chosen = np.random.default_rng(seed).random(len(keys)) < most / positions
        keys = [key for key, is_chosen in zip(keys, chosen.tolist(), strict=True) if is_chosen]
    sample = _gathered(store, reading.only(keys))
    table = sample.next_token.with_tokens(dataset.positions.token_ids)
    return replace(sample, next_token=table, whole=dataset).leaving(count, reading)


def training_set(
    store: CompletionSource,
    examples: Sequence[Example],
    keys: Sequence[Sequence[str]],
    reward: Reward,
    end_tokens: EndTokens = LISTED,
    *,
    vocab_size: int | None = None,
) -> Training:
    """Score the completions ``keys[p]`` of ``examples[p]``. A completion that two equal prompts
    share counts once.

    The store is read in blocks, so memory grows with the positions and not with the lists.
    vocab_size: lists of that many tokens are complete.

    Raises NoLogprobs: no completion has a complete list of tokens with alternatives.
    """
    reading = reading_of(store, examples, keys, reward, end_tokens, vocab_size=vocab_size)
    return _gathered(store, reading)


def _gathered(store: CompletionSource, reading: Reading) -> Training:
    """Gather all of ``reading`` in this process."""
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
    rollouts = Rollouts.join(parts)
    return Training(rollouts, next_token, 0, 0).leaving(count, reading)


def scored(
    store: CompletionSource,
    examples: Sequence[Example],
    keys: Sequence[Sequence[str]],
    reward: Reward,
    end_tokens: EndTokens = LISTED,
) -> tuple[Rollouts, Counter[str]]:
    """The completions ``keys[p]`` of ``examples[p]`` that list all of their tokens, scored, with
    their lists in memory.

    Also returns the number left out, ``incomplete`` or ``filtered``.

    Raises NoLogprobs: no completion has a complete list of tokens with alternatives.
    """
    owner = {key: p for p, row in enumerate(keys) for key in row}
    count: Counter[str] = Counter(incomplete=0, filtered=0)
    readable = dict(kept_completions(store, owner, count))
    if not any(completion.top_ids.size for completion in readable.values()):
        raise nothing_to_learn(len(owner), count["filtered"])
    prompts = [owner[key] for key in readable]
    completions = list(readable.values())
    with computing():
        measured = [
            reward.measure(examples[prompt], completion)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        token_bytes = partial(store.token_bytes_for, next(iter(owner)))
        costs = costs_of(completions, measured, reward, token_bytes, count)
    rewards = [located.reward for located in measured]
    return columns(readable, prompts, rewards, end_tokens, costs), count
