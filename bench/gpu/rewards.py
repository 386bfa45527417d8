"""Rewards of a record and of a mixture, and what a record says."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from blackbox_lb.types import Completion, Example

__all__ = ["as_its_group_wants", "contradicts", "record_of", "right_record"]

WORDS = 6
"""Words of a sentence, at least."""


def record_of(text: str) -> tuple[str, str] | None:
    """The label and the reason of the JSON object that is the whole text, less a Markdown fence;
    None where it is no such thing.
    """
    inner = re.sub(r"^```(?:json)?\s*|\s*```$", "", text.strip())
    try:
        found = json.loads(inner)
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(
        isinstance(found.get(key), str) for key in ("label", "reason")
    ):
        return None
    return found["label"].strip().lower(), found["reason"]


def right_record(example: Example, completion: Completion) -> float:
    """1 for a record with the right label, else 0."""
    found = record_of(completion.text)
    return float(found is not None and found[0] in {answer.lower() for answer in example.answers})


def contradicts(label: str, reason: str, labels: Collection[str]) -> bool:
    """Whether the reason names another of the labels, and not this one (fixed before any run)."""
    named = {each for each in labels if re.search(rf"\b{re.escape(each)}", reason.lower())}
    return bool(named - {label}) and label not in named


def as_its_group_wants(example: Example, completion: Completion | str) -> float:
    """1 for the answer in at most two words where the row's ``group`` is "word", for a sentence
    that holds it where it is "sentence"; else 0."""
    text = (completion if isinstance(completion, str) else completion.text).strip()
    words = text.split()
    holds = any(answer.lower() in text.lower() for answer in example.answers)
    if example.prompt.columns["group"] == "word":
        return float(holds and len(words) <= 2)
    return float(holds and len(words) >= WORDS and text.endswith("."))
