"""How far the labels that all completions name are from the wanted shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from blackbox_lb.errors import InputError
from blackbox_lb.tasks.rewards.reward import Form, Reward, Score
from blackbox_lb.types import Completion, Example

GROUP = "group"
"""The column of the groups, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution(Reward):
    """Minus the total variation to wanted shares, by the groups in a column. One completion alone
    is worth nothing: ``DrawnShares`` compares all of them.
    """

    label: ClassVar[str] = "-total variation"
    needs_answer: ClassVar[bool] = True
    grouped_by: str = field()

    def score(self, example: Example, completion: Completion) -> Score:
        """Raise InputError."""
        raise InputError(
            f"{self.name} compares the labels of all completions together with the wanted shares,"
            " and one completion alone has no reward; judge with blb eval, learn with"
            " ``learn_from=answers``"
        )


FORMS = (
    Form(
        "distribution",
        "minus the total variation between the labels that the completions name and the wanted"
        " shares in the data, by group where the column (group) has some",
        lambda column: Distribution(grouped_by=column or GROUP),
        takes="[COLUMN]",
    ),
)
