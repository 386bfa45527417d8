"""What a reproduction found, as a document: the methods on each benchmark, and what differs from
the paper.
"""

from __future__ import annotations

from typing import Any, Literal

from blackbox_lb.bias.records import Verdict
from blackbox_lb.jobs.evaluation.document import Mean
from blackbox_lb.records import Finite, Row

Name = Literal["base", "clusters", "ips", "projection"]


class MethodResult(Row):
    """One method on the test problems, greedy. ``rollouts`` it learned from; ``params``: trained
    numbers.

    ``chosen``: settings that validation chose. ``accuracy``: in [0, 1]; ``tokens``: of a
    completion. ``verdict``: against the base, paired by problem, p-values adjusted for all methods
    of the benchmark. ``missing``: why there is none of this, None where there is. ``compiled``:
    what the provider's limits took.
    """

    method: Name
    missing: str | None = None
    rollouts: int | None = None
    params: int | None = None
    entries: int | None = None
    chosen: str | None = None
    compiled: str | None = None
    bias: str | None = None
    accuracy: Mean | None = None
    tokens: Mean | None = None
    verdict: tuple[Verdict, ...] = ()


class BenchmarkResult(Row):
    """All methods on one benchmark; counts are of problems."""

    benchmark: str
    task: str
    note: str
    train: int
    validation: int
    test: int
    methods: tuple[MethodResult, ...]

    def method(self, name: str) -> MethodResult | None:
        """The result of one method, None where it was not asked for."""
        return next((each for each in self.methods if each.method == name), None)


class Reproduction(Row):
    """One run of ``python -m bench.paper``. ``notes``: everything in which it differs from the
    paper.
    """

    format: Literal["blackbox-lb/reproduction"] = "blackbox-lb/reproduction"
    version: Literal[1] = 1
    table: Literal["accuracy", "compression"]
    model: str
    provider: str
    scale: Finite
    benchmarks: tuple[BenchmarkResult, ...]
    notes: tuple[str, ...]
    provenance: dict[str, Any]
