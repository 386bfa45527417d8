"""A decision inside a JSON record."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from bench.gallery.use import Place, Step, Use, by_rows, data_file, options
from bench.gpu.jobs import RECORD, RECORD_TOKENS, TASKS
from bench.measuring import read_rows, write_rows

__all__ = ["NEWS_RECORDS", "RECORDS"]

BEGINNING = '{\n  "label": "'
"""How the model begins its records: the next token is the label."""
LEARNED = {"train": 200, "validation": 100, "test": 100}
"""Rows whose label alone is asked for, behind ``BEGINNING``."""
RECORD_PROMPTS = 60
"""Test prompts that are answered by whole records, the first of these."""
PASTING = ("uv", "run", "python", "-m", "bench.gallery.pasting")


def _records(place: Place, decision: str, task: str) -> list[Step]:
    """A bias that is learned from labels, one token each, judged by the label alone and by whole
    records; and the curve by labels, which the small page spares.
    """
    source = data_file(place, f"{task}.jsonl")
    if source is None:
        raise FileNotFoundError(f"{task}.jsonl is not in {place.data}")
    rows = [
        row | {"prompt": row["prompt"].replace("Answer with one word.", RECORD)}
        for row in read_rows(source)
    ]
    kept = {
        split: [row for row in rows if row["split"] == split][:number]
        for split, number in LEARNED.items()
    }
    begun = (_begun(row) for split in kept for row in kept[split])
    labels = ", ".join(TASKS[task])
    asked = options(
        *place.model,
        data=write_rows(place.out / f"{task}_begun.jsonl", begun),
        prefill=True,
        reward="contains",
        max_tokens=1,
        labels=labels.replace(" ", ""),
        store=place.out / f"{task}.db",
    )
    # Strengths that are named spare the search. It compares biases by the label alone, and one that
    # forbids all else there would also forbid it in the reason.
    learned = options(*asked, l2=(0.3, 1, 3, 10), entries=50)
    fit = options("fit", *learned, out=place.out / task)
    biases = (place.bias("bias", task),)
    alone = options(
        "eval",
        *biases,
        *asked,
        deploy="greedy",
        rival=("labels-only", "calibrate:contextual", "calibrate:batch", "classifier:tfidf"),
        out=place.out / f"{task}_alone",
    )
    record_rows = [*kept["train"], *kept["validation"], *kept["test"][:RECORD_PROMPTS]]
    instruction = f'The label must be one of {labels}. Write {{"label": ..., "reason": ...}}.'
    whole = options(
        *biases,
        *place.model,
        data=write_rows(place.out / f"{task}_records.jsonl", record_rows),
        reward="bench.gpu.rewards:right_record",
        max_tokens=RECORD_TOKENS,
        store=place.out / f"{task}_records.db",
        deploy="greedy",
        rival=f"prompt:{instruction}",
    )
    evaluation = options("eval", *whole, out=place.out / f"{task}_whole")
    title = f"{decision}, the label alone"
    parts = [(7, 3), (20, 10), (67, 33), (LEARNED["train"], LEARNED["validation"])]
    judged = options(*asked, deploy="greedy")
    steps = [
        Step(task, fit),
        Step(f"{task}_alone", alone, title, repeats=True),
        Step(f"{task}_whole", evaluation, f"{decision}, in whole records"),
        Step(f"{task}_pasting", whole, program=PASTING, repeats=True),
    ]
    if place.small:
        return steps
    return [*steps, *by_rows(place, learned, judged, parts, title=title, bias="bias")]


def _begun(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row as a conversation whose answer has begun with ``BEGINNING``."""
    messages = [
        {"role": "user", "content": row["prompt"]},
        {"role": "assistant", "content": BEGINNING},
    ]
    return {"messages": messages, "answer": row["answer"], "split": row["split"]}


def _use(title: str, decision: str, task: str, source: str) -> Use:
    """The page of a task."""
    return Use(
        title,
        f'{decision} ({source}), asked for as {{"label": ..., "reason": ...}}; greedy, at most'
        f" {RECORD_TOKENS} tokens. The bias is learned from the labels of 300 rows, one token each,"
        " behind the beginning of a record, and is then sent with requests for whole records, which"
        " are right where they parse and have the right label. Rivals of the label alone: all else"
        " forbidden, as a JSON schema would, calibrations, and a classifier of words. Rivals of"
        " whole records: an instruction that repeats the labels, and the classifier's label pasted"
        " in, which contradicts a reason that names another label and not the pasted one.",
        partial(_records, decision=decision, task=task),
        files=(f"{task}.jsonl",),
        second_model=True,
    )


RECORDS = _use("A decision inside a JSON record", "The kind of a question", "trec", "TREC")
NEWS_RECORDS = _use("The same, topics of news", "The topic of an article", "agnews", "AG News")
