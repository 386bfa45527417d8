"""Rows straight from the pages of a store's file: all intact ones, without SQLite, which stops at
the first damage.

The format is https://www.sqlite.org/fileformat2.html. A row is taken only if its key, its hash or
its checksum fits its contents, so it does not matter in which page, tree or log it stands, or
whether anything still points there.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from blackbox_lb.errors import StoreCorrupt, StoreError
from blackbox_lb.store.integrity import check_row
from blackbox_lb.store.schema import KEY_COLUMNS, named

PAGE_SIZE = 4096
"""Page sizes to try: SQLite's own default, and another one where the header names it."""
TABLE_LEAF = 0x0D
INDEX_LEAF = 0x0A
INDEX_INTERIOR = 0x02
HEX = 64
"""Characters of a key."""
NUMBERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""Serial type -> bytes of a whole number."""


class Found(NamedTuple):
    """One row: ``row`` is None where only its name is known. ``damaged``: it was read, and its
    contents do not fit.
    """

    table: str
    key: tuple[Any, ...]
    row: dict[str, Any] | None
    damaged: bool = False


class _Pages:
    """Pages by number: of the file, those of the write-ahead log before them where ``log`` holds
    their places.
    """

    def __init__(
        self, file: BinaryIO, size: int, log: BinaryIO | None, places: dict[int, int]
    ) -> None:
        self.size = size
        self._file = file
        self._log = log
        self._places = places
        self.length = file.seek(0, 2) + (log.seek(0, 2) if log else 0)
        self.numbers = sorted({*range(1, -(-file.seek(0, 2) // size) + 1), *places})

    def __getitem__(self, number: int) -> bytes:
        """The page, filled up with zeros where the file ends within it."""
        source = self._file
        place = (number - 1) * self.size
        if self._log is not None and number in self._places:
            source = self._log
            place = self._places[number]
        source.seek(place)
        return source.read(self.size).ljust(self.size, b"\0")


def found_in(path: Path) -> Iterator[Found]:
    """All rows in the store's file at ``path`` and the log beside it, many of them more than once.
    Only reads.

    StoreError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
            told = int.from_bytes(header[16:18], "big")
            told = 65536 if told == 1 else told
            log_path = path.with_name(path.name + "-wal")
            log = log_path.open("rb") if log_path.is_file() else None
            try:
                for size in {
                    PAGE_SIZE,
                    told if told in [1 << n for n in range(9, 17)] else PAGE_SIZE,
                }:
                    places = _places(log, size) if log else {}
                    for pages in (
                        _Pages(file, size, log, places),
                        *([_Pages(file, size, None, {})] if places else []),
                    ):
                        for number in pages.numbers:
                            yield from _rows_of(pages, number)
            finally:
                if log:
                    log.close()
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error}; copy it to another disk with a tool that goes on after"
            " errors, such as ddrescue"
        ) from error


def _places(log: BinaryIO, size: int) -> dict[int, int]:
    """Page number -> place of its newest content in the log; frames of earlier rounds of the log,
    by their salt, do not count.
    """
    end = log.seek(0, 2)
    places = dict[int, int]()
    log.seek(16)
    salt = log.read(8)
    for place in range(32, end - 24, 24 + size):
        log.seek(place)
        head = log.read(24)
        if head[8:16] == salt and (number := int.from_bytes(head[:4], "big")):
            places[number] = place + 24
    return places


def _rows_of(pages: _Pages, number: int) -> Iterator[Found]:
    page = pages[number]
    start = 100 if number == 1 else 0
    kind = page[start]
    if kind not in (TABLE_LEAF, INDEX_LEAF, INDEX_INTERIOR):
        return
    head = start + (12 if kind == INDEX_INTERIOR else 8)
    cells = int.from_bytes(page[start + 3 : start + 5], "big")
    for (at,) in struct.iter_unpack(">H", page[head : min(head + 2 * cells, len(page))]):
        with suppress(ValueError, IndexError):
            found = _recognised(kind, _values(_payload(pages, page, kind, at)))
            if found is not None:
                yield found


def _payload(pages: _Pages, page: bytes, kind: int, at: int) -> bytes:
    """The bytes of a cell's record, its overflow pages followed."""
    size, at = _varint(page, at + (4 if kind == INDEX_INTERIOR else 0))
    if kind == TABLE_LEAF:
        _, at = _varint(page, at)
    if size > pages.length:
        raise ValueError("longer than the file")
    usable = len(page)
    most = usable - 35 if kind == TABLE_LEAF else (usable - 12) * 64 // 255 - 23
    if size <= most:
        return page[at : at + size]
    least = (usable - 12) * 32 // 255 - 23
    local = least + (size - least) % (usable - 4)
    local = local if local <= most else least
    parts = [page[at : at + local]]
    following = int.from_bytes(page[at + local : at + local + 4], "big")
    left = size - local
    while left > 0 and following:
        more = pages[following]
        parts.append(more[4 : 4 + left])
        following = int.from_bytes(more[:4], "big")
        left = left - (usable - 4)
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
    """The values of a record. ValueError, IndexError: it is none."""
    end, at = _varint(record, 0)
    kinds = list[int]()
    while at < end:
        kind, at = _varint(record, at)
        kinds.append(kind)
    values = list[Any]()
    at = end
    for kind in kinds:
        length = NUMBERS.get(kind, 8 if kind == 7 else (kind - 12) // 2 if kind >= 12 else 0)
        raw = record[at : at + length]
        at = at + length
        if len(raw) != length:
            raise ValueError("shorter than its header says")
        values.append(_value(kind, raw))
    return values


def _value(kind: int, raw: bytes) -> Any:
    if kind >= 12:
        return raw.decode() if kind % 2 else raw
    if kind == 7:
        return struct.unpack(">d", raw)[0]
    if kind in NUMBERS:
        return int.from_bytes(raw, "big", signed=True)
    return {0: None, 8: 0, 9: 1}[kind] if kind in (0, 8, 9) else raw


def _recognised(kind: int, values: Sequence[Any]) -> Found | None:
    """The kind of row in these values, by their number and types; entries of an index name a
    row.
    """
    kinds = "".join(
        {str: "s", int: "i", float: "f", bytes: "b"}.get(type(value), "0") for value in values
    )
    if kind == TABLE_LEAF:
        if len(values) == 17 and kinds.startswith("sssi"):
            return _checked("completions", values)
        return _checked("next_tokens", values) if kinds[:2] == "sb" and len(values) == 4 else None
    if kinds == "ss":
        prompt, request = (_checked(table, values) for table in ("prompts", "requests"))
        return request if prompt is None or prompt.damaged else prompt
    if kinds == "ssii" and len(values[0]) == len(values[1]) == HEX:
        return Found("index", tuple(values[:3]), None)
    if kinds.startswith("sib"):
        return _checked("token_bytes", values)
    return _checked("rewards", values) if kinds[:3] in ("ssf", "ssi") and len(values) == 4 else None


def _checked(table: str, values: Sequence[Any]) -> Found | None:
    """The row, if it is intact; only its name, if it is damaged; nothing, if it is none of this
    table.
    """
    row = named(table, values)
    if "received" in row and isinstance(row["received"], int):
        row["received"] = float(row["received"])  # SQLite keeps whole ones as integers
    key = tuple(values[: KEY_COLUMNS[table]])
    try:
        check_row(table, row)
    except StoreCorrupt:
        return Found(table, key, None, damaged=True)
    return Found(table, key, row)
