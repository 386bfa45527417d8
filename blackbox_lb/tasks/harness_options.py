"""How a task of lm-evaluation-harness is to be read."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HarnessOptions:
    """Departures from the harness's defaults.

    ``data_dir``: a folder with a file for each split, instead of the hub. ``num_fewshot``: examples
    before each question. ``filter`` and ``metric``: those that decide, by default the task's first.
    ``validation_size``: documents sampled of train.
    """

    data_dir: Path | None = None
    num_fewshot: int | None = None
    filter: str | None = None
    metric: str | None = None
    validation_size: int | None = None
