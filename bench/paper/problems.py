"""Where the problems of a benchmark come from: lm-evaluation-harness as the paper used it, or a
file of the user's own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.paper.configuration import Benchmark
from blackbox_lb.extras.harness import HarnessOptions, load_harness
from blackbox_lb.tasks import Task, load_task


def load_problems(
    benchmark: Benchmark, data: Path | None = None, data_dir: Path | None = None
) -> Task:
    """The benchmark's problems in three splits, from the hub or from the files in ``data_dir``; or
    those of the file ``data``.

    InputError: the problems, or what reads them, are not to be had.
    """
    if data is not None:
        return replace(load_task(data=data), note=f"problems from {data.name}, not the paper's")
    sampled = benchmark.validation if benchmark.validation_from_train else None
    return load_harness(
        benchmark.harness, HarnessOptions(data_dir=data_dir, validation_size=sampled)
    )
