"""The paper's settings: one TOML file a table, with the place in the paper beside every number."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.goal import Objective

Count: TypeAlias = Annotated[int, Field(ge=1)]
Above: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
TABLES = ("accuracy", "compression")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Benchmark(_Section):
    """One benchmark as the paper used it: problems in each split, ``rollouts`` a training problem,
    ``positions`` drawn of each, caps in tokens. ``harness``: the task's name in
    lm-evaluation-harness; ``chosen``: what the paper's selection chose.
    """

    title: str
    harness: str
    train: Count
    validation: Count
    validation_from_train: bool
    test: Count
    rollouts: Count
    positions: Count
    train_cap: Count
    test_cap: Count
    chosen: str


class ProjectionSettings(_Section):
    """The row that the paper does not have: ``projection`` from ``share`` of the rollouts, with at
    most ``entries`` tokens.
    """

    share: Annotated[float, Field(gt=0, le=1)]
    tau: Annotated[tuple[Above, ...], Field(min_length=1)]
    entries: Count


class PaperRow(_Section):
    """A row of the paper's table: column -> mean and offset, as printed there with two decimals."""

    method: Literal["base", "clusters", "ips", "lora"]
    title: str
    params: str
    values: dict[str, tuple[float, float]]


class Configuration(_Section):
    """One table of the paper, and the settings behind it. ``columns``: key -> heading; ``clusters``
    0: no such row.
    """

    table: Literal["accuracy", "compression"]
    caption: str
    metric: Literal["accuracy", "tokens"]
    model: str
    reward: str
    objective: Objective
    alpha: Annotated[tuple[Above, ...], Field(min_length=1)]
    tau: Annotated[tuple[Above, ...], Field(min_length=1)]
    clusters: int
    embedding: str
    not_told: tuple[str, ...]
    projection: ProjectionSettings
    benchmarks: dict[str, Benchmark]
    columns: dict[str, str]
    rows: tuple[PaperRow, ...]


def load_configuration(table: str) -> Configuration:
    """The settings of the paper's table ``table``, accuracy or compression. InputError: there is no
    such table.
    """
    if table not in TABLES:
        raise InputError(
            f"the paper's tables that can be run are {' and '.join(TABLES)}, not {table!r}"
        )
    text = resources.files("bench.paper").joinpath(f"{table}.toml").read_text(encoding="utf-8")
    return Configuration.model_validate(tomllib.loads(text))
