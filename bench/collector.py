"""``python -m bench.collector``: completions a second of collectors, this package's and others',
from a server that is instant.

Each client is a process of its own; they take turns. The ratio to bare httpx2, which drops the
bytes unread, is what a collector can be judged by: nothing in Python is faster, and no API answers
as fast.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from bench.collector_server import DIALECTS, MODEL, Dialect, serving
from bench.measuring import OUT, REPEATS, alternately, markdown, ratio, row, write
from bench.peers.timed import Job
from bench.peers.timed import options as job_options

__all__ = ["CLIENTS", "Client", "compare"]

ROOT = Path(__file__).resolve().parents[1]
SHORT = 16
"""Tokens up to which the fixed cost of a request is most of a completion's, so that ratios are
others.
"""
PATIENCE = 1800
"""Seconds for one turn of a client, the making of its environment included."""


@dataclass(frozen=True, slots=True)
class Client:
    """``title`` in the table; ``program`` under bench/peers; ``name`` tells it what to do. ``own``:
    it brings its environment.
    """

    title: str
    program: str
    name: str
    own: bool = False


BARE, OURS = "bare httpx2, unparsed", "blb"
CLIENTS = (
    Client(BARE, "plain", "bare"),
    Client("bare httpx2 + json.loads", "plain", "json"),
    Client("openai SDK, raw response", "sdk", "raw"),
    Client("openai SDK, typed objects", "sdk", "typed"),
    Client("lm-evaluation-harness", "lm_evaluation_harness", "lm-eval", own=True),
    Client("vLLM's benchmark client", "vllm_benchmark", "vllm", own=True),
    Client("inspect_ai", "inspect_client", "inspect", own=True),
    Client(OURS, "blb", "blb"),
)
TINY = Client("one byte an answer", "plain", "tiny")
SHARDS = Client("blb, two shards side by side", "shards", "shards")
BESIDE = (SHARDS, TINY)
"""Told beside the others: what two processes collect, and what HTTP itself costs."""


def turn(client: Client, options: dict[str, Any]) -> dict[str, Any]:
    """One run of a client: what it prints, or ``failed`` with the last line of its error."""
    command = [sys.executable, "-m", f"bench.peers.{client.program}"]
    if client.own:
        command = [
            "uv",
            "run",
            "--quiet",
            "--script",
            str(ROOT / "bench" / "peers" / f"{client.program}.py"),
        ]
    with tempfile.TemporaryDirectory(dir=options["dir"]) as folder:
        given = {name: value for name, value in options.items() if name != "dir"}
        command += job_options(Job(**given, name=client.name, folder=folder))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(
                command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"failed": str(error)}
    if done.returncode:
        return {
            "failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][
                :200
            ]
        }
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def server_cpu(base_url: str) -> float:
    """Processor seconds that the server has used."""
    with urllib.request.urlopen(f"{base_url}/cpu", timeout=60) as answer:
        return float(answer.read())


def compare(
    clients: Sequence[Client], repeats: int, options: dict[str, Any], dialect: Dialect
) -> dict[str, list[dict[str, Any]]]:
    """What each client found, turn by turn, and what of the processor the server took meanwhile."""
    with serving(options["tokens"], options["top"], dialect) as base_url:

        def once(client: Client) -> dict[str, Any]:
            before = server_cpu(base_url)
            found = turn(
                client, {**options, "base_url": base_url, "model": MODEL, "dialect": dialect}
            )
            found["server"] = server_cpu(base_url) - before
            title = f"  {client.title}: "
            click.echo(
                title + (found.get("failed") or f"{found['completions'] / found['seconds']:.1f}/s"),
                err=True,
            )
            return found

        return alternately({client.title: partial(once, client) for client in clients}, repeats)


def summary(title: str, turns: Sequence[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """Medians of a client's turns; ``failed`` where one did not end well."""
    failed = next((each["failed"] for each in turns if "failed" in each), None)
    if failed is not None:
        return {"name": title, "failed": failed}
    rates = [each["completions"] / each["seconds"] for each in turns]
    cpu = statistics.median(each["cpu"] / each["completions"] for each in turns)
    more = {
        "lowest": min(rates),
        "highest": max(rates),
        "cpu_ms": cpu * 1e3,
        "cpu_us_per_token": cpu * 1e6 / tokens,
        "cores": statistics.median(each["cpu"] / each["seconds"] for each in turns),
        "peak_memory": max(each["peak"] for each in turns),
        "keeps": turns[0]["keeps"],
    }
    return row(title, statistics.median(rates), "completions/s", **more)


def shown(rows: Sequence[dict[str, Any]]) -> str:
    """The table; what failed has its reason in place of numbers."""
    bare = next(each["value"] for each in rows if each["name"] == BARE)
    head = [
        "client",
        "completions/s",
        "range",
        "ratio to bare",
        "CPU ms a completion",
        "CPU us a token",
        "peak MB",
        "keeps",
    ]
    lines = []
    for each in rows:
        if "failed" in each:
            lines.append([each["name"], *["-"] * 6, f"not measured: {each['failed']}"])
            continue
        numbers = [
            f"{each['value']:.1f}",
            f"{each['lowest']:.1f} to {each['highest']:.1f}",
            f"{each['value'] / bare:.3f}",
            f"{each['cpu_ms']:.1f}",
            f"{each['cpu_us_per_token']:.2f}",
            f"{each['peak_memory'] / 1e6:.0f}",
        ]
        lines.append([each["name"], *numbers, each["keeps"]])
    return markdown(head, lines)


def ratios_of(rows: Sequence[dict[str, Any]], tokens: int) -> dict[str, float]:
    """This package's completions a second over each other client's; those of short answers under a
    name of their own.
    """
    benchmark = "collector" if tokens > SHORT else "short answers"
    rates = {each["name"]: each["value"] for each in rows if "failed" not in each}
    return {
        f"{benchmark}/{OURS} over {name}": ratio(rates[OURS], rate)
        for name, rate in rates.items()
        if OURS in rates and name not in (OURS, *(each.title for each in BESIDE))
    }


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
@click.option("--concurrency", default=32, show_default=True, type=click.IntRange(1))
@click.option(
    "--seconds",
    default=2.0,
    show_default=True,
    help="Of each turn, about; at least --concurrency completions.",
)
@click.option("--dialect", default=DIALECTS[0], show_default=True, type=click.Choice(DIALECTS))
@click.option(
    "--only",
    multiple=True,
    help="Clients whose title holds this; bare httpx2 always runs. Repeatable.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False),
    help="For stores. [default: temporary]",
)
@REPEATS
@OUT
def main(
    tokens: int,
    top: int,
    concurrency: int,
    seconds: float,
    dialect: Dialect,
    only: tuple[str, ...],
    folder: str | None,
    repeats: int,
    out: Path | None,
) -> None:
    """Compare collectors on one instant loopback server."""
    chosen = [
        each
        for each in CLIENTS
        if each.title == BARE or not only or any(some in each.title for some in only)
    ]
    options = {
        "tokens": tokens,
        "top": top,
        "concurrency": concurrency,
        "seconds": seconds,
        "dir": folder,
    }
    found = compare([*chosen, *BESIDE], repeats, options, dialect)
    rows = [summary(title, turns, tokens) for title, turns in found.items()]
    click.echo(shown(rows))
    bare = found[BARE]
    share = statistics.median(
        each["server"] / each["seconds"] for each in bare if "failed" not in each
    )
    click.echo(
        f"\nThe server's processor time during the bare loop: {share:.0%} of one core, so it is not"
        " what limits."
    )
    write(out, rows, ratios_of(rows, tokens))


if __name__ == "__main__":
    main()
