"""Records of a JSONL, CSV or TSV file with the line of each, before any meaning is given to
them.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blackbox_lb.errors import DataError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.safety.untrusted import no_constant, parse_json, read_bounded

MAX_BYTES = 256 * 2**20
"""A file is held in memory whole; the largest public prompt sets are a tenth of this."""

_JSON_LINES = (".jsonl", ".ndjson", ".json")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (*_JSON_LINES, *_DELIMITERS)
"""The files that can be read, by suffix."""


@dataclass(frozen=True, slots=True)
class Record:
    """One row: column values without the absent ones (JSON null, empty CSV cell).

    ``columns`` are all columns, the absent ones too. ``textual`` is True where every value is text
    (CSV, TSV). ``line`` counts from 1; a CSV row over several lines has its first. ``unit``: what
    ``line`` counts, rows in a file without lines.
    """

    path: Path
    line: int
    columns: tuple[str, ...]
    values: dict[str, Any]
    textual: bool
    unit: str = "line"

    @property
    def source(self) -> str:
        """The row's name in messages: "train.jsonl, line 3"."""
        return f"{self.path}, {self.unit} {self.line}"

    def error(self, problem: str) -> DataError:
        """A DataError about this row, to be raised."""
        return DataError(f"{self.source}: {problem}")

    def parsed_json(self, column: str, otherwise: object = None) -> object:
        """The JSON in a text column; for other text, ``otherwise`` or, if that is None, a
        DataError.
        """
        try:
            return _loads(self.values[column])
        except (ValueError, RecursionError) as error:
            if otherwise is not None:
                return otherwise
            found = shorten(self.values[column])
            raise self.error(
                f"{column} is not JSON: {error}; found {found}; write it as JSON"
            ) from error


def read_records(path: Path) -> Iterator[Record]:
    """The rows of one file in order. DataError: unreadable, not UTF-8, over 256 MiB, of unknown
    suffix, or a broken row.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise DataError(
            f"{path} has the suffix {suffix!r}, which tells no format; name the file with one of"
            f" {known}"
        )
    text = _text(path)
    if not text.strip():
        raise DataError(f"{path} is empty; give it one row a prompt")
    return (
        _json_lines(path, text)
        if suffix in _JSON_LINES
        else _table(path, text, _DELIMITERS[suffix])
    )


def _text(path: Path) -> str:
    data = _bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as"
            " UTF-8 (iconv -t UTF-8)"
        ) from error


def _bytes(path: Path) -> bytes:
    if path.is_dir():
        raise DataError(f"{path} is a directory; name one file in it")
    try:
        return read_bounded(path, MAX_BYTES)
    except ValueError as error:
        raise DataError(
            f"{path} cannot be read: {error} (256 MiB); take a sample of its rows"
        ) from error
    except FileNotFoundError as error:
        raise DataError(
            f"there is no file {path}; check the path (the working directory is {Path.cwd()})"
        ) from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; check its permissions"
        ) from error


def _json_lines(path: Path, text: str) -> Iterator[Record]:
    # Not splitlines(): it also breaks at U+2028, which JSON strings may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _json_record(path, number, line.strip())


def _json_record(path: Path, number: int, line: str) -> Record:
    record = Record(path, number, (), {}, textual=False)
    try:
        value = _loads(line)
    except (ValueError, RecursionError) as error:
        raise record.error(
            f"not JSON: {error}; found {shorten(line)}; write one JSON object a line"
        ) from error
    if not isinstance(value, dict):
        hint = (
            "; a list becomes one object a line with: jq -c '.[]' FILE"
            if isinstance(value, list)
            else ""
        )
        raise record.error(f"{shorten(value)} is not an object; write one JSON object a line{hint}")
    present = {key: item for key, item in value.items() if item is not None}
    return Record(path, number, tuple(value), present, textual=False)


def _loads(text: str) -> object:
    if r"\ud" in text.lower():
        _refuse_lone_surrogates(json.loads(text))
    return parse_json(text, constant=no_constant)


def _refuse_lone_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a lone surrogate {error.object[error.start]!a} is no character"
        ) from error


def _table(path: Path, text: str, delimiter: str) -> Iterator[Record]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = _csv_rows(path, reader)
    start, header = next(rows, (1, []))
    if not header:
        raise DataError(f"{path} has no header; its first row must name the columns")
    names = [name.strip() for name in header]
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise DataError(
            f"{path}, line {start}: the header names {shorten(', '.join(repeated))} twice; rename"
            " one column"
        )
    for line, cells in rows:
        present = {name: cell for name, cell in zip(names, cells, strict=False) if cell}
        record = Record(path, line, tuple(names), present, textual=True)
        if len(cells) != len(names):
            raise record.error(
                f"{len(cells)} cells, but the header has {len(names)} ({', '.join(names)}); quote"
                " cells that hold a delimiter"
            )
        yield record


def _csv_rows(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Non-blank rows with the line each starts on."""
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}, line {line}: {error}; check the quotes, or use JSONL for cells over"
                " 128 KiB"
            ) from error
        if any(cell.strip() for cell in cells):
            yield line, cells
