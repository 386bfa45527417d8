"""``python -m bench.fits``: the completions that a whole fit needs, with the search and before it.

The model is small enough to enumerate every completion, so that what a bias earns is known exactly.
"Before" is the projection without a baseline, whose strength cross-validation chooses. "Search" is
what ``blb fit`` does by default: baseline, credit where it falls, priors, rules and boosts, raced
on fresh completions. Both learn from the same completions at one tau.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias, cast

import click
import numpy as np
import numpy.typing as npt

from bench.efficiency import Gain, needed
from bench.measuring import OUT, markdown, ratio, row, write
from blackbox_lb.estimate.choice.candidates import (
    CompileLimits,
    boosts,
    candidates,
    compiled,
    rules,
)
from blackbox_lb.estimate.choice.goal import Goal
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import Prior
from blackbox_lb.jobs.fitting.choosing.scorers import FromSamples
from blackbox_lb.jobs.fitting.choosing.select import Search, select
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.types import Completion, Example, Prompt
from tests.support.exact import ExactModel
from tests.support.exact.model import RewardOf
from tests.support.simulated import SimulatedTrials, reward_of

__all__ = ["PROBLEMS", "Problem"]

Vector: TypeAlias = npt.NDArray[np.float64]

VOCAB, HORIZON, PROMPTS, END = 36, 3, 24, 35
LIMITS = CompileLimits(300, -100.0, 100.0, integers=False)
BAD = tuple(range(9, 30, 2))
RARE = 20
SHARE = 0.9
NUMBERS = (10, 20, 40, 80, 160, 320, 640, 1280)


@dataclass(frozen=True, slots=True)
class Problem:
    """A reward.

    costs: (v,) of each token, where the reward is their sum. is_rule: whether each token's cost can
    be known from its text.
    """

    title: str
    reward: RewardOf
    tau: float
    costs: Vector | None = None
    is_rule: bool = False


def _bad_costs() -> Vector:
    costs = np.zeros(VOCAB)
    costs[list(BAD)] = -1.0
    return costs


BAD_COSTS = _bad_costs()


def _contains(tokens: tuple[int, ...], _: int) -> float:
    return float(RARE in tokens)


def _count(tokens: tuple[int, ...], _: int) -> float:
    return float(BAD_COSTS[list(tokens)].sum())


def _length(tokens: tuple[int, ...], _: int) -> float:
    return -float(len(tokens))


PROBLEMS = {
    "contains": Problem("contains a rare good token", _contains, 0.3),
    "count": Problem("count of 11 bad tokens", _count, 0.5, BAD_COSTS),
    "list": Problem("the same, as a list of words", _count, 0.5, BAD_COSTS, is_rule=True),
    "length": Problem("length", _length, 0.5, np.full(VOCAB, -1.0)),
}


@cache
def _model() -> ExactModel:
    unigram = -1.1 * np.log(np.arange(1.0, VOCAB + 1))
    unigram[-1] = -0.5
    return ExactModel(
        VOCAB, HORIZON, seed=1, end=True, prompts=PROMPTS, sharpness=0.8, unigram=unigram
    )


@cache
def _exact(name: str) -> Gain:
    return Gain(_model(), PROBLEMS[name].reward)


def _before(rollouts: Rollouts, problem: Problem, seed: int) -> Vector:
    """Samples counted whole, the strength by cross-validation."""
    del seed
    counted = replace(rollouts, costs=None, drawn_by_base=np.zeros(len(rollouts.keys), np.bool_))
    table = NextToken.of(counted)
    sweep = Sweep(tau=(problem.tau,), l2=("cv",))
    made = list(candidates(Positions(counted, table), sweep, LIMITS))
    chosen = next(
        candidate
        for candidate in made
        if candidate.projected is not None
        and candidate.projected.cross_validation is not None
        and candidate.projected.cross_validation.l2 == candidate.settings["l2"]
    )
    return _dense(chosen.logit_bias)


def _searched(rollouts: Rollouts, problem: Problem, seed: int) -> Vector:
    """The search of a default fit."""
    table = NextToken.of(rollouts)
    priors: tuple[Prior, ...] = ()
    entrants = []
    if problem.is_rule:
        costs = Prior("avoid:list", np.array(BAD), np.full(len(BAD), -1.0), by_tau=True)
        table = table.with_tokens(costs.token_ids)
        priors = (costs,)
        entrants += [compiled(row, table, LIMITS) for row in rules(costs, LIMITS.low)]
    if problem.reward is _length:
        ends = boosts({"the completion": np.array([END])})
        entrants += [compiled(row, table, LIMITS) for row in ends]
    positions = Positions(rollouts, table)
    learned = candidates(positions, Sweep(tau=(problem.tau,)), LIMITS, priors=priors)
    entrants = [*learned, *entrants]

    def scored(_: Example, completion: Completion) -> float:
        return problem.reward(tuple(completion.token_ids.tolist()), 0)

    trials = SimulatedTrials(_model(), reward_of(scored, HORIZON), seed)
    prompts = tuple(Example(str(number), Prompt.user(f"q{number}")) for number in range(PROMPTS))
    scorer = FromSamples(cast(Trials, trials), prompts, table, Goal(), (SAMPLED,))
    search = Search.of(Plan(reward="length"))
    choice = asyncio.run(select(entrants, scorer, Goal(), search, table, LIMITS, Silent()))
    return _dense(choice.candidate.logit_bias)


def _dense(bias: dict[int, float]) -> Vector:
    delta = np.zeros(VOCAB)
    delta[list(bias)] = list(bias.values())
    return delta


FITS: dict[str, Callable[[Rollouts, Problem, int], Vector]] = {
    "before": _before,
    "search": _searched,
}


def _draw(job: tuple[str, int]) -> dict[tuple[str, int], float]:
    """(fit, completions) -> what the bias adds to the reward; fewer are the first of more."""
    name, draw = job
    problem = PROBLEMS[name]
    rollouts = _model().rollouts(max(NUMBERS), problem.reward, 300 + draw)
    if problem.costs is not None:
        rollouts = replace(rollouts, costs=problem.costs[rollouts.token_ids])
    gains = {}
    for number, (fit, learn) in itertools.product(NUMBERS, FITS.items()):
        try:
            delta = learn(rollouts.take(np.arange(number)), problem, draw)
        except ValueError:  # ten completions may hold no reward
            delta = np.zeros(VOCAB)
        gains[fit, number] = _exact(name).of(delta, 0.0)
    return gains


@click.command()
@click.option(
    "--draws", default=7, show_default=True, type=click.IntRange(1), help="Medians over so many."
)
@click.option(
    "--problem", "problems", multiple=True, type=click.Choice(list(PROBLEMS)), help="Only these."
)
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1))
@OUT
def main(draws: int, problems: Sequence[str], processes: int, out: Path | None) -> None:
    """Training completions until the median gain in reward is 90 % of the most that either fit
    reaches.
    """
    names = list(problems or PROBLEMS)
    jobs = list(itertools.product(names, range(draws)))
    with get_context("spawn").Pool(processes) as pool:
        done = pool.map(_draw, jobs, chunksize=1)
    counts = {}
    shares: dict[tuple[str, str], list[float]] = {}
    for name in names:
        gains = [gain for (problem, _), gain in zip(jobs, done, strict=True) if problem == name]
        medians = {
            (fit, number): statistics.median(gain[fit, number] for gain in gains)
            for fit, number in itertools.product(FITS, NUMBERS)
        }
        most = max(medians.values())
        for fit in FITS:
            shares[name, fit] = [medians[fit, number] / most for number in NUMBERS]
            counts[name, fit] = needed(NUMBERS, shares[name, fit], SHARE)
    head = ["reward", "fit", *(f"{number:,}" for number in NUMBERS), "completions for 90 %"]
    table = [
        [
            PROBLEMS[name].title,
            fit,
            *(f"{share:.2f}" for share in shares[name, fit]),
            "more" if counts[name, fit] == float("inf") else f"{counts[name, fit]:,.0f}",
        ]
        for name, fit in counts
    ]
    click.echo(markdown(head, table))
    rows = [
        row(f"{name}: {fit}", count, "completions", shares=shares[name, fit])
        for (name, fit), count in counts.items()
    ]
    ratios = {
        f"fits/{name}, completions of the search over those before": ratio(
            min(counts[name, "search"], NUMBERS[-1]), min(counts[name, "before"], NUMBERS[-1])
        )
        for name in names
    }
    write(out, rows, ratios)


if __name__ == "__main__":
    main()
