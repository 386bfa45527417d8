"""The jobs of each part, from the table ``jobs.toml``."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.commands import Commands, Place, data_file
from bench.gallery.rows import made

__all__ = ["TABLE", "Job", "Model", "jobs_of"]

TABLE = tomllib.loads(Path(__file__).with_name("jobs.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Model:
    """A model, and where it is asked.

    Attributes:
        name: in the names of jobs.
        place: options of ``blb`` for it, the folder of all runs, and that of the data.
        embedding: an embedding model.
        folder: of its weights.
    """

    name: str
    place: Place
    embedding: str
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A command.

    Attributes:
        name: of its log.
        command: its words.
        needs: a job that must have ended before.
        store: the copy of that job's store, where it goes on from one.
        module: what Python runs.
        until: share of the time after which it is interrupted.
        takes_less: it goes on from what ``needs`` left when that was cut off.
        variables: of its environment.
    """

    name: str
    command: tuple[str, ...]
    needs: str = ""
    store: Path | None = None
    module: str = "blackbox_lb"
    until: float = 1.0
    takes_less: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


def jobs_of(part: str, model: Model, which: set[str]) -> Iterator[Job]:
    """Write the data of a part and give its jobs; none where its file is not there.

    which: whether the model is the "first" or the "last" of all: some parts are for one alone.
    """
    size = "small" if model.place.small else "full"
    own = {
        "name": model.name,
        "embedding": model.embedding,
        "folder": model.folder,
        "python": sys.executable,
    }
    values = {**TABLE["values"], **TABLE[size], **own}
    commands = Commands(model.place, TABLE["parts"], values)
    for group in TABLE[part]:
        if "model" in group and group["model"] not in which:
            continue
        for turn in commands.loops(group):
            file = group.get("file")
            if file and data_file(model.place, turn.text(file)) is None:
                continue
            for entry in group.get("rows", ()):
                made(turn, entry)
            for entry in group["jobs"]:
                for inner in turn.loops(entry):
                    yield _job(inner, entry)


def _job(commands: Commands, entry: Mapping[str, Any]) -> Job:
    name = commands.text(entry["name"])
    store = None
    if entry.get("copies"):
        store = commands.place.out / name / "rollouts.db"
    variables = entry.get("variables", {})
    return Job(
        name,
        commands.words(entry["run"]),
        commands.text(entry.get("needs", "")),
        store,
        entry.get("module", "blackbox_lb"),
        entry.get("until", 1.0),
        entry.get("takes_less", False),
        {key: commands.located(commands.text(value)) for key, value in variables.items()},
    )
