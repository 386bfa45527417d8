"""``python -m bench.engine_load``: the embedded engine beside other work, by the number of its
threads and by how these wait for each other.

Prompts are read and a few tokens are generated, a few requests at once, while processes that only
compute keep the cores busy. Milliseconds a token are of the wall clock; processor milliseconds are
of the engine's process, where threads that wait by spinning show.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from openai import AsyncOpenAI

from bench.measuring import OUT, REPEATS, machine, markdown, today, write
from blackbox_lb.api.local.engine import LocalEngine, resolve_model

__all__ = ["WAYS", "Way", "main"]

TOKENS = 8
"""Generated after each prompt."""
AT_ONCE = 4
PROMPT = (
    "Question {number}: name a river, a mountain and a town of the country that you know best. "
)
"""Repeated to a prompt of about a hundred tokens."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run the engine. environment: of its process."""

    name: str
    options: dict[str, int]
    environment: dict[str, str]


WAYS = (
    Way("as it is", {}, {}),
    Way("one server of all threads", {"parallel": 3}, {}),
    Way(
        "one server of all threads, which spin",
        {"parallel": 3},
        {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "300000"},
    ),
    Way("one thread", {"threads": 1}, {}),
)


def measured(model: Path, way: Way, requests: int, first: int) -> dict[str, float]:
    """Milliseconds and processor milliseconds a token of so many prompts from ``first`` on."""
    others = _children()
    os.environ |= way.environment
    try:
        with LocalEngine(model, **way.options) as engine:
            [process] = _children() - others
            before = _processor_seconds(process)
            started = time.perf_counter()
            tokens = asyncio.run(_asked(engine.base_url, requests, first))
            seconds = time.perf_counter() - started
            used = _processor_seconds(process) - before
    finally:
        for name in way.environment:
            del os.environ[name]
    return {"ms_a_token": 1000 * seconds / tokens, "processor_ms_a_token": 1000 * used / tokens}


async def _asked(base_url: str, requests: int, first: int) -> int:
    """The tokens of all prompts and completions."""
    at_once = asyncio.Semaphore(AT_ONCE)

    async def asked(client: AsyncOpenAI, number: int) -> int:
        async with at_once:
            completion = await client.completions.create(
                model="any",
                prompt=f"{number} " + 5 * PROMPT.format(number=number),
                max_tokens=TOKENS,
                temperature=0,
            )
        assert completion.usage is not None
        return completion.usage.total_tokens

    async with AsyncOpenAI(base_url=base_url, api_key="none", timeout=600) as client:
        numbers = range(first, first + requests)
        return sum(await asyncio.gather(*(asked(client, number) for number in numbers)))


def _children() -> set[int]:
    """Processes that this one has started, from Linux."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return {int(process) for process in listed.split()}


def _processor_seconds(process: int) -> float:
    """Of all threads of a process, from Linux."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute."""
    loop = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(loop) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@click.command()
@click.option("--model", help="A GGUF file; the embedded engine's own model if left out.")
@click.option("--busy", "loads", multiple=True, type=int, default=(0, 8), show_default=True)
@click.option("--requests", default=12, show_default=True, help="Of each way and turn.")
@REPEATS
@OUT
def main(
    model: str | None, loads: Sequence[int], requests: int, repeats: int, out: Path | None
) -> None:
    """Measure each way beside so many busy processes, in turns."""
    path = resolve_model(model)
    rows: list[dict[str, Any]] = []
    first = 0
    for load in loads:
        with busy(load):
            for _ in range(repeats):
                for way in WAYS:
                    first += requests
                    row = measured(path, way, requests, first)
                    rows.append({"engine": way.name, "busy": load, **row})
    cells = []
    for load in loads:
        for way in WAYS:
            of = [row for row in rows if (row["engine"], row["busy"]) == (way.name, load)]
            values = [
                statistics.median(row[name] for row in of)
                for name in ("ms_a_token", "processor_ms_a_token")
            ]
            cells.append([way.name, str(load), *(f"{value:.1f}" for value in values)])
    head = ["engine", "busy processes", "ms a token", "processor ms a token"]
    click.echo(f"{markdown(head, cells)}\n\n{machine()['processor']}, {today()}")
    write(out, rows, {})


if __name__ == "__main__":
    main()
