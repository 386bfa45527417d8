"""The facts that a scene leaves, each as records of numbers and words; never sentences.

This is the one place that knows the formats of bias.json, result.json, evaluation.json and of what
commands print with ``--json``. A field that is gone is a KeyError here, and a fact that a scene is
kept for and did not leave a MissingFact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Value: TypeAlias = float | int | str | bool | None
Facts: TypeAlias = dict[str, dict[str, Value]]
"""Record -> field -> value."""


class MissingFact(AssertionError):
    """A scene did not leave this fact."""


@dataclass(frozen=True)
class Left:
    """What a scene left.

    Attributes:
        run: the folder of the run.
        printed: what its commands printed as JSON, in their order.
    """

    run: Path
    printed: Sequence[dict[str, Any]]

    def read(self, name: str) -> dict[str, Any]:
        """A file of the run."""
        path = self.run / name
        if not path.is_file():
            raise MissingFact(name)
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document


def picked(row: Mapping[str, Any], names: str) -> dict[str, Value]:
    """The fields with these names, which must be there."""
    return {name: row[name] for name in names.split()}


def named(records: Iterable[tuple[str, dict[str, Value]]]) -> Facts:
    """Records by name; a name that comes again gets a number."""
    facts: Facts = {}
    for name, record in records:
        number = 1
        unique = name
        while unique in facts:
            number += 1
            unique = f"{name} ({number})"
        facts[unique] = record
    return facts


# --- bias.json


def bias_facts(left: Left) -> Facts:
    """Entries with their standard errors, what was learned, what compiling lost."""
    bias = left.read("bias.json")
    entries = bias["entries"]
    facts = {
        "bias entries": {str(entry["id"]): entry["bias"] for entry in entries},
        "bias standard errors": {str(entry["id"]): entry["error"] for entry in entries},
        "bias seen": {str(entry["id"]): entry["seen"] for entry in entries},
        "bias findings": {row["code"]: row["word"] for row in bias["findings"]},
        "bias training": picked(bias, "rollouts tokens"),
    }
    if bias["learned"] is not None:
        names = "sampled_fraction sigma low high selected_fraction reliability"
        facts["bias learned"] = picked(bias["learned"], names)
    if bias["compiled"] is not None:
        facts["bias compiled"] = compile_numbers(bias["compiled"])
    if bias["censoring"] is not None:
        facts["bias censoring"] = picked(bias["censoring"], "positions outside bounded mass")
    return facts


def compile_numbers(compiled: Mapping[str, Any]) -> dict[str, Value]:
    """What a compile lost."""
    names = "entries_limit integers kl_lost_nats_per_token kept_share clipped rounded dropped"
    return picked(compiled, names)


def feature_facts(left: Left) -> Facts:
    """Each vector of each feature: a value for each entry, and its standard error."""
    bias = left.read("bias.json")
    token_ids = [str(entry["id"]) for entry in bias["entries"]]
    facts: Facts = {}
    for feature in bias["features"]:
        for vector in feature["vectors"]:
            name = f"feature {feature['kind']} {vector['name']}"
            numbers = dict(zip(token_ids, vector["values"], strict=True))
            errors = zip(token_ids, vector["errors"], strict=False)
            numbers |= {f"{token} error": error for token, error in errors}
            facts[name] = numbers | {"weight": vector["weight"]}
        facts[f"feature {feature['kind']}"] = {
            "vectors": len(feature["vectors"]),
            "positions": feature.get("positions"),
        }
    return facts


def calibration_facts(left: Left) -> Facts:
    """The calibration of a decision."""
    calibration = left.read("bias.json")["calibration"]
    offsets = {f"offset of {row['label']}": row["offset"] for row in calibration["labels"]}
    return {"calibration": {**picked(calibration, "weight prompts error"), **offsets}}


# --- result.json


def fit_facts(left: Left) -> Facts:
    """What was chosen, from how much, and how far from the base."""
    result = left.read("result.json")
    counts = picked(result, "estimator entries uncompiled_entries")
    return {
        "chosen": {**settings(result["chosen"]), **counts},
        "kl": picked(result, "kl_nats_per_completion kl_whole"),
        "training": picked(result["training"], "rollouts tokens incomplete filtered"),
        "usage": picked(result["usage"], "completions prompt_tokens completion_tokens"),
        "validation base": picked(result["validation"]["base"], "reward tokens accuracy"),
    }


def settings(chosen: Mapping[str, Any]) -> dict[str, Value]:
    """Settings without the address of a server, whose port is another one each time."""
    return {
        name: value.partition("@http")[0] if isinstance(value, str) else value
        for name, value in chosen.items()
    }


def tried_facts(left: Left) -> Facts:
    """Every candidate, by estimator and settings."""
    rows = left.read("result.json")["validation"]["tried"]
    names = "entries reward tokens accuracy samples"
    return named((f"tried {_candidate(row)}", picked(row, names)) for row in rows)


def _candidate(row: Mapping[str, Any]) -> str:
    words = [f"{name} {value}" for name, value in sorted(settings(row["settings"]).items())]
    return f"{row['estimator']} {', '.join(words)}"


VERDICT = (
    "base biased difference low high p n_prompts n_base n_biased cut_base cut_biased better verdict"
)


def verdict_facts(left: Left) -> Facts:
    """The rows of the verdict that the bias file holds."""
    rows = left.read("bias.json")["verdict"]
    return {f"verdict {row['setting']}, {row['metric']}": picked(row, VERDICT) for row in rows}


def beside_facts(left: Left) -> Facts:
    """A bias that depends on more, against the fixed one and a classifier."""
    rows = left.read("result.json")["beside"]
    return {f"beside {row['against']}, {row['metric']}": picked(row, VERDICT) for row in rows}


def decision_facts(left: Left) -> Facts:
    """Decisions of base and bias at each setting."""
    facts: Facts = {}
    for setting, sides in left.read("result.json")["decisions"].items():
        for side in ("base", "biased"):
            facts[f"decisions {setting}, {side}"] = decision_numbers(sides[side])
    return facts


def decision_numbers(decisions: Mapping[str, Any]) -> dict[str, Value]:
    """Scores, and how often each label was decided for which."""
    numbers = picked(decisions, "accuracy macro_f1 no_label majority calibration_error")
    labels = [row["label"] for row in decisions["labels"]]
    for right, counts in zip(labels, decisions["confusion"], strict=True):
        for decided, count in zip([*labels, "none"], counts, strict=True):
            numbers[f"{right} as {decided}"] = count
    return numbers


def share_facts(left: Left) -> Facts:
    """Labels that base and bias draw, overall and by group."""
    facts: Facts = {}
    for setting, sides in left.read("result.json")["shares"].items():
        for side in ("base", "biased"):
            for group in sides[side]:
                name = f"shares {setting}, {side}, group {group['group'] or 'all'}"
                facts[name] = share_numbers(group)
    return facts


def share_numbers(group: Mapping[str, Any]) -> dict[str, Value]:
    """Distances to the wanted shares, and the shares themselves."""
    names = "prompts completions no_label total_variation jensen_shannon chance_level"
    numbers = picked(group, names)
    numbers |= {f"wanted {label}": share for label, share in group["wanted"].items()}
    return numbers | {f"drawn {label}": share for label, share in group["drawn"].items()}


def operating_facts(left: Left) -> Facts:
    """The chosen operating point, its promise, and every tenth point of the curve."""
    curve = left.read("result.json")["operating"]
    facts: Facts = {
        "operating": {
            **picked(curve, "positive goal shift auc auc_low auc_high"),
            "points": len(curve["points"]),
            "tokens": " ".join(str(token) for token in curve["token_ids"]),
        }
    }
    checked = curve["checked"]
    if checked is not None:
        facts["operating, fresh prompts"] = {**checked["prompts"], **checked["decisions"]}
    if curve["check"] is not None:
        facts["operating, promise"] = picked(
            curve["check"], "measure level value bound word needed"
        )
    for number, point in enumerate(curve["points"]):
        if number % 10 and not point["chosen"]:
            continue
        record: dict[str, Value] = picked(point, "shift chosen")
        for split in ("training", "validation"):
            record |= {f"{split} {name}": count for name, count in point[split].items()}
        for share in ("precision", "recall", "rate"):
            record |= interval(share, point[share], "value")
        facts[f"operating, point {number}"] = record
    return facts


# --- evaluation.json


def policy_name(policy: str) -> str:
    """The name of a policy with the first word of its instruction, which is a sentence."""
    return re.sub(r'"(\w+)[^"]*"', r"\1 ...", policy)


def policies(left: Left) -> list[tuple[str, dict[str, Any]]]:
    """Every policy, with the name of its records."""
    return [
        (f"policy {policy_name(policy['name'])}, {policy['setting']}", policy)
        for policy in left.read("evaluation.json")["policies"]
    ]


def policy_facts(left: Left) -> Facts:
    """Every policy: its means with their intervals, its cost."""
    facts: Facts = {}
    names = "kind entries temperature max_tokens best_of shots prompts completions left_out cut"
    for name, policy in policies(left):
        record = picked(policy, f"{names} prompt_tokens completion_tokens cost")
        for metric, mean in policy["metrics"].items():
            record |= interval(metric, mean, "mean")
        facts[name] = record
    return facts


def interval(name: str, row: Mapping[str, Any], value: str) -> dict[str, Value]:
    """A number with its interval."""
    return {name: row[value], f"{name} low": row["low"], f"{name} high": row["high"]}


def policy_decision_facts(left: Left) -> Facts:
    """The decisions of every policy."""
    return {
        f"{name}, decisions": decision_numbers(policy["decisions"])
        for name, policy in policies(left)
    }


def policy_share_facts(left: Left) -> Facts:
    """The shares of labels of every policy."""
    return {
        f"{name}, group {group['group'] or 'all'}": share_numbers(group)
        for name, policy in policies(left)
        for group in policy["shares"]
    }


def comparison_facts(left: Left) -> Facts:
    """Every comparison of two policies."""
    names = "difference low high p p_sign sd n_prompts needed verdict"
    facts: Facts = {}
    for row in left.read("evaluation.json")["comparisons"]:
        pair = f"{policy_name(row['policy'])} less {policy_name(row['against'])}"
        facts[f"{pair}, {row['setting']}, {row['metric']}"] = picked(row, names)
    return facts


# --- What commands print


def check_facts(left: Left) -> Facts:
    """The check of a decision."""
    check = left.printed[0]
    record = picked(check, "answer base predicted error repaired broken listed informed majority")
    return {"check": {**record, "whole": check["whole"], "margins": sum(check["margins"])}}


def after_label_facts(left: Left) -> Facts:
    """The greedy answers that go on behind a label."""
    return {"check, after a label": picked(left.printed[0]["after"], "begun kept")}


def opening_check_facts(left: Left) -> Facts:
    """The check of an opening."""
    check = left.printed[0]
    names = "answer prompts base predicted error majority begun_wanted begun_unwanted"
    return {"opening check": picked(check, names), "opening check, auc": check["area"]}


def point_check_facts(left: Left) -> Facts:
    """The check of an operating point on other prompts."""
    check = left.printed[1]
    return {
        "point check": picked(check, "verdict prompts distance p drifted"),
        "point check, rate then": check["rate_then"],
        "point check, rate now": check["rate_now"],
        "point check, promise": picked(check["promise"], "value bound word needed"),
        "point check, decisions": check["checked"]["decisions"],
        "point check, auc": check["auc"],
    }


def probability_facts(left: Left) -> Facts:
    """Probabilities of labels on each split, and what is decided where the model does not abstain."""
    facts: Facts = {}
    for part in left.printed[-1]["splits"]:
        record = picked(part, "prompts missing calibration_error abstained")
        for name in ("accuracy", "accuracy_acted_on"):
            record |= interval(name, part[name], "mean")
        record["sum of probabilities"] = sum(row["probability"] for row in part["decisions"])
        facts[f"probabilities, {part['split']}"] = record
    return facts


def exported_facts(left: Left) -> Facts:
    """The bias that ``blb export`` prints."""
    return {"exported": left.printed[-1]}


def compiled_facts(left: Left) -> Facts:
    """What each compile lost."""
    return {
        f"compile {number}": {**compile_numbers(document), "entries": document["entries"]}
        for number, document in enumerate(left.printed)
    }


FACTS: Mapping[str, Callable[[Left], Facts]] = {
    "bias": bias_facts,
    "features": feature_facts,
    "calibration": calibration_facts,
    "fit": fit_facts,
    "tried": tried_facts,
    "verdict": verdict_facts,
    "beside": beside_facts,
    "decisions": decision_facts,
    "shares": share_facts,
    "operating": operating_facts,
    "policies": policy_facts,
    "policy decisions": policy_decision_facts,
    "policy shares": policy_share_facts,
    "comparisons": comparison_facts,
    "check": check_facts,
    "check after label": after_label_facts,
    "opening check": opening_check_facts,
    "point check": point_check_facts,
    "probabilities": probability_facts,
    "exported": exported_facts,
    "compiled": compiled_facts,
}
"""Name in ``Scene.facts`` -> its records."""


def facts_of(names: Iterable[str], left: Left) -> Facts:
    """The records of all these facts.

    Raises:
        MissingFact: a file or all records of a fact are missing.
        KeyError: a field is.
    """
    facts: Facts = {}
    for name in names:
        records = FACTS[name](left)
        if not records:
            raise MissingFact(name)
        facts |= records
    return facts
