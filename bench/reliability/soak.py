"""Collecting for hours from servers that fail in every known way, at full concurrency: does the
process grow, does anything leak?

Three processes: one serves the exact model behind a chaos server for each mode, one collects, this
one looks on. The client takes the modes in turn, a session and a new seed each time, into one
store, and after each it is measured.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sqlite3
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from scipy import stats

from bench.reliability.job import KEY, PROFILE, forks, found_in_files, found_in_processes, new_key
from bench.reliability.row import Row
from blackbox_lb import RolloutStore, connect
from blackbox_lb.api.draw import Draw
from blackbox_lb.errors import BlbError
from blackbox_lb.rollouts.collect import collect
from blackbox_lb.types import Completion, Prompt, Sampling
from tests.support.chaos.server import MODES, ChaosServer
from tests.support.exact import ExactModel, ExactServer

__all__ = ["Growth", "Plan", "growth", "soak"]

RATE = 0.2
"""Share of disturbed requests: with six tries of each nearly all collections end whole, and the
rest with a named error.
"""
PAUSE, SHORT_PAUSE = 0.02, 0.0005
"""Seconds; the second is between the bytes of a slow stream."""
SETTLING = 0.05
"""Seconds for what the collector of garbage found to end: it closes a generator that was left in a
task of its own.
"""
WARM = 0.3
"""Share of the time in which imports, caches and pools fill: it does not count."""
HUNGRY = ("endless body", "huge body", "gzip bomb")
"""Modes whose answers are read up to the client's own bound, by all workers at once; what that
takes, malloc keeps. They come first and belong to the warm-up, whatever its length."""
BLOCKS = 10
"""Consecutive measurements are alike, so the slope is taken over the means of so many blocks."""
MEGABYTE = 2**20
MOST_GROWTH = 5.0
"""MB an hour. Flat means that the 95 % interval of the slope reaches down to this or below, or that
hardly anything was added.
"""
LEAST_GROWN = 4 * MEGABYTE
"""Growth after the warm-up that is told from none: one large answer of a mode that comes late may
take as much, once.
"""
MOST_MEMORY = 4 * 2**30
"""Bytes of addresses for each of the two processes: a fault that fills the memory is to end them
and not the machine.
"""
MOST_LEFT = 3
"""File descriptors more than at the end of the warm-up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """For ``seconds``, through ``modes``, ``prompts`` times ``samples`` completions at a time.

    longest: seconds for one collection; what takes longer is cut off, as Ctrl-C would.
    """

    seconds: float = 7200.0
    modes: tuple[str, ...] = (*HUNGRY, *(mode for mode in MODES if mode not in HUNGRY))
    prompts: int = 16
    samples: int = 4
    longest: float = 30.0


@dataclass(slots=True)
class Soaked:
    """What the client saw.

    measured: seconds since the start, bytes resident, open file descriptors, tasks left over.
    outcomes: how a collection ended -> how many did.
    unnamed: errors that are none of this package.
    received: completions that the session returned, also to a collection that was cut off before
    they were stored.
    """

    measured: list[tuple[float, int, int, int]] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    unnamed: list[str] = field(default_factory=list)
    received: int = 0


@dataclass(frozen=True, slots=True)
class Growth:
    """MB an hour, and its standard error."""

    slope: float
    error: float

    @property
    def least(self) -> float:
        """The lower end of the 95 % interval."""
        return self.slope - 2 * self.error


def growth(seconds: Sequence[float], sizes: Sequence[float], warm: float) -> Growth:
    """The slope of ``sizes`` (bytes) over time after ``warm`` seconds, by least squares over the
    means of blocks.

    NaN where there are fewer than three blocks.
    """
    late = [(s, size) for s, size in zip(seconds, sizes, strict=True) if s >= warm]
    blocks = [block.mean(axis=0) for block in np.array_split(np.array(late), BLOCKS) if len(block)]
    if len(blocks) < 3:
        return Growth(float("nan"), float("nan"))
    at, size = np.array(blocks).T
    line = stats.linregress(at / 3600, size / MEGABYTE)
    return Growth(float(line.slope), float(line.stderr))


def serve(modes: Sequence[str], pipe: Connection) -> None:
    """A chaos server a mode in front of one exact server, until the pipe is closed at the other
    end.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    with ExitStack() as stack:
        exact = stack.enter_context(
            ExactServer(ExactModel(12, 6, end=True, prompts=4, sharpness=0.7))
        )
        urls = {}
        for number, mode in enumerate(modes):
            pause = SHORT_PAUSE if mode == "slow loris" else PAUSE
            chaos = ChaosServer(exact, mode, rate=RATE, seed=number, pause=pause)
            urls[mode] = stack.enter_context(chaos).base_url
        pipe.send(urls)
        while True:
            try:
                pipe.recv()
            except EOFError:
                return
            exact.requests.clear()
            exact.calls.clear()


def client(plan: Plan, urls: Mapping[str, str], key: str, folder: Path, pipe: Connection) -> None:
    """Collect until the time is up, then send what was seen."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    os.environ[KEY] = key
    pipe.send(asyncio.run(_collecting(plan, urls, folder)))


async def _collecting(plan: Plan, urls: Mapping[str, str], folder: Path) -> Soaked:
    seen, began, number = Soaked(), time.monotonic(), 0
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        while (now := time.monotonic() - began) < plan.seconds:
            mode = plan.modes[number % len(plan.modes)]
            outcome = "complete"
            seconds = plan.longest
            if seen.received:  # a busy machine may need longer for the first one
                seconds = min(seconds, max(1.0, plan.seconds - now))
            try:
                async with asyncio.timeout(seconds):
                    await _once(plan, urls[mode], folder, number, seen)
            except TimeoutError:
                outcome = "cut off"
            except BlbError as error:
                outcome = type(error).__name__
                log.write(f"{mode}: {error}\n{traceback.format_exc()}\n")
            except Exception as error:  # noqa: BLE001  (whatever is not of our tree is what this looks for)
                outcome = f"{mode}: {error!r}"
                seen.unnamed.append(outcome)
                log.write(f"{mode}: {traceback.format_exc()}\n")
            seen.outcomes[outcome] += 1
            number += 1
            gc.collect()
            await asyncio.sleep(SETTLING)
            seen.measured.append(
                (
                    time.monotonic() - began,
                    _resident(),
                    _descriptors(),
                    len(asyncio.all_tasks()) - 1,
                )
            )
    return seen


async def _once(plan: Plan, url: str, folder: Path, number: int, seen: Soaked) -> None:
    prompts = [Prompt.user(f"question {n}") for n in range(plan.prompts)]
    async with connect(str(folder / "profile.toml"), base_url=url, max_tokens=6) as session:
        tokenizer = await session.tokenizer()
        complete_many = session.complete_many

        async def counted(
            prompt: Prompt | Sequence[int], draw: Draw, n: int = 1
        ) -> list[Completion]:
            completions = await complete_many(prompt, draw, n)
            seen.received += min(len(completions), n)
            return completions

        session.complete_many = counted  # type: ignore[method-assign]
        with RolloutStore(folder / "rollouts.db") as store:
            sampling = Sampling(max_tokens=6, top_logprobs=4, seed=number)
            await collect(
                session,
                store,
                tokenizer,
                prompts,
                Draw(sampling),
                samples=plan.samples,
            )


def _resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def soak(plan: Plan, folder: Path) -> Row:
    """The row, with the store and the log in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "profile.toml").write_text(PROFILE)
    began, key, context = time.monotonic(), new_key(), forks()
    near, far = context.Pipe()
    server = context.Process(target=serve, args=(plan.modes, far), daemon=True)
    server.start()
    far.close()
    urls = near.recv()
    mine, its = context.Pipe()
    collecting = context.Process(target=client, args=(plan, urls, key, folder, its), daemon=True)
    collecting.start()
    its.close()
    shown: set[str] = set()
    try:
        while not mine.poll(min(10.0, plan.seconds / 2)):
            shown |= set(found_in_processes(key))
            if not server.is_alive():
                raise RuntimeError(
                    f"the chaos server ended with {server.exitcode}; the soak says nothing"
                )
            near.send("forget")
        seen: Soaked = mine.recv()
    finally:
        near.close()
        for process in (collecting, server):
            process.join(10)
            process.kill()
    return _row(
        plan, folder, seen, [*found_in_files(key, folder), *shown], time.monotonic() - began
    )


def _row(plan: Plan, folder: Path, seen: Soaked, keys: list[str], seconds: float) -> Row:
    times, sizes, files, tasks = (list(column) for column in zip(*seen.measured, strict=True))
    hungry = len(set(HUNGRY) & set(plan.modes))
    warmed = max(WARM * times[-1], times[min(hungry, len(times)) - 1] if hungry else 0.0)
    slope = growth(times, sizes, warmed)
    warm = next(n for n, each in enumerate(times) if each >= warmed)
    grown = sizes[-1] - sizes[warm] > LEAST_GROWN
    left = max(files[warm:]) - max(files[: warm + 1])
    stored, other_model, doubled = _stored(folder / "rollouts.db")
    wrong = [
        *(
            [f"memory grew by {slope.slope:.1f} ± {slope.error:.1f} MB an hour"]
            * (grown and slope.least > MOST_GROWTH)
        ),
        *([f"{left} more file descriptors than after the warm-up"] * (left > MOST_LEFT)),
        *([f"{max(tasks)} tasks were left over"] * (max(tasks) > 0)),
        *([f"{seen.received} completions received, {stored} stored"] * (seen.received != stored)),
        *([f"{doubled} samples are stored twice"] * (doubled > 0)),
        *(
            [f"errors that are none of ours: {'; '.join(dict.fromkeys(seen.unnamed))}"]
            * bool(seen.unnamed)
        ),
        *([f"the planted key is in {', '.join(keys)}"] * bool(keys)),
        *(["nothing was received"] * (seen.received == 0)),
    ]
    named = {
        name: count for name, count in seen.outcomes.items() if name not in ("complete", "cut off")
    }
    return Row(
        f"collecting at full concurrency from servers that fail in {len(plan.modes)} ways,"
        f" {RATE:.0%} of the answers disturbed",
        f"{times[-1]:,.0f} s, {sum(seen.outcomes.values())} collections, {seen.received:,}"
        " completions",
        f"memory {sizes[warm] / MEGABYTE:.0f} to {sizes[-1] / MEGABYTE:.0f} MB, {slope.slope:+.1f}"
        f" ± {slope.error:.1f} MB an hour; file descriptors {left:+d}, tasks left {max(tasks)};"
        f" each completion stored once; {seen.outcomes['complete']} collections whole,"
        f" {sum(named.values())} ended with a named error, {seen.outcomes['cut off']} cut off; key"
        f" found in {len(keys)} places",
        seconds,
        {
            "slope_mb_per_hour": slope.slope,
            "slope_error": slope.error,
            "peak_mb": max(sizes) / MEGABYTE,
            "outcomes": dict(seen.outcomes),
            "received": seen.received,
            "stored": stored,
            "stored_of_another_model": other_model,
            "measured": seen.measured,
        },
        tuple(wrong),
    )


def _stored(path: Path) -> tuple[int, int, int]:
    """Completions in the store, those of another model than was asked, and how many are there more
    than once.
    """
    if not path.exists():  # every collection was cut off before it opened its store
        return 0, 0, 0
    db = sqlite3.connect(path)
    joined = "FROM completions JOIN requests ON requests.hash = request_hash"
    (rows,) = db.execute(f"SELECT count(*) {joined}").fetchone()
    another = "json_extract(settings, '$.asked') IS NOT NULL"
    (other_model,) = db.execute(f"SELECT count(*) {joined} WHERE {another}").fetchone()
    groups = "SELECT DISTINCT request_hash, prompt_hash, sample FROM completions"
    (once,) = db.execute(f"SELECT count(*) FROM ({groups})").fetchone()
    db.close()
    return rows, other_model, rows - once
