"""The reading of the tables behind the built-in tasks, which all ask about countries. None of them needs a network.

A table has a row for each country: its name, the article that English wants before it, the accepted answers (between them a |),
and its split. The splits are not hand-picked: in the order of SHA-256 of "TASK:COUNTRY", the first 80 countries are train, the next
24 validation and the rest test. The file records the result.
"""

from __future__ import annotations

import csv
from importlib.resources import files

from blackbox_lb.tasks.records.files import SPLIT_NAMES, SourcedExample
from blackbox_lb.tasks.sets.task import Task
from blackbox_lb.types import Example, Prompt, Split


def country_task(name: str, column: str, question: str, *, correct: str, max_tokens: int) -> Task:
    """Load the task of the table NAME.csv with answers in ``column``; ``question`` has {country} in the country's place."""
    splits: dict[Split, list[SourcedExample]] = {split: [] for split in SPLIT_NAMES.values()}
    text = files("blackbox_lb.tasks.sets").joinpath(f"{name}.csv").read_text("utf-8")
    for record in csv.DictReader(text.splitlines()):
        prompt = Prompt.user(question.format(country=f"{record['article']} {record['country']}".lstrip()))
        example = Example(f"{name}:{record['country']}", prompt, tuple(record[column].split("|")))
        splits[SPLIT_NAMES[record["split"]]].append(SourcedExample(example, f"{name}.csv, {record['country']}"))
    return Task.from_splits(name, splits, correct=correct, max_tokens=max_tokens)
