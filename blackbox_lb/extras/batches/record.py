"""Batch jobs and their records: a file of requests, and its progress.

A record is durable before the next step of its job begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from blackbox_lb.errors import InputError
from blackbox_lb.safety.documents import read_document
from blackbox_lb.safety.files import locked, write_whole

OF_NO_USE = "move the record of this batch job away if its batch is of no use any more"
"""The remedy for a record that is damaged, or of a newer version."""


class BatchRecord(BaseModel):
    """One file of requests. The record has no key, and of the address only the host.

    name: also stands in the batch's metadata, so that a batch is recognised after a lost answer.
    provider, host: where the batch runs.
    request: hash of the settings of all lines.
    prefix: the beginning of the custom_id of all lines.
    settings: those of all lines.
    sha256: hash of the file.
    requests, completions: their numbers.
    most_prompt, most_completion: tokens at most.
    written: when the file was written, in seconds since 1970.
    step: the last completed step; "creating" means that the batch may exist.
    tried: when the batch was last created, in seconds since 1970.
    file_id, batch_id, status, output_file_id, error_file_id: as the provider names them.
    refused: batches of this file that the provider did not begin.
    cancelled: whether the user ended the job.
    tally: the counts of the lines, see ``ingest.Tally``.
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
        """Whether the provider may be at work on the job."""
        return self.step in ("creating", "running")


class Jobs:
    """The jobs of one store, in a folder beside it.

    Each job has a record, a file of requests, and downloaded answers.

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
        """The downloaded file of answers."""
        return self.folder / f"{job.name}.output.jsonl"

    def errors(self, job: BatchRecord) -> Path:
        """The downloaded file of requests that failed."""
        return self.folder / f"{job.name}.errors.jsonl"

    def all(self) -> list[BatchRecord]:
        """Every job, the oldest first."""
        with self._described():
            records = [
                read_document(path, BatchRecord, OF_NO_USE) for path in self.folder.glob("*.json")
            ]
            jobs = [record for record in records if record is not None]
            return sorted(jobs, key=lambda job: (job.written, job.name))

    def save(self, job: BatchRecord) -> None:
        """Write the record, so that a crash cannot lose it afterwards."""
        content = json.dumps(job.model_dump(), indent=2) + "\n"
        with self._described():
            write_whole(self.folder / f"{job.name}.json", content.encode())

    def close(self, job: BatchRecord, tally: dict[str, int], *, keep: bool) -> None:
        """Close a finished job with the counts of its lines. Its record stays, and where ``keep``
        its files, too.
        """
        job.step = "done"
        job.tally = tally
        self.save(job)
        if keep:
            return
        for path in (self.input(job.name), self.output(job), self.errors(job)):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove files of requests without a record; they were never sent."""
        with self._described():
            names = {job.name for job in self.all()}
            for path in [*self.folder.glob("*.jsonl"), *self.folder.glob(".*.part")]:
                if path.name.strip(".").split(".")[0] not in names:
                    path.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from these jobs inside the block; a killed process releases them.

        Raises:
            InputError: another process works on them.
        """
        refusal = (
            f"another command is at work on the batch jobs in {self.folder}; wait until it ends, or"
            " stop it"
        )
        with locked(self.folder / "lock", refusal):
            yield

    @contextmanager
    def _described(self) -> Iterator[None]:
        """Turn an OSError of the block into an InputError that names the folder."""
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cannot use {self.folder}: {error.strerror or error}; make room,"
                " or give another ``out``"
            ) from error
