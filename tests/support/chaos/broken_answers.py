"""What goes wrong in what an answer says: choices, lists of logprobs and names that break the
promises of their dialect.

Each function changes a parsed answer of any dialect: chat and the Responses API (entries with
``logprob``), legacy completions (parallel lists and mappings) and SGLang's ``meta_info`` (triples,
or flat arrays).
"""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

__all__ = ["CHANGES", "TOKENIZER", "Change"]

Change: TypeAlias = Callable[[Any, random.Random], Any]
"""(a parsed answer, which it may change; what details are drawn from) -> what is sent in its place,
as JSON or as bytes.
"""
Slot: TypeAlias = tuple[Any, Any]
"""A container and the key or index of one number in it."""

TOKENIZER = "other tokenizer"


def choices(answer: Any) -> list[Any]:
    """The list that an answer's choices stand in, or the parts of a response's message."""
    if "choices" in answer:
        return list_of(answer["choices"])
    return [part for item in answer.get("output", []) for part in item.get("content") or []]


def list_of(value: Any) -> list[Any]:
    """``value`` where it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def rows(answer: Any) -> Iterator[tuple[Any, Any]]:
    """Each list of alternatives in an answer, as the container and the key under which it
    stands.
    """
    for choice in choices(answer):
        lists = choice.get("logprobs")
        entries = lists if isinstance(lists, list) else list_of((lists or {}).get("content"))
        yield from ((entry, "top_logprobs") for entry in entries if entry.get("top_logprobs"))
        for name in ("top_logprobs",) if isinstance(lists, dict) else ():
            yield from (
                (lists[name], t) for t in range(len(list_of(lists.get(name)))) if lists[name][t]
            )
        tops = list_of((choice.get("meta_info") or {}).get("output_top_logprobs"))
        yield from ((tops, t) for t in range(len(tops)) if tops[t])


def listed(answer: Any) -> list[Slot]:
    """The logprob of every alternative."""
    found: list[Slot] = []
    for owner, key in rows(answer):
        row = owner[key]
        if isinstance(row, dict):
            found += [(row, name) for name in row]
        else:
            found += [(each, "logprob" if isinstance(each, dict) else 0) for each in row]
    for choice in choices(answer):
        flat = (choice.get("meta_info") or {}).get("output_top_logprobs_val_flat")
        found += [(flat, i) for i in range(len(list_of(flat)))]
    return found


def sampled(answer: Any) -> list[Slot]:
    """The logprob of every sampled token."""
    found: list[Slot] = []
    for choice in choices(answer):
        lists = choice.get("logprobs")
        entries = lists if isinstance(lists, list) else list_of((lists or {}).get("content"))
        own = [(entry, "logprob") for entry in entries]
        legacy = (lists or {}).get("token_logprobs") if isinstance(lists, dict) else None
        triples = list_of((choice.get("meta_info") or {}).get("output_token_logprobs"))
        found += (
            [(triple, 0) for triple in triples]
            or own
            or [(legacy, t) for t in range(len(list_of(legacy)))]
        )
    return found


def replaced(value: Any) -> Change:
    """One in three logprobs, sampled and listed alike, and at least one of each answer, is
    ``value``.
    """

    def change(answer: Any, rng: random.Random) -> Any:
        slots = sampled(answer) + listed(answer)
        for number, (owner, key) in enumerate(rng.sample(slots, len(slots))):
            if number == 0 or rng.random() < 1 / 3:
                owner[key] = value
        return answer

    return change


def positive(answer: Any, rng: random.Random) -> Any:
    """One in three logprobs has lost its sign, or is half a nat where it was 0."""
    slots = sampled(answer) + listed(answer)
    for number, (owner, key) in enumerate(rng.sample(slots, len(slots))):
        if number == 0 or rng.random() < 1 / 3:
            owner[key] = abs(owner[key]) or 0.5
    return answer


def unsorted(answer: Any, rng: random.Random) -> Any:
    """The alternatives of every position in any order."""
    for owner, key in rows(answer):
        row = owner[key]
        owner[key] = (
            dict(rng.sample(list(row.items()), len(row)))
            if isinstance(row, dict)
            else rng.sample(row, len(row))
        )
    return answer


def listed_twice(answer: Any, rng: random.Random) -> Any:
    """One alternative of each position stands in its list twice, the second time with another
    logprob.
    """
    if not any(isinstance(owner[key], dict) for owner, key in rows(answer)):
        for owner, key in rows(answer):
            again = copy.deepcopy(rng.choice(owner[key]))
            again["logprob" if isinstance(again, dict) else 0] -= 1.0
            owner[key].append(again)
        return answer
    return _with_repeated_keys(answer)


def _with_repeated_keys(answer: Any) -> bytes:
    """JSON in which a mapping has its first key once more, which no dict of Python holds."""
    marks = {}
    for number, (owner, key) in enumerate(rows(answer)):
        name, value = next(iter(owner[key].items()))
        owner[key][mark := f"repeated key {number}"] = value - 1.0
        marks[json.dumps(mark)] = json.dumps(name)
    text = json.dumps(answer)
    for mark, name in marks.items():
        text = text.replace(mark, name)
    return text.encode()


def short_lists(answer: Any, rng: random.Random) -> Any:
    """Every list of logprobs lacks one of its tokens; the text and the number of tokens are those
    of all.
    """
    for choice in choices(answer):
        lists, meta = choice.get("logprobs"), choice.get("meta_info") or {}
        holders = [(choice, "logprobs")] if list_of(lists) else []
        names = (
            ("content", "tokens", "token_logprobs", "top_logprobs", "text_offset")
            if isinstance(lists, dict)
            else ()
        )
        holders += [(lists, name) for name in names if list_of(lists.get(name))]
        holders += [
            (meta, name)
            for name in ("output_token_logprobs", "output_top_logprobs")
            if list_of(meta.get(name))
        ]
        holders += [(choice, "token_ids")] if list_of(choice.get("token_ids")) else []
        lost = rng.random()
        for owner, name in holders:
            del owner[name][int(lost * len(owner[name]))]
    return answer


def out_of_step(answer: Any, rng: random.Random) -> Any:
    """One of the parallel lists lacks its last entry; an answer without such has an entry without
    its logprob.
    """
    for choice in choices(answer):
        lists, meta = choice.get("logprobs"), choice.get("meta_info") or {}
        if list_of(meta.get("output_top_logprobs")):
            del meta["output_top_logprobs"][-1]
        elif isinstance(lists, dict) and list_of(lists.get("token_logprobs")):
            del lists["token_logprobs"][-1]
        else:
            for owner, key in sampled(answer)[-1:]:
                del owner[key]
    return answer


def choices_twice(answer: Any, rng: random.Random) -> Any:
    """Every choice, or part of a response, stands there twice."""
    if "choices" in answer:
        return {
            **answer,
            "choices": [
                each for choice in answer["choices"] for each in (choice, copy.deepcopy(choice))
            ],
        }
    for item in answer.get("output", []):
        item["content"] = [
            each for part in item.get("content") or [] for each in (part, copy.deepcopy(part))
        ]
    return answer


def first_choice_twice(answer: Any, rng: random.Random) -> Any:
    """The first choice stands in the place of every other one; an answer of one choice has lost
    it.
    """
    if len(list_of(answer.get("choices"))) > 1:
        return {
            **answer,
            "choices": [copy.deepcopy(answer["choices"][0]) for _ in answer["choices"]],
        }
    return missing_choices(answer, rng)


def missing_choices(answer: Any, rng: random.Random) -> Any:
    """The last choice is not there, or a response's message."""
    name = "choices" if "choices" in answer else "output"
    return {**answer, name: answer[name][:-1]}


def broken_off(answer: Any, rng: random.Random) -> Any:
    """The host ended every completion, in the words of one of four hosts, or without a word."""
    reason = rng.choice(["error", "network_error", "abort", "insufficient_system_resource", None])
    for choice in list_of(answer.get("choices")):
        choice["finish_reason"] = reason
    if "output" in answer:
        answer["status"] = "failed"
    return answer


def other_model(answer: Any, rng: random.Random) -> Any:
    """Another model's name and another system's fingerprint."""
    return {**answer, "model": "another-model-2", "system_fingerprint": "fp_another"}


def other_tokenizer(answer: Any, rng: random.Random) -> Any:
    """What POST /tokenize answers, from last to first and one id higher."""
    found = answer.get("tokens")
    ids = [each + 1 if isinstance(each, int) else each for each in list_of(found)[::-1]]
    return {**answer, "tokens": ids, "count": len(ids)} if isinstance(found, list) else answer


CHANGES: dict[str, Change] = {
    "-9999 logprobs": replaced(-9999.0),
    "NaN logprobs": replaced(math.nan),
    "broken off by the host": broken_off,
    "choices out of step": first_choice_twice,
    "choices twice": choices_twice,
    "lists out of step": out_of_step,
    "lists shorter than tokens": short_lists,
    "missing choices": missing_choices,
    "null logprobs": replaced(None),
    "one alternative twice": listed_twice,
    "other model": other_model,
    TOKENIZER: other_tokenizer,
    "positive logprobs": positive,
    "unsorted alternatives": unsorted,
}
