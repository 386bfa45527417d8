"""A job and its record: one file of requests, and its progress, durable before the next step
begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from blackbox_lb.errors import InputError
from blackbox_lb.safety.files import locked, write_whole
from blackbox_lb.safety.untrusted import parse_json, read_bounded

LARGEST = 1_000_000
"""Largest record that is read, in bytes."""


class BatchRecord(BaseModel):
    """One file of requests. The record holds no key and no address beyond its host.

    ``name``: its own, which also stands in the batch's metadata, so that a batch is recognised
    after a lost answer.
    ``request``: hash of the settings of all its lines; ``prefix``: the beginning of their
    custom_id. ``step``: the last completed one; "creating" means that the batch may exist.
    ``refused``: batches of this file that the provider did not begin.
    ``most_prompt``, ``most_completion``: tokens at most. ``tally``: the counts of its lines.
    """

    format: Literal[1] = 1
    name: str
    provider: str
    host: str
    request: str
    prefix: str
    settings: dict[str, Any]
    sha256: str
    requests: int
    completions: int
    most_prompt: int
    most_completion: int
    written: float
    step: Literal["written", "uploaded", "creating", "running", "ended", "done"] = "written"
    tried: float | None = None
    file_id: str | None = None
    batch_id: str | None = None
    status: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    refused: list[str] = []
    cancelled: bool = False
    tally: dict[str, int] = {}

    @property
    def open(self) -> bool:
        """Whether answers may still come."""
        return self.step != "done"

    @property
    def submitted(self) -> bool:
        """Whether the provider may be at work on it."""
        return self.step in ("creating", "running")


class Jobs:
    """The jobs of one store, in a folder beside it: for each its record, its input, and its
    downloaded answers.

    Raises, here and from every method:
        InputError: the folder or a file in it cannot be read or written, or is not from this
        package.
    """

    def __init__(self, store: Path) -> None:
        self.folder = store.with_name(f"{store.stem}.batches")
        with self._described():
            self.folder.mkdir(parents=True, exist_ok=True)

    def input(self, name: str) -> Path:
        """The file of requests of the job with this name."""
        return self.folder / f"{name}.jsonl"

    def output(self, job: BatchRecord) -> Path:
        """The file of answers."""
        return self.folder / f"{job.name}.output.jsonl"

    def errors(self, job: BatchRecord) -> Path:
        """The file of requests that failed."""
        return self.folder / f"{job.name}.errors.jsonl"

    def all(self) -> list[BatchRecord]:
        """Every job, the oldest first."""
        with self._described():
            return sorted(
                map(self._read, self.folder.glob("*.json")), key=lambda job: (job.written, job.name)
            )

    def save(self, job: BatchRecord) -> None:
        """Write the record, so that a crash cannot lose it afterwards."""
        with self._described():
            write_whole(
                self.folder / f"{job.name}.json",
                json.dumps(job.model_dump(), indent=2).encode() + b"\n",
            )

    def close(
        self, job: BatchRecord, tally: dict[str, int] | None = None, *, keep: bool = False
    ) -> None:
        """Close a finished job: its files are removed, unless they are to be kept; its record
        stays.
        """
        job.step = "done"
        job.tally = tally or job.tally
        self.save(job)
        for path in [] if keep else [self.input(job.name), self.output(job), self.errors(job)]:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove unfinished files of requests without a record: nothing of them was sent."""
        with self._described():
            known = {job.name for job in self.all()}
            for path in [*self.folder.glob("*.jsonl"), *self.folder.glob(".*.part")]:
                if path.name.strip(".").split(".")[0] not in known:
                    path.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process works on these jobs; a killed process releases them. Raises
        InputError: one does.
        """
        refusal = (
            f"another command is at work on the batch jobs in {self.folder}; wait until it ends, or"
            " stop it"
        )
        with locked(self.folder / "lock", refusal):
            yield

    def _read(self, path: Path) -> BatchRecord:
        try:
            return BatchRecord.model_validate(parse_json(read_bounded(path, LARGEST)))
        except ValueError as error:
            raise InputError(
                f"{path} is no record of a batch job, or of a newer version"
                f" ({type(error).__name__}); move it away if its batch is of no use any more"
            ) from error

    @contextmanager
    def _described(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cannot use {self.folder}: {error.strerror or error}; make room,"
                " or give another ``out``"
            ) from error
