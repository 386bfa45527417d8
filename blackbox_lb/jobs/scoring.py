"""Rewards of stored completions, recomputed without sampling again: collect once, score with any
reward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.errors import InputError
from blackbox_lb.literals import Split
from blackbox_lb.rollouts.judging.trials import checked_scores
from blackbox_lb.rollouts.judging.verdict import PolicyScores, bootstrap, paired
from blackbox_lb.rollouts.progress import Reporter
from blackbox_lb.rollouts.remote_rewards import fetch_rewards
from blackbox_lb.rollouts.stored import keys_by_prompt, settings_by_request
from blackbox_lb.store import RolloutStore, canonical
from blackbox_lb.tasks import Reward, Score, Task
from blackbox_lb.tasks.sets.task import SPLITS
from blackbox_lb.types import Completion, Example

Settings: TypeAlias = Mapping[str, Any]
"""The settings of a request without the prompt, as in the store."""


@dataclass(frozen=True, slots=True)
class RewardMean:
    """A mean over ``prompts`` prompts of the means of their completions, or of their paired
    differences, with its 95 % bootstrap interval over prompts, not adjusted for multiple
    comparisons.
    """

    mean: float
    low: float
    high: float
    prompts: int

    @classmethod
    def of(cls, values: npt.NDArray[np.float64]) -> RewardMean:
        """``values`` (n,): one a prompt."""
        interval = bootstrap(values)
        return cls(float(values.mean()), interval.low, interval.high, len(values))


@dataclass(frozen=True, slots=True)
class ScoredCompletion:
    """One completion and its ``score``, and ``value`` in the user's own unit; both None where there
    was nothing to score.
    """

    split: Split
    example: str
    key: str
    completion: Completion
    score: Score | None
    value: float | None
    correct: bool | None


@dataclass(frozen=True, slots=True)
class Group:
    """The completions of one split and one way of drawing: ``request`` is the hash of ``settings``.

    ``examples``: of the split; those in ``scored`` have completions, with ``scores`` in that order.
    """

    split: Split
    request: str
    settings: Settings
    reward: Reward
    examples: int
    scored: tuple[str, ...]
    scores: PolicyScores

    @property
    def biased(self) -> bool:
        return bool(self.settings["bias"])

    @property
    def entries(self) -> int | None:
        """Of the bias; None where the store has its hash alone, as of one that depends on the
        prompt or keeps phrases out.
        """
        bias = self.settings["bias"]
        return len(bias) if isinstance(bias, list) else None

    @property
    def completions(self) -> int:
        """The number of completions with a reward."""
        return sum(row.size for row in self.scores.reward)

    @property
    def mean_reward(self) -> RewardMean:
        """The mean reward in the user's own unit."""
        return RewardMean.of(np.array([row.mean() for row in self.scores.reward if row.size]))

    @property
    def accuracy(self) -> float | None:
        """Mean over prompts; None where an example has no answer."""
        if self.scores.correct is None:
            return None
        return _mean(self.scores.correct)

    @property
    def tokens(self) -> float:
        """Mean length over prompts, in tokens."""
        return _mean(self.scores.tokens)

    def difference(self, base: Group) -> RewardMean | None:
        """The difference to a group of the same split; None where no prompt is in both."""
        rows, base_rows = (
            dict(zip(rewards.scored, rewards.scores.reward, strict=True))
            for rewards in (self, base)
        )
        shared = [
            name
            for name in self.scored
            if name in base_rows and rows[name].size and base_rows[name].size
        ]
        if not shared:
            return None
        _, _, differences = paired(
            [base_rows[name] for name in shared], [rows[name] for name in shared]
        )
        return RewardMean.of(differences)


def _mean(rows: Sequence[npt.NDArray[np.float64]]) -> float:
    return float(np.mean([row.mean() for row in rows if row.size]))


async def rescore(
    store: RolloutStore,
    task: Task,
    reward: Reward,
    report: Reporter,
    *,
    max_tokens: int | None,
    splits: Sequence[Split],
    keep: Callable[[Settings], bool],
    watch: Callable[[ScoredCompletion], None],
    budget: SpendLimit,
) -> list[Group]:
    """The stored completions of the task's prompts, scored: a group for each split and request;
    base before biased.

    ``max_tokens`` is T of the reward, None for the limit of each request. ``keep`` chooses requests
    by their settings. ``watch`` gets every completion. Nothing is sampled; only a remote reward
    sends requests, a judge within ``budget``.

    Raises InputError: no stored completion is of a prompt of the task, or a reward is not finite.
    Interrupted: a signal ended the scoring.
    """
    groups: list[Group] = []
    requests = settings_by_request(store)
    foreign = 0
    task_prompts = {example.prompt for split in SPLITS for example in task.split(split)}
    if task.note:
        report.notice(task.note)

    def order(settings: Settings) -> tuple[bool, float, int, str]:
        """Base first, then by temperature, then the bias with the most entries."""
        return (
            bool(settings["bias"]),
            -settings["sampling"]["temperature"],
            -len(settings["bias"]),
            canonical(settings),
        )

    for request, settings in sorted(requests.items(), key=lambda pair: order(pair[1])):
        if "prefix" in settings or not keep(
            settings
        ):  # a continuation of a given beginning is no answer of its own
            continue
        stored = keys_by_prompt(store, [request])
        foreign += sum(len(keys) for prompt, keys in stored.items() if prompt not in task_prompts)
        for split in splits:
            examples = [example for example in task.split(split) if example.prompt in stored]
            keys = [stored[example.prompt] for example in examples]
            if examples:
                limit = max_tokens or settings["sampling"]["max_tokens"]
                limited = replace(reward, max_tokens=limit)
                title = f"{split}, {'biased' if settings['bias'] else 'base'} {request[:8]}"
                scores = await _scored(
                    store, limited, split, examples, keys, report, title, watch, budget
                )
                if any(row.size for row in scores.reward):
                    group = Group(
                        split=split,
                        request=request,
                        settings=settings,
                        reward=limited,
                        examples=len(task.split(split)),
                        scored=tuple(example.id for example in examples),
                        scores=scores,
                    )
                    groups.append(group)
    if not groups:
        raise InputError(
            f"{store.path} holds {store.size().completions:,} completions of {len(requests)} kinds"
            f" of requests, none of them to be scored, chosen here and of a prompt of {task.name};"
            " give the task that was collected, or other filters"
        )
    if foreign:
        report.notice(
            f"{foreign:,} stored completions are of prompts that are not this task's and are not"
            " scored: with an instruction of blb eval, other examples before the question, other"
            " data"
        )
    return sorted(groups, key=lambda group: SPLITS.index(group.split))


async def _scored(
    store: RolloutStore,
    reward: Reward,
    split: Split,
    examples: Sequence[Example],
    keys: Sequence[Sequence[str]],
    report: Reporter,
    title: str,
    watch: Callable[[ScoredCompletion], None],
    budget: SpendLimit,
) -> PolicyScores:
    """The scores of one group, prompt by prompt, so that memory holds the completions of one."""
    pairs = (
        (example, completion)
        for example, row in zip(examples, keys, strict=True)
        for completion in store.completions(row)
    )
    await fetch_rewards(store, reward, pairs, report, title, budget)
    places = ((example, key) for example, row in zip(examples, keys, strict=True) for key in row)

    def seen(completion: Completion, score: Score | None, correct: bool | None) -> None:
        example, key = next(places)
        value = None if score is None else reward.displayed(score.value)
        watch(ScoredCompletion(split, example.id, key, completion, score, value, correct))

    rows = (list(store.completions(row)) for row in keys)
    return checked_scores(reward, examples, rows, title, report, seen)
