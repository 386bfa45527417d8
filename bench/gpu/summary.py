"""What the runs in a folder found: one JSON file, and Markdown tables."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.gallery.rewards import as_its_group_wants, contradicts, record_of
from bench.gpu.jobs import IN_TEXT, LAST, RIGHT, TASKS
from bench.measuring import markdown, read_rows
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.rollouts.judging.verdict import GREEDY, PolicyScores, compare
from blackbox_lb.store import RolloutStore, canonical
from blackbox_lb.tasks import parse_reward
from blackbox_lb.tasks.load import load_task
from blackbox_lb.types import Prompt

__all__ = ["write"]

ACCURACY = parse_reward("accuracy", max_tokens=1, correct=RIGHT)


def write(out: Path, data: Path) -> None:
    """Write OUT/summary.json and OUT/summary.md."""
    found = {path.parent.name: _result(path.parent) for path in sorted(out.glob("*/result.json"))}
    found |= {
        f"{path.parent.name} eval": json.loads(path.read_text())
        for path in sorted(out.glob("*/evaluation.json"))
    }
    texts = {
        path.parent.name: _records(path.parent)
        for path in sorted(out.glob("*_record*/result.json"))
    }
    groups = {
        path.parent.name: _mixture(path.parent)
        for path in sorted(out.glob("*_mixture*/result.json"))
    }
    school = _school(out)
    document = {"runs": found, "records": texts, "mixture": groups, "gsm8k": school}
    (out / "summary.json").write_text(json.dumps(document, indent=1))
    parts = (
        *("## Decisions\n", _decisions(found), "## By number of labels\n", _labels(found)),
        *("## Records\n", _table(texts), "## Mixture\n", _table(groups)),
        *("## GSM8K\n", _table(school)),
    )
    (out / "summary.md").write_text("\n".join(part for part in parts if part) + "\n")


def _result(folder: Path) -> dict[str, Any]:
    """What is kept of result.json: verdict, beside, usage, settings, and what was predicted."""
    document = json.loads((folder / "result.json").read_text())
    kept = {
        key: document.get(key)
        for key in ("verdict", "beside", "usage", "chosen", "entries", "decisions")
    }
    notices = (document.get("provenance") or {}).get("remarks", [])
    kept["remarks"] = [
        each
        for each in notices
        if re.search("chosen|declined|depends on|validation prompts|prompts: ", each)
    ]
    return kept


def _accuracy(result: Mapping[str, Any]) -> dict[str, Any]:
    """The first row that is not of the length, at greedy where that was judged."""
    rows = [row for row in result["verdict"] if row["metric"] != "tokens"]
    return dict(next((row for row in rows if row["setting"] == "greedy"), rows[0]))


def _decisions(found: Mapping[str, Any]) -> str:
    rows = []
    for name, result in found.items():
        if name.endswith(" eval") or re.search(r"_\d+_\d+_|_record|_mixture", name):
            continue
        row, usage = _accuracy(result), result["usage"] or {}
        beside = {each["against"]: each["base"] for each in result["beside"] or []}
        told = "; ".join(f"{against} {value:.3f}" for against, value in beside.items())
        cells = [
            name,
            f"{row['base']:.3f}",
            f"{row['biased']:.3f}",
            f"{row['low']:+.3f} to {row['high']:+.3f} {row['verdict']}",
        ]
        rows.append(
            [
                *cells,
                told,
                f"{usage.get('completions', '')}",
                f"{usage.get('completion_tokens', '')}",
            ]
        )
    return (
        markdown(["run", "base", "biased", "difference", "beside", "completions", "tokens"], rows)
        if rows
        else ""
    )


def _labels(found: Mapping[str, Any]) -> str:
    groups: dict[tuple[str, str, str], list[tuple[float, float, float, bool]]] = defaultdict(list)
    for name, result in found.items():
        whole = re.fullmatch(
            r"(.+_(?:sst2|rte|agnews|trec))(?:_(\d+)_\d+)?_(words|embedding)", name
        )
        if whole is None:
            continue
        row = _accuracy(result)
        beside = {each["against"]: each["base"] for each in result["beside"] or []}
        fixed = beside.get("fixed bias", row["biased"])
        alone = next(
            (value for against, value in beside.items() if against.startswith("classifier")),
            float("nan"),
        )
        groups[whole[1], whole[2] or "300", whole[3]].append(
            (fixed, row["biased"], alone, "fixed bias" in beside)
        )
    rows = []
    for (run, size, feature), values in sorted(
        groups.items(), key=lambda each: (each[0][0], int(each[0][1]), each[0][2])
    ):
        numbers = np.array([each[:3] for each in values])
        means, errors = (
            numbers.mean(axis=0),
            numbers.std(axis=0, ddof=min(1, len(values) - 1)) / len(values) ** 0.5,
        )
        cells = [f"{mean:.3f} ± {error:.3f}" for mean, error in zip(means, errors, strict=True)]
        kept = sum(each[3] for each in values)
        rows.append(
            [
                run,
                size,
                feature,
                str(len(values)),
                *cells,
                f"{kept}",
                f"{means[1] - max(means[0], means[2]):+.3f}",
            ]
        )
    names = [
        "run",
        "labels",
        "feature",
        "draws",
        "fixed",
        "chosen",
        "classifier",
        "dependent chosen",
        "less the better",
    ]
    return markdown(names, rows) if rows else ""


def _records(folder: Path) -> dict[str, Any]:
    """Shares of greedy test completions: records that parse, with the right label, and whose reason
    contradicts the label; and the completions, as ``texts``: answer, without and with the bias."""
    bias, answers = Bias.load(folder / "bias.json"), dict[str, str]()
    task = next(each for each in IN_TEXT if f"_{each}_" in folder.name)
    for row in read_rows(folder.parent / "data" / f"{task}_records.jsonl"):
        if row["split"] == "test":
            answers[row["prompt"]] = row["answer"]
    found: dict[str, Any] = {"texts": []}
    for name, pairs in _greedy(folder, bias, answers):
        right = [answers[prompt] for prompt, _ in pairs]
        texts = [text for _, text in pairs]
        found |= {f"{name} {key}": value for key, value in _shares(texts, right, task)}
        found["texts"].append(
            {
                "policy": name,
                "answers": right,
                "prompts": [prompt for prompt, _ in pairs],
                "said": texts,
            }
        )
        found["prompts"] = float(len(pairs))
    return found


def _greedy(
    folder: Path, bias: Bias, prompts: Collection[str]
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Greedy completions of these prompts, each with its prompt: first of the base, then of the
    bias.
    """
    with RolloutStore(folder / "rollouts.db", read_only=True) as store:
        for temperature, pairs in _pairs(store, bias):
            here = [pair for pair in pairs if pair[0].text in prompts]
            if temperature or not here:
                continue
            for place, name in ((1, "base"), (2, "biased")):
                said = store.completions([str(pair[place]) for pair in here])
                yield (
                    name,
                    [(pair[0].text, each.text) for pair, each in zip(here, said, strict=True)],
                )


def _mixture(folder: Path) -> dict[str, float]:
    """Mean reward of greedy test completions by group."""
    task = load_task(data=folder.parent / "data" / "mixture.jsonl")
    examples = {example.prompt.text: example for example in task.test}
    found = {}
    for name, pairs in _greedy(folder, Bias.load(folder / "bias.json"), examples):
        for group in sorted({example.prompt.columns["group"] for example in task.test}):
            here = [
                (examples[prompt], text)
                for prompt, text in pairs
                if examples[prompt].prompt.columns["group"] == group
            ]
            found[f"{name} {group}"] = (
                float(np.mean([as_its_group_wants(*each) for each in here]))
                if here
                else float("nan")
            )
        found["prompts"] = float(len(pairs))
    return found


def _school(out: Path) -> dict[str, dict[str, float]]:
    """Of the greedy answers to the test problems of GSM8K in each run: the shares that are right,
    that say the words before the number, and whose last number is right; and how much more are
    right with ``projection`` than with ``ips``, paired, with its 95 % interval.
    """
    found: dict[str, dict[str, float]] = {}
    rules = {
        "right": RIGHT,
        "says the words": "regex:(?s).*answer is",
        "last number right": LAST,
    }
    tests = {
        name: parse_reward("accuracy", max_tokens=1, correct=rule).right
        for name, rule in rules.items()
    }
    right: dict[tuple[str, str], dict[str, bool]] = {}
    folders = sorted(path.parent for path in out.glob("*_gsm8k_*/result.json"))
    if not folders:
        return found
    task = load_task(data=out / "data" / "gsm8k.jsonl")
    examples = {example.prompt.text: example for example in task.test}
    for folder in folders:
        model, _, estimator = folder.name.partition("_gsm8k_")
        row = found.setdefault(folder.name, {})
        for name, pairs in _greedy(folder, Bias.load(folder / "bias.json"), examples):
            for test, matches in tests.items():
                answers = {prompt: bool(matches(examples[prompt], text)) for prompt, text in pairs}
                row[f"{name} {test}"] = float(np.mean(list(answers.values())))
                if (name, test) == ("biased", "right"):
                    right[model, estimator] = answers
            row["prompts"] = float(len(pairs))
    for (model, estimator), answers in right.items():
        other = right.get((model, "ips"), {})
        both = [prompt for prompt in answers if prompt in other]
        if estimator == "projection" and both:
            verdict = compare(GREEDY, _scores(other, both), _scores(answers, both), ACCURACY.label)[
                0
            ]
            found[f"{model}_gsm8k_{estimator}"] |= {
                "more than ips": verdict.difference,
                "from": verdict.low,
                "to": verdict.high,
            }
    return found


def _scores(answers: Mapping[str, bool], prompts: Sequence[str]) -> PolicyScores:
    """One answer a prompt, right or not, of unknown length."""
    values = tuple(np.array([float(answers[prompt])]) for prompt in prompts)
    return PolicyScores(values, None, tuple(np.ones(1) for _ in prompts))


def _shares(texts: list[str], right: list[str], task: str) -> Iterator[tuple[str, float]]:
    read = [record_of(text) for text in texts]
    yield "parses", float(np.mean([each is not None for each in read]))
    yield (
        "right",
        float(
            np.mean(
                [
                    each is not None and each[0] == label
                    for each, label in zip(read, right, strict=True)
                ]
            )
        ),
    )
    yield (
        "contradicts",
        float(
            np.mean(
                [each is not None and contradicts(each[0], each[1], TASKS[task]) for each in read]
            )
        ),
    )
    # The right label, pasted into the record: what the best classifier there is would break.
    pasted = [
        each is not None and contradicts(label, each[1], TASKS[task])
        for each, label in zip(read, right, strict=True)
    ]
    yield "contradicts with the right label pasted in", float(np.mean(pasted))


def _table(texts: Mapping[str, Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in texts.values() for name in row if name != "texts"))
    rows = [
        [run, *(f"{row.get(name, float('nan')):.3f}" for name in names)]
        for run, row in texts.items()
    ]
    return markdown(["run", *names], rows) if rows else ""


def _pairs(store: RolloutStore, bias: Bias) -> list[tuple[float, list[tuple[Prompt, str, str]]]]:
    """Temperature, and each prompt with the keys of its first completions without and with
    ``bias``, of every setting that was sampled on both sides.
    """
    requests = store.requests()
    sent = to_request_bias(bias).store_key
    base = {
        _without_bias(settings): name for name, settings in requests.items() if not settings["bias"]
    }
    found = []
    for name, settings in requests.items():
        first = base.get(_without_bias(settings))
        if not sent or settings["bias"] != sent or first is None:
            continue
        before = _first_of_each(store, first)
        after = _first_of_each(store, name)
        pairs = [(prompt, before[prompt], key) for prompt, key in after.items() if prompt in before]
        if pairs:
            found.append((float(settings["sampling"]["temperature"]), pairs))
    return found


def _without_bias(settings: Mapping[str, Any]) -> str:
    return canonical({key: value for key, value in settings.items() if key != "bias"})


def _first_of_each(store: RolloutStore, request: str) -> dict[Prompt, str]:
    first: dict[Prompt, str] = {}
    for key, prompt in store.prompts(request).items():
        first.setdefault(prompt, key)
    return first
