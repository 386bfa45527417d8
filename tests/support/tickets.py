"""Tickets that a team is found for: rows whose answers are drawn from a known truth, an endpoint
that says one option too often, and a fit of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.commands import blb, options
from tests.support.deciding import DecidingServer

NAMES = ("billing", "repair", "other")
QUESTION = {"type": "choice", "instructions": "Which team?", "criteria": dict.fromkeys(NAMES)}
OFFSETS = np.array([2.0, 0.0, -1.0])
"""What the endpoint adds to the log-probabilities of the truth: it says billing too often."""


def truth(state: str) -> np.ndarray:
    """(3,) true log-probabilities of a row, by its number."""
    generator = np.random.default_rng(int(state.split()[-1]))
    return np.log(generator.dirichlet([0.4, 0.4, 0.4]) + 1e-4)


def says(state: Any, name: str, names: Sequence[str]) -> Sequence[float]:
    """The endpoint's: half the truth's log-odds, and its own offsets."""
    values = 0.5 * truth(state) + OFFSETS
    return [values[NAMES.index(option)] for option in names]


def rows_of(number: int) -> list[dict[str, str]]:
    """Rows whose right answers are drawn from the truth."""
    rows = []
    for place in range(number):
        state = f"ticket {place}"
        odds = np.exp(truth(state))
        answer = np.random.default_rng(10_000 + place).choice(3, p=odds / odds.sum())
        rows.append({"prompt": state, "answer": NAMES[answer]})
    return rows


def fit(data: Path, server: DecidingServer, out: Path, **values: object) -> Any:
    """``blb fit`` of the rows, whose question file lies beside them."""
    given = {
        "provider": "ollama",
        "base_url": server.base_url,
        "model": "decider-1",
        "data": data,
        "question": data.parent / "team.json",
        "reward": "accuracy",
        "out": out,
        **values,
    }
    return blb("fit", *options(**given), "--quiet")
