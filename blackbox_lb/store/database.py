"""The SQLite file under a rollout store: opened, made, locked, and each of its errors put into a
sentence.

Write-ahead log, ``synchronous = FULL``: writers of any number of processes take turns, readers
never wait (https://www.sqlite.org/wal.html).
"""

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from blackbox_lb.errors import StoreBusy, StoreCorrupt, StoreError
from blackbox_lb.safety.files import has_too_many, none_left, remedy_for_too_many
from blackbox_lb.store.schema import APPLICATION_ID, CREATION, SCHEMA

PATIENCE = 30.0
"""Seconds to wait for another writer: thousands of times a commit, so only a lock that stays runs
into it.
"""

_KEPT = "what was stored before is kept"
_REMEDIES = {
    sqlite3.SQLITE_FULL: f"free some space on its disk, then run the same command again: {_KEPT}",
    sqlite3.SQLITE_READONLY: (
        "make the file and its folder writable, or give another path with ``out`` or ``store``"
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "check that its folder exists and may be written to, or give another path with ``out`` or"
        " ``store``"
    ),
    sqlite3.SQLITE_IOERR: (
        "check the disk, its free space and limits on file sizes, then run the same command again:"
        f" {_KEPT}"
    ),
    sqlite3.SQLITE_PERM: (
        "give yourself the right to it, or give another path with ``out`` or ``store``"
    ),
    sqlite3.SQLITE_NOMEM: f"free some memory, then run the same command again: {_KEPT}",
    sqlite3.SQLITE_TOOBIG: (
        f"an answer holds a value that is too large for it: the provider is at fault; {_KEPT}"
    ),
}
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_MISMATCH,
    None,
)
"""No code: a text that is not UTF-8. A table or column missing for our own statement was there
once, too.
"""
_OURS = (
    OSError,
    OverflowError,
    UnicodeEncodeError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
)
"""Errors that do not concern the file."""


def _code(error: Exception) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF


class Database:
    """A connection to a store's file.

    ``read_only``: the file is neither created nor written. ``patience``: seconds to wait for
    another writer.

    Raises StoreError: the path cannot be opened, is another program's file, or was written by
    another version. StoreBusy: another process keeps it locked. StoreCorrupt: it is damaged.
    """

    def __init__(self, path: Path, *, read_only: bool = False, patience: float = PATIENCE) -> None:
        self.path = path
        self.patience = patience
        self._connection: sqlite3.Connection | None = None
        self._turn = threading.RLock()
        try:
            with self._translate_errors("open the rollout store"):
                (self._open_to_read if read_only else self._open_to_write)()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; everything committed is already durable."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection. Raises StoreError where there is none."""
        if self._connection is None:
            raise StoreError(f"the rollout store {self.path} is not open; open it again")
        return self._connection

    def execute(self, query: str, arguments: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run one statement outside a transaction."""
        with self._translate_errors("use"):
            return self.connection.execute(query, arguments)

    def read(self, query: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._turn, self._translate_errors("read"):
            return self.connection.execute(query, arguments).fetchall()

    def stream(self, query: str, arguments: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a query one by one."""
        with self._translate_errors("read"):
            cursor = self.connection.execute(query, arguments)
            for row in cursor:  # noqa: UP028  (it would close the cursor after the file)
                yield row

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write everything inside, or nothing; durable at the end. Waits for its turn among the
        writers, threads included.
        """
        with self._turn, self._translate_errors("write to"):
            connection = self.connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # after a full disk SQLite has done so itself
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _translate_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, OverflowError, UnicodeError) as error:
            raise self._sentence(error, doing) from error

    def _sentence(self, error: Exception, doing: str) -> StoreError:
        said = f"cannot {doing} {self.path}: {str(error)[:200]}"
        code = _code(error)
        if code in _LOCKED:
            return StoreBusy(
                f"{said} by another process for {self.patience:g} s; end that process or wait for"
                f" it, then run the same command again: {_KEPT}"
            )
        if not isinstance(error, _OURS) and code in _DAMAGED:
            return StoreCorrupt(
                f"{said}; blb store check {self.path} says what is damaged, blb store recover"
                f" {self.path} NEW copies what is intact"
            )
        if code in (
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR,
        ):  # the latter where the log's index finds no room
            said += f" ({self._free()})"
        if isinstance(error, OSError):
            code = sqlite3.SQLITE_CANTOPEN
        remedy = _REMEDIES.get(code or 0)
        if code == sqlite3.SQLITE_CANTOPEN and (has_too_many(error) or none_left()):
            remedy = f"{remedy_for_too_many()}: {_KEPT}"
        return StoreError(
            f"{said}; {remedy or f'give another path with ``out`` or ``store``; {_KEPT}'}"
        )

    def _free(self) -> str:
        with suppress(OSError):
            return f"{shutil.disk_usage(self.path.parent).free:,} bytes free"
        return "free space unknown"

    def _open_to_write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Another thread may store what this one received (``writer``); they take turns.
        self._connection = sqlite3.connect(
            self.path, timeout=self.patience, isolation_level=None, check_same_thread=False
        )
        self._check_origin(empty_is_ours=True)
        self._insist(lambda: self.connection.execute("PRAGMA journal_mode = WAL"))
        self._connection.execute("PRAGMA synchronous = FULL")
        with self.transaction() as db:
            # Read again: another process may have made it meanwhile. Written even if nothing
            # changes, so that a full disk or a read-only file is found before anything costs money.
            (mark,) = db.execute("PRAGMA application_id").fetchone()
            for statement in () if mark == APPLICATION_ID else CREATION:
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA}")

    def _insist(self, attempt: Callable[[], object]) -> None:
        """Retry the switch to the write-ahead log, which does not wait for a lock by itself."""
        end = time.monotonic() + self.patience
        while True:
            try:
                attempt()
                return
            except sqlite3.OperationalError as error:
                if _code(error) not in _LOCKED or time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def _open_to_read(self) -> None:
        if not self.path.is_file():
            raise StoreError(
                f"there is no rollout store {self.path}; give one that blb collect or blb fit made"
            )
        try:
            self._read_as("mode=ro")
        except sqlite3.OperationalError as error:
            log = self.path.with_name(self.path.name + "-wal")
            if _code(error) not in (
                sqlite3.SQLITE_CANTOPEN,
                sqlite3.SQLITE_READONLY,
                sqlite3.SQLITE_IOERR,
            ):
                raise
            if log.exists() and log.stat().st_size:
                raise StoreError(
                    f"cannot read {self.path}: its newest answers are in {log.name}, which cannot"
                    " be used where nothing may be written; copy both files into a folder of yours"
                ) from error
            self._read_as(
                "mode=ro&immutable=1"
            )  # nobody can write here, and SQLite asks for a lock file otherwise

    def _read_as(self, how: str) -> None:
        self.close()
        address = f"{self.path.resolve().as_uri()}?{how}"
        self._connection = sqlite3.connect(
            address, uri=True, timeout=self.patience, isolation_level=None
        )
        self._check_origin(empty_is_ours=False)
        self._connection.execute("PRAGMA temp_store = MEMORY")

    def _check_origin(self, *, empty_is_ours: bool) -> None:
        """Raise StoreError: the file is not from this package and version."""
        db = self.connection
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("BEGIN")
        (schema,) = db.execute("PRAGMA user_version").fetchone()
        (mark,) = db.execute("PRAGMA application_id").fetchone()
        kinds = dict(db.execute("SELECT type, name FROM sqlite_master").fetchall())
        db.execute("COMMIT")
        if mark != APPLICATION_ID and (kinds or not empty_is_ours):
            whose = "is a database of another program" if kinds else "is empty"
            raise StoreError(
                f"{self.path} {whose}, no rollout store; give another path with ``out`` or"
                " ``store``"
            )
        for kind in kinds.keys() & {"trigger", "view"}:
            raise StoreError(
                f"{self.path} holds the {kind} {str(kinds[kind])[:60]!r}, which blackbox_lb never"
                " makes; do not use this file"
            )
        if mark == APPLICATION_ID and schema != SCHEMA:
            raise StoreError(
                f"{self.path} has schema {schema}, this version knows {SCHEMA}; upgrade"
                " blackbox_lb, or see blb store check"
            )
