"""Recovery of a damaged store: every intact row that SQLite can still reach.

SQLite ends a query at the first damaged page. So a table is read in slices of its keys, each from
both ends, and a damaged page costs few rows beside its own. A row is taken only if its key, its
hash or its checksum fits its contents.
"""

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from blackbox_lb.errors import StoreError
from blackbox_lb.store import RolloutStore
from blackbox_lb.store.database import (
    CREATION,
    KEY_COLUMNS,
    REFERENCES,
    TABLES,
    named,
    right_shape,
    selection,
    shape_of,
)
from blackbox_lb.store.upkeep import batches, is_intact

PAGE_SIZE = 4096
"""Bytes of a page, SQLite's own default."""
ORDERED_BY_NUMBER = "completions"
"""The table whose rows stand in the file by their rowid; those of the others stand by their key."""
SLICE = 4
"""Rowids in a slice."""
SMALLEST_ROW = 200
"""Bytes; every row of these tables takes more, so they bound the rowids of a file."""
HEADS = [f"{number:02x}" for number in range(256)] + ["g"]
"""The first characters of keys, which are hexadecimal: each slice has those of one pair."""

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Recovered:
    """Rows of a recovery, by table.

    rows: copied.
    lost: named by their own key, another row or an index, without an intact copy; there may be
        more.
    """

    rows: Counter[str]
    lost: Counter[str]


def recover(old: Path, new: Path) -> Recovered:
    """Copy every intact row that SQLite still reaches in the store ``old`` into a new store.

    SQLite reads a temporary copy of ``old`` and its log, beside ``new``. Completions whose prompt
    or settings are lost are copied, because the same collection looks for them by their keys.

    Raises:
        StoreError: ``old`` cannot be read or has no row of a store; ``new`` exists already or
            cannot be written.
    """
    if new.exists():
        raise StoreError(f"{new} is there already; give the path of a new file, or delete it")
    if not old.is_file():
        raise StoreError(f"there is no file {old}; give the damaged rollout store")
    rows = Counter[str]()
    names: dict[str, set[Key]] = {table: set() for table in TABLES}
    intact: dict[str, set[Key]] = {table: set() for table in TABLES}
    with RolloutStore(new) as into, _opened_copy(old, new.parent) as db:
        for table in TABLES:
            for batch in batches(_readable_rows(db, table)):
                intact_rows = [row for row in batch if is_intact(table, row)]
                names[table].update(_key(table, row) for row in batch)
                intact[table].update(_key(table, row) for row in intact_rows)
                if table == "completions":
                    for referred, column in REFERENCES.items():
                        names[referred].update((row[column],) for row in intact_rows)
                rows.update(into.add_rows({table: intact_rows}))
        with suppress(sqlite3.Error):  # read from the index of the keys
            names["completions"].update(db.execute("SELECT key FROM completions ORDER BY key"))
    if not rows.total():
        for suffix in ("", "-wal", "-shm"):
            new.with_name(new.name + suffix).unlink(missing_ok=True)
        raise StoreError(f"{old} holds nothing that a rollout store holds; {new} was not made")
    lost = Counter({table: len(names[table] - intact[table]) for table in TABLES})
    return Recovered(+rows, +lost)


def _key(table: str, row: Mapping[str, Any]) -> Key:
    return tuple(row.values())[: KEY_COLUMNS[table]]


@contextmanager
def _opened_copy(old: Path, folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a temporary copy of a store and its log in ``folder``.

    Where the schema cannot be read, the first page of an empty store takes the place of the first
    page: in every store the tables begin at the same pages, unless ``VACUUM`` moved the smaller
    ones.
    """
    for first_page, with_log in ((b"", True), (_first_page(), True), (_first_page(), False)):
        with TemporaryDirectory(prefix="recover-", dir=folder) as scratch:
            copy = Path(scratch) / "copy.db"
            log = old.with_name(old.name + "-wal")
            try:
                shutil.copyfile(old, copy)
                if with_log and log.is_file():
                    shutil.copyfile(log, copy.with_name(copy.name + "-wal"))
                with copy.open("r+b") as file:
                    file.write(first_page)
                    # The number of pages; where it is 0, SQLite takes it from the file's size.
                    file.seek(28)
                    file.write(bytes(4))
            except OSError as error:
                raise StoreError(
                    f"cannot copy {old} into {folder}: {error}; free some space there, or, where"
                    " the disk fails, copy the store to another one with a tool that goes on after"
                    " errors, such as ddrescue"
                ) from error
            with closing(sqlite3.connect(copy, isolation_level=None)) as db:
                # A row with a text that is no UTF-8 is read, and found damaged.
                db.text_factory = lambda raw: raw.decode(errors="surrogateescape")
                try:
                    # Else SQLite reads no table where the beginning of one is cut off.
                    db.execute("PRAGMA writable_schema = ON")
                    db.execute("PRAGMA trusted_schema = OFF")
                    has_schema = shape_of(db) == right_shape()
                except sqlite3.Error:
                    has_schema = False
                if has_schema:
                    yield db
                    return


def _first_page() -> bytes:
    """The first page of an empty store; it holds the schema."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        for statement in CREATION:
            fresh.execute(statement)
        return fresh.serialize()[:PAGE_SIZE]


def _readable_rows(db: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """Every row of a table that SQLite can still read, once each and unchecked."""
    place = TABLES[table][0]
    source = ""
    bounds: Sequence[str | int] = HEADS
    if table == ORDERED_BY_NUMBER:
        place = "rowid"
        source = "NOT INDEXED"  # a damaged index costs nothing
        ((pages,),) = db.execute("PRAGMA page_count")
        bounds = range(0, pages * PAGE_SIZE // SMALLEST_ROW + 2 * SLICE, SLICE)
    in_slice = f"WHERE {place} >= ? AND {place} < ?"
    slices = ((in_slice, pair) for pair in pairwise(bounds))
    seen = set[Key]()
    for condition, pair in chain([("", ())], slices):
        for order in ("ASC", "DESC"):
            query = selection(table, f"{source} {condition} ORDER BY {place} {order}")
            try:
                for values in db.execute(query, pair):
                    key = values[: KEY_COLUMNS[table]]
                    if key not in seen:
                        seen.add(key)
                        yield named(table, values)
                    elif order == "DESC":
                        break
            except sqlite3.Error:
                continue
            if not condition and order == "ASC":
                return  # no damage in the way
