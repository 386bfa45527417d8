"""Upkeep of stores: checking, merging, and rescuing a damaged one."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from blackbox_lb.errors import InputError, StoreCorrupt, StoreError
from blackbox_lb.store import RolloutStore
from blackbox_lb.store.care.recovery import Found, found_in
from blackbox_lb.store.database import Database
from blackbox_lb.store.integrity import check_row, name_of
from blackbox_lb.store.keys import rollout_key
from blackbox_lb.store.packing import unpack
from blackbox_lb.store.schema import (
    KEY_COLUMNS,
    SCHEMA,
    TABLES,
    named,
    right_shape,
    selection,
    shape_of,
)

T = TypeVar("T")
BATCH = 500
"""Rows a transaction: some megabytes, so memory stays flat and other writers get their turn."""
MOST_TOLD = 1000
"""Most damaged rows named one by one; all are counted."""
SAME = {
    "completions": ("text", "finish_reason", "model", "prompt_tokens", "whole"),
    "token_bytes": ("bytes",),
    "rewards": ("answer",),
}
"""Columns in which two rows of one key differ if they are two responses; packed arrays are compared
unpacked.
"""


@dataclass(slots=True)
class Checkup:
    """The result of ``check``. ``rows``: read, by table. ``damaged``: of those. ``problems``: in
    words, at most 1,000 of rows.
    """

    path: Path
    schema: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.problems


def check(path: Path) -> Checkup:
    """Check that a store is intact: SQLite's own check, its schema, and every row by its key, hash,
    checksum and arrays.

    Only reads. Raises StoreError: there is no store, or it is of another program or a newer
    version.
    """
    found = Checkup(path)
    try:
        db = Database(path, read_only=True)
    except StoreCorrupt as error:
        found.problems.append(str(error).partition("; blb store")[0])
        return found
    with closing(db):
        found.schema = SCHEMA
        # A row with a text that is no UTF-8 is named, and the next read.
        db.connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        for look in (_pages, _schema, _references, *(_rows(table) for table in TABLES)):
            try:
                found.problems.extend(look(db, found))
            except StoreCorrupt as error:
                found.problems.append(str(error).partition("; blb store")[0])
    return found


def _pages(db: Database, found: Checkup) -> Iterator[str]:
    for (said,) in db.read("PRAGMA main.integrity_check(20)"):
        if said != "ok":
            yield f"SQLite: {' '.join(str(said).split())}"


def _schema(db: Database, found: Checkup) -> Iterator[str]:
    if shape_of(db.connection) != right_shape():
        yield f"its tables or columns are not those of schema {SCHEMA}"


def _references(db: Database, found: Checkup) -> Iterator[str]:
    for name, table in (("request_hash", "requests"), ("prompt_hash", "prompts")):
        ((missing,),) = db.read(
            f"SELECT count(*) FROM completions WHERE {name} NOT IN (SELECT hash FROM {table})"  # noqa: S608
        )
        if missing:
            yield f"{missing:,} completions refer to {table} that are not there"


def _rows(table: str) -> Any:
    def look(db: Database, found: Checkup) -> Iterator[str]:
        for values in db.stream(selection(table)):
            row = named(table, values)
            found.rows[table] += 1
            try:
                check_row(table, row)
            except StoreError as error:
                found.damaged[table] += 1
                if found.damaged.total() <= MOST_TOLD:
                    yield f"{name_of(table, row)}: {error}"

    return look


@dataclass(slots=True)
class Merged:
    """Rows by table: ``added``; ``same``: there already; ``differing``: another answer under the
    same key, the first one stays;

    ``damaged``: not intact, so left out.
    """

    added: Counter[str] = field(default_factory=Counter)
    same: Counter[str] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)


def merge(sources: Sequence[Path], target: Path) -> Merged:
    """Copy everything in the stores ``sources`` into the store ``target``, which may exist already;
    each response once.

    Sources are only read, whatever schema they have. The same call again adds nothing.

    Raises InputError: the target is one of the sources. StoreError: a source cannot be read, or the
    target cannot be written.
    """
    for source in sources:
        if source.resolve() == target.resolve():
            raise InputError(
                f"{source} is the target and a source; give another file with ``out``, or leave"
                " it out"
            )
        RolloutStore(source, read_only=True).close()
    merged = Merged()
    with RolloutStore(target) as into:
        for source in sources:
            with RolloutStore(source, read_only=True) as store:
                for table in TABLES:
                    for rows in batches(store.rows(table)):
                        _take(into, table, rows, merged)
    return merged


def _take(into: RolloutStore, table: str, rows: Iterable[dict[str, Any]], merged: Merged) -> None:
    new = []
    for row in rows:
        try:
            check_row(table, row)
        except StoreCorrupt:
            merged.damaged[table] += 1
            continue
        there = into.row(table, list(row.values())[: KEY_COLUMNS[table]])
        if there is None:
            new.append(row)
        else:
            counts = merged.same if _alike(table, there, row) else merged.differing
            counts[table] += 1
    merged.added.update(into.add_rows({table: new}))


def _alike(table: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if any(one[name] != other[name] for name in SAME.get(table, ())):
        return False
    if "tokens" not in one or one["tokens"] == other["tokens"]:
        return True
    pairs = zip(unpack(one["tokens"]), unpack(other["tokens"]), strict=True)
    return all(
        a.tobytes() == b.tobytes() if a is not None and b is not None else a is b for a, b in pairs
    )


def batches(rows: Iterable[T]) -> Iterator[list[T]]:
    """The rows, at most ``BATCH`` at a time."""
    source = iter(rows)
    while batch := list(islice(source, BATCH)):
        yield batch


@dataclass(frozen=True, slots=True)
class Recovered:
    """Rows by table. ``lost``: rows named by other rows or an index, without an intact copy; there
    may be more.
    """

    rows: Counter[str]
    lost: Counter[str]


def recover(old: Path, new: Path) -> Recovered:
    """Copy every intact row of the store ``old``, from the rest of its file and its log, into the
    new store ``new``.

    ``old`` is only read, page by page and without SQLite. Completions whose prompt or settings are
    lost are kept: the same collection finds them by their keys. Rows deleted by hand may come back.

    Raises StoreError: ``old`` cannot be read or holds nothing of a store; ``new`` exists already or
    cannot be written.
    """
    if new.exists():
        raise StoreError(f"{new} is there already; give the path of a new file, or delete it")
    if not old.is_file():
        raise StoreError(f"there is no file {old}; give the damaged rollout store")
    names = _Names()
    with RolloutStore(new) as into:
        rows = Counter[str]()
        for batch in batches(names.intact(found_in(old))):
            tables: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
            for table, row in batch:
                tables[table].append(row)
            rows.update(into.add_rows(tables))
    if not rows.total():
        for each in (new, *(new.with_name(new.name + end) for end in ("-wal", "-shm"))):
            each.unlink(missing_ok=True)
        raise StoreError(f"{old} holds nothing that a rollout store holds; {new} was not made")
    return Recovered(+rows, names.lost())


class _Names:
    """The names of rows so far: intact, damaged, or only named by another."""

    def __init__(self) -> None:
        self._intact: dict[str, set[tuple[Any, ...]]] = {table: set() for table in TABLES}
        self._named: dict[str, set[tuple[Any, ...]]] = {table: set() for table in TABLES}

    def intact(self, found: Iterator[Found]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Table and contents of each intact row, once; the others are only recorded."""
        for each in found:
            if each.table == "index":
                self._named["completions"].add((rollout_key(*each.key),))
                continue
            self._named[each.table].add(each.key)
            if each.row is None:
                continue
            if each.table == "completions":
                self._named["requests"].add((each.row["request_hash"],))
                self._named["prompts"].add((each.row["prompt_hash"],))
            if each.key not in self._intact[each.table]:
                self._intact[each.table].add(each.key)
                yield each.table, each.row

    def lost(self) -> Counter[str]:
        """The number of names of each table without an intact row."""
        prompts_or_requests = self._intact["prompts"] | self._intact["requests"]
        lost = {
            table: self._named[table] - self._intact[table] - prompts_or_requests
            for table in TABLES
        }
        return +Counter({table: len(names) for table, names in lost.items()})
