"""Collecting for hours from servers that fail in every known way, at full concurrency: does the
process grow, does anything leak?

Another process serves the exact model behind a chaos server for each mode. This one takes the modes
in turn, a session and a new seed each time, into one store, and after each it is measured.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from scipy import stats

from bench.reliability.job import KEY, PROFILE, Row, found_in_files, new_key, state_of
from blackbox_lb import BlbError, Completion, Prompt, RolloutStore, Sampling, connect

# The collector alone is soaked, without a task and its reward.
from blackbox_lb.api.draw import Draw
from tests.support.chaos.server import MODES as EVERY_MODE
from tests.support.chaos.server import ChaosServer
from tests.support.collecting import collect
from tests.support.exact import ExactModel, ExactServer

__all__ = ["MODES", "growth", "soak"]

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
MODES = (*HUNGRY, *(mode for mode in EVERY_MODE if mode not in HUNGRY))
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
"""Bytes of addresses for the server: a fault that fills the memory is to end it and not the
machine.
"""
FORGETTING = 10.0
"""Seconds after which the server forgets the requests that it keeps for tests."""
MOST_LEFT = 3
"""File descriptors more than at the end of the warm-up."""
LONGEST = 30.0
"""Seconds for one collection; what takes longer is cut off, as Ctrl-C would."""


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


def growth(seconds: Sequence[float], sizes: Sequence[float], warm: float) -> tuple[float, float]:
    """MB an hour and its standard error: the slope of ``sizes`` (bytes) over time after ``warm``
    seconds, by least squares over the means of blocks.

    NaN where there are fewer than three blocks.
    """
    late = [pair for pair in zip(seconds, sizes, strict=True) if pair[0] >= warm]
    blocks = [block.mean(axis=0) for block in np.array_split(np.array(late), BLOCKS) if len(block)]
    if len(blocks) < 3:
        return float("nan"), float("nan")
    times, means = np.array(blocks).T
    line = stats.linregress(times / 3600, means / MEGABYTE)
    return float(line.slope), float(line.stderr)


def serve(modes: Sequence[str], pipe: Connection) -> None:
    """A chaos server a mode in front of one exact server, until the pipe is closed at the other
    end.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    with ExitStack() as stack:
        model = ExactModel(12, 6, end=True, prompts=4, sharpness=0.7)
        exact = stack.enter_context(ExactServer(model))
        urls = {}
        for number, mode in enumerate(modes):
            pause = SHORT_PAUSE if mode == "slow loris" else PAUSE
            chaos = ChaosServer(exact, mode, rate=RATE, seed=number, pause=pause)
            urls[mode] = stack.enter_context(chaos).base_url
        pipe.send(urls)
        while not pipe.poll(FORGETTING):
            exact.requests.clear()
            exact.calls.clear()


async def _collecting(
    duration: float, prompts: int, samples: int, urls: Mapping[str, str], folder: Path
) -> Soaked:
    """What was seen while it collected for so many seconds."""
    seen = Soaked()
    began = time.monotonic()
    modes = list(urls)
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        while (now := time.monotonic() - began) < duration:
            number = seen.outcomes.total()
            mode = modes[number % len(modes)]
            outcome = "complete"
            seconds = LONGEST
            if seen.received:  # a busy machine may need longer for the first one
                seconds = min(seconds, max(1.0, duration - now))
            try:
                async with asyncio.timeout(seconds):
                    await _once(urls[mode], folder, number, prompts, samples, seen)
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
            gc.collect()
            await asyncio.sleep(SETTLING)
            resident = int(Path("/proc/self/statm").read_text().split()[1])
            descriptors = len(list(Path("/proc/self/fd").iterdir()))
            tasks = len(asyncio.all_tasks()) - 1
            size = resident * os.sysconf("SC_PAGE_SIZE")
            seen.measured.append((time.monotonic() - began, size, descriptors, tasks))
    return seen


async def _once(
    url: str, folder: Path, number: int, prompts: int, samples: int, seen: Soaked
) -> None:
    questions = [Prompt.user(f"question {n}") for n in range(prompts)]
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
            draw = Draw(Sampling(max_tokens=6, top_logprobs=4, seed=number))
            await collect(session, store, tokenizer, questions, draw, samples=samples)


def soak(
    folder: Path, seconds: float, modes: Sequence[str], prompts: int = 16, samples: int = 4
) -> Row:
    """The row, with the store and the log in ``folder``: for so many seconds through ``modes``,
    ``prompts`` times ``samples`` completions at a time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "profile.toml").write_text(PROFILE)
    began = time.monotonic()
    key = new_key()
    os.environ[KEY] = key
    context = get_context("spawn")
    near, far = context.Pipe()
    server = context.Process(target=serve, args=(modes, far), daemon=True)
    server.start()
    far.close()
    try:
        seen = asyncio.run(_collecting(seconds, prompts, samples, near.recv(), folder))
    finally:
        near.close()
        server.join(10)
        server.kill()
    return _row(folder, seen, modes, found_in_files(key, folder), time.monotonic() - began)


def _row(
    folder: Path, seen: Soaked, modes: Sequence[str], keys: Sequence[str], seconds: float
) -> Row:
    times, sizes, files, tasks = (list(column) for column in zip(*seen.measured, strict=True))
    hungry = len(set(HUNGRY) & set(modes))
    warmed = WARM * times[-1]
    if hungry:
        warmed = max(warmed, times[min(hungry, len(times)) - 1])
    slope, error = growth(times, sizes, warmed)
    warm = next(number for number, moment in enumerate(times) if moment >= warmed)
    is_grown = sizes[-1] - sizes[warm] > LEAST_GROWN and slope - 2 * error > MOST_GROWTH
    left = max(files[warm:]) - max(files[: warm + 1])
    store = state_of(folder / "rollouts.db")
    stored = len(store.rows)
    unnamed = "; ".join(dict.fromkeys(seen.unnamed))
    checks = {
        f"memory grew by {slope:.1f} ± {error:.1f} MB an hour": is_grown,
        f"{left} more file descriptors than after the warm-up": left > MOST_LEFT,
        f"{max(tasks)} tasks were left over": max(tasks) > 0,
        f"{seen.received} completions received, {stored} stored": seen.received != stored,
        f"the store is broken: {'; '.join(store.broken)}": bool(store.broken),
        f"errors that are none of ours: {unnamed}": bool(unnamed),
        f"the planted key is in {', '.join(keys)}": bool(keys),
        "nothing was received": seen.received == 0,
    }
    complete = seen.outcomes["complete"]
    cut_off = seen.outcomes["cut off"]
    collections = seen.outcomes.total()
    return Row(
        f"collecting at full concurrency from servers that fail in {len(modes)} ways,"
        f" {RATE:.0%} of the answers disturbed",
        f"{times[-1]:,.0f} s, {collections} collections, {seen.received:,} completions",
        f"memory {sizes[warm] / MEGABYTE:.0f} to {sizes[-1] / MEGABYTE:.0f} MB, {slope:+.1f} ±"
        f" {error:.1f} MB an hour; file descriptors {left:+d}, tasks left {max(tasks)}; each"
        f" completion stored once; {complete} collections whole, {collections - complete - cut_off}"
        f" ended with a named error, {cut_off} cut off; key found in {len(keys)} places",
        seconds,
        {"slope_mb_per_hour": slope, "received": seen.received, "stored": stored},
        tuple(sentence for sentence, is_true in checks.items() if is_true),
    )
