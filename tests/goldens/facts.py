"""The numbers that a scene leaves, by plain names: the one place that knows the formats of the
files.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Value: TypeAlias = float | int | bool | str | None
Facts: TypeAlias = dict[str, Value]

VERDICT = ("base", "biased", "difference", "low", "high", "p", "n_prompts", "verdict", "cut_biased")
COMPARISON = (
    "base_mean",
    "other_mean",
    "difference",
    "low",
    "high",
    "p",
    "p_sign",
    "sd",
    "verdict",
)
CANDIDATE = ("reward", "tokens", "accuracy", "kl_nats_per_completion", "entries", "samples")
POINT = ("shift", "auc", "auc_low", "auc_high")


def of_bias(path: Path) -> Facts:
    """Entries in nats with their standard errors, vectors of features, the verdict, and the
    operating point of a bias file.
    """
    bias = _document(path)
    facts: Facts = {"estimator": bias["estimator"], "entries": len(bias["entries"])}
    facts |= _numbers("settings", bias["settings"])
    for entry in bias["entries"]:
        facts[f"token {entry['id']}"] = entry["bias"]
        facts[f"token {entry['id']} error"] = entry["error"]
    for number, feature in enumerate(bias.get("features", ())):
        name = f"feature {number} {feature['kind']}"
        facts |= _numbers(name, feature["vectors"], without=("name",))
    for row in bias["verdict"]:
        name = f"verdict {row['setting']}, {row['metric']}"
        facts |= {f"{name}: {field}": row[field] for field in VERDICT}
        facts |= _numbers(f"{name}: commonest", row["commonest"] or {})
    if bias.get("operating"):
        facts |= {f"operating {field}": bias["operating"][field] for field in POINT}
        facts["operating points"] = len(bias["operating"]["points"])
        facts |= _numbers("operating checked", bias["operating"]["checked"] or {})
    facts |= _numbers("calibration", bias.get("calibration") or {})
    return facts


def of_result(path: Path) -> Facts:
    """What a fit chose and from what, its decisions and shares, and what it spent."""
    result = _document(path)
    facts: Facts = {"kl": result["kl_nats_per_completion"], "chosen": result["estimator"]}
    facts |= _numbers("chosen", result["chosen"])
    facts |= _numbers("validation base", result["validation"]["base"])
    for number, candidate in enumerate(result["validation"]["tried"]):
        name = f"candidate {number} {candidate['estimator']}"
        facts |= {f"{name}: {field}": candidate[field] for field in CANDIDATE}
        facts |= _numbers(name, candidate["settings"])
    facts |= _numbers("training", result["training"])
    facts |= _numbers("censoring", result["censoring"] or {})
    facts |= _numbers("decisions", result["decisions"])
    facts |= _numbers("shares", result["shares"])
    facts |= _numbers("spent", result["usage"])
    return facts


def of_evaluation(path: Path) -> Facts:
    """Every policy's means with their intervals, and every comparison."""
    evaluation = _document(path)
    facts: Facts = {}
    for policy in evaluation["policies"]:
        name = f"{policy['setting']}, {policy['name']}"
        facts |= _numbers(name, policy["metrics"])
        facts[f"{name}: completion tokens"] = policy["completion_tokens"]
        facts |= _numbers(f"{name}: decisions", policy["decisions"] or {})
    for row in evaluation["comparisons"]:
        name = f"{row['setting']}, {row['metric']}, {row['other']} against {row['base']}"
        facts |= {f"{name}: {field}": row[field] for field in COMPARISON}
    return facts


def of_output(text: str, without: Iterable[str] = ()) -> Facts:
    """The numbers of what ``--json`` printed."""
    return _numbers("printed", json.loads(text), without=("seconds", "provenance", *without))


def of_requests(calls: Iterable[tuple[str, Mapping[str, Any]]], *, repeats: bool) -> Facts:
    """How many requests came on each path, and one hash over all of them, whatever their order.

    Questions about texts and tokens count once each, because how often a server is asked them
    anew depends on how many requests are under way. ``repeats``: whether equal requests for
    completions count each; after a failure, those that it hit come again.
    """
    requests = Counter((path, json.dumps(body, sort_keys=True)) for path, body in calls)
    counts: Counter[str] = Counter()
    hashes = []
    for (path, body), number in requests.items():
        count = number
        if not (repeats and path.endswith("completions")):
            count = 1
        counts[path] += count
        hashes += [hashlib.sha256(f"{path} {body}".encode()).hexdigest()] * count
    facts: Facts = {f"requests {path}": count for path, count in sorted(counts.items())}
    facts["requests"] = hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest()[:16]
    return facts


def _document(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


def _numbers(name: str, value: Any, without: Iterable[str] = ()) -> Facts:
    """The numbers and truth values inside ``value``, each by its path."""
    facts: Facts = {}
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key not in without:
                facts |= _numbers(f"{name}, {key}", part, without)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            facts |= _numbers(f"{name}, {number}", part, without)
    elif isinstance(value, bool | int | float):
        facts[name] = value
    return facts
