"""Shorter reasoning: generated word problems and GSM8K, reasoned about before "Answer:"."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from bench.gallery.use import (
    Place,
    Step,
    Use,
    by_completions,
    data_file,
    options,
    split_column,
)
from bench.gpu.jobs import LAST, school_problem
from bench.measuring import read_rows, write_rows

__all__ = ["ASKED", "RIGHT", "SCHOOL", "SHORTER", "problems"]

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas")
THINGS = (
    "apples",
    "books",
    "coins",
    "pencils",
    "stamps",
    "marbles",
    "cards",
    "shells",
    "stickers",
    "eggs",
)
ASKED = "{} Reason step by step in a few sentences, then write 'Answer:' and the number."
CLOSING = "Answer:"
WORDS = (
    "Let",
    "So",
    "First",
    "Next",
    "Then",
    "Now",
    "Therefore",
    "Wait",
    "However",
    "Since",
    "We",
    "To",
    "By",
    "After",
)
"""The hand list: words that begin steps of reasoning."""
RIGHT = r"regex:(?s)Answer:[^\d\n]{0,40}{answer}(?!\d|\.\d)"
"""The first number after "Answer:", in its line: the model likes to write "Answer: Anna has 7 coins
now".
"""


def problems(number: int, seed: int = 0) -> list[tuple[str, int]]:
    """Different word problems of one or two steps, with their answers."""
    rng = random.Random(seed)
    totals: dict[str, int] = {}
    while len(totals) < number:
        name = rng.choice(NAMES)
        thing = rng.choice(THINGS)
        total = rng.randint(3, 12)
        text = f"{name} has {total} {thing}."
        for _ in range(rng.choice((1, 2))):
            kind = rng.choice(("buys", "finds", "loses"))
            size = rng.randint(2, 6)
            if kind == "loses" and total <= size:
                kind = "finds"
            total += -size if kind == "loses" else size
            text += f" Then {name} {kind} {size} {'of them' if kind == 'loses' else 'more'}."
        totals[f"{text} How many {thing} does {name} have now?"] = total
    return list(totals.items())


SPLITS = {"train": 40, "validation": 16, "test": 40}
SMALL_SPLITS = {"train": 20, "validation": 10, "test": 40}
SCHOOL_SPLITS = {"train": 24, "validation": 12, "test": 30}
SMALL_SCHOOL_SPLITS = {"train": 12, "validation": 5, "test": 10}


def _task(
    place: Place, rows: Iterable[Mapping[str, Any]], max_tokens: int, correct: str, count: str
) -> tuple[str, ...]:
    """Options of a task that is reasoned about up to "Answer:", for right answers in few tokens."""
    return options(
        *place.model,
        data=write_rows(place.out / "problems.jsonl", rows),
        max_tokens=max_tokens,
        reward="correct-and-short",
        correct=correct,
        thinking=f"until:{CLOSING}",
        count=count,
        store=place.out / "store.db",
        deploy="greedy",
        seed=1,
    )


def _rivals(place: Place) -> tuple[str, ...]:
    """A list of words, weight on "Answer:", and an instruction."""
    words = place.out / "words.txt"
    words.write_text("\n".join(WORDS) + "\n")
    return options(
        rival=("prompt:Be brief.", f"words:{words}:-2", "close:2", "close:5"),
    )


def _shorter(place: Place) -> list[Step]:
    """Generated word problems: short reasoning that ends in the right number, greedy."""
    splits = SMALL_SPLITS if place.small else SPLITS
    samples = 4 if place.small else 6
    title = "Reasoning in word problems"
    names = split_column(splits)
    rows = (
        {"prompt": ASKED.format(text), "answer": str(total), "split": split}
        for (text, total), split in zip(problems(len(names)), names, strict=True)
    )
    task = _task(place, rows, 120, RIGHT, "thinking")
    taus = 0.5 if place.small else (0.5, 0.25)
    fit = options("fit", *task, samples_per_prompt=samples, tau=taus, out=place.out / "one")
    evaluation = options("eval", place.bias("bias", "one"), *task, *_rivals(place))
    steps = [
        Step("one", fit),
        Step("eval", options(*evaluation, out=place.out / "eval"), title),
    ]
    if place.small:
        return steps
    prompts = splits["train"]
    parts = [(10, 1), (prompts, 1), (prompts, samples)]
    return [*steps, *by_completions(place, task, parts, tau=0.5, title=title)]


def _school(place: Place) -> list[Step]:
    """School problems (GSM8K) in the same way. One bias is chosen by the reward, one for the fewest
    tokens at equal accuracy, which the small page spares.
    """
    splits = SMALL_SCHOOL_SPLITS if place.small else SCHOOL_SPLITS
    rows = []
    for split, number in splits.items():
        source = data_file(place, f"gsm8k/{'test' if split == 'test' else 'train'}.jsonl")
        if source is None:
            raise FileNotFoundError(f"gsm8k is neither in nor beside {place.data}")
        first = splits["train"] if split == "validation" else 0
        rows += [_school_row(line, split) for line in read_rows(source)[first : first + number]]
    task = _task(place, rows, 300, LAST, "all")
    samples = 3 if place.small else 4
    taus = 0.5 if place.small else (1, 0.5, 0.25)
    objectives = {"short": "reward"}
    if not place.small:
        objectives["as-right"] = "pareto"
    fit = options("fit", *task, samples_per_prompt=samples, tau=taus)
    fits = [
        Step(name, options(*fit, objective=objective, out=place.out / name))
        for name, objective in objectives.items()
    ]
    biases = [place.bias(name) for name in objectives]
    evaluation = options("eval", *biases, *task, *_rivals(place), out=place.out / "eval")
    return [*fits, Step("eval", evaluation, "Reasoning in school problems")]


def _school_row(line: Mapping[str, str], split: str) -> dict[str, Any]:
    """A row of GSM8K, asked like the generated problems; 1,234 is right with its comma, too."""
    number = school_problem(line, split)["answer"]
    accepted: str | list[str] = number
    if len(number) > 3:
        accepted = [number, f"{int(number):,}"]
    return {"prompt": ASKED.format(line["question"]), "answer": accepted, "split": split}


SHORTER = Use(
    "Shorter reasoning",
    'Word problems of one or two steps, reasoned and then answered behind "Answer:". The reward is'
    " 120 divided by the tokens of the reasoning where the answer is right, else 0; greedy. Rivals:"
    ' a hand list of words that begin steps at -2, more weight on "Answer:", and an instruction.',
    _shorter,
    second_model=True,
)
SCHOOL = Use(
    "Shorter reasoning, GSM8K",
    "School problems, reasoned and then answered. The reward is 300 divided by all tokens where the"
    " last number is right, else 0; greedy. Two biases of the same samples: one chosen by the"
    " reward (small: this one alone), one (as-right) for the fewest tokens at equal accuracy."
    ' Rivals: a hand list of words that begin steps at -2, more weight on "Answer:", and an'
    " instruction.",
    _school,
    files=("gsm8k/train.jsonl", "gsm8k/test.jsonl"),
    second_model=True,
)
