"""One row of the table: what was done, how often, what came of it, and how long it took."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Row", "failed"]


@dataclass(frozen=True, slots=True)
class Row:
    """``counts``: the numbers behind ``outcome``; ``wrong``: what should not be, empty where all is
    well.
    """

    what: str
    times: str
    outcome: str
    seconds: float
    counts: Mapping[str, Any]
    wrong: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """As it stands in the table."""
        verdict = "as promised" if not self.wrong else f"NOT AS PROMISED: {'; '.join(self.wrong)}"
        return f"| {self.what} | {self.times} | {self.outcome} | {verdict} | {self.seconds:.0f} s |"

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def failed(checks: Mapping[str, bool]) -> tuple[str, ...]:
    """The sentences that are true of what should not be."""
    return tuple(sentence for sentence, is_true in checks.items() if is_true)
