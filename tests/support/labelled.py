"""Rows of a decision between two labels of an exact model, " b" and " c", its tokens 1 and 2."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import Result

from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.rollouts.answers.given_answers import AnswerStarts
from blackbox_lb.types import Example
from tests.support.commands import Server, asking, blb
from tests.support.exact import ExactModel
from tests.support.questions import write_rows

__all__ = [
    "DECIDER",
    "answer_starts",
    "balanced_rows",
    "fit_labels",
    "labelled_rows",
    "write_which",
]

DECIDER = ExactModel(
    14, 2, seed=3, prompts=12, unigram=np.where(np.isin(np.arange(14), (1, 2)), -4.0, 0.0), end=True
)
"""Tokens 1 and 2, " b" and " c", are the labels; the model hardly says either."""
SPLITS = (("train", range(60)), ("validation", range(60, 100)), ("test", range(100, 180)))


def labelled_rows(model: ExactModel) -> list[dict[str, Any]]:
    """Questions of all splits. The right label of each is the one that the model finds likelier of
    the two.
    """
    return [_row(model, number, split) for split, numbers in SPLITS for number in numbers]


def balanced_rows(model: ExactModel) -> list[dict[str, Any]]:
    """As ``labelled_rows``, with as many questions of each label in each split."""
    rows = []
    number = 0
    for split, numbers in SPLITS:
        wanted = dict.fromkeys("bc", len(numbers) // 2)
        while any(wanted.values()):
            row = _row(model, number, split)
            number += 1
            if wanted[row["answer"]]:
                wanted[row["answer"]] -= 1
                rows.append(row)
    return rows


def fit_labels(
    server: Server, data: Path, out: Path, *more: object, reward: str = "exact-match"
) -> Result:
    """``blb fit`` of answers of one token."""
    where = asking(server, data=data, out=out, reward=reward, max_tokens=1)
    return blb("fit", *where, "--quiet", *more)


def answer_starts(
    examples: Sequence[Example], lists: FirstLists, tokens: Sequence[int]
) -> AnswerStarts:
    """The first positions of prompts whose answers begin with one token each."""
    return AnswerStarts(
        examples=tuple(examples),
        places=np.arange(len(examples)),
        whole=lists,
        lists=lists,
        accepted=tuple(np.array([token], np.int64) for token in tokens),
        spelled=tuple((token,) for token in tokens),
        width=lists.ids.shape[1],
        unanswered=0,
        longer=0,
        ambiguous=0,
    )


def write_which(folder: Path) -> Path:
    """``balanced_rows`` of ``DECIDER`` to learn from and to judge on, in a file, which is returned;
    the question between its labels lies beside it, in which.json.
    """
    question = {"type": "choice", "instructions": "Which?", "criteria": {"b": None, "c": None}}
    (folder / "which.json").write_text(json.dumps({"which": question}))
    rows = [
        {"prompt": row["prompt"], "answer": row["answer"]}
        for row in balanced_rows(DECIDER)
        if row["split"] != "validation"
    ]
    return write_rows(folder / "rows.jsonl", rows)


def _row(model: ExactModel, number: int, split: str) -> dict[str, Any]:
    prompt = f"question {number}"
    logprobs = model.logprobs([], model.prompt_of(prompt))
    return {"prompt": prompt, "answer": "b" if logprobs[1] > logprobs[2] else "c", "split": split}
