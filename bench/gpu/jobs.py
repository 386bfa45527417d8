"""The commands of each part, with the settings that were fixed before any run."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["TASKS", "Job", "Place", "decisions", "labels", "mixture", "records"]

TASKS: Mapping[str, tuple[str, ...]] = {
    "sst2": ("positive", "negative"),
    "rte": ("yes", "no"),
    "agnews": ("world", "sports", "business", "technology"),
    "trec": ("abbreviation", "entity", "description", "person", "location", "number"),
}
"""Decisions in one word and their labels: files NAME.jsonl with ``prompt``, ``answer`` and ``split``."""
DRAWS = {30: 5, 100: 5}
"""Numbers of training rows, and how often they are drawn anew."""
IN_TEXT = ("agnews", "trec")
"""Tasks that are asked as a JSON record, too."""
RECORD = (
    'Answer with a JSON object and nothing else. It has two keys: "label", which is one of the words above, and "reason", one '
    "sentence that explains the label."
)


@dataclass(frozen=True, slots=True)
class Place:
    """A model, and where it is asked. options: of ``blb`` for it. out: the folder of all runs."""

    model: str
    options: tuple[str, ...]
    out: Path
    data: Path
    embedding: str


@dataclass(frozen=True, slots=True)
class Job:
    """A command of ``blb``. name: of its folder and its log. needs: a job that must have ended before; its store is copied where
    ``store`` is set."""

    name: str
    command: tuple[str, ...]
    needs: str = ""
    store: Path | None = None


def instruction(task: str) -> str:
    """What a user would write instead."""
    return f"Answer with exactly one of these words and nothing else: {', '.join(TASKS[task])}."


def _there(at: Place, tasks: Iterable[str]) -> list[str]:
    return [task for task in tasks if (at.data / f"{task}.jsonl").exists()]


def _features(at: Place) -> dict[str, str]:
    """What a bias depends on: the end of a job's name, and the option's value."""
    return {"words": "words", "embedding": f"embedding:{at.embedding}"}


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _fit(at: Place, data: Path, out: Path, *more: str) -> tuple[str, ...]:
    asked = ("--reward", "contains", "--max-tokens", "4")
    return ("fit", *at.options, "--data", str(data), *asked, "--out", str(out), *more)


def decisions(at: Place) -> list[Job]:
    """Given answers, the same by words and by an embedding, samples, and every rival of ``blb eval``."""
    found = []
    for task in _there(at, TASKS):
        data, out = at.data / f"{task}.jsonl", at.out / f"{at.model}_{task}"
        found.append(Job(out.name, _fit(at, data, out)))
        arms: tuple[str, ...] = (
            "--labels-only",
            "--threshold",
            "--calibrate",
            "contextual",
            "--calibrate",
            "batch",
            "--few-shot",
            "5",
        )
        arms += ("--classifier", "tfidf", "--classifier", f"embedding:{at.embedding}", "--baseline-prompt", instruction(task))
        asked = ("--data", str(data), "--reward", "contains", "--max-tokens", "4", "--deploy", "greedy")
        judged = ("eval", str(out / "bias.json"), *at.options, *asked, *arms, "--out", str(out))
        found.append(Job(f"{out.name}_eval", judged, out.name))
        for name, feature in _features(at).items():
            own = at.out / f"{out.name}_{name}"
            found.append(Job(own.name, _fit(at, data, own, "--depends-on", feature), out.name, own / "rollouts.db"))
        own = at.out / f"{out.name}_samples"
        found.append(Job(own.name, _fit(at, data, own, "--learn-from", "samples", "--deploy", "greedy"), out.name))
    return found


def labels(at: Place) -> list[Job]:
    """Fewer training rows, drawn anew, with all validation and test rows; the lists are copied from ``decisions``."""
    found = []
    for size, times in DRAWS.items():
        for draw in range(times):
            for task in _there(at, TASKS):
                rows = _read(at.data / f"{task}.jsonl")
                train = [row for row in rows if row["split"] == "train"]
                kept = random.Random(f"{task} {size} {draw}").sample(train, min(size, len(train)))
                rows = [row for row in rows if row["split"] != "train"] + kept
                data = _write(at.out / "data" / f"{task}_{size}_{draw}.jsonl", rows)
                for name, feature in _features(at).items():
                    own = at.out / f"{at.model}_{task}_{size}_{draw}_{name}"
                    asked = _fit(at, data, own, "--depends-on", feature)
                    found.append(Job(own.name, asked, f"{at.model}_{task}", own / "rollouts.db"))
    return found


def records(at: Place) -> list[Job]:
    """The same decisions inside a JSON record with a reason, learned from samples."""
    found = []
    for task in _there(at, IN_TEXT):
        rows = _read(at.data / f"{task}.jsonl")
        asked_so = [{**row, "prompt": row["prompt"].replace("Answer with one word.", RECORD)} for row in rows]
        data = _write(at.out / "data" / f"{task}_records.jsonl", asked_so)
        asked = ("--data", str(data), "--reward", "bench.gpu.rewards:right_record", "--max-tokens", "60", "--deploy", "greedy")
        learned = ("--learn-from", "samples", "--tau", "0.25", "--tau", "0.5")
        first = at.out / f"{at.model}_{task}_record"
        found.append(Job(first.name, ("fit", *at.options, *asked, *learned, "--out", str(first))))
        for name, feature in _features(at).items():
            own = at.out / f"{first.name}_{name}"
            command = ("fit", *at.options, *asked, *learned, "--depends-on", feature, "--out", str(own))
            found.append(Job(own.name, command, first.name, own / "rollouts.db"))
        told = f'The label must be one of {", ".join(TASKS[task])}. Write {{"label": ..., "reason": ...}}.'
        judged = ("eval", str(first / "bias.json"), *at.options, *asked, "--baseline-prompt", told, "--out", str(first))
        found.append(Job(f"{first.name}_eval", judged, first.name))
    return found


def mixture(at: Place) -> list[Job]:
    """One word for some prompts, a whole sentence for others: opposite wants."""
    from blackbox_lb.tasks.load import load_task

    rows = [
        {"prompt": example.prompt.text, "answer": list(example.answers), "split": split, "group": group}
        for group, task in (("word", load_task("continents")), ("sentence", load_task("capitals")))
        for split in ("train", "validation", "test")
        for example in getattr(task, split)
    ]
    data = _write(at.out / "data" / "mixture.jsonl", rows)
    asked: tuple[str, ...] = (
        "--data",
        str(data),
        "--reward",
        "bench.gpu.rewards:as_its_group_wants",
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
