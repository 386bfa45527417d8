"""``python -m bench.scale``: what the estimators take on millions of positions: ``ips`` with 50
settings beside scipy.sparse, and ``projection`` with 20 listed tokens at each position.

The rollouts are made up, of Zipf tokens of a vocabulary of 128,256 and 128 tokens each; for
``projection`` with contexts, a listed mass of about .9, samples inside and outside the lists, four
completions a prompt, and a reward that some tokens earn. Everything is measured in a process of
its own, after the making.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import click
import numpy as np
import numpy.typing as npt
from scipy import sparse

from bench.measuring import OUT, REPEATS, alternately, apart, markdown, ratio, write
from blackbox_lb import Rollouts

# The estimators alone are measured, without the collection before them.
from blackbox_lb.estimate.counting.statistics import BLOCK_POSITIONS, Recipe, Statistics, TokenIPS
from blackbox_lb.estimate.inputs.rollouts import weighting
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.sparse.sparsify import sparsify
from blackbox_lb.rollouts.scratch import Scratch
from tests.support.fits import projection, standard_errors

__all__ = ["Synthetic"]

T = TypeVar("T")
Vector = npt.NDArray[np.float64]

VOCABULARY = 128_256
LISTED = 20
LENGTH = 128
SAMPLES = 4
CONTEXTS = 20_000
BLOCK = 512
"""Rollouts that are made at a time: 10 MB of lists, about as much as is read from a store at a
time.
"""
TAUS = tuple(float(tau) for tau in np.linspace(0.3, 1.2, 10))
ALPHAS = (0.007, 0.052, 0.11, 0.465, 0.738)
"""Those that the paper reports; with ten taus 50 settings of ``ips``."""
MEMORY = 1 << 28
"""Bytes of the lists of ``projection`` in memory; the rest is in a scratch file."""
TAU, L2 = 0.5, 5.0
ENTRIES = 300
"""Of the compile."""
OURS, PEER = "blb", "scipy.sparse"
PARTS = ("ips", "fit", "errors", "compile")
COLUMNS = ("tokens", "making", "build", "potential", "fit", "errors", "compile", "iterations")
"""Of the table: the tokens of ``projection``, the seconds of its parts, its iterations."""


@dataclass
class Synthetic:
    """Rollouts by the block, the same for one ``seed``. seconds: how long it took to make those
    given so far. parts: these, without their lists.
    """

    positions: int
    seed: int = 0
    seconds: float = 0.0
    parts: list[Rollouts] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.zipf = np.cumsum(1.0 / np.arange(1, VOCABULARY + 1))
        self.zipf /= self.zipf[-1]
        self.names = rng.permutation(VOCABULARY).astype(np.int32)
        ranks = self._ranks(rng, (CONTEXTS, 3 * LISTED))
        self.ids = np.empty((CONTEXTS, LISTED), np.int32)
        for context, drawn in enumerate(ranks):
            distinct = np.array(list(dict.fromkeys(drawn.tolist())), np.int32)[:LISTED]
            rare = np.setdiff1d(np.arange(VOCABULARY - LISTED, VOCABULARY), distinct)
            filled = np.concatenate((distinct, rare[: LISTED - len(distinct)]))
            self.ids[context] = self.names[filled]
        peaked = rng.dirichlet(np.full(LISTED, 0.15), CONTEXTS) + 1e-4
        self.logits = np.log(-np.sort(-peaked, axis=1)).astype(np.float32)
        self.good = rng.random(VOCABULARY) < 0.02

    def _ranks(self, rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
        return np.searchsorted(self.zipf, rng.random(shape)).clip(0, VOCABULARY - 1)

    def blocks(self) -> Iterator[Rollouts]:
        """All rollouts."""
        rollouts = -(-self.positions // LENGTH)
        for first in range(0, rollouts, BLOCK):
            start = time.perf_counter()
            block = self._block(first, min(BLOCK, rollouts - first))
            none = np.zeros((len(block.token_ids), 0))
            self.parts.append(
                replace(block, top_ids=none.astype(np.int32), top_logprobs=none.astype(np.float32))
            )
            self.seconds += time.perf_counter() - start
            yield block

    def _block(self, first: int, size: int) -> Rollouts:
        rng = np.random.default_rng((self.seed, first))
        positions = size * LENGTH
        contexts = rng.integers(0, CONTEXTS, positions)
        noise = rng.standard_normal((positions, LISTED), np.float32)
        masses = np.exp(self.logits[contexts] + 0.3 * noise)
        shares = rng.beta(9, 1, positions) / masses.sum(axis=1)
        masses *= shares[:, None].astype(np.float32)
        inside = np.cumsum(masses, axis=1)
        place = (rng.random(positions)[:, None] > inside).sum(axis=1)
        listed = self.ids[contexts]
        tail = self.names[self._ranks(rng, (positions,))]
        rows = np.arange(positions)
        within = np.minimum(place, LISTED - 1)
        is_listed = place < LISTED
        tokens = np.where(is_listed, listed[rows, within], tail)
        numbers = np.arange(first, first + size)
        earned = self.good[tokens].reshape(size, LENGTH).sum(axis=1) / 4
        return Rollouts(
            keys=tuple(map(str, numbers.tolist())),
            prompts=numbers // SAMPLES,
            rewards=np.minimum(earned, 2.0),
            lengths=np.full(size, LENGTH, np.int64),
            token_ids=tokens.astype(np.int32),
            logprobs=np.where(is_listed, np.log(masses[rows, within]), -12.0).astype(np.float32),
            top_ids=listed,
            top_logprobs=np.minimum(np.log(masses), 0.0),
        )


def without_lists(positions: int) -> Rollouts:
    """Rollouts of Zipf tokens, right half of the time, less their length as in the paper."""
    rng = np.random.default_rng(0)
    shares = np.cumsum(1 / np.arange(1, VOCABULARY + 1) ** 1.05)
    named = rng.permutation(VOCABULARY).astype(np.int32)
    count = -(-positions // LENGTH)
    lengths = rng.integers(LENGTH // 2, 3 * LENGTH // 2 + 1, count)
    total = int(lengths.sum())
    none = np.zeros((total, 0))
    return Rollouts(
        keys=tuple(map(str, range(count))),
        prompts=np.zeros(count, np.int64),
        rewards=(rng.random(count) < 0.5) - lengths / 1024,
        lengths=lengths,
        token_ids=named[np.searchsorted(shares, rng.random(total) * shares[-1])],
        logprobs=-rng.exponential(1.2, total).astype(np.float32),
        top_ids=none.astype(np.int32),
        top_logprobs=none.astype(np.float32),
    )


def digest(deltas: Iterable[Vector]) -> Vector:
    """What tells 50 biases apart: of each, the mean magnitude over the vocabulary."""
    return np.array([np.abs(delta).sum() / VOCABULARY for delta in deltas])


def by_blb(rollouts: Rollouts) -> Vector:
    """All 50 biases of ``ips``, from blocks into sums, on all cores."""
    recipe = Recipe(TAUS, float(rollouts.rewards.max()))
    ips = TokenIPS(Statistics.gather(rollouts.blocks(BLOCK_POSITIONS), recipe))
    return digest(ips.delta(tau, alpha) for tau, alpha in itertools.product(TAUS, ALPHAS))


def by_scipy(rollouts: Rollouts) -> Vector:
    """The matrix form of the paper as anyone would write it: a sparse M, and ``v ** (1 / tau) @ M``
    for each tau.
    """
    count = len(rollouts.lengths)
    rows = np.repeat(np.arange(count, dtype=np.int32), rollouts.lengths)
    inverse = np.exp(-rollouts.logprobs.astype(np.float64)) / (count * rollouts.lengths[rows])
    shape = (count, VOCABULARY)
    matrix = sparse.coo_array((inverse, (rows, rollouts.token_ids)), shape=shape).tocsr()
    v = np.exp(rollouts.rewards)
    estimates = (np.asarray(v ** (1 / tau) @ matrix) for tau in TAUS)
    return digest(np.log(alpha + zhat) - np.log(alpha) for zhat in estimates for alpha in ALPHAS)


WAYS: dict[str, Callable[[Rollouts], Vector]] = {OURS: by_blb, PEER: by_scipy}


def ips_seconds(positions: int, way: str) -> tuple[float, Vector]:
    """Seconds of one way to get the 50 biases, and their digest."""
    rollouts = without_lists(positions)
    start = time.perf_counter()
    digests = WAYS[way](rollouts)
    return time.perf_counter() - start, digests


def projection_seconds(positions: int, folder: str, parts: Sequence[str]) -> dict[str, float]:
    """Seconds of each part of ``projection``, and what the table holds."""
    made = Synthetic(positions)
    numbers: dict[str, float] = {}

    def timed(name: str, function: Callable[[], T]) -> T:
        start = time.perf_counter()
        value = function()
        numbers[name] = time.perf_counter() - start
        return value

    scratch = Scratch(Path(folder), MEMORY)
    gather = partial(NextToken.gather, vocab_size=VOCABULARY, allocate=scratch)
    table = timed("build", lambda: gather(made.blocks()))
    rollouts = Rollouts.join(made.parts)
    made.parts.clear()
    numbers["making"] = made.seconds
    numbers["build"] -= made.seconds
    numbers["tokens"] = len(table.token_ids)
    weights = weighting(TAU).weights(rollouts).values
    delta = np.random.default_rng(1).normal(size=len(table.token_ids)) / 4
    turns = []
    for _ in range(4):
        timed("potential", lambda: table.potential(delta, weights))
        turns.append(numbers["potential"])
    numbers["potential"] = statistics.median(turns[1:])
    if {"fit", "errors", "compile"} & set(parts):
        fit = timed("fit", lambda: projection(rollouts, tau=TAU, l2=L2, next_token=table))
        numbers["iterations"] = fit.iterations
        if "errors" in parts:
            timed("errors", lambda: standard_errors(rollouts, table, fit, tau=TAU, l2=L2))
        if "compile" in parts:
            timed("compile", lambda: sparsify(table, fit.delta, entries=ENTRIES))
    return numbers


def of_ips(positions: int, repeats: int) -> float:
    """The ratio of the seconds of ``ips`` to scipy's; prints both."""
    functions = {way: partial(apart, ips_seconds, positions, way) for way in WAYS}
    turns = alternately(functions, repeats)
    seconds = {}
    digests = {}
    cells = []
    for way, runs in turns.items():
        seconds[way] = statistics.median(taken for (taken, _), _ in runs)
        (_, digests[way]), peak = runs[0]
        nanoseconds = f"{seconds[way] / positions * 1e9:.1f}"
        cells.append([way, f"{seconds[way]:.3f}", nanoseconds, f"{peak / 1e6:.0f}"])
    apart_by = float(np.max(np.abs(digests[PEER] / digests[OURS] - 1)))
    click.echo(f"ips, {positions:,} positions, {len(TAUS) * len(ALPHAS)} settings")
    click.echo(markdown(["", "seconds", "ns a position", "peak MB"], cells))
    click.echo(f"largest relative difference between the biases: {apart_by:.1e}\n")
    return ratio(seconds[OURS], seconds[PEER])


@click.command(help=__doc__)
@click.option(
    "--positions", type=click.IntRange(1), multiple=True, default=(300_000,), show_default=True
)
@click.option(
    "--part",
    "parts",
    type=click.Choice(PARTS),
    multiple=True,
    default=("ips", "fit"),
    show_default=True,
    help="ips; or parts of projection beside its table and one potential. Repeatable.",
)
@REPEATS
@OUT
def main(
    positions: tuple[int, ...],
    parts: tuple[str, ...],
    repeats: int,
    out: Path | None,
) -> None:
    """See the module."""
    ratios = {}
    cells = []
    for size in positions:
        if "ips" in parts:
            ratios["scale/blb over scipy.sparse"] = of_ips(size, repeats)
        if not set(parts) - {"ips"}:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            numbers, peak = apart(projection_seconds, size, temporary, parts)
        shown = [f"{numbers[name]:.3g}" if name in numbers else "" for name in COLUMNS]
        cells.append([f"{size:,}", *shown, f"{peak / 1e9:.2f}"])
        if "fit" in numbers:
            quotient = ratio(numbers["fit"], numbers["potential"])
            ratios["projection/fit over one potential"] = quotient
    if cells:
        click.echo(markdown(["positions", *COLUMNS, "peak GB"], cells))
    write(out, ratios)


if __name__ == "__main__":
    main()
