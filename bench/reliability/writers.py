"""Many processes that write into one store at once, some of them the same samples, and one that
reads meanwhile.

Every writer opens the store, which does not exist yet, at the same instant. Of what is written
everything is known in advance, so that a row is checked by its content wherever it is read.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.reliability.job import forks
from bench.reliability.row import Row, failed
from blackbox_lb import BlbError, Completion, Prompt, RolloutStore

__all__ = ["completion_of", "writers"]

SETTINGS = {"provider": "reliability", "model": "written", "tokenizer": "known"}
SAMPLES = 3
"""Of one answer, so of one transaction: a reader sees all of them or none."""
SHARED = 4
"""Every so many answers a writer writes one that all others write, too."""
PATIENCE = 60.0
"""Seconds to wait for each other; the store's own default is for fewer writers than 24 on two
cores.
"""
AHEAD = 3.0
"""Seconds from the start of the processes until they all open the store."""


class Written(NamedTuple):
    """Keys that ``add_answer`` returned, and what it raised instead."""

    keys: tuple[str, ...]
    refused: tuple[str, ...]


class Read(NamedTuple):
    """Passes over the store, rows checked, and what was not as it should be."""

    passes: int
    rows: int
    wrong: tuple[str, ...]


def completion_of(prompt: Prompt, sample: int) -> Completion:
    """The one completion that may be stored for this sample."""
    rng = np.random.default_rng([zlib.crc32(prompt.text.encode()), sample])
    ids, table = rng.integers(0, 1000, 20), -np.sort(rng.random((20, 5)), axis=1)
    return Completion(
        text=f"{prompt.text}: {sample}",
        finish_reason="stop",
        token_ids=ids.astype(np.int32),
        logprobs=table[:, 0].astype(np.float32),
        top_ids=np.tile(np.arange(5, dtype=np.int32), (20, 1)),
        top_logprobs=table.astype(np.float32),
        model="written",
        generated=20,
    )


def _prompts(writer: int) -> Iterator[Prompt]:
    """What one writer asks, for as long as anybody wants."""
    number = 0
    while True:
        yield Prompt.user(
            f"shared {number}" if number % SHARED == 0 else f"writer {writer}, question {number}"
        )
        number += 1


def write(path: Path, writer: int, begin: float, end: float) -> Written:
    """One writer, from ``begin`` to ``end`` of the monotonic clock.

    It writes at least one answer: on a busy machine the others may hold the store until ``end``.
    """
    keys: list[str] = []
    refused: list[str] = []
    time.sleep(max(0.0, begin - time.monotonic()))
    try:
        with RolloutStore(path, patience=PATIENCE) as store:
            for prompt in _prompts(writer):
                if time.monotonic() > end and (keys or refused):
                    break
                answer = {sample: completion_of(prompt, sample) for sample in range(SAMPLES)}
                try:
                    keys += store.add_answer(SETTINGS, prompt, answer)
                except BlbError as error:
                    refused.append(str(error))
    except BlbError as error:
        refused.append(str(error))
    return Written(tuple(keys), tuple(refused))


def read(path: Path, begin: float, end: float) -> Read:
    """One reader, over and over again from ``begin`` until after ``end`` and until it has seen a
    row, but no longer than the writers wait for each other.
    """
    passes, rows = 0, 0
    wrong: list[str] = []
    time.sleep(max(0.0, begin - time.monotonic()))
    latest = end + PATIENCE
    while time.monotonic() < end or (not rows and time.monotonic() < latest):
        if not path.exists():
            time.sleep(0.01)
            continue
        try:
            found = _looked(path)
        except BlbError as error:
            time.sleep(0.01)
            wrong += [f"the reader got: {error}"] * (
                passes > 0
            )  # before that, the store may not be there yet
            continue
        passes, rows = passes + 1, rows + found[0]
        wrong += found[1]
    return Read(passes, rows, tuple(wrong))


def _looked(path: Path) -> tuple[int, list[str]]:
    """One pass: rows read, and what is half or not what was written."""
    wrong: list[str] = []
    with RolloutStore(path, read_only=True, patience=PATIENCE) as store:
        asked = {
            key: prompt
            for request in store.requests()
            for key, prompt in store.prompts(request).items()
        }
        halves = [
            text
            for text, count in Counter(prompt.text for prompt in asked.values()).items()
            if count != SAMPLES
        ]
        wrong += [f"half an answer was visible: {text}" for text in halves]
        for prompt, completion in zip(asked.values(), store.completions(asked), strict=True):
            sample = int(completion.text.rpartition(" ")[2])
            if not _same(completion, completion_of(prompt, sample)):
                wrong.append(f"sample {sample} of {prompt.text!r} reads as {completion.text!r}")
    return len(asked), wrong


def _same(left: Completion, right: Completion) -> bool:
    arrays = ("token_ids", "logprobs", "top_ids")
    return left.text == right.text and all(
        np.array_equal(getattr(left, a), getattr(right, a)) for a in arrays
    )


def writers(folder: Path, count: int = 24, seconds: float = 20.0) -> Row:
    """The row, from a store in ``folder`` that ``count`` processes write to."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rollouts.db"
    started = time.monotonic()
    with ProcessPoolExecutor(count + 1, mp_context=forks()) as pool:
        list(pool.map(time.sleep, [0.05] * (count + 1)))  # all processes are there
        begin = time.monotonic() + AHEAD
        end = begin + seconds
        reading = pool.submit(read, path, begin, end)
        writing = [pool.submit(write, path, number, begin, end) for number in range(count)]
        written = [process.result() for process in writing]
        seen = reading.result()
    acknowledged = [key for own in written for key in own.keys]
    refused = [sentence for own in written for sentence in own.refused]
    db = sqlite3.connect(path)
    stored = [key for (key,) in db.execute("SELECT key FROM completions")]
    (verdict,) = db.execute("PRAGMA integrity_check").fetchone()
    db.close()
    rows, wrong = _looked(path)
    lost = len(set(acknowledged) - set(stored))
    extra = len(set(stored) - set(acknowledged))
    checks = {
        f"{lost} acknowledged rows are missing": lost > 0,
        f"{extra} rows nobody wrote": extra > 0,
        f"integrity_check: {verdict}": verdict != "ok",
        "the reader never read": seen.rows == 0,
        "a writer wrote nothing": any(not own.keys for own in written),
    }
    wrong += [*seen.wrong, *(f"a writer was refused: {sentence}" for sentence in refused)]
    wrong += failed(checks)
    shared = len(acknowledged) - len(set(acknowledged))
    return Row(
        f"{count} writers and a reader on one store",
        f"{seconds:g} s, {len(acknowledged):,} rows written, {shared:,} of them by several writers",
        f"{len(stored):,} rows stored, each once, {lost} lost, {len(refused)} writers refused; the"
        f" reader read {seen.rows:,} rows in {seen.passes} passes, {len(seen.wrong)} errors or half"
        f" answers; integrity {verdict}",
        time.monotonic() - started,
        {"acknowledged": len(acknowledged), "stored": len(stored), "checked": rows, "lost": lost},
        tuple(dict.fromkeys(wrong)),
    )
