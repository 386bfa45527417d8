"""What the LoRA reference shares with the rest: completions of a model in memory, scored and
selected by this package's code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import click
import numpy as np

from blackbox_lb.estimate.choice.goal import ByPrompt, Goal, Outcome
from blackbox_lb.rollouts.judging.verdict import PolicyScores, score
from blackbox_lb.tasks import Reward
from blackbox_lb.types import Completion, Example

__all__ = ["Checkpoints", "Greedy", "cut", "outcome_of", "prompt_text", "reward_function"]


def cut(
    tokenizer: Any, ids: Sequence[int], stop: Sequence[str], ends: frozenset[int]
) -> Completion:
    """The completion that a server would have returned for ``ids``: its text before the first stop
    text, its tokens up to there.
    """
    text = tokenizer.decode(ids, skip_special_tokens=True)
    places = [place for place in map(text.find, stop) if place >= 0]
    count = len(ids)
    if places:
        text = text[: min(places)]
        low, high = 1, len(ids)  # the fewest tokens whose text holds a stop text
        while low < high:
            middle = (low + high) // 2
            shown = tokenizer.decode(ids[:middle], skip_special_tokens=True)
            low, high = (low, middle) if any(each in shown for each in stop) else (middle + 1, high)
        count = low
    ended = bool(places) or (count > 0 and ids[-1] in ends)
    return replace(Completion.empty("stop" if ended else "length"), text=text, generated=count)


def reward_function(
    examples: Sequence[Example],
    reward: Reward,
    tokenizer: Any,
    stop: Sequence[str],
    ends: frozenset[int],
) -> Callable[..., list[float]]:
    """What trl calls with the completions of a batch; ``number`` tells of which example each is."""

    def reward_of(
        *, completion_ids: Sequence[Sequence[int]], number: Sequence[int], **_more: Any
    ) -> list[float]:
        drawn = [cut(tokenizer, ids, stop, ends) for ids in completion_ids]
        return [
            reward.displayed(reward.score(examples[n], each).value)
            for n, each in zip(number, drawn, strict=True)
        ]

    reward_of.__name__ = reward.name
    return reward_of


def outcome_of(scores: PolicyScores) -> Outcome:
    """The scores as the package's selection reads them."""

    def means(rows: Sequence[Any]) -> ByPrompt:
        return ByPrompt(np.array([row.mean() if row.size else math.nan for row in rows]))

    right = None if scores.correct is None else means(scores.correct)
    return Outcome(means(scores.reward), means(scores.tokens), right)


@dataclass(slots=True)
class Greedy:
    """Greedy completions of a model, scored with the package's own code."""

    tokenizer: Any
    reward: Reward
    stop: Sequence[str]
    ends: frozenset[int]
    cap: int
    batch: int = 8

    def scores(self, model: Any, examples: Sequence[Example]) -> PolicyScores:
        """One completion of each example."""
        import torch

        drawn: list[list[Completion]] = []
        model.eval()
        with torch.no_grad():
            for start in range(0, len(examples), self.batch):
                drawn += [
                    [each] for each in self._complete(model, examples[start : start + self.batch])
                ]
        return score(self.reward, examples, drawn)

    def _complete(self, model: Any, examples: Sequence[Example]) -> list[Completion]:
        texts = [prompt_text(example) for example in examples]
        inputs = self.tokenizer(texts, return_tensors="pt", padding=True).to(model.device)
        stopping = (
            {"stop_strings": list(self.stop), "tokenizer": self.tokenizer} if self.stop else {}
        )
        made = model.generate(
            **inputs,
            do_sample=False,
            use_cache=True,
            max_new_tokens=self.cap,
            pad_token_id=self.tokenizer.pad_token_id,
            **stopping,
        )
        rows = made[:, inputs["input_ids"].shape[1] :].tolist()
        return [
            cut(self.tokenizer, _until_end(row, self.ends), self.stop, self.ends) for row in rows
        ]


def _until_end(ids: list[int], ends: frozenset[int]) -> list[int]:
    place = next((place for place, each in enumerate(ids) if each in ends), len(ids) - 1)
    return ids[: place + 1]


def prompt_text(example: Example) -> str:
    """The prompt without a chat template, as lm-evaluation-harness sends it."""
    return "\n".join(message.content for message in example.prompt.messages)


@dataclass(slots=True)
class Checkpoints:
    """The best adapter so far, by the goal of the table, among evaluations on the validation
    problems.
    """

    goal: Goal
    base: Outcome
    judge: Callable[[Any], PolicyScores]
    outcomes: list[Outcome] = field(default_factory=list)
    told: list[dict[str, float]] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    selected: int = 0

    def look(self, model: Any, step: int) -> None:
        """Evaluate the model after ``step``, and keep its adapter if it is the best."""
        from peft import get_peft_model_state_dict

        self.outcomes.append(outcome_of(self.judge(model)))
        found = self.outcomes[-1]
        right = {} if found.accuracy is None else {"accuracy": found.accuracy.value}
        self.told.append({"step": float(step), **right, "tokens": found.tokens.value})
        click.echo(f"validation after step {step}: {self.told[-1]}", err=True)
        if self.goal.ranking(self.base, self.outcomes)[0] == len(self.outcomes) - 1:
            self.selected = step
            self.kept = {
                name: value.detach().clone()
                for name, value in get_peft_model_state_dict(model).items()
            }
