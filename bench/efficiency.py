"""``python -m bench.efficiency``: the rollouts that each estimator needs for four fifths of what
the exact optimum gains.

The models are small enough to enumerate every completion. The gain of a bias is what it adds to
``E[r] - tau KL``, exactly; the optimum is the largest over all biases, found by ascent on the exact
gradient. Every estimator may choose its setting afterwards, by the median of its gains over draws,
which favours those with many settings.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from scipy import optimize
from scipy.special import log_softmax

from bench.estimators import ESTIMATORS
from bench.measuring import OUT, markdown, ratio, row, write
from tests.support.exact import ExactModel
from tests.support.exact.model import RewardOf
from tests.support.truth import Exact

__all__ = ["PROBLEMS", "Gain", "Problem", "needed"]

Vector = npt.NDArray[np.float64]

VOCAB, HORIZON, PROMPTS = 36, 3, 4
RARE, ANSWERS = 20, 3
SHARE = 0.8
TIMES = (0.5, 1.0, 2.0)
"""Multiples of the problem's tau that estimators are fitted with."""
OURS, PEER = "projection, top-20", "ips"


class Gain(Exact):
    """``E[r] - tau KL`` of a bias, less that of no bias, over all sequences."""

    def of(self, delta: Vector, tau: float) -> float:
        """Nats a completion."""
        biased, base = self._forward(delta)[0], np.exp(self.base) @ self.rewards
        return float(np.exp(biased) @ (self.rewards - tau * (biased - self.base)) - base)

    def slope(self, delta: Vector, tau: float) -> Vector:
        """(v,) the gradient of ``of``: at each prefix the probability that it is reached and
        continued so, times the advantage.
        """
        _, reach = self._forward(delta)
        total, above = np.zeros(self.model.vocab_size), np.zeros(0)
        for level, log_reach in zip(reversed(self._levels), reversed(reach), strict=True):
            tilted = log_softmax(level.logprobs + delta, axis=1)
            after = np.where(level.leaf >= 0, np.take(self.rewards, level.leaf), 0.0)
            if above.size:
                after += np.where(level.child >= 0, np.take(above, level.child), 0.0)
            after -= tau * (tilted - level.logprobs)
            shares = np.exp(tilted)
            above = (shares * after).sum(axis=1)
            total += np.exp(log_reach) @ (shares * (after - above[:, None]))
        return total

    def most(self, tau: float) -> float:
        """The largest gain of any bias."""

        def loss(delta: Vector) -> tuple[float, Vector]:
            return -self.of(delta, tau), -self.slope(delta, tau)

        options: Any = {"maxiter": 500, "gtol": 1e-7}
        found = optimize.minimize(
            loss, np.zeros(self.model.vocab_size), jac=True, method="L-BFGS-B", options=options
        )
        return -float(found.fun)


@dataclass(frozen=True, slots=True)
class Problem:
    """A reward, and the tau in nats a nat at which gains are judged."""

    title: str
    reward: RewardOf
    tau: float


def _rare(tokens: tuple[int, ...], prompt: int) -> float:
    return float(RARE in tokens)


def _length(tokens: tuple[int, ...], prompt: int) -> float:
    return math.log(HORIZON / len(tokens))


def _answer(tokens: tuple[int, ...], prompt: int) -> float:
    return float(not _answers()[prompt].isdisjoint(tokens)) - len(tokens) / HORIZON


PROBLEMS = {
    "rare": Problem("contains a rare good token", _rare, 0.2),
    "length": Problem("ln(T / length)", _length, 0.5),
    "answer": Problem("1{correct} - length / T", _answer, 0.2),
}


def _model() -> ExactModel:
    unigram = -1.35 * np.log(np.arange(1.0, VOCAB + 1))
    unigram[RARE] += 1.5
    unigram[-1] = 0.0
    return ExactModel(
        VOCAB,
        HORIZON,
        seed=1,
        end=True,
        prompts=PROMPTS,
        sharpness=1.0,
        unigram=unigram,
        end_sharpness=0.5,
    )


@cache
def _answers() -> tuple[frozenset[int], ...]:
    """For each prompt the tokens beside the commonest that it makes likelier than the other prompts
    do.
    """
    model = _model()
    first = np.array([model.logprobs((), prompt) for prompt in range(PROMPTS)])
    preference = (first - first.mean(axis=0))[:, 4:30]
    return tuple(frozenset((4 + np.argsort(-each)[:ANSWERS]).tolist()) for each in preference)


@cache
def _gain(name: str) -> Gain:
    return Gain(_model(), PROBLEMS[name].reward)


def _draw(job: tuple[str, int], numbers: tuple[int, ...]) -> dict[tuple[str, int, str], float]:
    """The gain of every (estimator, rollouts, setting); fewer rollouts are the first of more."""
    name, draw = job
    problem, exact = PROBLEMS[name], _gain(name)
    rollouts = exact.model.rollouts(max(numbers), problem.reward, 100 + draw)
    taus, found = tuple(problem.tau * each for each in TIMES), {}
    for n, estimator in itertools.product(numbers, ESTIMATORS):
        for fitted in ESTIMATORS[estimator](rollouts.take(np.arange(n)), taus):
            gain = exact.of(fitted.dense(VOCAB), problem.tau)
            found[estimator, n, f"{fitted.setting}, tau {fitted.tau:g}"] = gain
    return found


def medians_of(
    names: list[str], numbers: tuple[int, ...], draws: int, processes: int
) -> dict[tuple[str, str], list[float]]:
    """(problem, estimator) -> by number of rollouts the median gain of the best setting, as a share
    of the optimum's.
    """
    jobs = list(itertools.product(names, range(draws)))
    work: Callable[[tuple[str, int]], dict[tuple[str, int, str], float]] = partial(
        _draw, numbers=numbers
    )
    if processes > 1:
        with get_context("spawn").Pool(processes) as pool:
            done = pool.map(work, jobs, chunksize=1)
    else:
        done = [work(job) for job in jobs]
    found = {}
    for name in names:
        gains = [gain for (of, _), gain in zip(jobs, done, strict=True) if of == name]
        most = _gain(name).most(PROBLEMS[name].tau)
        medians = {key: statistics.median(each[key] for each in gains) / most for key in gains[0]}
        for estimator in ESTIMATORS:
            best = [
                max(medians[key] for key in medians if key[:2] == (estimator, n)) for n in numbers
            ]
            found[name, estimator] = best
    return found


def needed(numbers: tuple[int, ...], shares: list[float], wanted: float = SHARE) -> float:
    """The number of rollouts at which ``shares`` first reach ``wanted``, interpolated on a log
    scale; inf where they never do.
    """
    if shares[0] >= wanted:
        return float(numbers[0])
    for (low, below), (high, above) in itertools.pairwise(zip(numbers, shares, strict=True)):
        if above >= wanted:
            return float(low * (high / low) ** ((wanted - below) / (above - below)))
    return math.inf


@click.command()
@click.option(
    "--draws",
    default=9,
    show_default=True,
    type=click.IntRange(1),
    help="Sets of rollouts; medians over them.",
)
@click.option(
    "--most", default=5120, show_default=True, type=click.IntRange(10), help="Rollouts at most."
)
@click.option(
    "--problem",
    "problems",
    multiple=True,
    type=click.Choice(list(PROBLEMS)),
    help="Only these; repeatable.",
)
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1))
@OUT
def main(
    draws: int, most: int, problems: tuple[str, ...], processes: int, out: Path | None
) -> None:
    """Rollouts until the median gain is 80 % of the exact optimum's, for every estimator."""
    names = list(problems or PROBLEMS)
    numbers = tuple(10 * 2**i for i in range(int(math.log2(most / 10)) + 1))
    shares = medians_of(names, numbers, draws, processes)
    counts = {key: needed(numbers, each) for key, each in shares.items()}
    head = ["estimator", *(f"{name}: {PROBLEMS[name].title}" for name in names)]
    table = [
        [each, *(_cell(counts[name, each], numbers, shares[name, each]) for name in names)]
        for each in ESTIMATORS
    ]
    click.echo(markdown(head, table))
    rows = [
        row(f"{name}: {each}", count, "rollouts", shares=shares[name, each])
        for (name, each), count in counts.items()
    ]
    ratios = {
        f"efficiency/{name}, rollouts of {OURS} over those of {PEER}": ratio(
            min(counts[name, OURS], numbers[-1]), min(counts[name, PEER], numbers[-1])
        )
        for name in names
    }
    ratios |= {
        f"efficiency/{name}, rollouts of {OURS} over 100": ratio(
            min(counts[name, OURS], numbers[-1]), 100
        )
        for name in names
    }
    write(out, rows, ratios)


def _cell(count: float, numbers: tuple[int, ...], shares: list[float]) -> str:
    if not math.isfinite(count):
        return f"not by {numbers[-1]:,} ({shares[-1]:.0%})"
    return f"at most {count:,.0f}" if count == numbers[0] else f"{count:,.0f}"


if __name__ == "__main__":
    main()
