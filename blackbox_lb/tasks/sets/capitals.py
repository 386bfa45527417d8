"""The built-in task: what is the capital of a country? It needs no network and has one right answer a prompt.

The states are the members and observers of the United Nations, as of 2026, less those for which the question is no question:

- an accepted answer, normalised, occurs in the prompt, or the country in an accepted answer (Singapore, Mexico City, Tunis);
- the capital is in dispute between states (Israel, Palestine), or there is no official one (Nauru);
- another place of that name has a capital of its own (Georgia).

Accepted are the capital in English, in other common spellings, in the country's language where a model may answer in it, and
under a former name of the same city (Nur-Sultan). More than one city is accepted where the constitution or the government calls
more than one a capital, or where it lies in one city and the government in another: Benin, Bolivia, Eswatini, Ivory Coast, South
Africa, Sri Lanka; and Equatorial Guinea, which declared Ciudad de la Paz (Djibloho, Oyala) its capital in January 2026 and gave its
institutions a year to move from Malabo.

The splits are not hand-picked: in the order of SHA-256 of "capitals:COUNTRY", the first 80 countries are train, the next 24
validation and the rest test. The file records the result.
"""

from __future__ import annotations

import csv
from importlib.resources import files

from blackbox_lb.tasks.records.files import SPLIT_NAMES, SourcedExample
from blackbox_lb.tasks.sets.task import Task
from blackbox_lb.types import Example, Prompt, Split

MAX_TOKENS = 48
"""Small chat models answer this question in 10 to 40 tokens."""


def load() -> Task:
    """The task, its answers accepted by ``contains``: 80 countries to train, 24 to validate and 73 to test."""
    splits: dict[Split, list[SourcedExample]] = {split: [] for split in SPLIT_NAMES.values()}
    text = files("blackbox_lb.tasks.sets").joinpath("capitals.csv").read_text("utf-8")
    for record in csv.DictReader(text.splitlines()):
        example = _example(record["country"], record["article"], record["capitals"])
        splits[SPLIT_NAMES[record["split"]]].append(SourcedExample(example, f"capitals.csv, {record['country']}"))
    return Task.from_splits("capitals", splits, max_tokens=MAX_TOKENS)


def _example(country: str, article: str, capitals: str) -> Example:
    question = f"What is the capital of {f'{article} {country}' if article else country}?"
    return Example(f"capitals:{country}", Prompt.user(question), tuple(capitals.split("|")))
