"""``python -m bench.collector``: completions a second of collectors, this package's and others',
from a server that is instant.

Each client is a process of its own; they take turns. The ratio to bare httpx2, which drops the
bytes unread, is what a collector can be judged by: nothing in Python is faster, and no API answers
as fast.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from bench.collector_clients import Job, command
from bench.measuring import OUT, REPEATS, alternately, markdown, ratio, write
from bench.server import MODEL, serving

__all__ = ["CLIENTS"]

SHORT = 16
"""Tokens up to which the fixed cost of a request is most of a completion's, so that ratios are
others.
"""
BARE, OURS, TINY = "bare httpx2, unparsed", "blb", "one byte an answer"
CLIENTS = {
    BARE: "bare",
    "bare httpx2 + json.loads": "json",
    "openai SDK, raw response": "raw",
    "openai SDK, typed objects": "typed",
    OURS: "blb",
    TINY: "tiny",
}
"""Title -> client; the last shows what HTTP itself costs."""


def turn(title: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """What one run of a client measured, and the processor seconds of the server meanwhile."""
    before = server_cpu(job["base_url"])
    with tempfile.TemporaryDirectory() as temporary:
        words = command(Job(**job, client=CLIENTS[title], folder=temporary))
        ended = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    if ended.returncode:
        raise click.ClickException(f"{title}: {ended.stderr.strip()[-300:]}")
    measured: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    measured["server"] = server_cpu(job["base_url"]) - before
    measured["rate"] = measured["completions"] / measured["seconds"]
    click.echo(f"  {title}: {measured['rate']:.1f}/s", err=True)
    return measured


def server_cpu(base_url: str) -> float:
    """Processor seconds that the server has used."""
    with urllib.request.urlopen(f"{base_url}/cpu", timeout=60) as answer:
        return float(answer.read())


def shown(
    turns: Mapping[str, Sequence[Mapping[str, Any]]], rates: Mapping[str, float], tokens: int
) -> str:
    """The table of all clients.

    turns: client -> what each of its runs measured. rates: its median completions a second.
    """
    lines = []
    for title, measured in turns.items():
        all_rates = [run["rate"] for run in measured]
        cpu = statistics.median(run["cpu"] / run["completions"] for run in measured)
        peak = max(run["peak"] for run in measured)
        lines.append(
            [
                title,
                f"{rates[title]:.1f}",
                f"{min(all_rates):.1f} to {max(all_rates):.1f}",
                f"{rates[title] / rates[BARE]:.3f}",
                f"{cpu * 1e3:.1f}",
                f"{cpu * 1e6 / tokens:.2f}",
                f"{peak / 1e6:.0f}",
                measured[0]["keeps"],
            ]
        )
    head = ["client", "completions/s", "range", "ratio to bare", "CPU ms a completion"]
    return markdown([*head, "CPU us a token", "peak MB", "keeps"], lines)


@click.command()
@click.option("--tokens", default=1024, show_default=True, help="Of each completion.")
@click.option("--top", default=20, show_default=True, help="Alternatives at each position.")
@click.option("--concurrency", default=32, show_default=True, type=click.IntRange(1))
@click.option(
    "--seconds",
    default=2.0,
    show_default=True,
    help="Of each turn, about; at least --concurrency completions.",
)
@click.option(
    "--only",
    multiple=True,
    help="Clients whose title holds this; bare httpx2 always runs. Repeatable.",
)
@REPEATS
@OUT
def main(
    tokens: int,
    top: int,
    concurrency: int,
    seconds: float,
    only: tuple[str, ...],
    repeats: int,
    out: Path | None,
) -> None:
    """Compare collectors on one instant loopback server."""
    titles = [
        title
        for title in CLIENTS
        if title == BARE or not only or any(part in title for part in only)
    ]
    with serving(tokens, top) as base_url:
        job = {
            "base_url": base_url,
            "model": MODEL,
            "tokens": tokens,
            "top": top,
            "concurrency": concurrency,
            "seconds": seconds,
        }
        turns = alternately({title: partial(turn, title, job) for title in titles}, repeats)
    rates = {
        title: statistics.median(run["rate"] for run in measured)
        for title, measured in turns.items()
    }
    click.echo(shown(turns, rates, tokens))
    share = statistics.median(bare["server"] / bare["seconds"] for bare in turns[BARE])
    click.echo(
        f"\nThe server's processor time during the bare loop: {share:.0%} of one core, so it is not"
        " what limits."
    )
    benchmark = "collector" if tokens > SHORT else "short answers"
    ratios = {
        f"{benchmark}/{OURS} over {title}": ratio(rates[OURS], rate)
        for title, rate in rates.items()
        if OURS in rates and title not in (OURS, TINY)
    }
    write(out, ratios)


if __name__ == "__main__":
    main()
