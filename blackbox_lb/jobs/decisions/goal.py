"""What the way to read is chosen by, and the share of errors that is to be promised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from blackbox_lb.errors import InputError

ReadingGoal: TypeAlias = Literal["accuracy", "log loss"]

ERROR = "error<="
GOALS: dict[str, ReadingGoal] = {
    "reward": "accuracy",
    "accuracy": "accuracy",
    "log-loss": "log loss",
}


@dataclass(frozen=True, slots=True)
class DecisionGoal:
    """by: what chooses among ways to read the question. error: the largest share of errors of
    answered rows, None for no wish. spec: as a user writes it.
    """

    by: ReadingGoal
    error: float | None
    spec: str

    @classmethod
    def parse(cls, spec: str) -> DecisionGoal:
        """Read accuracy, log-loss or error<=SHARE. Raises InputError: anything else."""
        if spec.startswith(ERROR):
            try:
                error = float(spec.removeprefix(ERROR))
            except ValueError:
                error = -1.0
            if not 0 < error < 1:
                raise InputError(
                    f"``objective={spec}`` names no share of errors between 0 and 1; give one as in"
                    " error<=.05"
                )
            return cls("log loss", error, spec)
        if spec not in GOALS:
            raise InputError(
                f"``objective={spec}`` is none of a decision that is mended; choose accuracy,"
                " log-loss or error<=SHARE"
            )
        return cls(GOALS[spec], None, GOALS[spec].replace(" ", "-"))
