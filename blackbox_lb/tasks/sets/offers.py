"""What is offered for rows whose user has said little: the columns of prompt and answer, the right
spelling of a label, a template that names the labels, and how long an answer may be.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence

from blackbox_lb.tasks.records.files import ANSWER, MESSAGES, OTHER_NAMES, PROMPT, longest_column
from blackbox_lb.tasks.records.records import Record
from blackbox_lb.tasks.rewards.matching import parse_matcher
from blackbox_lb.tasks.sets.labels import LEAST_ROWS, MOST_LABELS
from blackbox_lb.types import Example

_CONTAINS = parse_matcher("contains")

LEAST_OF_LABEL = 8
"""Rows of a label below which three splits have two or fewer of it to judge by."""
NEAR_LABEL = 0.85
"""Least share of letters in common (difflib's ratio) of a label and a misspelling of it: one letter
left out or two swapped, of seven.
"""
PROMPTS_READ = 100
"""Prompts that are looked through for labels."""
LEAST_TOKENS = 4
"""Tokens for what may stand before a label, as in "**Technical**"."""
CHARACTERS_A_TOKEN = 3
"""Bytes of a label that a token has at least, in most vocabularies."""


def likely_columns(records: Sequence[Record]) -> tuple[str, str]:
    """The columns of the prompt and of the answer; "" where no column is likely the answer.

    They are the default names, else the usual other ones, else the column with the longest texts,
    and that with the fewest different values, of which each stands in several rows.
    """
    names = dict.fromkeys(name for record in records for name in record.columns)
    prompt = next(
        (name for name in (PROMPT, MESSAGES, *OTHER_NAMES[PROMPT]) if name in names),
        longest_column(records),
    )
    for name in (ANSWER, *OTHER_NAMES[ANSWER]):
        if name in names and name != prompt:
            return prompt, name
    counts = {}
    for name in names:
        values = [record.values[name] for record in records if name in record.values]
        different = len({str(value).strip().casefold() for value in values})
        are_labels = 2 <= different <= MOST_LABELS and len(values) >= LEAST_ROWS * different
        if name != prompt and are_labels:
            counts[name] = different
    return prompt, min(counts, key=lambda name: counts[name], default="")


def near_label(label: str, names: Sequence[str]) -> str:
    """The name that differs from ``label`` as a misspelling does; "" for none. Labels that differ
    in a number are different labels.
    """
    numbers = re.findall(r"\d+", label)
    comparable = [name for name in names if re.findall(r"\d+", name) == numbers]
    return next(iter(difflib.get_close_matches(label, comparable, n=1, cutoff=NEAR_LABEL)), "")


def labels_to_offer(counts: Mapping[str, int]) -> list[str]:
    """The labels in their order, without those that are likely misspelt.

    counts: label -> rows that have it.
    """
    return [
        name
        for name, count in counts.items()
        if count >= LEAST_OF_LABEL
        or not near_label(name, [label for label in counts if counts[label] > count])
    ]


def are_named(names: Sequence[str], examples: Sequence[Example]) -> bool:
    """Whether some prompt names two of the labels and half of them."""
    needed = max(2, math.ceil(len(names) / 2))
    return any(
        sum(_CONTAINS.test((name,), example.prompt.text) for name in names) >= needed
        for example in examples[:PROMPTS_READ]
    )


def instruction(names: Sequence[str]) -> str:
    """The sentence that asks for one of the labels."""
    return f"Answer with {', '.join(names[:-1])} or {names[-1]}."


def template_with_labels(template: str, names: Sequence[str]) -> str:
    """A prompt template that names the labels at its end."""
    escaped = instruction(names).replace("{", "{{").replace("}", "}}")
    return f"{template} {escaped}"


def tokens_of_longest(names: Sequence[str]) -> int:
    """Tokens in which the longest of the labels has room."""
    longest = max(len(name.encode()) for name in names)
    return LEAST_TOKENS + math.ceil(longest / CHARACTERS_A_TOKEN)
