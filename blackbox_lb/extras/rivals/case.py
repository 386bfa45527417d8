"""The data of a decision task, which every rival gets."""

from dataclasses import dataclass

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.tasks import Task
from blackbox_lb.tasks.sets.labels import Labels


@dataclass(frozen=True, slots=True)
class Case:
    """The data of a decision task for its rivals.

    task: the prompts with their answers.
    labels: the labels among which a completion decides.
    seed: fixes all random choices.
    listed: alternatives of a first list; None for as many as help.
    """

    task: Task
    labels: Labels
    seed: int = 0
    listed: int | None = None

    def right(self) -> Ids:
        """(n,) the number of each training row's label, -1 where it has none.

        Raises:
            InputError: all rows have the same label.
        """
        numbers = np.full(len(self.task.train), -1, np.int64)
        for row, example in enumerate(self.task.train):
            label = self.labels.of(example)
            if label is not None:
                numbers[row] = label
        present = np.unique(numbers[numbers >= 0])
        if len(present) < 2:
            name = "none"
            if len(present):
                name = self.labels.names[present[0]]
            raise InputError(
                f"all {len(numbers)} training rows have the same label, {name}: no decision can be"
                " learned from them; give rows with other answers, too"
            )
        return numbers
