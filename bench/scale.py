"""The paper's estimator at the paper's scale: M and 50 sweeps, beside scipy.sparse and reading the
bytes once.

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
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from scipy import sparse

from bench.measuring import (
    OUT,
    REPEATS,
    Measured,
    alternately,
    apart,
    markdown,
    ratio,
    row,
    write,
)
from blackbox_lb import Rollouts

# The estimator alone is measured, without the collection before it.
from blackbox_lb.estimate.counting.statistics import BLOCK_POSITIONS, Statistics, TokenIPS
from blackbox_lb.estimate.inputs.recipe import Recipe

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
            positions = int(lengths.sum())
            none = np.zeros((positions, 0))
            yield Rollouts(
                keys=tuple(f"{number:012x}" for number in range(first, first + len(lengths))),
                prompts=np.zeros(len(lengths), np.int64),
                rewards=read("rewards", BLOCK),
                lengths=lengths,
                token_ids=read("token_ids", positions),
                logprobs=read("logprobs", positions),
                top_ids=none.astype(np.int32),
                top_logprobs=none.astype(np.float32),
            )
            first += len(lengths)


def bytes_read(folder: Path) -> int:
    """Read the files once, from their beginning to their end."""
    buffer, total = bytearray(READ), 0
    for name in COLUMNS:
        with (folder / name).open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                total += size
    return total


def digest(deltas: Iterator[Vector]) -> Vector:
    """What tells 50 biases apart: of each, the mean magnitude over the vocabulary."""
    return np.array([np.abs(delta).sum() / VOCABULARY for delta in deltas])


def ours(folder: Path) -> Vector:
    """All 50 biases, from blocks of the files into sums, on all cores."""
    highest = float(np.memmap(folder / "rewards", COLUMNS["rewards"], "r").max())
    ips = TokenIPS(Statistics.gather(blocks(folder), Recipe(TAUS, highest)))
    return digest(ips.delta(tau, alpha) for tau, alpha in itertools.product(TAUS, ALPHAS))


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
    estimates = (np.asarray(v ** (1 / tau) @ matrix) for tau in TAUS)
    return digest(np.log(alpha + zhat) - np.log(alpha) for zhat in estimates for alpha in ALPHAS)


def cold(folder: Path) -> None:
    """Make the system forget what it keeps of the files."""
    if not hasattr(os, "posix_fadvise"):
        raise click.ClickException("cold caches need posix_fadvise, which this system lacks")
    for name in COLUMNS:
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


RUNS: dict[str, tuple[Callable[..., Any], bool]] = {
    "read the columns once, cold": (bytes_read, True),
    "read the columns once, warm": (bytes_read, False),
    "blb, columns, cold": (ours, True),
    "blb, columns, warm": (ours, False),
    "scipy.sparse, columns, warm": (with_scipy, False),
}
"""What is measured -> the function, and whether the system is made to forget the files before."""
RATIOS = {
    "blb over scipy.sparse": ("blb, columns, warm", "scipy.sparse, columns, warm"),
}
DISK = {
    "blb over reading the columns once, cold": (
        "blb, columns, cold",
        "read the columns once, cold",
    ),
}
"""Shown and not kept: what a disk gives from one minute to the next differs twofold."""


def run(name: str, folder: Path) -> Measured[Any]:
    """One of ``RUNS`` in a process of its own."""
    function, is_cold = RUNS[name]
    if is_cold:
        cold(folder)
    return apart(function, folder)


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
    help="scipy.sparse, which holds everything at once.",
)
@REPEATS
@OUT
def main(scale: float, folder: Path | None, peers: bool, repeats: int, out: Path | None) -> None:
    """See the module."""
    names = [name for name in RUNS if peers or name.startswith(("read", "blb"))]
    with tempfile.TemporaryDirectory() as temporary:
        where = folder or Path(temporary)
        where.mkdir(parents=True, exist_ok=True)
        if not (where / "logprobs").exists():
            apart(made, where, scale)
        positions = (where / "logprobs").stat().st_size // 4
        turns = alternately({name: partial(run, name, where) for name in names}, repeats)
    seconds = {
        name: statistics.median(turn.seconds for turn in measured)
        for name, measured in turns.items()
    }
    reference = turns["blb, columns, warm"][0].value
    apart_by = max(
        float(np.max(np.abs(measured[0].value / reference - 1)))
        for name, measured in turns.items()
        if "read" not in name
    )
    table, rows = [], []
    for name, value in seconds.items():
        peak = max(turn.peak for turn in turns[name])
        rate = f"{value / positions * 1e9:.1f}"
        table.append([name, f"{value:.3f}", rate, f"{peak / 1e6:.0f}"])
        rows.append(row(name, value, "s", peak=peak, scale=scale, positions=positions))
    settings = len(TAUS) * len(ALPHAS)
    click.echo(
        f"{round(ROLLOUTS * scale):,} rollouts, {positions:,} positions, {settings} settings"
    )
    click.echo(markdown(["", "seconds", "ns a position", "peak MB"], table))
    quotients = {
        f"scale/{name}": ratio(seconds[above], seconds[below])
        for name, (above, below) in {**RATIOS, **DISK}.items()
        if above in seconds and below in seconds
    }
    for name, quotient in quotients.items():
        click.echo(f"{name}: {quotient:g}")
    click.echo(f"largest relative difference between the biases: {apart_by:.1e}")
    kept = {
        name: value for name, value in quotients.items() if name.removeprefix("scale/") in RATIOS
    }
    write(out, rows, kept)


if __name__ == "__main__":
    main()
