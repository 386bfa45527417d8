"""``python -m bench.store_speed``: the store against a file of the same answers as they came, JSON,
written and read.

Every write ends with the data on the disk. The store makes each answer durable by itself, or a
batch of them, as its writer thread does; the file is written and synced once, after all answers, so
that a crash before that loses everything: it is cheaper.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

from bench.measuring import OUT, REPEATS, markdown, medians, ratio, write
from bench.server import answers
from blackbox_lb import Completion, Prompt, RolloutStore, Sampling, load_profile

# Prepared answers become completions as a session would read them.
from blackbox_lb.api.wire import parse_response

__all__ = ["received"]

BATCH = 32
"""Answers in one transaction, as many as workers wait for the disk together."""
SETTINGS = {"provider": "bench", "tokenizer": "bench"}
ONE, OURS, RAW = FORMATS = ("store, one by one", "store, batches", "raw JSON")


def received(tokens: int, top: int, count: int) -> tuple[list[bytes], list[Completion]]:
    """``count`` answers of the collector's server as they came, and as completions."""
    # One alternative more, since the last one is not sure and is dropped.
    raw = answers(tokens, top + 1, count, "vllm")
    sampling = Sampling(max_tokens=tokens, top_logprobs=top + 1)
    profile = load_profile("vllm")
    return raw, [parse_response(profile, "chat", json.loads(body), sampling)[0] for body in raw]


def write_store(completions: Sequence[Completion], batch: int, path: Path) -> None:
    """A new store, ``batch`` answers a transaction."""
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    with RolloutStore(path) as store:
        for first in range(0, len(completions), batch):
            numbered = enumerate(completions[first : first + batch], first)
            store.add_answers(
                [
                    store.rows_of(SETTINGS, Prompt.user(str(number)), {0: completion})
                    for number, completion in numbered
                ]
            )


def read_store(path: Path) -> int:
    """The number of tokens read."""
    with RolloutStore(path, read_only=True) as store:
        (request,) = store.requests()
        keys = store.keys(request)
        return sum(len(completion.token_ids) for completion in store.completions(keys))


def write_json(raw: Sequence[bytes], path: Path) -> None:
    """The answers as they came, one a line."""
    with path.open("wb") as file:
        file.write(b"\n".join(raw))
        file.flush()
        os.fsync(file.fileno())


def read_json(path: Path) -> int:
    """The number of tokens read."""
    lines = path.read_bytes().splitlines()
    return sum(len(json.loads(line)["choices"][0]["logprobs"]["content"]) for line in lines)


@click.command()
@click.option("--tokens", default=1024, show_default=True, help="Of each completion.")
@click.option("--top", default=20, show_default=True, help="Alternatives at each position.")
@click.option("--completions", default=64, show_default=True)
@REPEATS
@OUT
def main(tokens: int, top: int, completions: int, repeats: int, out: Path | None) -> None:
    """Completions a second written and read, and bytes a token, on the disk of temporary files."""
    raw, parsed = received(tokens, top, completions)
    writers: dict[str, Callable[[Path], None]] = {
        ONE: partial(write_store, parsed, 1),
        OURS: partial(write_store, parsed, BATCH),
        RAW: partial(write_json, raw),
    }
    readers = {ONE: read_store, OURS: read_store, RAW: read_json}
    with tempfile.TemporaryDirectory() as temporary:
        paths = {name: Path(temporary, f"{number}.file") for number, name in enumerate(FORMATS)}
        writing = medians(
            {name: partial(writers[name], path) for name, path in paths.items()}, repeats
        )
        counts = {name: readers[name](path) for name, path in paths.items()}
        if set(counts.values()) != {completions * tokens}:
            raise click.ClickException(f"read {counts} tokens of {completions * tokens}")
        reading = medians(
            {name: partial(readers[name], path) for name, path in paths.items()}, repeats, 1
        )
        sizes = {name: path.stat().st_size / (completions * tokens) for name, path in paths.items()}
    table = []
    for name in FORMATS:
        written = completions / writing[name]
        read = completions / reading[name]
        rates = [f"{written:.0f}", f"{written * tokens:,.0f}", f"{read:.0f}"]
        table.append([name, *rates, f"{read * tokens:,.0f}", f"{sizes[name]:.1f}"])
    head = ["kept as", "written/s", "tokens/s", "read/s", "tokens/s", "bytes a token"]
    click.echo(markdown(head, table))
    ratios = {
        "store/time to write one by one over batches": ratio(writing[ONE], writing[OURS]),
        f"store/time to write over {RAW}": ratio(writing[OURS], writing[RAW]),
        f"store/time to read over {RAW}": ratio(reading[OURS], reading[RAW]),
        f"store/bytes over {RAW}": ratio(sizes[OURS], sizes[RAW]),
    }
    write(out, ratios)


if __name__ == "__main__":
    main()
