"""What policies decide right over several draws of labelled rows: differences with intervals, and
the tables of a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

from bench.gallery.results import is_hand_made
from blackbox_lb.bias.records import LEVEL
from blackbox_lb.jobs.evaluation.policies import BASE
from blackbox_lb.rollouts.judging.verdict import GREEDY, holm

__all__ = ["crossed", "evaluation", "in_draws", "less", "means_table", "over_sets"]

Array: TypeAlias = npt.NDArray[np.float64]
Right: TypeAlias = dict[str, Array]
"""Policy -> (d, n) whether it decides each test prompt right, in each draw of labelled rows."""

FIXED, WORDS = "fixed", "words"
ONLY = "labels only"
RBCORR = "RBCorr"


def crossed(values: Array) -> tuple[float, float, float, float]:
    """The mean of (d, n) values, its 95 % interval, and the two-sided p-value of its being 0.

    Prompts are crossed with draws of labelled rows: the variances of the means over both add up
    (Cameron, Gelbach and Miller 2011, "Robust Inference With Multiway Clustering", whose third
    term, of single cells, is left out: the interval is a little wider). Degrees of freedom by
    Satterthwaite.
    """
    parts = [
        (means.var(ddof=1) / len(means), len(means) - 1)
        for means in (values.mean(axis=0), values.mean(axis=1))
        if len(means) > 1
    ]
    mean = float(values.mean())
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return mean, mean, mean, 1.0 if mean == 0 else 0.0
    freedom = variance**2 / sum(part**2 / count for part, count in parts)
    half = float(stats.t.ppf(0.975, freedom) * variance**0.5)
    p = float(2 * stats.t.sf(abs(mean) / variance**0.5, freedom))
    return mean, mean - half, mean + half, p


def in_draws(rows: Sequence[Mapping[str, Array]]) -> Right:
    """One (d, n) array a policy from what came of it in each draw, the first ones where it was not
    tried in all.
    """
    return {name: np.array([row[name] for row in rows if name in row]) for name in rows[0]}


def kind_of(name: str) -> str:
    """Which kind of policy has this name."""
    if name == BASE:
        return "base"
    if name in (FIXED, WORDS):
        return "bias"
    return "rival and bias" if name.endswith(f" and {FIXED}") else "rival"


def compared(name: str, right: Right) -> dict[str, Array]:
    """What a policy is compared with by name -> the differences (d, n): each learned bias less this
    policy; of a rival with a bias, the two less the rival alone.
    """
    if kind_of(name) == "rival and bias":
        alone = name.removesuffix(f" and {FIXED}")
        return {alone: less(right[name], right[alone])}
    if kind_of(name) == "bias":
        return {}
    return {bias: less(right[bias], right[name]) for bias in (FIXED, WORDS) if bias in right}


def less(first: Array, second: Array) -> Array:
    """(d, n) the difference of two policies in the draws that both have; one that is the same in
    every draw has a single row.
    """
    if 1 not in (len(first), len(second)):
        count = min(len(first), len(second))
        return first[:count] - second[:count]
    return first - second


def evaluation(title: str, right: Right, number: int, model: str) -> dict[str, Any]:
    """The evaluation of so many labelled rows of a set, as a page holds it; p-values are adjusted
    for all of its comparisons.
    """
    pairs = {
        (name, other): crossed(values)
        for name in right
        for other, values in compared(name, right).items()
    }
    adjusted = holm([p for *_, p in pairs.values()])
    differences: dict[str, dict[str, Any]] = {name: {} for name in right}
    verdicts: dict[str, dict[str, str]] = {name: {} for name in right}
    for ((name, other), row), p in zip(pairs.items(), adjusted, strict=True):
        difference, low, high, _ = row
        differences[name][other] = {"difference": difference, "low": low, "high": high}
        verdicts[name][other] = "level"
        if p < LEVEL:
            verdicts[name][other] = "wins" if difference > 0 else "loses"
    policies = []
    for name, rows in right.items():
        kind = kind_of(name)
        mean, low, high, _ = crossed(rows)
        policies.append(
            {
                "setting": GREEDY.name,
                "name": name,
                "kind": kind,
                "hand_made": kind == "rival" and is_hand_made(name, GREEDY.name),
                "mean": mean,
                "low": low,
                "high": high,
                "spread": float(rows.mean(axis=1).std(ddof=1)) if len(rows) > 1 else None,
                "verdicts": verdicts[name],
                "differences": differences[name],
            }
        )
    return {
        "title": title,
        "model": model,
        "reward": "accuracy",
        "prompts": right[BASE].shape[1],
        "policies": policies,
        "labels": number,
        "draws": max(len(rows) for rows in right.values()),
    }


def means_table(found: Mapping[str, Mapping[int, Right]]) -> dict[str, Any]:
    """The share of right decisions of every policy, a row a number of labels, as the mean over the
    sets.
    """
    numbers = list(dict.fromkeys(number for rows in found.values() for number in rows))
    names = list(
        dict.fromkeys(name for rows in found.values() for row in rows.values() for name in row)
    )
    lines = [[str(number), *(_mean(found, number, name) for name in names)] for number in numbers]
    title = "Right decisions"
    if len(found) > 1:
        title += f", mean of the {len(found)} sets"
    return {"title": title, "head": ["labels", *names], "rows": lines, "notes": []}


def over_sets(found: Mapping[str, Mapping[int, Right]]) -> dict[str, Any]:
    """The fixed bias less every other policy, over all sets, with the fewest and the most labels:
    each set counts as one.
    """
    rows = []
    numbers = sorted({number for sets in found.values() for number in sets})
    for number in dict.fromkeys((numbers[0], numbers[-1])):
        rights = [sets[number] for sets in found.values()]
        for name in rights[0]:
            if kind_of(name) not in ("base", "rival") or not all(name in right for right in rights):
                continue
            gaps = np.array([less(right[FIXED], right[name]).mean() for right in rights])
            half = stats.t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / len(gaps) ** 0.5
            mean = gaps.mean()
            interval = f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"
            above, below = int((gaps > 0).sum()), int((gaps < 0).sum())
            rows.append([name, str(number), interval, str(above), str(below)])
    return {
        "title": f"The fixed bias less each policy, over {len(found)} sets",
        "head": ["policy", "labels", "right decisions", "sets where higher", "lower"],
        "rows": rows,
        "notes": ["95 % intervals over the sets, by Student's t; not adjusted for their number."],
    }


def _mean(found: Mapping[str, Mapping[int, Right]], number: int, name: str) -> str:
    rows = [sets[number] for sets in found.values()]
    if not all(name in row for row in rows):
        return ""
    return f"{np.mean([row[name].mean() for row in rows]):.3f}"
