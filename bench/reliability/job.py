"""One small ``blb fit`` under supervision: its files, its processes, what its store holds, and
where its key shows up; and the row of the table that comes of many.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

# Whether a row is whole is seen without the store's own reading.
from blackbox_lb.store.rows import unpack
from tests.support.exact import ExactModel

__all__ = [
    "KEY",
    "LONGEST",
    "PROFILE",
    "Job",
    "Row",
    "State",
    "ended",
    "found_in_files",
    "found_in_processes",
    "new_key",
    "result_of",
    "state_of",
]

KEY = "BLB_RELIABILITY_KEY"
"""The environment variable that the job's profile takes its key from."""
ENVIRONMENT = {"OPENAI_LOG": "debug", "OPENBLAS_NUM_THREADS": "1"}
"""Of all processes: the log of the SDK shows a key first, and many share the processor."""
SEED = 7
LONGEST = 600.0
"""Seconds for one process."""
PROFILE = f"""
extends = "llamacpp"
name = "reliability"
[connection]
api_key_env = "{KEY}"
api_key_required = true
"""
DATED = frozenset({"created", "received", "checksum"})
"""What two runs of the same fit may differ in: dates, and the checksum of a row, which is of all of
it.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        what: was done.
        times: how often.
        outcome: what came of it.
        seconds: how long it took.
        counts: the numbers behind ``outcome``.
        wrong: what should not be, empty where all is well.
    """

    what: str
    times: str
    outcome: str
    seconds: float
    counts: Mapping[str, Any]
    wrong: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """As it stands in the table."""
        verdict = "as promised" if not self.wrong else f"NOT AS PROMISED: {'; '.join(self.wrong)}"
        return f"| {self.what} | {self.times} | {self.outcome} | {verdict} | {self.seconds:.0f} s |"


def new_key() -> str:
    """A key that stands nowhere by chance."""
    return f"sk-planted-{token_hex(16)}"


@dataclass(frozen=True, slots=True)
class Job:
    """``blb fit`` of ``prompts`` questions into ``folder / "run"``; its log and data lie in
    ``folder``.

    ``key``: what the environment of its processes holds, and nothing else may.
    """

    folder: Path
    key: str = field(repr=False)
    prompts: int = 16
    samples: int = 3

    @property
    def run(self) -> Path:
        """What ``--out`` names."""
        return self.folder / "run"

    @property
    def store(self) -> Path:
        """The rollouts."""
        return self.run / "rollouts.db"

    @property
    def log(self) -> Path:
        """Everything that its processes printed."""
        return self.folder / "log.txt"

    def model(self) -> ExactModel:
        """What it is fitted to."""
        return ExactModel(12, 6, end=True, prompts=4, sharpness=0.7)

    def prepared(self) -> Job:
        """With its data and profile written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = (
            json.dumps({"prompt": f"question {n}", "answer": "a"}) for n in range(self.prompts)
        )
        (self.folder / "data.jsonl").write_text("\n".join(lines) + "\n")
        (self.folder / "profile.toml").write_text(PROFILE)
        return self

    def arguments(self, base_url: str, workers: int) -> list[str]:
        """Those of ``blb``. Every sample has a seed of its own, so that the server's answer is the
        same whenever it is asked.
        """
        given: Mapping[str, object] = {
            "provider": self.folder / "profile.toml",
            "base-url": base_url,
            "data": self.folder / "data.jsonl",
            "reward": "length",
            "max-tokens": 6,
            "top-logprobs": 4,
            "samples-per-prompt": self.samples,
            "validation-samples": 2,
            "test-samples": 2,
            "l2": 5,
            "deploy": "temperature=1",
            "seed": SEED,
            "concurrency": workers,
            "out": self.run,
        }
        return [
            "fit",
            *(part for name, value in given.items() for part in (f"--{name}", str(value))),
            "--go-on",
        ]

    def fit(self, base_url: str, workers: int) -> subprocess.Popen[bytes]:
        """A started process of the fit."""
        return self._started(self.arguments(base_url, workers))

    def report(self) -> subprocess.Popen[bytes]:
        """A started process that makes the page of the run, into the run's folder."""
        return self._started(["report", str(self.run)])

    def _started(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """``blb`` as a shell would start it."""
        with self.log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "blackbox_lb", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=os.environ | ENVIRONMENT | {KEY: self.key},
            )


@dataclass(frozen=True, slots=True)
class State:
    """What a store holds: the seed of every stored sample, its rows without the time of receipt,
    and what is broken.
    """

    seeds: frozenset[int] = frozenset()
    rows: tuple[tuple[Any, ...], ...] = ()
    broken: tuple[str, ...] = ()


def state_of(store: Path) -> State:
    """Read from a copy, write-ahead log included, so that recovery is left to the program; its
    process must be gone.
    """
    if not store.exists():
        return State()
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("", "-wal"):
            source = store.with_name(store.name + suffix)
            if source.exists():
                shutil.copy(source, Path(folder) / source.name)
        db = sqlite3.connect(Path(folder) / store.name)
        try:
            return _state(db)
        except sqlite3.Error as error:
            return State(broken=(f"{store}: {error}",))
        finally:
            db.close()


def _state(db: sqlite3.Connection) -> State:
    (verdict,) = db.execute("PRAGMA integrity_check").fetchone()
    broken = [] if verdict == "ok" else [str(verdict)]
    if not db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'completions'").fetchone()[
        0
    ]:
        return State(broken=tuple(broken))
    cursor = db.execute("SELECT * FROM completions ORDER BY key")
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor]
    for row in rows:
        try:
            unpack(row["tokens"])
        except Exception as error:  # noqa: BLE001  (whatever it raises, the row is unreadable)
            broken.append(f"{row['key']}: {error!r}")
    undated = tuple(
        tuple(value for name, value in row.items() if name not in DATED) for row in rows
    )
    return State(frozenset(_seed(row["key"]) for row in rows), undated, tuple(broken))


def _seed(key: str) -> int:
    """The seed that ``collect`` sends for this key; the undisturbed run shows that this is how it
    does.
    """
    return (SEED + int(key[:8], 16)) & 0x7FFFFFFF


def result_of(job: Job) -> dict[str, Any]:
    """The biases that the fit wrote, without their date; {} where it has not."""
    found = {}
    for name in ("bias.json", "learned.json"):
        path = job.run / name
        if path.exists():
            document = json.loads(path.read_text(encoding="utf-8"))
            found[name] = {field: value for field, value in document.items() if field not in DATED}
    return found


def forms(key: str) -> list[bytes]:
    """The ways in which a key may stand in a file."""
    shifted = [base64.b64encode(b"\0" * lead + key.encode())[4:-4] for lead in range(3)]
    return [
        key.encode(),
        urllib.parse.quote(key, safe="").encode(),
        key.encode().hex().encode(),
        *shifted,
    ]


def found_in_files(key: str, folder: Path) -> list[str]:
    """Files below ``folder`` that hold the key in any form."""
    patterns = forms(key)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        str(path) for path in paths if any(pattern in path.read_bytes() for pattern in patterns)
    ]


def found_in_processes(key: str) -> list[str]:
    """Command lines on this machine that hold it: what ``ps`` shows to everybody."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue  # it has ended
        if key.encode() in line:
            found.append(str(path))
    return found


def ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process once it has ended, negative after a signal."""
    try:
        return process.wait(LONGEST)
    finally:
        process.kill()  # of no effect where it has ended
