"""The commands of each part, with the settings that were fixed before any run."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.measuring import read_rows, write_rows

__all__ = [
    *(
        "LAST",
        "RECORD",
        "RECORD_TOKENS",
        "RIGHT",
        "TASKS",
        "Job",
        "Place",
        "decisions",
        "gsm8k",
        "instruction",
        "labels",
        "live",
        "math",
        "mixture",
        "overhead",
        "records",
    ),
    "school_problem",
]

TASKS: Mapping[str, tuple[str, ...]] = {
    "sst2": ("positive", "negative"),
    "rte": ("yes", "no"),
    "agnews": ("world", "sports", "business", "technology"),
    "trec": ("abbreviation", "entity", "description", "person", "location", "number"),
}
"""Decisions in one word and their labels: files NAME.jsonl with ``prompt``, ``answer`` and
``split``.
"""
DRAWS = {30: 5, 100: 5}
"""Numbers of training rows, and how often they are drawn anew."""
IN_TEXT = ("agnews", "trec")
"""Tasks that are asked as a JSON record, too."""
RECORD = (
    'Answer with a JSON object and nothing else. It has two keys: "label", which is one of the'
    ' words above, and "reason", one sentence that explains the label.'
)
RECORD_TOKENS = 160
"""Of a record at most. With 60 a third of the records of Qwen2.5-Coder-0.5B did not end."""

ALPHAS = (0.005, 0.007, 0.012, 0.022, 0.035, 0.052, 0.075, 0.11)
"""The paper's range for accuracy, its chosen values and some between
(``bench/paper/accuracy.toml``); tau is 1 there.
"""
SAMPLES = 4
"""Completions of each training problem of GSM8K."""


class Problems(NamedTuple):
    """Numbers of problems: of GSM8K to learn from, to choose on and to judge on, and of MATH to
    judge on.
    """

    train: int
    validation: int
    test: int
    math: int


ON_GPU = Problems(7_000, 200, 1_319, 500)
ON_CPU = Problems(500, 40, 240, 60)
REASONED = "Reason step by step, then end with 'The answer is' and the number."
RIGHT = r"regex:(?s).*answer is[^\d\n-]{0,20}{answer}(?!\d|\.\d)"
"""The test of such an answer."""
LAST = r"regex:(?<![\d.,-]){answer}(?:\.0+)?(?!\d|[.,]\d)\D*$"
"""The last number of all, as GSM8K is scored where a model forgets the words that it was to end
with.
"""
TILL = 0.4
"""Share of the time for collecting; the fits take what is there by then."""
BOXED = "Reason step by step, and put your final answer within \\boxed{}."
"""What a problem of MATH ends with."""


@dataclass(frozen=True, slots=True)
class Place:
    """A model, and where it is asked. options: of ``blb`` for it. out: the folder of all runs.
    folder: of its weights. problems: how many of GSM8K and MATH."""

    model: str
    options: tuple[str, ...]
    out: Path
    data: Path
    embedding: str
    folder: str = ""
    problems: Problems = ON_GPU


@dataclass(frozen=True, slots=True)
class Job:
    """A command. name: of its folder and its log. needs: a job that must have ended before; its
    store is copied where ``store`` is set.

    module: what Python runs. until: share of the time after which it is interrupted. takes_less: it
    goes on from what ``needs`` left when that was cut off. variables: of its environment.
    """

    name: str
    command: tuple[str, ...]
    needs: str = ""
    store: Path | None = None
    module: str = "blackbox_lb"
    until: float = 1.0
    takes_less: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


def instruction(task: str) -> str:
    """What a user would write instead."""
    return f"Answer with exactly one of these words and nothing else: {', '.join(TASKS[task])}."


def _there(at: Place, tasks: Iterable[str]) -> list[str]:
    return [task for task in tasks if (at.data / f"{task}.jsonl").exists()]


def _features(at: Place) -> dict[str, str]:
    """What a bias depends on: the end of a job's name, and the option's value."""
    return {"words": "words", "embedding": f"embedding:{at.embedding}"}


def _fit(at: Place, data: Path, out: Path, *more: str) -> tuple[str, ...]:
    asked = ("--reward", "contains", "--max-tokens", "4")
    return ("fit", *at.options, "--data", str(data), *asked, "--out", str(out), *more)


def decisions(at: Place) -> list[Job]:
    """Given answers, the same by words and by an embedding, samples, and every rival of ``blb
    eval``.
    """
    found = []
    for task in _there(at, TASKS):
        data, out = at.data / f"{task}.jsonl", at.out / f"{at.model}_{task}"
        found.append(Job(out.name, _fit(at, data, out)))
        rivals = (
            f"prompt:{instruction(task)}",
            "labels-only",
            "threshold",
            "calibrate:contextual",
            "calibrate:batch",
            "few-shot:5",
            "classifier:tfidf",
            f"classifier:embedding:{at.embedding}",
        )
        arms = [word for rival in rivals for word in ("--rival", rival)]
        asked = (
            "--data",
            str(data),
            "--reward",
            "contains",
            "--max-tokens",
            "4",
            "--deploy",
            "greedy",
        )
        judged = ("eval", str(out / "bias.json"), *at.options, *asked, *arms, "--out", str(out))
        found.append(Job(f"{out.name}_eval", judged, out.name))
        for name, feature in _features(at).items():
            own = at.out / f"{out.name}_{name}"
            found.append(
                Job(
                    own.name,
                    _fit(at, data, own, "--depends-on", feature),
                    out.name,
                    own / "rollouts.db",
                )
            )
        own = at.out / f"{out.name}_samples"
        found.append(
            Job(
                own.name,
                _fit(at, data, own, "--learn-from", "samples", "--deploy", "greedy"),
                out.name,
            )
        )
    return found


def labels(at: Place) -> list[Job]:
    """Fewer training rows, drawn anew, with all validation and test rows; the lists are copied from
    ``decisions``.
    """
    found = []
    for size, times in DRAWS.items():
        for draw in range(times):
            for task in _there(at, TASKS):
                rows = read_rows(at.data / f"{task}.jsonl")
                train = [row for row in rows if row["split"] == "train"]
                kept = random.Random(f"{task} {size} {draw}").sample(train, min(size, len(train)))
                rows = [row for row in rows if row["split"] != "train"] + kept
                data = write_rows(at.out / "data" / f"{task}_{size}_{draw}.jsonl", rows)
                for name, feature in _features(at).items():
                    own = at.out / f"{at.model}_{task}_{size}_{draw}_{name}"
                    asked = _fit(at, data, own, "--depends-on", feature)
                    found.append(Job(own.name, asked, f"{at.model}_{task}", own / "rollouts.db"))
    return found


def records(at: Place) -> list[Job]:
    """The same decisions inside a JSON record with a reason, learned from samples."""
    found = []
    for task in _there(at, IN_TEXT):
        rows = read_rows(at.data / f"{task}.jsonl")
        asked_so = [
            {**row, "prompt": row["prompt"].replace("Answer with one word.", RECORD)}
            for row in rows
        ]
        data = write_rows(at.out / "data" / f"{task}_records.jsonl", asked_so)
        asked = (
            "--data",
            str(data),
            "--reward",
            "bench.gallery.rewards:right_record",
            "--max-tokens",
            str(RECORD_TOKENS),
            "--deploy",
            "greedy",
        )
        learned = ("--learn-from", "samples", "--tau", "0.25", "--tau", "0.5")
        first = at.out / f"{at.model}_{task}_record"
        found.append(Job(first.name, ("fit", *at.options, *asked, *learned, "--out", str(first))))
        for name, feature in _features(at).items():
            own = at.out / f"{first.name}_{name}"
            command = (
                "fit",
                *at.options,
                *asked,
                *learned,
                "--depends-on",
                feature,
                "--out",
                str(own),
            )
            found.append(Job(own.name, command, first.name, own / "rollouts.db"))
        told = (
            f'The label must be one of {", ".join(TASKS[task])}. Write {{"label": ..., "reason":'
            " ...}."
        )
        judged = (
            "eval",
            str(first / "bias.json"),
            *at.options,
            *asked,
            "--rival",
            f"prompt:{told}",
            "--out",
            str(first),
        )
        found.append(Job(f"{first.name}_eval", judged, first.name))
    return found


def mixture(at: Place) -> list[Job]:
    """One word for some prompts, a whole sentence for others: opposite wants."""
    from blackbox_lb.tasks.load import load_task

    rows = [
        {
            "prompt": example.prompt.text,
            "answer": list(example.answers),
            "split": split,
            "group": group,
        }
        for group, task in (("word", load_task("continents")), ("sentence", load_task("capitals")))
        for split in ("train", "validation", "test")
        for example in getattr(task, split)
    ]
    data = write_rows(at.out / "data" / "mixture.jsonl", rows)
    asked: tuple[str, ...] = (
        "--data",
        str(data),
        "--reward",
        "bench.gallery.rewards:as_its_group_wants",
        "--max-tokens",
        "24",
        "--deploy",
        "greedy",
    )
    asked += ("--learn-from", "samples", "--tau", "0.25")
    first = at.out / f"{at.model}_mixture"
    found = [Job(first.name, ("fit", *at.options, *asked, "--out", str(first)))]
    for name, feature in (("groups", "groups:group"), ("words", "words")):
        own = at.out / f"{first.name}_{name}"
        command = ("fit", *at.options, *asked, "--depends-on", feature, "--out", str(own))
        found.append(Job(own.name, command, first.name, own / "rollouts.db"))
    return found


def school_problem(row: Mapping[str, str], split: str) -> dict[str, str]:
    """A row of GSM8K's own files as one of ours; its answer ends in ``#### 1,234``."""
    number = row["answer"].rpartition("#### ")[2].replace(",", "")
    return {"prompt": f"{row['question']} {REASONED}", "answer": number, "split": split}


def gsm8k(at: Place) -> list[Job]:
    """The paper's task: four completions a problem for right answers; ``ips`` with the paper's
    settings, and ``projection``, from as many of them as there was time for."""
    if not (at.data / "gsm8k" / "train.jsonl").exists():
        return []
    parts = {
        "train": read_rows(at.data / "gsm8k" / "train.jsonl"),
        "test": read_rows(at.data / "gsm8k" / "test.jsonl"),
    }
    numbers = at.problems
    splits = {
        "train": parts["train"][: numbers.train],
        "validation": parts["train"][numbers.train : numbers.train + numbers.validation],
        "test": parts["test"][: numbers.test],
    }
    rows = [school_problem(row, split) for split, part in splits.items() for row in part]
    data, first = write_rows(at.out / "data" / "gsm8k.jsonl", rows), at.out / f"{at.model}_gsm8k"
    asked: tuple[str, ...] = (
        "--data",
        str(data),
        "--max-tokens",
        "320",
        "--top-logprobs",
        "5",
        "--samples-per-prompt",
        str(SAMPLES),
        "--concurrency",
        "128",
    )
    asked += ("--reward", "log-accuracy", "--correct", RIGHT)
    found = [Job(first.name, ("collect", *at.options, *asked, "--out", str(first)), until=TILL)]
    estimators = {
        "ips": (
            "--tau",
            "1",
            "--alpha-scale",
            "absolute",
            *(word for each in ALPHAS for word in ("--alpha", str(each))),
        ),
        "projection": ("--tau", "1"),
    }
    for name, settings in estimators.items():
        own = at.out / f"{first.name}_{name}"
        learned = (*asked, "--deploy", "greedy", "--only-stored", "--estimator", name, *settings)
        command = ("fit", *at.options, *learned, "--out", str(own))
        found.append(Job(own.name, command, first.name, own / "rollouts.db", takes_less=True))
    return found


def math(at: Place) -> list[Job]:
    """Problems of MATH with and without the biases that were learned from right answers to GSM8K,
    greedy; an answer is right where it equals the expected one in any form.
    """
    source = at.data / "math500" / "test.jsonl"
    if not source.exists():
        return []
    rows = (
        {"prompt": f"{row['problem']}\n\n{BOXED}", "answer": row["answer"], "split": "test"}
        for row in read_rows(source)[: at.problems.math]
    )
    data = write_rows(at.out / "data" / "math.jsonl", rows)
    asked: tuple[str, ...] = ("--data", str(data), "--reward", "accuracy", "--correct", "math")
    asked += ("--max-tokens", "512", "--deploy", "greedy", "--concurrency", "128")
    evaluations = []
    for name in ("projection", "ips"):
        fit = f"{at.model}_gsm8k_{name}"
        folder = at.out / f"{at.model}_math_{name}"
        judged = f"{name}={at.out / fit / 'bias.json'}"
        command = ("eval", judged, *at.options, *asked, "--out", str(folder))
        evaluations.append(Job(folder.name, command, fit))
    return evaluations


def live(at: Place) -> list[Job]:
    """The tests of ``LearnedBias`` in a vLLM of their own, under both model runners."""
    known = {"BLB_TEST_VLLM": sys.executable, "BLB_TEST_VLLM_MODEL": at.folder}
    return [
        Job(
            f"{at.model}_live_v{2 if new else 1}",
            ("-q", "tests/live/test_vllm.py", "-m", "live"),
            module="pytest",
            variables=known | {"VLLM_USE_V2_MODEL_RUNNER": str(new)},
        )
        for new in (0, 1)
    ]


def overhead(at: Place) -> list[Job]:
    """What the bias of the first decision costs the engine, by the clock of single steps; after all
    others, which disturb it.
    """
    first = next(iter(_there(at, TASKS)), None)
    if first is None:
        return []
    bias = at.out / f"{at.model}_{first}" / "bias.json"
    command = (
        "steps",
        "--model",
        at.folder,
        "--bias",
        str(bias),
        "--concurrent",
        "1",
        "--concurrent",
        "64",
        "--concurrent",
        "256",
    )
    return [
        Job(
            f"{at.model}_overhead",
            command,
            bias.parent.name,
            module="bench.gpu.vllm_overhead",
            variables={"BLB_BIAS_DIR": str(bias.parent)},
        )
    ]
