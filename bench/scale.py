"""The paper's estimator at the paper's scale: M and 50 sweeps, beside scipy.sparse, plain numpy and
reading the bytes once.

480,000 rollouts of 128 sampled positions each on average, Zipf tokens of a vocabulary of 128,256,
rewards of right answers less their length as in the paper, synthetic; ``--scale`` is the part of
it. Every row is a fresh process.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from scipy import sparse

from bench.measuring import OUT, REPEATS, Measured, alternately, apart, ratio, row, write

# The estimator alone is measured, without the collection before it.
from blackbox_lb.estimate.counting.statistics import BLOCK_POSITIONS, Statistics, TokenIPS
from blackbox_lb.estimate.inputs.recipe import Recipe
from blackbox_lb.estimate.inputs.rollouts import Rollouts

ROLLOUTS, VOCABULARY, POSITIONS, SAMPLES = 480_000, 128_256, 128, 64
TAUS = tuple(float(tau) for tau in np.linspace(0.3, 1.2, 10))
ALPHAS = (0.007, 0.052, 0.11, 0.465, 0.738)
"""Those that the paper reports; with ten taus 50 settings."""
CHUNK = 1 << 14
"""Rollouts that are made at a time."""
BLOCK = BLOCK_POSITIONS // POSITIONS
"""Rollouts that are read from the columns at a time."""
COLUMNS = {
    "lengths": np.int64,
    "rewards": np.float64,
    "token_ids": np.int32,
    "logprobs": np.float32,
}
READ = 1 << 22

Vector = npt.NDArray[np.float64]


def made(folder: Path, scale: float) -> int:
    """Write the columns of so many rollouts, each as plain numbers in a file. Returns the
    positions.
    """
    rng = np.random.default_rng(0)
    shares = np.cumsum(1 / np.arange(1, VOCABULARY + 1) ** 1.05)
    named = rng.permutation(VOCABULARY).astype(np.int32)
    files = {name: (folder / name).open("wb") for name in COLUMNS}
    total, left = 0, round(ROLLOUTS * scale)
    while left:
        n = min(CHUNK, left)
        lengths = rng.integers(POSITIONS // 2, 3 * POSITIONS // 2 + 1, n)
        m = int(lengths.sum())
        correct = rng.random(n) < np.repeat(rng.beta(1, 1, -(-n // SAMPLES)), SAMPLES)[:n]
        block = {
            "lengths": lengths,
            "rewards": correct - lengths / 1024,
            "token_ids": named[np.searchsorted(shares, rng.random(m) * shares[-1])],
            "logprobs": -rng.exponential(1.2, m),
        }
        for name, kind in COLUMNS.items():
            block[name].astype(kind).tofile(files[name])
        total, left = total + m, left - n
    for file in files.values():
        file.close()
    return total


def blocks(folder: Path) -> Iterator[Rollouts]:
    """The rollouts in the files, so many at a time, and no more of any file than these."""
    first = 0
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("rb")) for name in COLUMNS}

        def read(name: str, count: int) -> npt.NDArray[Any]:
            return np.fromfile(files[name], COLUMNS[name], count)

        while len(lengths := read("lengths", BLOCK)):
            m = int(lengths.sum())
            keys = [f"{i:012x}" for i in range(first, first + len(lengths))]
            yield rollouts(
                keys, lengths, read("rewards", BLOCK), read("token_ids", m), read("logprobs", m)
            )
            first += len(lengths)


def highest_reward(folder: Path) -> float:
    """Of all rollouts."""
    return float(np.memmap(folder / "rewards", COLUMNS["rewards"], "r").max())


def rollouts(
    keys: list[str],
    lengths: npt.NDArray[np.int64],
    rewards: Vector,
    token_ids: npt.NDArray[np.int32],
    logprobs: npt.NDArray[np.float32],
) -> Rollouts:
    """Rollouts without lists."""
    none = np.zeros((len(token_ids), 0))
    return Rollouts(
        keys=tuple(keys),
        prompts=np.zeros(len(keys), np.int64),
        rewards=rewards,
        lengths=lengths,
        token_ids=token_ids,
        logprobs=logprobs,
        top_ids=none.astype(np.int32),
        top_logprobs=none.astype(np.float32),
    )


def bytes_read(*paths: Path) -> int:
    """Read files once, from their beginning to their end."""
    buffer, total = bytearray(READ), 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                total += size
    return total


def digest(deltas: Iterator[Vector]) -> Vector:
    """What tells 50 biases apart: of each, the mean magnitude over the vocabulary."""
    return np.array([np.abs(delta).sum() / VOCABULARY for delta in deltas])


def swept(gathered: Statistics) -> Vector:
    """All 50 biases."""
    ips = TokenIPS(gathered)
    return digest(ips.delta(tau, alpha) for tau, alpha in itertools.product(TAUS, ALPHAS))


def ours(folder: Path) -> Vector:
    """Blocks from the files into exact sums, on all cores."""
    return swept(Statistics.gather(blocks(folder), Recipe(TAUS, highest_reward(folder))))


def with_scipy(folder: Path) -> Vector:
    """The matrix form of the paper as anyone would write it: a sparse M, and ``v ** (1 / tau) @ M``
    for each tau.
    """
    lengths, rewards = np.fromfile(folder / "lengths", np.int64), np.fromfile(folder / "rewards")
    token_ids, logprobs = (
        np.fromfile(folder / "token_ids", np.int32),
        np.fromfile(folder / "logprobs", np.float32),
    )
    n = len(lengths)
    rows = np.repeat(np.arange(n, dtype=np.int32), lengths)
    inverse = np.exp(-logprobs.astype(np.float64)) / (n * lengths[rows])
    matrix = sparse.coo_array((inverse, (rows, token_ids)), shape=(n, VOCABULARY)).tocsr()
    v = np.exp(rewards)
    return digest(_biases(np.asarray(v ** (1 / tau) @ matrix) for tau in TAUS))


def with_numpy(folder: Path) -> Vector:
    """Without M: one ``bincount`` over all positions for each tau."""
    lengths, rewards = np.fromfile(folder / "lengths", np.int64), np.fromfile(folder / "rewards")
    token_ids, logprobs = (
        np.fromfile(folder / "token_ids", np.int32),
        np.fromfile(folder / "logprobs", np.float32),
    )
    inverse = np.exp(-logprobs.astype(np.float64)) / np.repeat(len(lengths) * lengths, lengths)
    v = np.exp(rewards)
    return digest(
        _biases(
            np.bincount(token_ids, np.repeat(v ** (1 / tau), lengths) * inverse, VOCABULARY)
            for tau in TAUS
        )
    )


def _biases(estimates: Iterator[npt.NDArray[Any]]) -> Iterator[Vector]:
    for zhat in estimates:
        for alpha in ALPHAS:
            yield np.log(alpha + zhat) - np.log(alpha)


def cold(*paths: Path) -> None:
    """Make the system forget what it keeps of these files."""
    if not hasattr(os, "posix_fadvise"):
        raise click.ClickException("cold caches need posix_fadvise, which this system lacks")
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


Run = Callable[[], Measured[object]]


def runs_of(folder: Path, peers: bool) -> dict[str, Run]:
    """What is measured, by name."""
    columns = [folder / name for name in COLUMNS]

    def forgetting(paths: list[Path], run: Run) -> Run:
        def once() -> Measured[object]:
            cold(*paths)
            return run()

        return once

    runs: dict[str, Run] = {
        "read the columns once, cold": forgetting(columns, lambda: apart(bytes_read, *columns)),
        "read the columns once, warm": lambda: apart(bytes_read, *columns),
        "blb, columns, cold": forgetting(columns, lambda: apart(ours, folder)),
        "blb, columns, warm": lambda: apart(ours, folder),
    }
    if peers:
        runs["scipy.sparse, columns, warm"] = lambda: apart(with_scipy, folder)
        runs["numpy, columns, warm"] = lambda: apart(with_numpy, folder)
    return runs


RATIOS = {
    "blb over scipy.sparse": ("blb, columns, warm", "scipy.sparse, columns, warm"),
    "blb over numpy": ("blb, columns, warm", "numpy, columns, warm"),
}
DISK = {
    "blb over reading the columns once, cold": (
        "blb, columns, cold",
        "read the columns once, cold",
    ),
}
"""Told and not kept: what a disk gives from one minute to the next differs twofold."""


@click.command(help=__doc__)
@click.option(
    "--scale",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Part of the paper's size.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where the files are made, and left; by default none are left.",
)
@click.option(
    "--peers/--no-peers",
    default=True,
    show_default=True,
    help="scipy.sparse and numpy, which hold everything at once.",
)
@REPEATS
@OUT
def main(
    scale: float,
    folder: Path | None,
    peers: bool,
    repeats: int,
    out: Path | None,
) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory() as temporary:
        where = folder or Path(temporary)
        where.mkdir(parents=True, exist_ok=True)
        positions = _prepared(where, scale)
        found = alternately(runs_of(where, peers), repeats)
        files = {path.name: path.stat().st_size for path in where.iterdir()}
    seconds = {
        name: statistics.median(each.seconds for each in measured)
        for name, measured in found.items()
    }
    peaks = {name: max(each.peak for each in measured) for name, measured in found.items()}
    biases = {
        name: np.asarray(measured[0].value)
        for name, measured in found.items()
        if "read" not in name
    }
    reference = biases["blb, columns, warm"]
    apart_by = max(float(np.max(np.abs(each / reference - 1))) for each in biases.values())
    console, table = Console(), Table("", "seconds", "ns a position", "peak MB")
    for name, value in seconds.items():
        table.add_row(
            name, f"{value:.3f}", f"{value / positions * 1e9:.1f}", f"{peaks[name] / 1e6:.0f}"
        )

    def quotients(pairs: dict[str, tuple[str, str]]) -> dict[str, float]:
        there = {name: pair for name, pair in pairs.items() if seconds.keys() >= set(pair)}
        return {
            f"scale/{name}": ratio(seconds[top_], seconds[below])
            for name, (top_, below) in there.items()
        }

    kept = quotients(RATIOS)
    console.print(
        f"{round(ROLLOUTS * scale):,} rollouts, {positions:,} positions, {len(TAUS) * len(ALPHAS)}"
        f" settings; columns {sum(files[name] for name in COLUMNS) / 1e6:,.0f} MB"
    )
    console.print(table)
    for name, quotient in {**kept, **quotients(DISK)}.items():
        console.print(f"{name}: {quotient:g}")
    console.print(f"largest relative difference between the biases: {apart_by:.1e}")
    rows = [
        row(name, value, "s", peak=peaks[name], scale=scale, positions=positions)
        for name, value in seconds.items()
    ]
    write(out, [*rows, row("largest relative difference between the biases", apart_by, "1")], kept)


def _prepared(folder: Path, scale: float) -> int:
    """Make the files that are not there yet, in processes whose memory is not measured. Returns the
    positions.
    """
    if not (folder / "logprobs").exists():
        apart(made, folder, scale)
    return (folder / "logprobs").stat().st_size // 4


if __name__ == "__main__":
    main()
