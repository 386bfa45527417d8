"""Tickets that a team is found for: rows whose answers are drawn from a known truth, an endpoint
that says one option too often, and a fit of both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.commands import blb, options
from tests.support.deciding import DecidingServer
from tests.support.questions import write_rows

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


def write_tickets(folder: Path, number: int) -> Path:
    """Rows in a file, which is returned; the file with the question lies beside it."""
    (folder / "team.json").write_text(json.dumps({"team": QUESTION}))
    return write_rows(folder / "tickets.jsonl", rows_of(number))


def write_two_questions(folder: Path, second: str, number: int = 60) -> Path:
    """Rows with an answer to the question of the team and to one of yes or no named ``second``, in
    a file, which is returned; the questions' file lies beside it.
    """
    rows = [
        {"prompt": row["prompt"], "team": row["answer"], second: "yes" if place % 3 else "no"}
        for place, row in enumerate(rows_of(number))
    ]
    questions = {"team": QUESTION, second: {"type": "noul", "instructions": "In danger?"}}
    (folder / "team.json").write_text(json.dumps(questions))
    return write_rows(folder / "rows.jsonl", rows)


def says_both(state: Any, name: str, names: Sequence[str]) -> Sequence[float]:
    """As ``says`` of the team; of the other question always the same."""
    if name == "team":
        return says(state, name, names)
    return [0.3, 0.1]


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
