"""``python -m bench.gallery.pasting``: a classifier's label pasted into the records of an
evaluation.

It takes the words of ``blb eval``, and reads the greedy records of that evaluation from the store.
The classifier of words learns from the training rows of the same data. A record contradicts its
label where its reason names another label and not this one. It prints its table as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bench.gallery.results import BASE
from bench.gallery.rewards import contradicts, record_of
from bench.gallery.texts import Evaluated, Tables, difference, reading_program

# The classifier that is a rival of ``blb eval``.
from blackbox_lb.extras.rivals.classifier import Classifier
from blackbox_lb.tasks.sets.labels import Labels

__all__ = ["main"]

COLUMNS = (
    "parses",
    "right",
    "right, no contradiction",
    "pasted: right",
    "pasted: right, no contradiction",
    "pasted: contradiction",
)
KEPT, PASTED = 2, 4
"""Places of the two columns that are compared."""


def _holds(
    text: str, answers: Sequence[str], pasted: str, labels: Sequence[str]
) -> tuple[bool, ...]:
    """What holds of a record (``COLUMNS``) as it is, and with the label ``pasted`` in it."""
    record = record_of(text)
    if record is None:
        return (False,) * len(COLUMNS)
    label, reason = record
    is_right = label in answers
    pasted_is_right = pasted in answers
    breaks = contradicts(pasted, reason, labels)
    return (
        True,
        is_right,
        is_right and not contradicts(label, reason, labels),
        pasted_is_right,
        pasted_is_right and not breaks,
        breaks,
    )


async def pasted_tables(evaluated: Evaluated) -> Tables:
    """The shares of prompts by policy; and each bias without an instruction as it is, against the
    base with the label of a classifier of words pasted in.
    """
    task = evaluated.case.task
    labels = Labels.found_in(task.train)
    if labels is None:
        raise ValueError("the answers of the training rows are not few labels")
    case = replace(evaluated.case, labels=labels)
    decided = await Classifier(case, labels).decide(evaluated.trials)
    names = [name.lower() for name in labels.names]
    by_policy = {}
    for policy, texts in evaluated.policies.items():
        rows = [
            _holds(row[0].text, [answer.lower() for answer in example.answers], names[label], names)
            for example, row, label in zip(task.test, texts, decided.labels, strict=True)
        ]
        by_policy[policy] = np.array(rows, np.float64)
    notes = []
    for name, holds in by_policy.items():
        if name == BASE or name in evaluated.instructed:
            continue
        mean, low, high = difference(holds[:, KEPT], by_policy[BASE][:, PASTED])
        notes.append(
            f"Right without contradiction, {name} against the base with the classifier's label"
            f" pasted in: {mean:+.2f} ({low:+.2f} to {high:+.2f}, paired, 95 %)."
        )
    table = {
        "title": f"A classifier's label pasted into the record, {len(task.test)} test prompts",
        "head": ["policy", *COLUMNS],
        "rows": [
            [name, *(f"{share:.2f}" for share in holds.mean(axis=0))]
            for name, holds in by_policy.items()
        ],
        "notes": notes,
    }
    return [table]


main = reading_program(__doc__, pasted_tables)

if __name__ == "__main__":
    main()
