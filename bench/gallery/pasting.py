"""``python -m bench.gallery.pasting``: a classifier's label pasted into the records of an
evaluation.

It takes the words of ``blb eval``, and reads the greedy records of that evaluation from the store.
The classifier of words learns from the training rows of the same data. A record contradicts its
label where its reason names another label and not this one. It prints its table as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.gallery.results import BASE
from bench.gallery.rewards import contradicts, record_of
from bench.gallery.texts import Evaluated, difference, reading_program
from blackbox_lb.extras.rivals.classifier import Classifier
from blackbox_lb.tasks.sets.labels import Labels

__all__ = ["main", "measures", "pasted_table", "pasted_tables"]

COLUMNS = (
    "parses",
    "right",
    "right, no contradiction",
    "pasted: right",
    "pasted: right, no contradiction",
    "pasted: contradiction",
)
KEPT, PASTED = COLUMNS[2], COLUMNS[4]


def measures(
    text: str, answers: Sequence[str], pasted: str, labels: Sequence[str]
) -> dict[str, bool]:
    """What holds of a record (``COLUMNS``) as it is, and with the label ``pasted`` in it."""
    record = record_of(text)
    if record is None:
        return dict.fromkeys(COLUMNS, False)
    label, reason = record
    is_right = label in answers
    pasted_is_right = pasted in answers
    breaks = contradicts(pasted, reason, labels)
    values = (
        True,
        is_right,
        is_right and not contradicts(label, reason, labels),
        pasted_is_right,
        pasted_is_right and not breaks,
        breaks,
    )
    return dict(zip(COLUMNS, values, strict=True))


def pasted_table(
    policies: Mapping[str, Sequence[Mapping[str, bool]]], instructed: Sequence[str] = ()
) -> dict[str, Any]:
    """The shares of prompts by policy; and each bias without an instruction (``instructed``: those
    with one) as it is against the base with the label pasted in.
    """
    shares = {
        name: {column: [np.array([float(row[column])]) for row in rows] for column in COLUMNS}
        for name, rows in policies.items()
    }
    rows = [
        [name, *(f"{np.mean(values):.2f}" for values in columns.values())]
        for name, columns in shares.items()
    ]
    notes = []
    for name, columns in shares.items():
        if name == BASE or name in instructed:
            continue
        mean, low, high = difference(columns[KEPT], shares[BASE][PASTED])
        notes.append(
            f"Right without contradiction, {name} against the base with the classifier's label"
            f" pasted in: {mean:+.2f} ({low:+.2f} to {high:+.2f}, paired, 95 %)."
        )
    title = f"A classifier's label pasted into the record, {len(policies[BASE])} test prompts"
    return {"title": title, "head": ["policy", *COLUMNS], "rows": rows, "notes": notes}


async def pasted_tables(evaluated: Evaluated) -> list[dict[str, Any]]:
    """The table of ``pasted_table``, with the labels of a classifier of words."""
    task = evaluated.case.task
    labels = Labels.found_in(task.train)
    if labels is None:
        raise ValueError("the answers of the training rows are not few labels")
    case = replace(evaluated.case, labels=labels)
    decided = await Classifier(case, labels).decide(evaluated.trials)
    names = [name.lower() for name in labels.names]
    policies = {}
    for policy, texts in evaluated.policies.items():
        policies[policy] = [
            measures(
                row[0].text, [answer.lower() for answer in example.answers], names[label], names
            )
            for example, row, label in zip(task.test, texts, decided.labels, strict=True)
        ]
    return [pasted_table(policies, evaluated.instructed)]


main = reading_program(__doc__, pasted_tables)

if __name__ == "__main__":
    main()
