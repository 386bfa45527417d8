"""Positions: the data of an estimator, made of rollouts or read from a store, where examples, their
completions and a reward become ``Rollouts``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.distributed import Shards
from blackbox_lb.estimate.counting.statistics import BLOCK_POSITIONS, Recipe, Statistics
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.rollouts.columns import LISTED
from blackbox_lb.rollouts.reading import (
    BROKEN_OFF,
    CUT,
    END_UNKNOWN,
    FILTERED,
    INCOMPLETE,
    UNLOCATED,
    WITH_SPANS,
    WITHOUT_SPANS,
    Reading,
    reading_of,
)
from blackbox_lb.rollouts.scratch import Scratch
from blackbox_lb.rollouts.stored import keys_by_prompt, lists_end_tokens
from blackbox_lb.safety.printable import printable
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.types import EndTokens, Example, broken_off_by_host

LISTS_IN_MEMORY = 1 << 28
"""Bytes of the table that stay in memory: 20 listed tokens at a million positions. The rest goes to
a scratch file.
"""
SAMPLE = 2_000_000
"""Positions of an engine's rollouts that are also read here, to compile and explain the bias: half
a gigabyte of lists.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Scored completions, and the model's next tokens at each of their positions.

    The lists are in ``next_token`` alone, in memory or in a scratch file beside the store, which
    goes with the last ``NextToken`` that shares them.

    Attributes:
        rollouts: the completions with their rewards.
        next_token: of the same positions, in their order.
        everywhere: all that is learned from, where an engine holds it; ``rollouts`` and
            ``next_token`` are then a sample, on the support of all. None where they are all.
        tally: the number of completions of each kind, also of those left out; empty where none were
            read from a store.
    """

    rollouts: Rollouts
    next_token: NextToken
    everywhere: Shards | None = None
    tally: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, rollouts: Rollouts, *, vocab_size: int | None = None) -> Positions:
        """From rollouts that have their lists, which go into ``next_token``. vocab_size: lists of
        that many tokens are complete.

        Raises:
            InputError: no position, or a list that is no distribution.
        """
        return cls(rollouts.without_lists(), NextToken.of(rollouts, vocab_size=vocab_size))

    @classmethod
    def load(
        cls,
        path: Path | str,
        task: Task,
        reward: Reward,
        *,
        end_tokens: EndTokens | None = None,
        vocab_size: int | None = None,
    ) -> Positions:
        """From a store: the base model's completions of the task's training prompts, scored.

        Args:
            path: of a store, such as ``runs/x/rollouts.db``. It is only read.
            task: its training prompts are looked for, word for word.
            reward: of a completion.
            end_tokens: how the provider lists end tokens; None where its profile says that it lists
                them.
            vocab_size: lists of that many tokens are complete.

        Raises:
            InputError: the store holds no such completion, or it is not known whether the provider
            lists end tokens. NoLogprobs: none lists its tokens with alternatives. StoreError: it
            cannot be read.
        """
        with RolloutStore(path, read_only=True) as store:
            requests = {
                name: settings
                for name, settings in store.requests().items()
                if _drawn_from_base(settings)
            }
            by_prompt = keys_by_prompt(store, requests)
            keys = [by_prompt.get(example.prompt, []) for example in task.train]
            if not any(keys):
                raise InputError(
                    f"{store.path} holds no completion of the {len(task.train)} training prompts of"
                    f" {task.name} without a bias, at temperature 1 and without stop texts; give"
                    " the task that was collected"
                )
            if end_tokens is None:
                end_tokens = _listed_ends(requests)
            return training_set(store, task.train, keys, reward, end_tokens, vocab_size=vocab_size)

    @property
    def learned_from(self) -> Rollouts:
        """All rollouts to learn from, wherever their lists are."""
        if self.everywhere is None:
            return self.rollouts
        return self.everywhere.rollouts

    def with_tokens(self, token_ids: Ids) -> Positions:
        """The same with ``token_ids`` on the support of ``next_token``."""
        return replace(self, next_token=self.next_token.with_tokens(token_ids))

    def statistics(self, recipe: Recipe) -> Statistics:
        """The sums of the counting estimator over the completions."""
        return Statistics.gather(self.rollouts.blocks(BLOCK_POSITIONS), recipe)

    def seen(self, token_ids: Ids) -> Ids:
        """(k,) times each of ``token_ids`` was sampled."""
        sampled = self.learned_from.token_ids
        counts = np.bincount(sampled, minlength=1 + int(token_ids.max(initial=0)))
        return counts[token_ids].astype(np.int64)

    def _by_name(self, kind: str) -> dict[str, int]:
        """The numbers of the tally whose kind begins so, by what follows."""
        return {
            name.removeprefix(kind): number
            for name, number in self.tally.items()
            if name.startswith(kind)
        }

    @property
    def left_out(self) -> list[str]:
        """A sentence for each reason why completions were left out."""
        broken_off = self._by_name(BROKEN_OFF)
        reasons = (
            *(
                (
                    number,
                    (
                        f"it is not known whether {printable(provider)} lists the token that ends"
                        " one; ``tokenizer`` with the model's vocabulary lets them in"
                    ),
                )
                for provider, number in self._by_name(END_UNKNOWN).items()
            ),
            (
                self.tally[INCOMPLETE],
                (
                    "the provider did not list all of their tokens (thoughts, say), or not with ids"
                    " (characters split over several)"
                ),
            ),
            (self.tally[FILTERED], "the provider's content filter stopped them"),
            (sum(broken_off.values()), broken_off_by_host(broken_off)),
        )
        return [f"{count} completions are left out: {why}" for count, why in reasons if count]

    @property
    def notices(self) -> list[str]:
        """``left_out``, and sentences on the completions that are learned from in part and on lists
        that are no distribution.
        """
        sentences = {
            CUT: "ended at a stop text whose tokens the provider does not list: nothing is"
            " learned of stopping there",
            WITHOUT_SPANS: "have a reward without spans and others have spans, so that all of them"
            " are weighed by their whole reward",
            UNLOCATED: "have a part of their reward on the last token, because the bytes of their"
            " tokens do not add up to their text; give the vocabulary with ``tokenizer``",
        }
        if not self.tally[WITH_SPANS]:
            del sentences[WITHOUT_SPANS]
        overfull = []
        if self.next_token.overfull:
            overfull = [
                f"{self.next_token.overfull} of {self.next_token.n_positions} lists have"
                " probabilities that sum to more than 1, as where a provider rounds its logprobs:"
                " they are scaled to 1"
            ]
        return [
            *self.left_out,
            *(
                f"{self.tally[kind]} completions {sentence}"
                for kind, sentence in sentences.items()
                if self.tally[kind]
            ),
            *overfull,
        ]


class FitEngine(Protocol):
    """An engine that reads and sums more than this process can."""

    def whole(self, reading: Reading) -> tuple[Shards, Counter[str]]:
        """All rollouts of ``reading``, and the tally of the completions."""


def spread_training(
    engine: FitEngine, store: RolloutStore, reading: Reading, most: int
) -> Positions:
    """``training_set`` of ``reading``, with all of it in the engine, and here a sample of about
    ``most`` positions.
    """
    everywhere, tally = engine.whole(reading)
    keys = list(everywhere.rollouts.keys)
    if everywhere.n_positions > most:
        share = most / everywhere.n_positions
        chosen = np.random.default_rng(0).random(len(keys)) < share
        keys = [key for key, is_chosen in zip(keys, chosen.tolist(), strict=True) if is_chosen]
    sample = _gathered(store, reading.only(keys))
    sample = sample.with_tokens(everywhere.token_ids)
    return replace(sample, everywhere=everywhere, tally=tally)


def training_set(
    store: RolloutStore,
    examples: Sequence[Example],
    keys: Sequence[Sequence[str]],
    reward: Reward,
    end_tokens: EndTokens = LISTED,
    *,
    vocab_size: int | None = None,
    engine: FitEngine | None = None,
) -> Positions:
    """Score the completions ``keys[p]`` of ``examples[p]``. A completion that two equal prompts
    share counts once.

    The store is read in blocks, so memory grows with the positions and not with the lists.
    vocab_size: lists of that many tokens are complete. engine: reads and holds them; about
    ``SAMPLE`` positions are then read here, too.

    Raises NoLogprobs: no completion has a complete list of tokens with alternatives.
    """
    reading = reading_of(store, examples, keys, reward, end_tokens, vocab_size=vocab_size)
    if engine is not None:
        return spread_training(engine, store, reading, SAMPLE)
    return _gathered(store, reading)


def _gathered(store: RolloutStore, reading: Reading) -> Positions:
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
    return Positions(Rollouts.join(parts), next_token, tally=count)


def scored(
    store: RolloutStore,
    examples: Sequence[Example],
    keys: Sequence[Sequence[str]],
    reward: Reward,
    end_tokens: EndTokens = LISTED,
    *,
    lists: bool = True,
) -> tuple[Rollouts, Counter[str]]:
    """The completions ``keys[p]`` of ``examples[p]`` that list all of their tokens, scored.

    lists: whether they have their lists, in memory, or the sampled tokens alone. Also returns the
    number left out, ``incomplete`` or ``filtered``.

    Raises NoLogprobs: no completion has a complete list of tokens with alternatives.
    """
    reading = reading_of(store, examples, keys, reward, end_tokens)
    count: Counter[str] = Counter()
    parts = [block if lists else block.without_lists() for block in reading.blocks(store, count)]
    if not any(part.token_ids.size for part in parts):
        raise reading.nothing(count)
    return Rollouts.join(parts), count


def _drawn_from_base(settings: Mapping[str, Any]) -> bool:
    sampling = settings.get("sampling") or {}
    return (
        not settings.get("bias")
        and "prefix" not in settings
        and sampling.get("temperature") == 1
        and not sampling.get("stop")
    )


def _listed_ends(requests: Mapping[str, Mapping[str, Any]]) -> EndTokens:
    """End tokens that are listed. InputError: a provider is not known to list them."""
    names = sorted({str(settings.get("provider")) for settings in requests.values()})
    silent = [name for name in names if lists_end_tokens(name) is not True]
    if silent:
        raise InputError(
            f"{', '.join(silent)} is not known to list the token that ends a completion, so its id"
            " must be known to leave it alone: give end_tokens=EndTokens(False, the ids of the"
            " special tokens), or EndTokens(True) where it is listed"
        )
    return EndTokens(True)
