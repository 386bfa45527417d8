"""Where a bias does not help."""

from __future__ import annotations

import random

from bench.gallery.decisions import TEST_PROMPTS
from bench.gallery.use import Place, Step, Use, data_file, options
from bench.gpu.jobs import RIGHT, school_problem
from bench.measuring import read_rows, write_rows

__all__ = ["LIMITS"]

NUMBER_SPLITS = ["train"] * 60 + ["validation"] * 40 + ["test"] * 80
SCHOOL_SPLITS = ["train"] * 30 + ["validation"] * 20 + ["test"] * 60
SMALL_SCHOOL_SPLITS = ["train"] * 15 + ["validation"] * 8 + ["test"] * 30


def _limits(place: Place) -> list[Step]:
    """Decisions that a bias should not mend, looked at beforehand and fitted all the same."""
    pairs = [(left, right) for left in range(2, 16) for right in range(2, 16)]
    random.Random(0).shuffle(pairs)
    question = "What is {} times {} modulo 4? Answer with one digit: 0, 1, 2 or 3."
    rows = [
        {"prompt": question.format(left, right), "answer": str(left * right % 4), "split": split}
        for (left, right), split in zip(pairs, NUMBER_SPLITS, strict=False)
    ]
    # A number is right where it is the whole answer, so one token is all that is asked for: "0, 2"
    # contains both.
    tasks = {"numbers": (write_rows(place.out / "numbers.jsonl", rows), "exact-match", 1)}
    entailment = data_file(place, "rte.jsonl")
    if entailment is not None:
        tasks["entailment"] = (entailment, "contains", 4)
    steps = []
    for name, (data, reward, max_tokens) in tasks.items():
        out = place.out / name
        task = options(*place.model, data=data, reward=reward, max_tokens=max_tokens)
        evaluation = options(
            "eval",
            place.bias("bias", name),
            *task,
            test_limit=TEST_PROMPTS,
            deploy="greedy",
            rival=("labels-only", "classifier:tfidf"),
            out=out,
        )
        steps += [
            Step(f"{name}_check", options("check", *task, out=out)),
            Step(name, options("fit", *task, test_limit=TEST_PROMPTS, out=out)),
            Step(f"{name}_eval", evaluation, name.capitalize()),
        ]
    return steps + _school_problems(place)


def _school_problems(place: Place) -> list[Step]:
    """School problems that the model cannot solve: right answers are what is rewarded, and no token
    makes them.
    """
    source = data_file(place, "gsm8k/test.jsonl")
    if source is None:
        return []
    splits = SMALL_SCHOOL_SPLITS if place.small else SCHOOL_SPLITS
    samples = 6 if place.small else 12
    rows = (
        school_problem(line, split) for line, split in zip(read_rows(source), splits, strict=False)
    )
    out = place.out / "gsm8k"
    task = options(
        *place.model,
        data=write_rows(place.out / "gsm8k.jsonl", rows),
        reward="accuracy",
        correct=RIGHT,
        max_tokens=200,
        deploy="greedy",
    )
    fit = options(
        "fit", *task, samples_per_prompt=samples, validation_samples=1, test_samples=1, out=out
    )
    instruction = "Be careful with each calculation."
    evaluation = options("eval", place.bias("bias", "gsm8k"), *task, rival=f"prompt:{instruction}")
    return [Step("gsm8k", fit), Step("gsm8k_eval", options(*evaluation, out=out), "GSM8K")]


LIMITS = Use(
    "Where it does not help",
    "Answers that depend on what the model does not know: arithmetic modulo 4, whether one sentence"
    " follows from another (RTE), and school problems (GSM8K); greedy. The reward is the share of"
    " right answers; a number is one token. Rivals: the labels alone, a classifier of"
    " words without any language model, and for school problems an instruction. What `blb check`"
    " said beforehand stands with the fits.",
    _limits,
)
