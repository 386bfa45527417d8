"""``blb check``: whether a bias can correct a decision, from a few greedy answers and first lists, before a collection."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.feasibility import Feasibility, feasibility
from blackbox_lb.estimate.decisions.prediction import FirstLists
from blackbox_lb.estimate.inputs.checks import Bools
from blackbox_lb.rollouts.answers.given_answers import FirstTokens, first_tokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import GREEDY
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example

LOOKED_AT = 60
"""Prompts that a check looks at: they give a share of right decisions to about 6 %, for 120 short requests."""


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """The findings of a check, with a sentence on its lists."""

    found: Feasibility
    read: str

    def as_json(self) -> dict[str, Any]:
        """The findings for JSON; null for a margin of an unlisted answer."""
        margins = [round(float(each), 4) if np.isfinite(each) else None for each in self.found.margins]
        return {**asdict(self.found), "margins": margins, "sentence": self.found.sentence, "lists": self.read}


async def check(trials: Trials, examples: Sequence[Example], labels: Labels, listed: int | None = None) -> Checked:
    """Look at the first ``LOOKED_AT`` of ``examples``: their greedy answers, and one first list each; drawn unless stored.

    Raises InputError: fewer than two labels among them. NoLogprobs: no list at all. ProviderError: the API failed.
    """
    looked = examples[:LOOKED_AT]
    scores = await trials.scores("check, greedy answers", looked, GREEDY, 1)
    found = await first_tokens(trials, looked, "check", listed)
    right = None
    if scores.correct is not None:
        whole = np.array([bool(row.size and row[0]) for row in scores.correct], np.bool_)
        right = whole[found.places]
    return Checked(judged(found, labels, right), found.sentence)


def judged(found: FirstTokens, labels: Labels, right: Bools | None = None) -> Feasibility:
    """Judge whether a bias can correct the decisions at these first positions; ``right`` (p,): whether greedy answers are right."""
    numbers = [labels.of(example) for example in found.examples]
    known = np.array([number is not None for number in numbers], np.bool_)
    if not known.any():
        raise InputError("none of the prompts that were looked at has one of the labels; name them with --labels")
    return feasibility(
        FirstLists(found.ids[known], found.logprobs[known]),
        [ids for ids, has in zip(found.accepted, known.tolist(), strict=True) if has],
        np.array([number for number in numbers if number is not None], np.int64),
        None if right is None else right[known],
    )
