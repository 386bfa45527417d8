"""``python -m bench.projection_scale``: what ``projection`` takes on millions of positions with 20
listed tokens each.

Every size runs in a process of its own. The rollouts are made up: contexts with Zipf tokens of a
vocabulary of 128,256, a listed mass of about .9, samples inside and outside the lists, four
completions of 128 tokens a prompt, and a reward that some tokens earn.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import click
import numpy as np
import numpy.typing as npt

from bench.measuring import OUT, apart, markdown, ratio, row, write
from blackbox_lb import Rollouts

# The estimator alone is measured, without the collection before it.
from blackbox_lb.estimate.inputs.rollouts import weighting
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.sparse.sparsify import sparsify
from blackbox_lb.rollouts.scratch import Scratch
from tests.support.fits import choose_l2, projection, standard_errors

__all__ = ["Synthetic"]

T = TypeVar("T")

VOCAB = 128_256
LISTED = 20
LENGTH = 128
SAMPLES = 4
CONTEXTS = 20_000
BLOCK = 512
"""Rollouts that are made at a time: 10 MB of lists, about as much as is read from a store at a
time.
"""
MEMORY = 1 << 28
"""Bytes of lists in memory; the rest is in a scratch file."""
TAU, L2 = 0.5, 5.0
ENTRIES = 300
"""Of the compile."""


@dataclass
class Synthetic:
    """Rollouts by the block, the same for one ``seed``. seconds: how long it took to make those
    given so far.
    """

    positions: int
    seed: int = 0
    seconds: float = 0.0
    parts: list[Rollouts] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.zipf = np.cumsum(1.0 / np.arange(1, VOCAB + 1))
        self.zipf /= self.zipf[-1]
        self.names = rng.permutation(VOCAB).astype(np.int32)
        ranks = self._ranks(rng, (CONTEXTS, 3 * LISTED))
        self.ids = np.empty((CONTEXTS, LISTED), np.int32)
        for context, drawn in enumerate(ranks):
            distinct = np.array(list(dict.fromkeys(drawn.tolist())), np.int32)[:LISTED]
            more = np.setdiff1d(np.arange(VOCAB - LISTED, VOCAB), distinct)[
                : LISTED - len(distinct)
            ]
            self.ids[context] = self.names[np.concatenate((distinct, more))]
        peaked = rng.dirichlet(np.full(LISTED, 0.15), CONTEXTS) + 1e-4
        self.logits = np.log(-np.sort(-peaked, axis=1)).astype(np.float32)
        self.good = rng.random(VOCAB) < 0.02

    def _ranks(self, rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
        return np.searchsorted(self.zipf, rng.random(shape)).clip(0, VOCAB - 1)

    def blocks(self) -> Iterator[Rollouts]:
        """All rollouts; what is kept of each in ``parts`` has no lists."""
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
        m = size * LENGTH
        contexts = rng.integers(0, CONTEXTS, m)
        logits = self.logits[contexts] + 0.3 * rng.standard_normal((m, LISTED), np.float32)
        masses = np.exp(logits)
        masses *= (rng.beta(9, 1, m) / masses.sum(axis=1))[:, None].astype(np.float32)
        inside = np.cumsum(masses, axis=1)
        place = (rng.random(m)[:, None] > inside).sum(axis=1)
        listed = self.ids[contexts]
        tail = self.names[self._ranks(rng, (m,))]
        tokens = np.where(place < LISTED, listed[np.arange(m), np.minimum(place, LISTED - 1)], tail)
        numbers = np.arange(first, first + size)
        return Rollouts(
            keys=tuple(map(str, numbers.tolist())),
            prompts=numbers // SAMPLES,
            rewards=np.minimum(self.good[tokens].reshape(size, LENGTH).sum(axis=1) / 4, 2.0),
            lengths=np.full(size, LENGTH, np.int64),
            token_ids=tokens.astype(np.int32),
            logprobs=np.where(
                place < LISTED, np.log(masses[np.arange(m), np.minimum(place, LISTED - 1)]), -12.0
            ).astype(np.float32),
            top_ids=listed,
            top_logprobs=np.minimum(np.log(masses), 0.0),
        )


def measure(positions: int, folder: str, parts: Sequence[str]) -> dict[str, float]:
    """Seconds of each part for one size, and what the table holds."""
    made = Synthetic(positions)
    numbers: dict[str, float] = {}

    def timed(name: str, function: Callable[[], T]) -> T:
        start = time.perf_counter()
        value = function()
        numbers[name] = time.perf_counter() - start
        return value

    scratch = Scratch(Path(folder), MEMORY)
    table = timed(
        "build", lambda: NextToken.gather(made.blocks(), vocab_size=VOCAB, allocate=scratch)
    )
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
            timed("compile", lambda: sparsify(table, fit.delta, entries=ENTRIES, patience=0))
    if "cv" in parts:
        numbers["l2"] = timed("cv", lambda: choose_l2(rollouts, table, tau=TAU)).l2
    return numbers


SECONDS = ("making", "build", "potential", "fit", "cv", "errors", "compile")
COLUMNS = ("tokens", *SECONDS, "iterations", "l2")


@click.command()
@click.option(
    "--positions",
    type=click.IntRange(1),
    multiple=True,
    default=(100_000,),
    show_default=True,
    help="Repeatable.",
)
@click.option(
    "--part",
    "parts",
    type=click.Choice(["fit", "cv", "errors", "compile"]),
    multiple=True,
    default=("fit",),
    show_default=True,
    help="What is timed beside the table and one potential. Repeatable.",
)
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False),
    help="Where the scratch file lies; the system's own if none.",
)
@OUT
def main(
    positions: tuple[int, ...], parts: tuple[str, ...], folder: str | None, out: Path | None
) -> None:
    """Seconds, memory and iterations of the projection by the number of positions."""
    rows, table = [], []
    for size in positions:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            process = apart(measure, size, own, parts)
        numbers = process.value
        shown = [f"{numbers[name]:.3g}" if name in numbers else "" for name in COLUMNS]
        table.append([f"{size:,}", *shown, f"{process.peak / 1e9:.2f}"])
        rows += [
            row(f"{size} positions: {name}", numbers[name], "s")
            for name in SECONDS
            if name in numbers
        ]
        rows.append(row(f"{size} positions: peak memory", process.peak, "bytes"))
    click.echo(markdown(["positions", *COLUMNS, "peak GB"], table))
    ratios = {}
    if "fit" in numbers:
        ratios["projection/fit over one potential"] = ratio(numbers["fit"], numbers["potential"])
    write(out, rows, ratios)


if __name__ == "__main__":
    main()
