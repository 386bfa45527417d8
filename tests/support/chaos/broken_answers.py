"""What goes wrong in what an answer of chat says: choices, lists of logprobs and names that break
the promises of the dialect. That other damage in any dialect is read or refused, wire/test_fuzz.py
says.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any, TypeAlias

Change: TypeAlias = Callable[[Any, random.Random], Any]
"""(a parsed answer, which it may change; what details are drawn from) -> what is sent in its place."""

TOKENIZER = "other tokenizer"


def entries(answer: Any) -> list[Any]:
    """Every position of every choice."""
    return [entry for choice in answer["choices"] for entry in choice["logprobs"]["content"]]


def replaced(value: Any) -> Change:
    """One in three logprobs, sampled and listed alike, and at least one of each answer, is
    ``value``.
    """

    def change(answer: Any, rng: random.Random) -> Any:
        named = [
            each for entry in entries(answer) for each in (entry, *(entry["top_logprobs"] or []))
        ]
        for number, each in enumerate(rng.sample(named, len(named))):
            if number == 0 or rng.random() < 1 / 3:
                each["logprob"] = value
        return answer

    return change


def unsorted(answer: Any, rng: random.Random) -> Any:
    """The alternatives of every position in any order."""
    for entry in entries(answer):
        rng.shuffle(entry["top_logprobs"])
    return answer


def short_lists(answer: Any, rng: random.Random) -> Any:
    """Every list of logprobs lacks one of its tokens; the text and the number of tokens are those
    of all.
    """
    for choice in answer["choices"]:
        listed = choice["logprobs"]["content"]
        if listed:
            del listed[rng.randrange(len(listed))]
    return answer


def first_choice_twice(answer: Any, rng: random.Random) -> Any:
    """The first choice stands in the place of every other one; an answer of one choice has lost
    it.
    """
    choices = answer["choices"]
    others = [copy.deepcopy(choices[0]) for _ in choices] if len(choices) > 1 else []
    return {**answer, "choices": others}


def broken_off(answer: Any, rng: random.Random) -> Any:
    """The host ended every completion, in the words of one of four hosts, or without a word."""
    reason = rng.choice(["error", "network_error", "abort", "insufficient_system_resource", None])
    for choice in answer["choices"]:
        choice["finish_reason"] = reason
    return answer


def other_model(answer: Any, rng: random.Random) -> Any:
    """Another model's name and another system's fingerprint."""
    return {**answer, "model": "another-model-2", "system_fingerprint": "fp_another"}


def other_tokenizer(answer: Any, rng: random.Random) -> Any:
    """What POST /tokenize answers, from last to first and one id higher."""
    ids = [each + 1 for each in answer["tokens"][::-1]]
    return {**answer, "tokens": ids, "count": len(ids)}


CHANGES: dict[str, Change] = {
    "-9999 logprobs": replaced(-9999.0),
    "NaN logprobs": replaced(math.nan),
    "broken off by the host": broken_off,
    "choices out of step": first_choice_twice,
    "lists shorter than tokens": short_lists,
    "other model": other_model,
    TOKENIZER: other_tokenizer,
    "unsorted alternatives": unsorted,
}
