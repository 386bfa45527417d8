"""Trials on an exact model in this process: no server, no store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np

from blackbox_lb.api.draw import Draw
from blackbox_lb.bias.records import Verdict
from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias
from blackbox_lb.jobs.fitting.scored_policies import BASE, BIASED, score_policies, verdict_of
from blackbox_lb.rollouts.judging.trials import StagePart, Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.rewards.forms.function import of_function
from blackbox_lb.types import Completion, EndTokens, Example
from tests.support.exact import ExactModel

T = TypeVar("T")
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", *(f"t{number}" for number in range(26, 400))]
"""The text of each token."""


class SimulatedTrials:
    """Completions of ``model`` are drawn once and kept by key, as in a store.

    The id of an example is the number of its prompt.
    """

    draw, collect, scores_of_all, scored, kl = (
        Trials.draw,
        Trials.collect,
        Trials.scores_of_all,
        Trials.scored,
        Trials.kl,
    )
    top_logprobs, seed, stop = 0, None, ()
    session = SimpleNamespace(
        endpoint="chat",
        biased_endpoint="chat",
        end_tokens=EndTokens(True),
        tells_base_logprobs=False,
        profile=SimpleNamespace(name="simulated"),
    )
    report = Silent()
    may_cut_stops = False
    end_tokens = EndTokens(True)

    def __init__(self, model: ExactModel, reward: Reward, seed: int) -> None:
        self.model = model
        self.reward = reward
        self.store = self
        self._rng = np.random.default_rng(seed)
        self._drawn: dict[str, Completion] = {}

    @property
    def drawn(self) -> int:
        """Completions so far."""
        return len(self._drawn)

    async def collect_all(
        self, title: str, parts: Sequence[StagePart], **more: Any
    ) -> list[tuple[tuple[str, ...], ...]]:
        """As ``Trials.collect_all``: only what is missing is drawn."""
        del title, more
        return [self._keys(part.examples, part.draw, part.samples) for part in parts]

    def _keys(
        self, examples: Sequence[Example], draw: Draw, samples: int
    ) -> tuple[tuple[str, ...], ...]:
        bias = draw.bias.common
        temperature = draw.sampling.temperature
        policy = f"{temperature:g}/{sorted(bias.items())}"
        keys = tuple(
            tuple(f"{policy}/{example.id}/{number}" for number in range(samples))
            for example in examples
        )
        missing = [
            (key, int(example.id))
            for example, row in zip(examples, keys, strict=True)
            for key in row
            if key not in self._drawn
        ]
        if missing:
            delta = np.zeros(self.model.vocab_size)
            delta[list(bias)] = list(bias.values())
            prompts = np.array([prompt for _, prompt in missing])
            tokens = self.model.sample(len(missing), self._rng, delta, temperature, prompts=prompts)
            tables = np.zeros((*tokens.shape, 0), np.float32)
            if not bias:
                tables = self._listed(tokens, prompts)
            lengths = (tokens >= 0).sum(axis=1).tolist()
            for (key, _), row, table, length in zip(missing, tokens, tables, lengths, strict=True):
                serial = int(self._rng.integers(2**62))
                self._drawn[key] = _completion(row[:length], table[:length], serial)
        return keys

    def _listed(self, tokens: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        """(n, t, v) logprobs at each position; those behind an end are not read."""
        tables = np.zeros((*tokens.shape, self.model.vocab_size), np.float32)
        for t in range(tokens.shape[1]):
            running = np.flatnonzero(tokens[:, t] >= 0)
            tables[running, t] = self.model.next_logprobs(tokens[running, :t], prompts[running])
        return tables

    def completions(self, keys: Iterable[str]) -> Iterator[Completion]:
        """The completions with these keys."""
        return (self._drawn[key] for key in keys)

    def by_prompt(self, keys: Iterable[Iterable[str]]) -> Iterator[list[Completion]]:
        """The completions of each row of keys."""
        return (list(self.completions(row)) for row in keys)


def _completion(tokens: np.ndarray, table: np.ndarray, serial: int) -> Completion:
    """A completion whose text is its tokens as letters and a serial number; only those of the base
    list their logprobs.
    """
    return Completion(
        text=" ".join(LETTERS[token] for token in tokens.tolist()) + f" {serial}",
        finish_reason="stop",
        token_ids=tokens.astype(np.int32),
        logprobs=np.zeros(len(tokens), np.float32),
        top_ids=np.broadcast_to(np.arange(table.shape[1], dtype=np.int32), table.shape),
        top_logprobs=table,
    )


def reward_of(function: Any, max_tokens: int = 4) -> Reward:
    """A reward on the linear scale by this function; examples have no answers, so accuracy is not
    known.
    """
    return replace(of_function(function, "own", "own"), max_tokens=max_tokens)


def run_silently(work: Coroutine[Any, Any, T]) -> T:
    """What ``asyncio.run`` returns. That makes a text of the result of its task, and a table of
    candidates or completions takes long to print.
    """
    found: list[T] = []

    async def keep() -> None:
        found.append(await work)

    asyncio.run(keep())
    return found[0]


def judged_at_one(
    trials: SimulatedTrials, examples: Sequence[Example], samples: int, bias: Mapping[int, float]
) -> list[Verdict]:
    """The verdict on fresh completions at temperature 1, with ``bias`` and without."""
    policies = {BASE: NO_BIAS, BIASED: RequestBias(bias)}
    tests = run_silently(
        score_policies(cast(Trials, trials), examples, [SAMPLED], samples, policies)
    )
    return verdict_of(tests, trials.reward.label)
