"""``python -m bench.projection_scale``: what ``projection`` takes on millions of positions with 20
listed tokens each.

Every size runs in a process of its own. The rollouts are made up: contexts with Zipf tokens of a
vocabulary of 128,256, a listed mass of about .9, samples inside and outside the lists, four
completions of 128 tokens a prompt, and a reward that some tokens earn.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import click
import numpy as np
import numpy.typing as npt
from scipy import optimize

from bench.measuring import OUT, apart, markdown, ratio, row, write
from blackbox_lb.estimate.inputs.rollouts import Rollouts, weighting
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.sparse.sparsify import sparsify
from blackbox_lb.rollouts.scratch import Scratch
from tests.support.fits import choose_l2, projection, standard_errors

__all__ = ["Dense", "Synthetic"]

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
SUBSAMPLE = 16
"""Rollouts, 2,048 positions, that the dense reference is fitted to."""
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


@dataclass(frozen=True)
class Dense:
    """The same problem with an (m, s) matrix of float64, written from the definition: what the
    lists say, and the tail's rule.
    """

    token_ids: npt.NDArray[np.int64]
    base: npt.NDArray[np.float64]
    sampled: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    linear: npt.NDArray[np.float64]

    @classmethod
    def of(cls, rollouts: Rollouts, tau: float) -> Dense:
        """Of rollouts that have their lists, none complete and all tokens with ids."""
        ids = np.union1d(rollouts.top_ids, rollouts.token_ids).astype(np.int64)
        m, rows = len(rollouts.token_ids), np.arange(len(rollouts.token_ids))
        base, held = np.zeros((m, len(ids))), np.zeros((m, len(ids)), np.bool_)
        columns = np.searchsorted(ids, rollouts.top_ids)
        base[rows[:, None], columns] = np.exp(rollouts.top_logprobs.astype(np.float64))
        held[rows[:, None], columns] = True
        sampled = np.searchsorted(ids, rollouts.token_ids)
        tail = 1 - base.sum(axis=1)
        outside = ~held[rows, sampled]
        counts = np.bincount(sampled[outside], minlength=len(ids))
        missed = tail @ ~held
        rates = np.divide(
            counts, np.maximum(missed, counts), out=np.zeros(len(ids)), where=counts > 0
        )
        shares = np.where(held, 0.0, rates)
        base += tail[:, None] * shares / shares.sum(axis=1, keepdims=True)
        weights = weighting(tau).weights(rollouts)
        counts = np.bincount(sampled, weights.values - weights.baseline, len(ids))
        linear = counts + weights.baseline @ base
        return cls(ids, base, sampled, weights.values, linear)

    def loss(
        self, delta: npt.NDArray[np.float64], l2: float
    ) -> tuple[float, npt.NDArray[np.float64]]:
        """The negative objective in nats, and its gradient."""
        tilted = self.base * np.exp(delta)
        z = tilted.sum(axis=1)
        value = self.weights @ np.log(z) - self.linear @ delta + l2 / 2 * (delta @ delta)
        return float(value), (self.weights / z) @ tilted - self.linear + l2 * delta

    def fit(self, l2: float) -> tuple[npt.NDArray[np.float64], float]:
        """The best delta and its loss, to far more digits than the projection asks for."""
        scale = np.sqrt(self.base.T @ self.weights + l2)

        def scaled(x: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
            value, slope = self.loss(x / scale, l2)
            return value, slope / scale

        found = optimize.minimize(
            scaled,
            np.zeros(len(scale)),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 5000, "maxfun": 5000, "maxcor": 50, "ftol": 0.0, "gtol": 1e-9},
        )
        return found.x / scale, float(found.fun)


def _timed(function: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    value = function()
    return value, time.perf_counter() - start


def _both(found: dict[str, float], name: str, function: Callable[[], T]) -> T:
    """Wall-clock and processor seconds of ``function``, told to ``found``: the latter hardly feel
    what else runs.
    """
    before = time.process_time()
    value, found[name] = _timed(function)
    found[f"{name}, processor"] = time.process_time() - before
    return value


def measure(positions: int, folder: str, budget: int, parts: tuple[str, ...]) -> dict[str, float]:
    """Seconds of each part for one size, and what the table holds."""
    made = Synthetic(positions)
    table, seconds = _timed(
        lambda: NextToken.gather(
            made.blocks(), vocab_size=VOCAB, allocate=Scratch(Path(folder), budget)
        )
    )
    rollouts = Rollouts.join(made.parts)
    made.parts.clear()
    found = {
        "rows": float(table.n_positions),
        "support": float(len(table.token_ids)),
        "making": made.seconds,
    }
    found["build"] = seconds - made.seconds
    found["potential"] = _potential(rollouts, table)
    found["entries"] = float(table.lists.entries)
    found["bytes"] = float(
        sum(
            p.table.data.nbytes + p.table.indices.nbytes + p.table.indptr.nbytes
            for p in table.lists.parts
        )
    )
    if {"fit", "errors", "compile"} & set(parts):
        fit = _both(found, "fit", lambda: projection(rollouts, tau=TAU, l2=L2, next_token=table))
        found |= {"iterations": fit.iterations, "gain": fit.gain, "shortfall": fit.shortfall}
        if "errors" in parts:
            errors = _both(
                found, "errors", lambda: standard_errors(rollouts, table, fit, tau=TAU, l2=L2)
            )
            found["noise"] = errors.noise
        if "compile" in parts:
            compiled = _both(
                found, "compile", lambda: sparsify(table, fit.delta, entries=ENTRIES, patience=0)
            )
            found["kept"] = compiled.kept
    if "cv" in parts:
        choice = _both(found, "cv", lambda: choose_l2(rollouts, table, tau=TAU))
        found["l2"] = choice.l2
    return found


def _potential(rollouts: Rollouts, table: NextToken) -> float:
    """Seconds, the median of three, after one that does not count."""
    weights = weighting(TAU).weights(rollouts).values
    delta = np.random.default_rng(1).normal(size=len(table.token_ids)) / 4
    return sorted(_timed(lambda: table.potential(delta, weights))[1] for _ in range(4))[1]


def agreement(positions: int) -> dict[str, float]:
    """How far the fit to a subsample is from that of the dense reference: nats, and nats per
    weighted token of the objective.
    """
    block = next(Synthetic(max(positions, SUBSAMPLE * LENGTH)).blocks()).take(np.arange(SUBSAMPLE))
    ours, exact = projection(block, tau=TAU, l2=L2), Dense.of(block, TAU)
    best, lowest = exact.fit(L2)
    reached = exact.loss(ours.delta, L2)[0]
    return {
        "nats": float(np.abs(ours.delta - best).max()),
        "objective": (reached - lowest) / float(exact.weights.sum()),
        "support": float(len(best)),
    }


UNITS = {
    "making": "s",
    "build": "s",
    "potential": "s",
    "fit": "s",
    "cv": "s",
    "errors": "s",
    "compile": "s",
    "iterations": "",
    "l2": "tokens",
}


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
    "--memory",
    default=1 << 28,
    show_default=True,
    help="Bytes of lists in memory; the rest is in a scratch file.",
)
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False),
    help="Where the scratch file lies; the system's own if none.",
)
@OUT
def main(
    positions: tuple[int, ...],
    parts: tuple[str, ...],
    memory: int,
    folder: str | None,
    out: Path | None,
) -> None:
    """Seconds, memory and iterations of the projection by the number of positions, and its distance
    from a dense reference.
    """
    rows, table = [], []
    for size in positions:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            done = apart(measure, size, own, memory, parts)
        found = done.value
        for name, unit in UNITS.items():
            if name in found:
                rows.append(row(f"{size} positions: {name}", found[name], unit))
        rows.append(row(f"{size} positions: peak memory", done.peak, "bytes"))
        rows.append(
            row(
                f"{size} positions: table",
                found["bytes"] / found["entries"],
                "bytes a listed token",
            )
        )
        shown = [f"{found[name]:.3g}" if name in found else "" for name in UNITS]
        table.append([f"{size:,}", f"{found['support']:,.0f}", *shown, f"{done.peak / 1e9:.2f}"])
        click.echo(f"{size:,}: {found}", err=True)
    near = agreement(min(positions))
    rows.append(row("dense reference: largest difference", near["nats"], "nats"))
    rows.append(
        row("dense reference: objective missed", near["objective"], "nats a weighted token")
    )
    click.echo(markdown(["positions", "tokens", *UNITS, "peak GB"], table))
    click.echo(
        f"dense reference on {SUBSAMPLE * LENGTH:,} positions x {near['support']:,.0f} tokens:"
        f" largest difference {near['nats']:.2g} nats, objective {near['objective']:.2g} nats a"
        " weighted token"
    )
    first = next((each for each in rows if each["name"].endswith(": fit")), None)
    potential = next(each for each in rows if each["name"].endswith(": potential"))
    ratios = (
        {}
        if first is None
        else {"projection/fit over one potential": ratio(first["value"], potential["value"])}
    )
    write(out, rows, ratios)


if __name__ == "__main__":
    main()
