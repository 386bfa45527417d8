"""The record that run.json holds: the settings and the end of each command's last run in a folder,
what its results are about, and which systems answered.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from blackbox_lb.safety.documents import read_document

FILE = "run.json"


class RecordedRun(BaseModel):
    """The last run of a command. ``stopped_by``: the error that ended it. ``spent``: requests,
    prompt_tokens, completion_tokens, dollars.
    """

    settings: dict[str, Any]
    finished: bool = False
    version: str = ""
    started: str = ""
    ended: str | None = None
    stopped_by: str | None = None
    mixed: bool = False
    spent: dict[str, float] = {}


class AnsweringSystems(BaseModel):
    """The systems that answered for one model at one address: name or system -> completions."""

    provider: str
    host: str
    model: str
    models: dict[str, int] = Field(default_factory=dict)
    systems: dict[str, int] = Field(default_factory=dict)


class RunFile(BaseModel):
    """``runs``: command -> its run. ``results``: command -> what its results in the folder are
    about.
    """

    runs: dict[str, RecordedRun] = Field(default_factory=dict)
    results: dict[str, dict[str, Any]] = Field(default_factory=dict)
    answered: list[AnsweringSystems] = Field(default_factory=list)


def read_run_file(folder: Path) -> RunFile:
    """The record of a folder, empty where there is none. Raises InputError: it is damaged."""
    remedy = "give another ``out``, or remove the file: the completions are in the store"
    return read_document(folder / FILE, RunFile, remedy) or RunFile()
