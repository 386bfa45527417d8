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
from functools import partial
from pathlib import Path
from typing import Any

import click

from bench.collector_clients import Job, command
from bench.measuring import OUT, REPEATS, alternately, markdown, ratio, write, write_rows
from bench.server import MODEL, serving, with_ranks

__all__ = ["main"]

PROMPTS = {"train": 300, "validation": 100, "test": 100}
SAMPLES, TOKENS, TOP, CONCURRENCY = 8, 4, 20, 32
LABELS = ("a", "e", "s", "t")
"""Letters that the server's answers hold now and then; what is learned does not matter here."""
STAGES = {
    "start, data, forecast": r" at 127\.0\.0\.1: about",
    "training completions": r"^training",
    "estimates and candidates": r"^(validation|chosen)",
    "tests": r"^test at",
    "report": r"^saved",
}
"""Stage -> what the command prints once it is over, or well into it: the last such line counts."""
ALL = "in all"
FIT, ANSWERS = "blb fit, from samples", "blb fit, from answers"
BARE = "bare httpx2, the training completions alone"


def _data(path: Path) -> None:
    rng = random.Random(0)
    rows = []
    for split, size in PROMPTS.items():
        for number in range(size):
            prompt = f"Is text {number} of {split} good? Answer with one letter."
            rows.append({"prompt": prompt, "answer": rng.choice(LABELS), "split": split})
    write_rows(path, rows)


def _fit(base_url: str, env: Mapping[str, str], learn_from: str) -> dict[str, float]:
    """Seconds until each stage had ended, and in all."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.jsonl")
        _data(data)
        words = f"fit --provider openai --model {MODEL} --base-url {base_url}/v1"
        words += f" --reward regex:(?i){{answer}} --max-tokens {TOKENS} --data {data}"
        words += f" --samples-per-prompt {SAMPLES} --learn-from {learn_from} --out {folder}/run"
        words += " --verbose"  # which names the stages
        start = time.perf_counter()
        ended: dict[str, float] = {}
        lines = []
        with subprocess.Popen(
            [sys.executable, "-m", "blackbox_lb", *words.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                for name, printed in STAGES.items():
                    if re.search(printed, line):
                        ended[name] = time.perf_counter() - start
        if process.returncode:
            raise click.ClickException(
                f"blb fit ended with exit code {process.returncode}: {''.join(lines)[-500:]}"
            )
        return {**ended, ALL: time.perf_counter() - start}


def _bare(base_url: str, env: Mapping[str, str]) -> dict[str, float]:
    """Seconds of bare httpx2 for as many completions, one a request, without the start of its
    process.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Job("bare", base_url, MODEL, TOKENS, TOP, CONCURRENCY, 1.0, folder)
        words = [sys.executable, *command(job)]
        ended = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
    measured: dict[str, Any] = json.loads(ended.stdout)
    seconds = measured["seconds"] / measured["completions"]
    return {ALL: seconds * PROMPTS["train"] * SAMPLES}


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
            FIT: partial(_fit, base_url, env, "samples"),
            ANSWERS: partial(_fit, base_url, env, "answers"),
            BARE: partial(_bare, base_url, env),
        }
        turns = alternately(jobs, repeats, warm_up=1)
    cells = []
    seconds = {}
    for job, measured in turns.items():
        middle = {
            name: statistics.median(turn.get(name, 0.0) for turn in measured)
            for name in (*STAGES, ALL)
        }
        before = 0.0
        line = [job]
        for name in STAGES:
            line.append(f"{max(0.0, middle[name] - before):.2f}" if middle[name] else "")
            before = middle[name] or before
        totals = [turn[ALL] for turn in measured]
        cells.append([*line, f"{middle[ALL]:.2f}", f"{min(totals):.2f} to {max(totals):.2f}"])
        seconds[job] = middle[ALL]
    click.echo(markdown(["seconds, median", *STAGES, ALL, "range"], cells))
    quotient = ratio(seconds[FIT], seconds[BARE])
    write(out, {"decision/a fit from samples over bare fetching": quotient})


if __name__ == "__main__":
    main()
