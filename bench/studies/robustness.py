"""``python -m bench.studies.robustness``: what logprobs as hosted APIs return them take from the
gain of each estimator.

The same completions are reported exactly, censored outside the twenty likeliest, rounded to 1/16
nat, with noise of .3 nat, and with all three, as OpenAI's are. Each estimator keeps the setting
that was best on exact logprobs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TypedDict

import click
import numpy as np

from bench.estimators import ESTIMATORS, Fitted
from bench.exact import markdown
from bench.problems import PROBLEMS
from tests.support.policy import estimate_policy

__all__ = ["DISTURBANCES", "Plan", "losses"]


class Reported(TypedDict, total=False):
    """How the logprobs are reported, as ``ExactModel.rollouts`` takes it."""

    censored: bool
    quantum: float
    noise: float


QUANTUM, NOISE, TOP = 1 / 16, 0.3, 20
DISTURBANCES: dict[str, Reported] = {
    "exact": {},
    "censored": {"censored": True},
    "quantised": {"quantum": QUANTUM},
    "noisy": {"noise": NOISE},
    "all three": {"censored": True, "quantum": QUANTUM, "noise": NOISE},
}
NAMES = ("projection, top-20", "projection, top-5", "ips", "snips", "ratio")
PROBLEM_NAMES = ("rare", "length", "answer")
CHOOSING = 500
"""Completions that each setting is tried on, apart from those that count."""
MOST_LOST = 0.05
"""Of the projection's gain, whatever the logprobs went through."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Means over ``draws`` of ``rollouts`` completions; ``completions`` fresh ones evaluate each
    bias, from one seed a draw.
    """

    rollouts: int = 1000
    draws: int = 8
    completions: int = 4000
    estimators: tuple[str, ...] = NAMES


def losses(problem: str, plan: Plan, processes: int = 1) -> dict[str, dict[str, float]]:
    """By estimator and disturbance: the gain in ``E[r] - tau KL`` over the base, in nats, at the
    setting best on exact logprobs.

    tau is the smallest at which the problem is compared.
    """
    work = partial(_draw, problem, plan)
    if processes > 1:
        with get_context("spawn").Pool(processes) as pool:
            draws = pool.map(work, range(plan.draws), chunksize=1)
    else:
        draws = [work(draw) for draw in range(plan.draws)]
    mean = np.mean(draws, axis=0)
    return {
        name: dict(zip(DISTURBANCES, mean[row].tolist(), strict=True))
        for row, name in enumerate(plan.estimators)
    }


def _draw(problem: str, plan: Plan, draw: int) -> list[list[float]]:
    """(estimators, disturbances) gains of one draw."""
    of, model = PROBLEMS[problem], PROBLEMS[problem].model()
    reported = [
        model.rollouts(plan.rollouts, of.reward, 300 + draw, top=TOP, **how)
        for how in DISTURBANCES.values()
    ]
    bases = {
        seed: estimate_policy(model, np.zeros(model.vocab_size), of.reward, n, seed).reward
        for seed, n in ((0, CHOOSING), (draw + 1, plan.completions))
    }

    def gain(fitted: Fitted, seed: int) -> float:
        n = CHOOSING if seed == 0 else plan.completions
        found = estimate_policy(model, fitted.dense(model.vocab_size), of.reward, n, seed)
        return found.reward - bases[seed] - of.tau[0] * found.kl

    table = []
    for name in plan.estimators:
        fits = [list(ESTIMATORS[name](rollouts, of.fit_tau)) for rollouts in reported]
        best = max(range(len(fits[0])), key=lambda i: gain(fits[0][i], 0))
        table.append([gain(some[best], draw + 1) for some in fits])
    return table


def _table(problem: str, gains: dict[str, dict[str, float]]) -> str:
    rows = [[name, *(_cell(row, kind) for kind in DISTURBANCES)] for name, row in gains.items()]
    title = (
        f"Gain in E[r] - {PROBLEMS[problem].tau[0]:g} KL over the base model (nats), and the share"
        " of it that is lost"
    )
    return (
        f"## {problem}:"
        f" {PROBLEMS[problem].title}\n\n{title}\n\n{markdown(['estimator', *DISTURBANCES], rows)}"
    )


def _cell(row: dict[str, float], kind: str) -> str:
    return f"{row[kind]:+.3f}" if kind == "exact" else f"{row[kind]:+.3f} ({_lost(row, kind):+.0%})"


def _lost(row: dict[str, float], kind: str) -> float:
    return 1 - row[kind] / row["exact"]


@click.command()
@click.option("--quick", is_flag=True, help="Two draws.")
@click.option(
    "--problem",
    "problems",
    multiple=True,
    type=click.Choice(list(PROBLEMS)),
    help="Only these; repeatable.",
)
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1))
def main(quick: bool, problems: Sequence[str], processes: int) -> None:
    """What censored, quantised and noisy logprobs take from the gain in E[r] - tau KL of each
    estimator.
    """
    plan = Plan(draws=2, completions=1000) if quick else Plan()
    worst = 0.0
    for problem in problems or PROBLEM_NAMES:
        gains = losses(problem, plan, processes)
        click.echo(_table(problem, gains) + "\n")
        rows = [row for name, row in gains.items() if name.startswith("projection")]
        worst = max(
            worst, *(_lost(row, kind) for row, kind in itertools.product(rows, DISTURBANCES))
        )
    click.echo(
        f"{'MET' if worst < MOST_LOST else 'NOT MET'}: projection loses at most {worst:.1%} (limit"
        f" {MOST_LOST:.0%})"
    )


if __name__ == "__main__":
    main()
