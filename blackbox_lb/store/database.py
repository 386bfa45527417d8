"""The SQLite file of a rollout store: its schema, its opening and locking, and its errors.

Write-ahead log, ``synchronous = FULL``: writers of any number of processes take turns, readers
never wait (https://www.sqlite.org/wal.html).
"""

import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from blackbox_lb.errors import StoreBusy, StoreCorrupt, StoreError
from blackbox_lb.safety.files import has_too_many, none_left, remedy_for_too_many
from blackbox_lb.safety.printable import shell_line

APPLICATION_ID = 0x626C6221
"""Marks the file as this package's, so that another program's database is never written to."""
SCHEMA = 5
"""The number in ``PRAGMA user_version``; a file of another number is refused."""
_SCRIPT = """
    CREATE TABLE prompts (
        hash TEXT PRIMARY KEY,
        messages TEXT NOT NULL           -- canonical JSON: [{"role", "content"}]; tools are the last, of the role tools
    ) WITHOUT ROWID;
    CREATE TABLE requests (
        hash TEXT PRIMARY KEY,
        settings TEXT NOT NULL           -- canonical JSON: provider, model, tokenizer, endpoint, sampling, bias
    ) WITHOUT ROWID;
    CREATE TABLE completions (
        key TEXT PRIMARY KEY,            -- hash of (request_hash, prompt_hash, sample)
        request_hash TEXT NOT NULL REFERENCES requests (hash),
        prompt_hash TEXT NOT NULL REFERENCES prompts (hash),
        sample INTEGER NOT NULL,         -- 0, 1, ...: which of the samples of this prompt
        text TEXT NOT NULL,
        finish_reason TEXT NOT NULL,
        model TEXT NOT NULL,             -- as the provider named it in the answer
        prompt_tokens INTEGER NOT NULL,
        n_tokens INTEGER NOT NULL,
        whole INTEGER NOT NULL,          -- 0 where the provider listed fewer tokens than it generated
        tokens BLOB NOT NULL,            -- ids, logprobs, top ids, top logprobs: see blackbox_lb.store.rows
        received REAL NOT NULL,          -- seconds since 1970
        bounded INTEGER NOT NULL DEFAULT 0,    -- sampled tokens without a logprob, only a bound
        outside INTEGER,                 -- sampled tokens missing from their list
        generated INTEGER,               -- tokens as the provider counts them; NULL: it does not
        fingerprint TEXT NOT NULL DEFAULT '',  -- the answer's system_fingerprint; '': it had none
        checksum INTEGER                 -- CRC-32 of the other columns in order
    );
    CREATE INDEX completions_by_request ON completions (request_hash, prompt_hash, sample);
    CREATE TABLE token_bytes (
        tokenizer TEXT NOT NULL,         -- fingerprint
        id INTEGER NOT NULL,
        bytes BLOB NOT NULL,
        checksum INTEGER,
        PRIMARY KEY (tokenizer, id)
    ) WITHOUT ROWID;
    CREATE TABLE rewards (
        key TEXT PRIMARY KEY,            -- hash of (endpoint or judge, all that it was told of a completion)
        answer TEXT NOT NULL,            -- what came: an endpoint's number of nats, or a judge's words
        received REAL NOT NULL,          -- seconds since 1970
        checksum INTEGER
    ) WITHOUT ROWID
"""  # noqa: E501
CREATION = _SCRIPT.split(";\n")
"""The statements that make the tables and the index of a new store."""

TABLES = {
    "prompts": ("hash", "messages"),
    "requests": ("hash", "settings"),
    "completions": (
        "key",
        "request_hash",
        "prompt_hash",
        "sample",
        "text",
        "finish_reason",
        "model",
        "prompt_tokens",
        "n_tokens",
        "whole",
        "tokens",
        "received",
        "bounded",
        "outside",
        "generated",
        "fingerprint",
        "checksum",
    ),
    "token_bytes": ("tokenizer", "id", "bytes", "checksum"),
    "rewards": ("key", "answer", "received", "checksum"),
}
"""The columns of each table, in the order of the file."""
KEY_COLUMNS = dict.fromkeys(TABLES, 1) | {"token_bytes": 2}
"""The number of columns in the primary key of each table; they are the first ones."""
REFERENCES = {"requests": "request_hash", "prompts": "prompt_hash"}
"""The column of ``completions`` that names a row of each of these tables."""


def selection(table: str, condition: str = "") -> str:
    """The statement that reads all columns of a table, with a clause ``condition`` behind it."""
    return f"SELECT {', '.join(TABLES[table])} FROM {table} {condition}"  # noqa: S608  (names of ours)


def named(table: str, row: Sequence[Any]) -> dict[str, Any]:
    """The values of a row that ``selection`` read, by column."""
    return dict(zip(TABLES[table], row, strict=True))


def insertion(table: str) -> str:
    """The statement that adds a row, unless there is one under its key.

    Any other conflict, such as a missing value, is an error.
    """
    columns = TABLES[table]
    values = ", ".join(f":{name}" for name in columns)
    key = ", ".join(columns[: KEY_COLUMNS[table]])
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"  # noqa: S608  (names of ours)
        f" ON CONFLICT ({key}) DO NOTHING"
    )


def shape_of(db: sqlite3.Connection) -> list[tuple[object, ...]]:
    """The tables, indices and columns of a connection's file; other tables are not looked at."""
    places = ", ".join("?" * len(TABLES))
    shape = db.execute(
        "SELECT type, name, tbl_name FROM main.sqlite_master"  # noqa: S608  (question marks)
        f" WHERE tbl_name IN ({places}) ORDER BY name",
        list(TABLES),
    ).fetchall()
    for table in TABLES:
        shape += db.execute(f"PRAGMA main.table_info({table})").fetchall()
    return shape


def right_shape() -> list[tuple[object, ...]]:
    """The ``shape_of`` an intact store."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        for statement in CREATION:
            fresh.execute(statement)
        return shape_of(fresh)


# --- The file

PATIENCE = 30.0
"""Seconds to wait for another writer. A commit takes a few milliseconds, so only a lock that is
never released lasts as long.
"""

_KEPT = "what was stored before is kept"
_REMEDIES = {  # by SQLite's result code
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
    sqlite3.SQLITE_CONSTRAINT: (
        f"a row lacks a value that every row has: this is a bug, please report it; {_KEPT}"
    ),
}
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""Codes where another connection holds a lock."""
_NOT_WRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)
"""Codes where SQLite cannot make the files that it needs beside the store."""
_DAMAGED = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_MISMATCH,
    None,
)
"""Codes of errors that mean a damaged file. None, no code, is a text that is not UTF-8. ERROR is a
missing table or column, which was there once, because the statements are this package's.
"""
_NOT_THE_FILE = (
    OSError,
    OverflowError,
    UnicodeEncodeError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
)
"""Errors that are not about the file's contents."""


def _code(error: Exception) -> int | None:
    """SQLite's primary result code; None where an error has none."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    return int(code) & 0xFF


def how_to_check(path: Path) -> str:
    """The command that lists the damage, for a message."""
    return f"{shell_line('blb', 'store', 'check', path)} says what is damaged"


def how_to_recover(path: Path) -> str:
    """The command that saves the rest, for a message."""
    return f"{shell_line('blb', 'store', 'merge', path, '--out', 'NEW')} copies what is intact"


class Database:
    """A connection to a store's file.

    Args:
        path: the file.
        read_only: the file is neither created nor written.
        patience: seconds to wait for another writer.

    Raises:
        StoreError: the path cannot be opened, is another program's file, or was written by another
            version.
        StoreBusy: another process keeps it locked.
        StoreCorrupt: it is damaged.
    """

    def __init__(self, path: Path, *, read_only: bool = False, patience: float = PATIENCE) -> None:
        self.path = path
        self.patience = patience
        self._connection: sqlite3.Connection | None = None
        self._turn = threading.RLock()
        try:
            with self._translate_errors("open the rollout store"):
                if read_only:
                    self._open_to_read()
                else:
                    self._open_to_write()
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
        """The connection.

        Raises:
            StoreError: there is none.
        """
        if self._connection is None:
            raise StoreError(f"the rollout store {self.path} is not open; open it again")
        return self._connection

    def read(self, query: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self._turn, self._translate_errors("read"):
            return self.connection.execute(query, arguments).fetchall()

    def stream(self, query: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query one by one."""
        with self._translate_errors("read"):
            cursor = self.connection.execute(query)
            for row in cursor:  # noqa: UP028  (it would close the cursor after the file)
                yield row

    def count_orphans(self, table: str) -> int:
        """The number of completions whose row of ``table``, one of ``REFERENCES``, is lost."""
        name = REFERENCES[table]
        ((count,),) = self.read(
            f"SELECT count(*) FROM completions WHERE {name} NOT IN (SELECT hash FROM {table})"  # noqa: S608  (names of ours)
        )
        return int(count)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write everything in the block or nothing, durable at the end.

        It waits for its turn among the writers, those of other threads included.
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
        """Turn errors of SQLite and the system in the block into StoreErrors, "cannot DOING"."""
        try:
            yield
        except (sqlite3.Error, OSError, OverflowError, UnicodeError) as error:
            raise self._store_error(error, doing) from error

    def _store_error(self, error: Exception, doing: str) -> StoreError:
        message = f"cannot {doing} {self.path}: {str(error)[:200]}"
        code = _code(error)
        if code in _LOCKED:
            return StoreBusy(
                f"{message} by another process for {self.patience:g} s; end that process or wait"
                f" for it, then run the same command again: {_KEPT}"
            )
        if not isinstance(error, _NOT_THE_FILE) and code in _DAMAGED:
            return StoreCorrupt(
                f"{message}; {how_to_check(self.path)}, {how_to_recover(self.path)}"
            )
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            # SQLITE_IOERR also where the index of the log finds no room.
            message += f" ({self._free_space()})"
        if isinstance(error, OSError):
            code = sqlite3.SQLITE_CANTOPEN
        remedy = f"give another path with ``out`` or ``store``; {_KEPT}"
        if code in _REMEDIES:
            remedy = _REMEDIES[code]
        if code == sqlite3.SQLITE_CANTOPEN and (has_too_many(error) or none_left()):
            remedy = f"{remedy_for_too_many()}: {_KEPT}"
        return StoreError(f"{message}; {remedy}")

    def _free_space(self) -> str:
        with suppress(OSError):
            return f"{shutil.disk_usage(self.path.parent).free:,} bytes free"
        return "free space unknown"

    def _open_to_write(self) -> None:
        """Open the file, which is created if there is none."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Another thread may write what this one received (``Writer``); they take turns.
        self._connection = sqlite3.connect(
            self.path, timeout=self.patience, isolation_level=None, check_same_thread=False
        )
        self._check_origin(empty_is_ours=True)
        self._switch_to_log()
        self._connection.execute("PRAGMA synchronous = FULL")
        with self.transaction() as db:
            # Read again, because another process may have made the tables meanwhile. The pragmas
            # are written even if nothing changes, so that a full disk or a read-only file is found
            # before anything costs money.
            (mark,) = db.execute("PRAGMA application_id").fetchone()
            if mark != APPLICATION_ID:
                for statement in CREATION:
                    db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA}")

    def _switch_to_log(self) -> None:
        """Switch to the write-ahead log, again while another process holds a lock.

        SQLite does not wait for a lock here.
        """
        end = time.monotonic() + self.patience
        while True:
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if _code(error) not in _LOCKED or time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def _open_to_read(self) -> None:
        """Open the file without writing, even in a folder where nothing may be written."""
        if not self.path.is_file():
            raise StoreError(
                f"there is no rollout store {self.path}; give one that blb collect or blb fit made"
            )
        try:
            self._read_as("mode=ro")
        except sqlite3.OperationalError as error:
            if _code(error) not in _NOT_WRITABLE:
                raise
            log = self.path.with_name(self.path.name + "-wal")
            if log.exists() and log.stat().st_size:
                raise StoreError(
                    f"cannot read {self.path}: its newest answers are in {log.name}, which cannot"
                    " be used where nothing may be written; copy both files into a folder of yours"
                ) from error
            # Nobody can write here, and SQLite needs a lock file unless the file is immutable.
            self._read_as("mode=ro&immutable=1")

    def _read_as(self, options: str) -> None:
        self.close()
        address = f"{self.path.resolve().as_uri()}?{options}"
        self._connection = sqlite3.connect(
            address, uri=True, timeout=self.patience, isolation_level=None
        )
        self._check_origin(empty_is_ours=False)
        self._connection.execute("PRAGMA temp_store = MEMORY")

    def _check_origin(self, *, empty_is_ours: bool) -> None:
        """Raise StoreError where the file is not from this package and version."""
        db = self.connection
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("BEGIN")
        (schema,) = db.execute("PRAGMA user_version").fetchone()
        (mark,) = db.execute("PRAGMA application_id").fetchone()
        kinds = dict(db.execute("SELECT type, name FROM sqlite_master").fetchall())
        db.execute("COMMIT")
        if mark != APPLICATION_ID and (kinds or not empty_is_ours):
            content = "is empty"
            if kinds:
                content = "is a database of another program"
            raise StoreError(
                f"{self.path} {content}, no rollout store; give another path with ``out`` or"
                " ``store``"
            )
        for kind in kinds.keys() & {"trigger", "view"}:
            raise StoreError(
                f"{self.path} holds the {kind} {str(kinds[kind])[:60]!r}, which blackbox_lb never"
                " makes; do not use this file"
            )
        if mark == APPLICATION_ID and schema != SCHEMA:
            raise StoreError(
                f"{self.path} has schema {schema}, this version knows {SCHEMA}; use it with the"
                " version of blackbox_lb that made it, or upgrade where that is newer"
            )
