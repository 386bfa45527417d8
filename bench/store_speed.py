"""``python -m bench.store_speed``: the store against files of the same completions as JSON, npz and
Parquet, written and read.

Every write ends with the data on the disk. The store makes each answer durable by itself, or a
batch of them, as its writer thread does; the files are written and synced once, after all answers,
so that a crash before that loses everything: they are cheaper.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.collector_server import answers
from bench.measuring import OUT, REPEATS, markdown, medians, ratio, row, write
from blackbox_lb import Completion, Prompt, RolloutStore, Sampling, load_profile
from blackbox_lb.api.wire import parse_response
from blackbox_lb.types import NO_TOKEN

__all__ = ["FORMATS", "Format", "received"]

BATCH = 32
"""Answers in one transaction, as many as workers wait for the disk together."""
COLUMNS = ("token_ids", "logprobs", "top_ids", "top_logprobs")
SETTINGS = {"provider": "bench", "tokenizer": "bench"}


@dataclass(frozen=True, slots=True)
class Format:
    """One way to keep completions: ``write`` them to a path, ``read`` their arrays back."""

    write: Callable[[Path], None]
    read: Callable[[Path], int]


def received(tokens: int, top: int, count: int) -> tuple[list[bytes], list[Completion]]:
    """``count`` answers of the collector's server as they came, and as completions."""
    raw, profile = (
        answers(tokens, top + 1, count, "vllm"),
        load_profile("vllm"),
    )  # its last alternative is not sure, and dropped
    sampling = Sampling(max_tokens=tokens, top_logprobs=top + 1)
    return raw, [parse_response(profile, "chat", json.loads(each), sampling)[0] for each in raw]


def _synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


class _Store:
    def __init__(self, completions: list[Completion], batch: int) -> None:
        self._completions, self._batch = completions, batch

    def write(self, path: Path) -> None:
        for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            with suppress(FileNotFoundError):
                each.unlink()
        with RolloutStore(path) as store:
            for first in range(0, len(self._completions), self._batch):
                some = enumerate(self._completions[first : first + self._batch], first)
                store.add_answers(
                    [
                        store.rows_of(SETTINGS, Prompt.user(str(number)), {0: each})
                        for number, each in some
                    ]
                )

    def read(self, path: Path) -> int:
        with RolloutStore(path, read_only=True) as store:
            (request,) = store.requests()
            return sum(len(each.token_ids) for each in store.completions(store.keys(request)))


class _Json:
    def __init__(self, raw: list[bytes]) -> None:
        self._raw = raw

    def write(self, path: Path) -> None:
        _synced(path, b"\n".join(self._raw))

    def read(self, path: Path) -> int:
        return sum(
            len(json.loads(line)["choices"][0]["logprobs"]["content"])
            for line in path.read_bytes().splitlines()
        )


def _columns(completions: list[Completion]) -> Iterator[tuple[str, Any]]:
    for name in COLUMNS:
        yield name, np.concatenate([getattr(each, name) for each in completions])
    yield "lengths", np.array([len(each.token_ids) for each in completions])


class _Npz:
    def __init__(self, completions: list[Completion]) -> None:
        self._completions = completions

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez_compressed(file, **dict(_columns(self._completions)))
        _sync(path)

    def read(self, path: Path) -> int:
        with np.load(path) as found:
            return len({name: found[name] for name in found.files}["token_ids"])


class _Parquet:
    def __init__(self, completions: list[Completion]) -> None:
        self._completions = completions

    def write(self, path: Path) -> None:
        columns = dict(_columns(self._completions))
        del columns["lengths"]
        arrays = {
            name: (
                pa.array(column)
                if column.ndim == 1
                else pa.FixedSizeListArray.from_arrays(column.ravel(), column.shape[1])
            )
            for name, column in columns.items()
        }
        pq.write_table(pa.table(arrays), path, compression="zstd")
        _sync(path)

    def read(self, path: Path) -> int:
        table = pq.read_table(path)
        top = table["top_ids"].combine_chunks().flatten().to_numpy()
        return int((top.reshape(len(table), -1)[:, 0] != NO_TOKEN).sum())


OURS, ONE, RAW, NPZ, PARQUET = (
    "store, batches",
    "store, one by one",
    "raw JSON",
    "np.savez_compressed",
    "Parquet, zstd",
)
FORMATS = (ONE, OURS, RAW, NPZ, PARQUET)


def _formats(raw: list[bytes], completions: list[Completion]) -> dict[str, Format]:
    one, batches = _Store(completions, 1), _Store(completions, BATCH)
    lines, npz, parquet = _Json(raw), _Npz(completions), _Parquet(completions)
    return {
        ONE: Format(one.write, one.read),
        OURS: Format(batches.write, batches.read),
        RAW: Format(lines.write, lines.read),
        NPZ: Format(npz.write, npz.read),
        PARQUET: Format(parquet.write, parquet.read),
    }


def _disk(folder: Path, size: int, count: int) -> list[float]:
    """Seconds of ``count`` appends of ``size`` bytes each that wait for the disk."""
    taken, data = [], os.urandom(size)
    with (folder / "fsync").open("wb") as file:
        for _ in range(count):
            start = time.perf_counter()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - start)
    return taken


@click.command()
@click.option(
    "--tokens", default=1024, show_default=True, type=click.IntRange(1), help="Of each completion."
)
@click.option(
    "--top",
    default=20,
    show_default=True,
    type=click.IntRange(1),
    help="Alternatives at each position.",
)
@click.option("--completions", default=64, show_default=True, type=click.IntRange(1))
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False),
    help="On the disk to measure. [default: temporary]",
)
@REPEATS
@OUT
def main(
    tokens: int, top: int, completions: int, folder: str | None, repeats: int, out: Path | None
) -> None:
    """Completions a second written and read, and bytes a token."""
    raw, parsed = received(tokens, top, completions)
    formats = _formats(raw, parsed)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        paths = {name: Path(own, f"{number}.file") for number, name in enumerate(formats)}
        writing = medians(
            {name: partial(each.write, paths[name]) for name, each in formats.items()}, repeats
        )
        counted = {name: each.read(paths[name]) for name, each in formats.items()}
        if set(counted.values()) != {completions * tokens}:
            raise click.ClickException(f"read {counted} tokens of {completions * tokens}")
        reading = medians(
            {name: partial(each.read, paths[name]) for name, each in formats.items()}, repeats, 1
        )
        sizes = {name: path.stat().st_size / (completions * tokens) for name, path in paths.items()}
        packed = _packed(paths[OURS]) / (completions * tokens)
        waits = _disk(Path(own), int(packed * tokens), completions)
    rows = [
        entry
        for name in formats
        for entry in (
            row(f"{name}: write", completions / writing[name], "completions/s"),
            row(f"{name}: read", completions / reading[name], "completions/s"),
            row(f"{name}: size", sizes[name], "bytes a token"),
        )
    ]
    rows += [
        row("packed arrays", packed, "bytes a token"),
        row("fsync", statistics.median(waits), "s"),
    ]
    click.echo(_table(rows, tokens))
    median = statistics.median(waits)
    click.echo(
        f"\nPacked arrays alone: {packed:.1f} bytes a token. To write {packed * tokens / 1e3:.0f}"
        f" kB and wait for the disk takes {median * 1e3:.2f} ms at the median,"
        f" {max(waits) * 1e3:.1f} ms at most: {sum(waits) / writing[ONE]:.0%} of what the store"
        " takes one by one."
    )
    write(out, rows, _ratios(writing, reading, sizes))


def _packed(path: Path) -> int:
    with RolloutStore(path, read_only=True) as store:
        return store.size().token_bytes


def _table(rows: list[dict[str, Any]], tokens: int) -> str:
    of = {each["name"]: each["value"] for each in rows}
    head = ["kept as", "written/s", "tokens/s", "read/s", "tokens/s", "bytes a token"]
    return markdown(
        head,
        [
            [
                name,
                f"{of[f'{name}: write']:.0f}",
                f"{of[f'{name}: write'] * tokens:,.0f}",
                f"{of[f'{name}: read']:.0f}",
                f"{of[f'{name}: read'] * tokens:,.0f}",
                f"{of[f'{name}: size']:.1f}",
            ]
            for name in FORMATS
        ],
    )


def _ratios(
    writing: dict[str, float], reading: dict[str, float], sizes: dict[str, float]
) -> dict[str, float]:
    found = {"store/time to write one by one over batches": ratio(writing[ONE], writing[OURS])}
    for name in (RAW, NPZ, PARQUET):
        found[f"store/time to write over {name}"] = ratio(writing[OURS], writing[name])
        found[f"store/time to read over {name}"] = ratio(reading[OURS], reading[name])
        found[f"store/bytes over {name}"] = ratio(sizes[OURS], sizes[name])
    return found


if __name__ == "__main__":
    main()
