"""Case: the data of a decision task for its rivals."""

from dataclasses import dataclass

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.tasks import Task
from blackbox_lb.tasks.sets.labels import Labels


@dataclass(frozen=True, slots=True)
class Case:
    """seed: fixes all random choices. listed: alternatives of a first list, None for as many as
    help.
    """

    task: Task
    labels: Labels
    seed: int = 0
    listed: int | None = None

    def right(self) -> Ids:
        """(n,) the number of each training row's label, -1 where it has none. Raises InputError:
        all rows have the same.
        """
        found = [self.labels.of(example) for example in self.task.train]
        numbers = np.array([-1 if number is None else number for number in found], np.int64)
        kinds = np.unique(numbers[numbers >= 0])
        if len(kinds) < 2:
            name = self.labels.names[kinds[0]] if len(kinds) else "none"
            raise InputError(
                f"all {len(numbers)} training rows have the same label, {name}: no decision can be"
                " learned from them; give rows with other answers, too"
            )
        return numbers
