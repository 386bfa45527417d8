"""Upkeep of stores: check one, and merge several."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from blackbox_lb.errors import InputError, StoreCorrupt, StoreError
from blackbox_lb.store import RolloutStore
from blackbox_lb.store.database import (
    KEY_COLUMNS,
    REFERENCES,
    SCHEMA,
    TABLES,
    Database,
    named,
    right_shape,
    selection,
    shape_of,
)
from blackbox_lb.store.rows import check_row, is_contradictory, name_of, unpack
from blackbox_lb.types import Completion

BATCH = 500
"""Rows a transaction, some megabytes, so memory stays flat and other writers get their turn."""
MOST_NAMED = 1000
"""Most damaged rows named one by one; all are counted."""
SAME = {
    "completions": ("text", "finish_reason", "model", "prompt_tokens", "whole"),
    "token_bytes": ("bytes",),
    "rewards": ("answer",),
}
"""Columns in which two rows of one key differ if they are two responses. Packed arrays, too, are
compared.
"""


# --- Check


@dataclass(slots=True)
class Checkup:
    """The result of ``check``.

    path: the store.
    schema: its schema's number; 0 where the file cannot be opened.
    rows: rows read, by table.
    damaged: damaged rows, by table.
    problems: sentences, at most 1,000 of them about rows.
    contradictory: completions as ``rows.is_contradictory`` says. They are as they were received,
        so they are no damage.
    """

    path: Path
    schema: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    contradictory: int = 0

    @property
    def sound(self) -> bool:
        """Whether the store is intact."""
        return not self.problems


def check(path: Path) -> Checkup:
    """Check a store without writing: SQLite's check, the schema, references, and every row.

    A row is checked by its key, hash, checksum and arrays.

    Raises:
        StoreError: there is no store, or it is of another program or a newer version.
    """
    checkup = Checkup(path)
    try:
        db = Database(path, read_only=True)
    except StoreCorrupt as error:
        checkup.problems.append(_without_remedy(error))
        return checkup
    with closing(db):
        checkup.schema = SCHEMA
        # A row with a text that is no UTF-8 is named, and the next one read.
        db.connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        parts = [_file_problems(db), _schema_problems(db), _reference_problems(db)]
        parts += [_row_problems(db, table, checkup) for table in TABLES]
        for problems in parts:
            try:
                checkup.problems.extend(problems)
            except StoreCorrupt as error:
                checkup.problems.append(_without_remedy(error))
    return checkup


def _without_remedy(error: StoreCorrupt) -> str:
    return str(error).partition("; blb store")[0]


def _file_problems(db: Database) -> Iterator[str]:
    for (finding,) in db.read("PRAGMA main.integrity_check(20)"):
        if finding != "ok":
            yield f"SQLite: {' '.join(str(finding).split())}"


def _schema_problems(db: Database) -> Iterator[str]:
    if shape_of(db.connection) != right_shape():
        yield f"its tables or columns are not those of schema {SCHEMA}"


def _reference_problems(db: Database) -> Iterator[str]:
    for table in REFERENCES:
        orphans = db.count_orphans(table)
        if orphans:
            yield f"{orphans:,} completions refer to {table} that are not there"


def _row_problems(db: Database, table: str, checkup: Checkup) -> Iterator[str]:
    for values in db.stream(selection(table)):
        row = named(table, values)
        checkup.rows[table] += 1
        try:
            content = check_row(table, row)
            if isinstance(content, Completion):
                checkup.contradictory += is_contradictory(content)
        except StoreError as error:
            checkup.damaged[table] += 1
            if checkup.damaged.total() <= MOST_NAMED:
                yield f"{name_of(table, row)}: {error}"


# --- Merge


@dataclass(slots=True)
class Merged:
    """Rows of a merge, by table.

    added: new in the target.
    same: in the target already.
    differing: another answer under the same key is in the target, and stays.
    damaged: not intact, so left out.
    broken: sources of which SQLite cannot read every row, by table.
    """

    added: Counter[str] = field(default_factory=Counter)
    same: Counter[str] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)


def merge(sources: Sequence[Path], target: Path) -> Merged:
    """Copy all intact rows of the stores ``sources`` into the store ``target``, each response once.

    The target may exist already. Sources are only read, and may be damaged. The same call again
    adds nothing.

    Raises:
        InputError: the target is one of the sources.
        StoreError: a source cannot be opened, or the target cannot be written.
    """
    for source in sources:
        if source.resolve() == target.resolve():
            raise InputError(
                f"{source} is the target and a source; give another file with ``out``, or leave"
                " it out"
            )
        Database(source, read_only=True).close()
    merged = Merged()
    with RolloutStore(target) as into:
        for source in sources:
            with closing(Database(source, read_only=True)) as db:
                # A row with a text that is no UTF-8 is read, and found damaged.
                db.connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
                for table in TABLES:
                    rows = _readable_rows(db, table, merged)
                    while batch := list(islice(rows, BATCH)):
                        add_new(into, table, _intact(table, batch, merged), merged)
    return merged


def _readable_rows(db: Database, table: str, merged: Merged) -> Iterator[dict[str, Any]]:
    """Every row of a table before the first and behind the last page that SQLite cannot read."""
    place = "rowid"
    if table != "completions":
        place = TABLES[table][0]
    last = None
    try:
        for values in db.stream(selection(table, f"NOT INDEXED ORDER BY {place}")):
            last = values
            yield named(table, values)
        return
    except StoreCorrupt:
        merged.broken[table] += 1
    with suppress(StoreCorrupt):
        for values in db.stream(selection(table, f"NOT INDEXED ORDER BY {place} DESC")):
            if values == last:
                return
            yield named(table, values)


def _intact(table: str, rows: Iterable[dict[str, Any]], merged: Merged) -> Iterator[dict[str, Any]]:
    for row in rows:
        try:
            check_row(table, row)
        except StoreCorrupt:
            merged.damaged[table] += 1
            continue
        yield row


def add_new(into: RolloutStore, table: str, rows: Iterable[dict[str, Any]], merged: Merged) -> None:
    """Add intact rows under new keys in one transaction, and count all of them in ``merged``."""
    new: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row.values())[: KEY_COLUMNS[table]]
        stored = new.get(key) or into.row(table, key)
        if stored is None:
            new[key] = row
        elif _is_same(table, stored, row):
            merged.same[table] += 1
        else:
            merged.differing[table] += 1
    merged.added.update(into.add_rows({table: list(new.values())}))


def _is_same(table: str, stored: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    if any(stored[name] != row[name] for name in SAME.get(table, ())):
        return False
    if "tokens" not in row or stored["tokens"] == row["tokens"]:
        return True
    for stored_array, array in zip(unpack(stored["tokens"]), unpack(row["tokens"]), strict=True):
        if stored_array is None or array is None:
            if stored_array is not array:
                return False
        elif stored_array.tobytes() != array.tobytes():
            return False
    return True
