"""``threshold``: an offset for each label, added in this program to the logprobs that the
provider returns.

Where labels are one token, this is a bias on the label tokens with everything else forbidden,
learned by maximum likelihood.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.estimate.decisions.feasibility import label_fit
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.extras.rivals.label_lists import label_lists
from blackbox_lb.jobs.evaluation.arms import Alternative, Decided
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.types import Example


def threshold(case: Case, _given: object) -> Alternative:
    """Learn offsets from the training answers. Raises InputError: all training rows have the same
    label.
    """
    case.right()
    rows = len(case.task.train)
    prompts = len(case.task.test)
    return Alternative(
        "thresholds",
        decision=Thresholds(case),
        max_tokens=1,
        cost=(
            f"1 token a test prompt ({prompts:,}), and once 1 token a training row ({rows:,}) for"
            " learning"
        ),
    )


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The decision argmax of log p(label | prompt) + offset of the label."""

    case: Case

    def lists(self) -> Sequence[Example]:
        return (*self.case.task.train, *self.case.task.test)

    async def decide(self, trials: Trials) -> Decided:
        training = await label_lists(trials, self.case.task.train, "training", self.case)
        test = await label_lists(trials, self.case.task.test, "test", self.case)
        return test.decided(offsets(training.logprobs, self.case.right()))


def offsets(logprobs: npt.ArrayLike, right: npt.ArrayLike) -> Vector:
    """(l,) nats, mean 0: the offsets with the likeliest right labels; -inf for a label without a
    row.

    Maximises ``sum_i log softmax(logprobs_i + offset)[right_i]``, which is concave, over logprobs
    (n, l) in nats. right: (n,) numbers of labels. Rows with NaN, or with -1, are left out.
    """
    table = np.asarray(logprobs, np.float64)
    truth = np.asarray(right, np.int64)
    known = ~np.isnan(table).any(axis=1) & (truth >= 0)
    there = np.bincount(truth[known], minlength=table.shape[1]) > 0
    found = np.full(len(there), -np.inf)
    if known.any():
        columns = (np.cumsum(there) - 1)[truth[known]]
        _, best = label_fit(table[known][:, there], columns, l2=0.0, ftol=1e-12)
        found[there] = best - best.mean()
    return found
