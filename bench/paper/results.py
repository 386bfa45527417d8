"""What a reproduction found, as a document: the methods on each benchmark, the LoRA reference, and
what differs from the paper.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from blackbox_lb.bias.records import Verdict
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.evaluation.document import Mean
from blackbox_lb.records import Finite, Row

Name = Literal["base", "clusters", "ips", "projection", "lora"]


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


class LoraResult(Row):
    """The file of ``bench/paper/lora_grpo.py``: the reference with weights, with the same test
    problems, reward and matcher.

    ``params``: trained numbers; ``steps``: done; ``selected``: the step of the checkpoint that
    validation chose; ``validation``: every evaluation that chose; ``log``: the trainer's own
    numbers. ``base``: the model before training.
    """

    format: Literal["blackbox-lb/lora-grpo"] = "blackbox-lb/lora-grpo"
    version: Literal[1] = 1
    table: Literal["accuracy", "compression"]
    benchmark: str
    model: str
    params: int
    steps: int
    selected: int
    rollouts: int
    train: int
    test: int
    accuracy: Mean
    tokens: Mean
    base: dict[str, Mean]
    verdict: tuple[Verdict, ...]
    validation: tuple[dict[str, Finite], ...]
    log: tuple[dict[str, Any], ...]
    settings: dict[str, Any]
    provenance: dict[str, Any]


def load_lora(path: Path, table: str) -> LoraResult:
    """The result that ``bench/paper/lora_grpo.py`` wrote to ``path``.

    Raises:
        InputError: the file is unreadable, something else, or of the other table.
    """
    try:
        found = LoraResult.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; give a file that bench/paper/lora_grpo.py wrote"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(
            f"{path} is not a result of bench/paper/lora_grpo.py: {where}: {first['msg']}"
        ) from error
    if found.table != table:
        raise InputError(
            f"{path} is of the table {found.table!r}, not {table!r}; run bench/paper/lora_grpo.py"
            " with the other --reward"
        )
    return found
