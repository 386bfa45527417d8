"""The frontier on a real model: the embedded engine on capitals, biases of every estimator from the
same stored rollouts.

Everything that is drawn goes into one store, so a run that was cut off goes on where it stopped,
and a second one only computes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.curves import Curve, Point
from bench.estimators import ESTIMATORS, Fitted
from bench.exact import PEER, PEERS, SUBJECT, markdown
from bench.studies.plot import Panel
from blackbox_lb import RolloutStore, Task, Trials, connect, load_task, parse_reward
from blackbox_lb.bias.limits import most_entries
from blackbox_lb.cli.terminal import Terminal
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.sparse.sparsify import sparsify
from blackbox_lb.rollouts.judging.verdict import SAMPLED, PolicyScores
from blackbox_lb.rollouts.positions import scored
from blackbox_lb.types import Example

__all__ = [
    "PLANNED",
    "Measured",
    "Plan",
    "Planned",
    "comparison",
    "engine",
    "measure",
    "panel",
    "table",
]

FEWER = 5
"""The subject is fitted on this part of the rollouts, too."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One bias to judge: an estimator, how many times fewer rollouts than all it gets, and its
    setting.
    """

    estimator: str
    fewer: int
    tau: float
    setting: str


HEAVY = PEERS[1]

PLANNED = (
    Planned(SUBJECT, 1, 1.0, "l2 5"),
    Planned(SUBJECT, 1, 0.5, "l2 20"),
    Planned(SUBJECT, 1, 0.5, "l2 5"),
    Planned(SUBJECT, 1, 0.25, "l2 20"),
    Planned("projection, top-20", 1, 0.5, "l2 5"),
    Planned(SUBJECT, FEWER, 1.0, "l2 5"),
    Planned(SUBJECT, FEWER, 0.5, "l2 20"),
    Planned(SUBJECT, FEWER, 0.5, "l2 5"),
    Planned(PEER, 1, 0.5, "alpha 0.03 x mean weight"),
    Planned(PEER, 1, 0.5, "alpha 0.3 x mean weight"),
    Planned(PEER, 1, 1.0, "alpha 0.3 x mean weight"),
    Planned(HEAVY, 1, 0.5, "alpha 3 x mean weight"),
    Planned(HEAVY, 1, 0.5, "alpha 10 x mean weight"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Completions a training prompt (a multiple of 5) and a test prompt; ``limit`` prompts of each
    split, all if None.
    """

    samples: int = 10
    test_samples: int = 4
    limit: int | None = None
    entries: int | None = None
    top_logprobs: int = 20
    reward: str = "correct-and-short"


@dataclass(frozen=True, slots=True)
class Measured:
    """``point`` on fresh completions of the test prompts at temperature 1; ``error``: of its
    reward, over prompts.
    """

    point: Point
    accuracy: float
    error: float
    entries: int


@asynccontextmanager
async def engine(plan: Plan, folder: Path) -> AsyncIterator[tuple[Trials, Task]]:
    """The embedded engine with its store in ``folder``, and the task."""
    task = load_task("capitals")
    reward = parse_reward(plan.reward, max_tokens=task.max_tokens)
    async with connect("local", max_tokens=reward.max_tokens) as session:
        with RolloutStore(folder / "rollouts.db") as store:
            tokenizer = await session.tokenizer()
            yield Trials(session, store, tokenizer, reward, Terminal(), plan.top_logprobs), task


async def measure(
    trials: Trials, task: Task, plan: Plan, planned: Sequence[Planned] = PLANNED
) -> tuple[Measured, list[Measured]]:
    """The base model and every planned bias. Asks the model only for what is not in the store."""
    examples, test = task.train[: plan.limit], task.test[: plan.limit]
    keys = await trials.collect("training", examples, trials.draw(SAMPLED), plan.samples)
    parts = {
        fewer: _with_lists(trials, examples, [row[: plan.samples // fewer] for row in keys])
        for fewer in sorted({each.fewer for each in planned} | {1})
    }
    tail = NextToken.of(parts[1])
    scores = await trials.scores("test, base", test, SAMPLED, plan.test_samples)
    n = len(parts[1].keys)
    base = _measured(
        Point("none", n, float("nan"), "", scores.mean_reward, 0.0, _tokens(scores)), scores, 0
    )
    found = []
    for each in planned:
        bias = _compiled(trials, parts[each.fewer], _fitted(parts[each.fewer], each), plan.entries)
        title = f"test, {each.estimator}, {each.setting}, tau {each.tau:g}"
        scores = await trials.scores(title, test, SAMPLED, plan.test_samples, bias)
        kl = await trials.kl(test, plan.test_samples, bias, tail)
        n = len(parts[each.fewer].keys)
        point = Point(
            each.estimator, n, each.tau, each.setting, scores.mean_reward, kl, _tokens(scores)
        )
        found.append(_measured(point, scores, len(bias)))
    return base, found


def _with_lists(
    trials: Trials, examples: Sequence[Example], keys: Sequence[Sequence[str]]
) -> Rollouts:
    """Every estimator here cuts the lists to its own length."""
    return scored(trials.store, examples, keys, trials.reward, trials.session.end_tokens)[0]


def _fitted(rollouts: Rollouts, planned: Planned) -> Fitted:
    for fitted in ESTIMATORS[planned.estimator](rollouts, (planned.tau,)):
        if fitted.setting == planned.setting:
            return fitted
    raise ValueError(
        f"{planned.estimator} has no setting {planned.setting!r}; see bench/estimators.py for those"
        " it has"
    )


def _compiled(
    trials: Trials, rollouts: Rollouts, fitted: Fitted, entries: int | None
) -> dict[int, float]:
    """What is sent: the learned bias, cut to what the provider takes."""
    rules, table = trials.session.profile.bias, NextToken.of(rollouts)
    sparse = sparsify(
        table,
        table.align(fitted.token_ids, fitted.values),
        entries=most_entries(trials.session.profile, entries),
        low=rules.low,
        high=rules.high,
        integers=not rules.fractions,
    )
    return dict(zip(sparse.token_ids.tolist(), sparse.values.tolist(), strict=True))


def _measured(point: Point, scores: PolicyScores, entries: int) -> Measured:
    means = np.array([row.mean() for row in scores.reward if row.size])
    accuracy = float("nan") if scores.correct is None else _mean(scores.correct)
    error = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else float("nan")
    return Measured(point, accuracy, error, entries)


def _tokens(scores: PolicyScores) -> float:
    return _mean(scores.tokens)


def _mean(rows: Sequence[np.ndarray[tuple[int], np.dtype[np.float64]]]) -> float:
    return float(np.mean([row.mean() for row in rows if row.size]))


def table(base: Measured, found: Sequence[Measured], label: str) -> str:
    """Markdown: one row a bias."""
    head = ["estimator", "rollouts", "setting", "entries", label, "accuracy", "tokens", "KL (nats)"]
    return markdown(head, [_row(base), *(_row(each) for each in found)])


def _row(each: Measured) -> list[str]:
    point = each.point
    setting = f"{point.setting}, tau {point.tau:g}" if point.setting else ""
    numbers = [
        f"{point.reward:.3f} ± {each.error:.3f}",
        f"{each.accuracy:.3f}",
        f"{point.length:.1f}",
        f"{point.kl:.2f}",
    ]
    return [point.estimator, str(point.rollouts), setting, str(each.entries), *numbers]


def panel(base: Measured, found: Sequence[Measured], label: str) -> Panel:
    """The picture of it; dashed where fewer rollouts were used."""
    most = max(each.point.rollouts for each in found)
    return Panel(
        "capitals, SmolLM2-135M-Instruct",
        f"mean {label}",
        _curves(base, found, most, True),
        _curves(base, found, most, False),
    )


def _curves(
    base: Measured, found: Sequence[Measured], most: int, all_of_them: bool
) -> dict[str, Curve]:
    chosen = [each.point for each in found if (each.point.rollouts == most) == all_of_them]
    return {
        name: Curve((point for point in chosen if point.estimator == name), base.point.reward)
        for name in dict.fromkeys(point.estimator for point in chosen)
    }


def comparison(base: Measured, found: Sequence[Measured]) -> str:
    """What the subject needs against its peer, in one sentence for each criterion."""
    most = max(each.point.rollouts for each in found)
    many, few = _curves(base, found, most, True), _curves(base, found, most, False)
    peer, ours, fifth = many[PEER], many[SUBJECT], few.get(SUBJECT)
    lines = [
        (
            f"Highest mean reward: base {base.point.reward:.3f}, {_best(PEER, peer)},"
            f" {_best(SUBJECT, ours)}."
        ),
        (
            f"The highest of {PEER} costs {SUBJECT} KL {ours.kl_at(peer.highest):.2f} (inf: it was"
            " not reached)."
        ),
    ]
    if fifth is not None:
        lines.append(f"On a fifth of the rollouts: {_best(SUBJECT, fifth)}.")
    return "\n".join(lines)


def _best(name: str, curve: Curve) -> str:
    return f"{name} {curve.highest:.3f} at KL {curve.kl_at(curve.highest):.2f}"
