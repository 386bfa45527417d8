"""Upkeep of stores: check one, merge several, recover a damaged one.

SQLite stops at the first damage of a file, so ``recover`` reads the pages itself
(https://www.sqlite.org/fileformat2.html). It takes a row only if its key, its hash or its checksum
fits its contents. So it does not matter in which page, tree or log the row stands, or whether
anything still points there.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

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
from blackbox_lb.store.rows import check_row, is_contradictory, name_of, rollout_key, unpack
from blackbox_lb.types import Completion

T = TypeVar("T")
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
    """

    added: Counter[str] = field(default_factory=Counter)
    same: Counter[str] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)


def merge(sources: Sequence[Path], target: Path) -> Merged:
    """Copy all rows of the stores ``sources`` into the store ``target``, each response once.

    The target may exist already. Sources are only read. The same call again adds nothing.

    Raises:
        InputError: the target is one of the sources.
        StoreError: a source cannot be read, or the target cannot be written.
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
                        add_new(into, table, _intact(table, rows, merged), merged)
    return merged


def _intact(table: str, rows: Iterable[dict[str, Any]], merged: Merged) -> Iterator[dict[str, Any]]:
    for row in rows:
        try:
            check_row(table, row)
        except StoreCorrupt:
            merged.damaged[table] += 1
        else:
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


def batches(rows: Iterable[T]) -> Iterator[list[T]]:
    """The rows, at most ``BATCH`` at a time."""
    source = iter(rows)
    while batch := list(islice(source, BATCH)):
        yield batch


# --- Recover


@dataclass(frozen=True, slots=True)
class Recovered:
    """Rows of a recovery, by table.

    rows: copied.
    lost: named by other rows or an index, without an intact copy; there may be more.
    """

    rows: Counter[str]
    lost: Counter[str]


def recover(old: Path, new: Path) -> Recovered:
    """Copy every intact row in the file of the store ``old`` and its log into a new store ``new``.

    ``old`` is only read, page by page and without SQLite. Completions whose prompt or settings are
    lost are copied, because the same collection looks for them by their keys. Rows deleted by hand
    may come back.

    Raises:
        StoreError: ``old`` cannot be read or has no row of a store; ``new`` exists already or
            cannot be written.
    """
    if new.exists():
        raise StoreError(f"{new} is there already; give the path of a new file, or delete it")
    if not old.is_file():
        raise StoreError(f"there is no file {old}; give the damaged rollout store")
    names = _Names()
    with RolloutStore(new) as into:
        rows = Counter[str]()
        for batch in batches(names.intact(recognised_rows(old))):
            tables: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
            for table, row in batch:
                tables[table].append(row)
            rows.update(into.add_rows(tables))
    if not rows.total():
        for suffix in ("", "-wal", "-shm"):
            new.with_name(new.name + suffix).unlink(missing_ok=True)
        raise StoreError(f"{old} holds nothing that a rollout store holds; {new} was not made")
    return Recovered(+rows, names.lost())


class RecognisedRow(NamedTuple):
    """A row of a damaged file.

    table: "index" for an entry of an index, which names a completion.
    key: the values of the primary key.
    row: None where only the name is known.
    damaged: the row was read, and its contents do not fit its key or checksum.
    """

    table: str
    key: tuple[Any, ...]
    row: dict[str, Any] | None
    damaged: bool = False


class _Names:
    """The names of rows so far: intact, damaged, or only named by another row."""

    def __init__(self) -> None:
        self._intact: dict[str, set[tuple[Any, ...]]] = {table: set() for table in TABLES}
        self._named: dict[str, set[tuple[Any, ...]]] = {table: set() for table in TABLES}

    def intact(self, rows: Iterator[RecognisedRow]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Table and contents of each intact row, once; other rows are only recorded."""
        for table, key, row, _ in rows:
            if table == "index":
                self._named["completions"].add((rollout_key(*key),))
                continue
            self._named[table].add(key)
            if row is None:
                continue
            if table == "completions":
                self._named["requests"].add((row["request_hash"],))
                self._named["prompts"].add((row["prompt_hash"],))
            if key not in self._intact[table]:
                self._intact[table].add(key)
                yield table, row

    def lost(self) -> Counter[str]:
        """The number of names of each table without an intact row."""
        # A damaged row of prompts or requests may have been recorded as one of the other table.
        prompts_or_requests = self._intact["prompts"] | self._intact["requests"]
        lost = {
            table: self._named[table] - self._intact[table] - prompts_or_requests
            for table in TABLES
        }
        return +Counter({table: len(names) for table, names in lost.items()})


# --- Pages of a file, without SQLite

PAGE_SIZE = 4096
"""Page sizes to try: SQLite's own default, and another one where the header names it."""
TABLE_LEAF = 0x0D
INDEX_LEAF = 0x0A
INDEX_INTERIOR = 0x02
HEX = 64
"""Characters of a key."""
NUMBERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""Serial type of a whole number -> its bytes."""


class _Pages:
    """Pages by number.

    Args:
        file: the store's file.
        size: bytes of a page.
        log: the write-ahead log, or None.
        places: the place in the log of each page that it holds; it is preferred to the file.
    """

    def __init__(
        self, file: BinaryIO, size: int, log: BinaryIO | None, places: dict[int, int]
    ) -> None:
        self.size = size
        self._file = file
        self._log = log
        self._places = places
        file_size = file.seek(0, 2)
        self.length = file_size
        if log is not None:
            self.length += log.seek(0, 2)
        pages_in_file = -(-file_size // size)
        self.numbers = sorted({*range(1, pages_in_file + 1), *places})

    def __getitem__(self, number: int) -> bytes:
        """The page, filled up with zeros where the file ends within it."""
        source = self._file
        place = (number - 1) * self.size
        if self._log is not None and number in self._places:
            source = self._log
            place = self._places[number]
        source.seek(place)
        return source.read(self.size).ljust(self.size, b"\0")


def recognised_rows(path: Path) -> Iterator[RecognisedRow]:
    """All rows in a store's file and the log beside it, many of them more than once. Only reads.

    Raises:
        StoreError: the file cannot be read.
    """
    try:
        with ExitStack() as stack:
            file = stack.enter_context(path.open("rb"))
            log = None
            log_path = path.with_name(path.name + "-wal")
            if log_path.is_file():
                log = stack.enter_context(log_path.open("rb"))
            for size in _page_sizes(file):
                places: dict[int, int] = {}
                if log is not None:
                    places = _places(log, size)
                variants = [_Pages(file, size, log, places)]
                if places:  # the older contents of the same pages, too
                    variants.append(_Pages(file, size, None, {}))
                for pages in variants:
                    for number in pages.numbers:
                        yield from _rows_of(pages, number)
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error}; copy it to another disk with a tool that goes on after"
            " errors, such as ddrescue"
        ) from error


def _page_sizes(file: BinaryIO) -> set[int]:
    """SQLite's default size of a page, and the one that the header names if it is a valid one."""
    sizes = {PAGE_SIZE}
    size = int.from_bytes(file.read(18)[16:18], "big")
    if size == 1:
        size = 65536
    if size in [2**exponent for exponent in range(9, 17)]:
        sizes.add(size)
    return sizes


def _places(log: BinaryIO, size: int) -> dict[int, int]:
    """Page number -> place of its newest content in the log.

    Frames of earlier rounds of the log, which have another salt, do not count.
    """
    end = log.seek(0, 2)
    places = dict[int, int]()
    log.seek(16)
    salt = log.read(8)
    for place in range(32, end - 24, 24 + size):
        log.seek(place)
        head = log.read(24)
        number = int.from_bytes(head[:4], "big")
        if head[8:16] == salt and number:
            places[number] = place + 24
    return places


def _rows_of(pages: _Pages, number: int) -> Iterator[RecognisedRow]:
    page = pages[number]
    start = 0
    if number == 1:
        start = 100  # behind the header of the file
    kind = page[start]
    if kind not in (TABLE_LEAF, INDEX_LEAF, INDEX_INTERIOR):
        return
    head = start + 8
    if kind == INDEX_INTERIOR:
        head = start + 12
    cells = int.from_bytes(page[start + 3 : start + 5], "big")
    for (at,) in struct.iter_unpack(">H", page[head : min(head + 2 * cells, len(page))]):
        with suppress(ValueError, IndexError):
            row = _recognised(kind, _values(_payload(pages, page, kind, at)))
            if row is not None:
                yield row


def _payload(pages: _Pages, page: bytes, kind: int, at: int) -> bytes:
    """The bytes of a cell's record, its overflow pages included."""
    if kind == INDEX_INTERIOR:
        at += 4
    size, at = _varint(page, at)
    if kind == TABLE_LEAF:
        _, at = _varint(page, at)
    if size > pages.length:
        raise ValueError("longer than the file")
    usable = len(page)
    most = (usable - 12) * 64 // 255 - 23
    if kind == TABLE_LEAF:
        most = usable - 35
    if size <= most:
        return page[at : at + size]
    least = (usable - 12) * 32 // 255 - 23
    local = least + (size - least) % (usable - 4)
    if local > most:
        local = least
    parts = [page[at : at + local]]
    following = int.from_bytes(page[at + local : at + local + 4], "big")
    remaining = size - local
    while remaining > 0 and following:
        overflow = pages[following]
        parts.append(overflow[4 : 4 + remaining])
        following = int.from_bytes(overflow[:4], "big")
        remaining -= usable - 4
    return b"".join(parts)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 1 to 9 bytes, and its end."""
    value = 0
    for place in range(at, at + 8):
        value = value << 7 | data[place] & 0x7F
        if data[place] < 0x80:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9


def _values(record: bytes) -> list[Any]:
    """The values of a record. Raises ValueError or IndexError where it is none."""
    end, at = _varint(record, 0)
    kinds = list[int]()
    while at < end:
        kind, at = _varint(record, at)
        kinds.append(kind)
    values = list[Any]()
    at = end
    for kind in kinds:
        length = _length(kind)
        raw = record[at : at + length]
        at += length
        if len(raw) != length:
            raise ValueError("shorter than its header says")
        values.append(_value(kind, raw))
    return values


def _length(kind: int) -> int:
    """The bytes of a value of a serial type."""
    if kind in NUMBERS:
        return NUMBERS[kind]
    if kind == 7:
        return 8
    if kind >= 12:
        return (kind - 12) // 2
    return 0


def _value(kind: int, raw: bytes) -> Any:
    if kind in NUMBERS:
        return int.from_bytes(raw, "big", signed=True)
    if kind == 7:
        return struct.unpack(">d", raw)[0]
    if kind >= 12 and kind % 2:
        return raw.decode()
    constants = {0: None, 8: 0, 9: 1}
    return constants.get(kind, raw)


def _recognised(kind: int, values: Sequence[Any]) -> RecognisedRow | None:
    """The row of which these are the values, by their number and types; else None."""
    letters = {str: "s", int: "i", float: "f", bytes: "b"}
    types = "".join(letters.get(type(value), "0") for value in values)
    if kind == TABLE_LEAF:
        if len(values) == 17 and types.startswith("sssi"):
            return _checked("completions", values)
        if len(values) == 4 and types.startswith("sb"):
            return _checked("next_tokens", values)
        return None
    if types == "ss":
        prompt = _checked("prompts", values)
        if prompt.damaged:
            return _checked("requests", values)
        return prompt
    if types == "ssii" and len(values[0]) == len(values[1]) == HEX:
        return RecognisedRow("index", tuple(values[:3]), None)
    if types.startswith("sib"):
        return _checked("token_bytes", values)
    if len(values) == 4 and types.startswith(("ssf", "ssi")):
        return _checked("rewards", values)
    return None


def _checked(table: str, values: Sequence[Any]) -> RecognisedRow:
    """The row if it is intact, else only its name."""
    row = named(table, values)
    if isinstance(row.get("received"), int):
        row["received"] = float(row["received"])  # SQLite stores whole ones as integers
    key = tuple(values[: KEY_COLUMNS[table]])
    try:
        check_row(table, row)
    except StoreCorrupt:
        return RecognisedRow(table, key, None, damaged=True)
    return RecognisedRow(table, key, row)
