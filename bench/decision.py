"""``python -m bench.decision``: a whole ``blb fit`` of short answers, from start to verdict, where
the server takes no time.

300 training prompts with 8 completions of four tokens each, 100 validation and 100 test prompts,
all verdicts; then the same labels learned from answers that are only read. A stage's time is that
until the next one is announced. Beside them: the training completions alone, one a request, by bare
httpx2, which does not read them. All find their bytecode, as an installed package does; the turn
that does not count has written it.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bench.collector_clients import Job, command
from bench.measuring import OUT, REPEATS, alternately, markdown, ratio, row, write
from bench.server import MODEL, serving, with_ranks

__all__ = ["main"]

PROMPTS = {"train": 300, "validation": 100, "test": 100}
SAMPLES, TOKENS, TOP, CONCURRENCY = 8, 4, 20, 32
LABELS = ("a", "e", "s", "t")
"""Letters that the server's answers hold now and then; what is learned does not matter here."""
STAGES = {
    "start, data, forecast": r" at 127\.0\.0\.1: at most",
    "training completions": r"^training",
    "estimates and candidates": r"^(validation|chosen)",
    "tests": r"^test at",
    "report": r"^saved",
}
"""Stage -> what the command prints once it is over, or well into it: the last such line counts."""
GOAL = 6.0
"""Seconds of a fit from samples, its start included."""


def _data(path: Path) -> None:
    rng, rows = random.Random(0), list[str]()
    for split, number in PROMPTS.items():
        for each in range(number):
            prompt = f"Is text {each} of {split} good? Answer with one letter."
            rows.append(
                json.dumps({"prompt": prompt, "answer": rng.choice(LABELS), "split": split})
            )
    path.write_text("\n".join(rows) + "\n")


def _fit(base_url: str, env: Mapping[str, str], learn_from: str) -> dict[str, float]:
    """Seconds until each stage had ended, and in all."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.jsonl")
        _data(data)
        line = (
            f"fit --provider openai --model {MODEL} --base-url {base_url}/v1 --reward"
            f" regex:(?i){{answer}} --max-tokens {TOKENS}"
        )
        line += (
            f" --samples-per-prompt {SAMPLES} --learn-from {learn_from} --data {data} --out"
            f" {Path(folder, 'run')}"
        )
        command = [sys.executable, "-m", "blackbox_lb", *line.split()]
        start, ended, lines = time.perf_counter(), dict[str, float](), list[str]()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                ended |= {
                    name: time.perf_counter() - start
                    for name, said in STAGES.items()
                    if re.search(said, line)
                }
        if process.returncode:
            raise click.ClickException(
                f"blb fit ended with exit code {process.returncode}: {''.join(lines)[-500:]}"
            )
        return {**ended, "in all": time.perf_counter() - start}


def _bare(base_url: str, env: Mapping[str, str]) -> dict[str, float]:
    """Seconds of bare httpx2 for as many completions, one a request, its process's start
    included.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Job("bare", base_url, MODEL, TOKENS, TOP, CONCURRENCY, 1.0, folder, "openai")
        words = [sys.executable, *command(job)]
        found: dict[str, Any] = json.loads(
            subprocess.run(words, capture_output=True, text=True, check=True, env=env).stdout
        )
    return {"in all": found["seconds"] / found["completions"] * PROMPTS["train"] * SAMPLES}


@click.command(help=__doc__)
@REPEATS
@OUT
def main(repeats: int, out: Path | None) -> None:
    """The table, and the ratio to bare fetching."""
    with tempfile.TemporaryDirectory() as ranks, serving(TOKENS, TOP, count=64) as base_url:
        with_ranks(ranks)
        env = {
            **os.environ,
            "OPENAI_API_KEY": "bench",
            "TIKTOKEN_CACHE_DIR": ranks,
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(Path(ranks, "bytecode")),
        }
        jobs = {
            "blb fit, from samples": lambda: _fit(base_url, env, "samples"),
            "blb fit, from answers": lambda: _fit(base_url, env, "answers"),
            "bare httpx2, the training completions alone": lambda: _bare(base_url, env),
        }
        found = alternately(jobs, repeats, warm_up=1)
    names = [*STAGES, "in all"]
    middle = {
        job: {name: statistics.median(turn.get(name, 0.0) for turn in turns) for name in names}
        for job, turns in found.items()
    }
    table = []
    for job, ended in middle.items():
        before, cells = 0.0, list[str]()
        for name in STAGES:
            cells.append(f"{max(0.0, ended[name] - before):.2f}" if ended[name] else "")
            before = ended[name] or before
        lowest, highest = (pick(turn["in all"] for turn in found[job]) for pick in (min, max))
        table.append([job, *cells, f"{ended['in all']:.2f}", f"{lowest:.2f} to {highest:.2f}"])
    click.echo(markdown(["seconds, median", *STAGES, "in all", "range"], table))
    fit, bare = (
        middle[job]["in all"]
        for job in ("blb fit, from samples", "bare httpx2, the training completions alone")
    )
    click.echo(
        f"\nGoal of a fit from samples: {GOAL:g} s, {'reached' if fit <= GOAL else 'MISSED'}."
    )
    rows = [row(job, ended["in all"], "s", stages=ended) for job, ended in middle.items()]
    write(out, rows, {"decision/a fit from samples over bare fetching": ratio(fit, bare)})


if __name__ == "__main__":
    main()
