"""The data that every rival gets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.rollouts.judging.verdict import Setting
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.sets.labels import Labels, OpenLabels


@dataclass(frozen=True, slots=True)
class Case:
    """The data of an evaluation for its rivals.

    task: the prompts with their answers.
    reward: what is judged.
    settings: at which it is judged.
    labels: those among which a completion decides, None where the task is no decision.
    seed: fixes all random choices.
    listed: alternatives of a first list; None for as many as help.
    """

    task: Task
    reward: Reward
    settings: tuple[Setting, ...]
    labels: Labels | None = None
    seed: int = 0
    listed: int | None = None

    @property
    def hottest(self) -> float:
        """The highest temperature that is judged."""
        return max(setting.temperature for setting in self.settings)

    def decision(self, name: str) -> Labels:
        """The labels of the decision, for the rival ``name``.

        Raises:
            InputError: the task has none, or open ones.
        """
        if self.labels is None:
            rows = f"{len(self.task.test)} test rows"
            if self.task.train:
                rows = f"{len(self.task.train)} training rows"
            raise InputError(
                f"``rival={name}`` is for decisions between few labels, and the answers of {rows}"
                " are none; name them with ``labels``, as in ``labels=yes,no``, or drop this rival"
            )
        if isinstance(self.labels, OpenLabels):
            raise InputError(
                f"``rival={name}`` needs labels that are spelled, and with"
                f" ``decide={self.labels.spec}`` one of them is everything else; try an instruction"
                " with ``rival=prompt:TEXT``, or drop this rival"
            )
        return self.labels

    def check_training(self, name: str) -> None:
        """Raise InputError where the rival ``name`` has no training rows to learn from."""
        if not self.task.train:
            raise InputError(
                f"``rival={name}`` learns from training rows, and the data has only test rows;"
                " give both with ``data``, or drop this rival"
            )

    def shares(self, name: str) -> Labels:
        """The labels with wanted shares, for the rival ``name``. Raises InputError: the reward
        compares with none.
        """
        if not self.reward.of_shares:
            raise InputError(
                f"``rival={name}`` is for wanted shares, and the reward is {self.reward.name}; use"
                " ``reward=distribution``, or drop this rival"
            )
        return Labels.of_shares(self.task.test)


T = TypeVar("T", int, float)


def number(value: str, name: str, kind: Callable[[str], T]) -> T:
    """``value`` of the rival ``name`` as a number. Raises InputError: it is none."""
    try:
        return kind(value)
    except ValueError:
        noun = "whole number" if kind is int else "number"
        raise InputError(f"``rival={name}:{value}``: {value!r} is no {noun}") from None


def right(task: Task, labels: Labels) -> Ids:
    """(n,) the number of each training row's label, -1 where it has none.

    Raises:
        InputError: all rows have the same label.
    """
    numbers = np.full(len(task.train), -1, np.int64)
    for row, example in enumerate(task.train):
        label = labels.of(example)
        if label is not None:
            numbers[row] = label
    present = np.unique(numbers[numbers >= 0])
    if len(present) < 2:
        name = "none"
        if len(present):
            name = labels.names[present[0]]
        raise InputError(
            f"all {len(numbers)} training rows have the same label, {name}: no decision can be"
            " learned from them; give rows with other answers, too"
        )
    return numbers
