"""Records of a JSON, JSONL, CSV, TSV or text file with the line of each, before any meaning is
given to them.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blackbox_lb.errors import DataError
from blackbox_lb.safety.printable import did_you_mean, shell_line, shorten
from blackbox_lb.safety.untrusted import (
    MARKS,
    read_bounded,
    strict_json,
    text_of_file,
    windows_text,
)

MAX_BYTES = 256 * 2**20
"""A file is held in memory whole; the largest public prompt sets are a tenth of this."""

JSON_LINES = (".jsonl", ".ndjson", ".json")
_DELIMITERS = {".csv": (",", ";", "\t", "|"), ".tsv": ("\t", ";", "|", ",")}
"""What may stand between the cells of a table, the likeliest first; spreadsheets write semicolons
into .csv where the comma is the decimal mark.
"""
SUFFIXES = (*JSON_LINES, *_DELIMITERS)
"""The files with columns that can be read, by suffix."""
TEXT_SUFFIX = ".txt"
"""The suffix of a file with one prompt a line."""
WINDOWS = "cp1252"
"""The encoding in which Excel saves tables where it is not asked for UTF-8."""
PACKED = {
    b"\x1f\x8b": "is compressed by gzip; unpack it with gunzip",
    b"BZh": "is compressed by bzip2; unpack it with bunzip2",
    b"\xfd7zXZ": "is compressed by xz; unpack it with unxz",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; unpack it with unzstd",
    b"PK\x03\x04": "is a zip archive or a workbook of Excel; unpack it with unzip, or save the"
    " sheet in Excel as CSV UTF-8",
    b"\xd0\xcf\x11\xe0": "is a workbook of Excel; save the sheet in Excel as CSV UTF-8",
    b"PAR1": "is a Parquet file; let its name end with .parquet",
}
"""What a file is, and the remedy, by its first bytes."""
NO_VALUES = ("nan", "<NA>", "NaT")
"""How the values print that pandas puts where there is none."""


@dataclass(frozen=True, slots=True)
class Record:
    """One row: column values without the absent ones (JSON null, empty CSV cell).

    ``columns`` are all columns, the absent ones too. ``textual`` is True where every value is text
    (CSV, TSV). ``line`` counts from 1; a CSV row over several lines has its first. ``unit``: what
    ``line`` counts, rows in a file whose lines are no rows. ``whole``: the row is all that the file
    holds. ``remarks``: how the row was read, where that is to be said; filled while it is read.
    """

    path: Path
    line: int
    columns: tuple[str, ...]
    values: dict[str, Any]
    textual: bool
    unit: str = "line"
    whole: bool = False
    remarks: list[str] = field(default_factory=list)

    @property
    def source(self) -> str:
        """The row's name in messages: "train.jsonl, line 3", or "train.json, row 3"."""
        return f"{self.path}, {self.unit} {self.line}"

    def get(self, column: str) -> Any:
        """The value of a column, or at a path such as question.stem; None where it is absent."""
        return value_at(self.values, column)

    def has(self, column: str) -> bool:
        """Whether the row has the column, or the place of a path, be it empty or not."""
        table, _, name = column.rpartition(".")
        inner = value_at(self.values, table) if table else None
        return column in self.columns or (isinstance(inner, dict) and name in inner)

    @property
    def names(self) -> list[str]:
        """The columns, and the paths to what stands in objects in them."""
        inner = [
            f"{column}.{name}"
            for column, value in self.values.items()
            if isinstance(value, dict)
            for name in value
        ]
        return [*self.columns, *inner]

    def error(self, problem: str) -> DataError:
        """A DataError about this row, to be raised."""
        return DataError(f"{self.source}: {problem}")

    def remark(self, text: str) -> None:
        """Note what the task's note says of this row, behind the number of such rows."""
        if text not in self.remarks:
            self.remarks.append(text)

    def parsed_json(self, column: str, otherwise: object = None) -> object:
        """The JSON in a text column; for other text, ``otherwise`` or, if that is None, a
        DataError.
        """
        try:
            return _loads(self.get(column))
        except (ValueError, RecursionError) as error:
            if otherwise is not None:
                return otherwise
            text = shorten(self.get(column))
            raise self.error(
                f"{column} is not JSON: {error}; found {text}; write it as JSON"
            ) from error


def value_at(value: Any, path: str) -> Any:
    """The value at a dotted path through objects (by key) and lists (by number from 0); a key that
    holds the dots itself goes first. None where there is none.
    """
    if isinstance(value, dict) and path in value:
        return value[path]
    head, _, rest = path.partition(".")
    inner = None
    if isinstance(value, dict):
        inner = value.get(head)
    elif isinstance(value, list) and head.isdecimal() and len(head) < len(str(MAX_BYTES)):
        index = int(head)
        inner = value[index] if index < len(value) else None
    if not rest or inner is None:
        return inner
    return value_at(inner, rest)


def read_records(path: Path, field: str | None = None) -> Iterator[Record]:
    """The rows of one file in order.

    Args:
        path: JSON lines, a JSON array of objects, a table with a header, or a text with one prompt
            a line.
        field: path to the array in a file that is one JSON object; None: the rows are the file.

    Raises:
        DataError: unreadable, packed, not UTF-8, over 256 MiB, of unknown suffix, no such field, or
            a broken row.
    """
    data = _bytes(path)
    for mark, problem in PACKED.items():
        if data.startswith(mark):
            raise DataError(f"{path} {problem}")
    suffix = path.suffix.lower()
    if suffix not in (*SUFFIXES, TEXT_SUFFIX):
        suffixes = ", ".join((*SUFFIXES, TEXT_SUFFIX, ".parquet"))
        raise DataError(
            f"{path} has the suffix {suffix!r}, which tells no format; name the file with one of"
            f" {suffixes}"
        )
    text, encoding = _text(path, data)
    if "\n" not in text:  # the line ends of old Macs, and of Excel there
        text = text.replace("\r", "\n")
    text = text.replace("\n\ufeff", "\n")  # of files that were joined
    if not text.strip():
        raise DataError(f"{path} is empty; give it one row a prompt")
    if suffix == TEXT_SUFFIX:
        return _with_remark(_text_lines(path, text), text, encoding)
    if suffix in _DELIMITERS:
        rows = _table(path, text, _delimiter(text, _DELIMITERS[suffix]))
        return _with_remark(rows, text, encoding)
    if field is not None or _is_document(text):
        return _json_document(path, text, field)
    return _json_lines(path, text)


def given_records(rows: Iterable[object]) -> Iterator[Record]:
    """The rows of a program: mappings of column -> value, where None and what pandas has in place
    of a value (NaN, NA, NaT) count as absent.

    Raises DataError: a row is no mapping.
    """
    for number, row in enumerate(rows, start=1):
        record = Record(Path("data"), number, (), {}, textual=False, unit="row")
        if not isinstance(row, Mapping):
            raise record.error(
                f"{shorten(row)} is a {type(row).__name__}; give a dict for each row, as in"
                ' {"prompt": "...", "answer": "..."}'
            )
        try:
            values = {str(name): _as_json(value) for name, value in row.items()}
        except UnicodeEncodeError as error:
            raise record.error(f"{_lone_surrogate(error)}; correct the text") from error
        present = {name: value for name, value in values.items() if not _is_absent(value)}
        yield replace(record, columns=tuple(values), values=present)


def _as_json(value: Any) -> Any:
    """A value as JSON has it: of numpy the number or the list, of a tuple the list.

    Raises UnicodeEncodeError: a text holds a lone surrogate.
    """
    if isinstance(value, str):
        value.encode()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _as_json(item) for name, item in value.items()}
    return value


def _is_absent(value: object) -> bool:
    if value is None:
        return True
    return not isinstance(value, str | list | dict) and str(value) in NO_VALUES


def _text(path: Path, data: bytes) -> tuple[str, str]:
    """The text of a file and its encoding: UTF-8, or of tables and texts Windows-1252, too."""
    if b"\0" in data and not any(data.startswith(mark) for mark, _ in MARKS):
        encoding = "UTF-16LE"
        if data.startswith(b"\0"):
            encoding = "UTF-16BE"
        raise DataError(
            f"{path} holds NUL bytes, as a text in UTF-16 without its mark does; make it UTF-8 with"
            f" iconv -f {encoding} -t UTF-8 {shell_line(path)} > NEW{path.suffix}"
        )
    try:
        return text_of_file(data), "utf-8-sig"
    except ValueError as error:
        remedy = f"{error} {shell_line(path)} > NEW{path.suffix}"
        text = None
        if path.suffix.lower() not in JSON_LINES:
            text = windows_text(data)
            remedy += ", or save it in Excel as CSV UTF-8"
        if text is None:
            raise DataError(f"{path}: {remedy}") from error
        return text, WINDOWS


def _with_remark(rows: Iterator[Record], text: str, encoding: str) -> Iterator[Record]:
    """The rows; with a remark where letters of Windows-1252 are in them."""
    if encoding != WINDOWS:
        yield from rows
        return
    words = re.findall(r"\w*[^\x00-\x7f]\w*", text)
    remark = (
        "with letters read as Windows-1252, since the file is not UTF-8"
        f" ({shorten(max(words, key=len))})"
    )
    for row in rows:
        if not all(map(str.isascii, (*row.columns, *row.values.values()))):
            row.remark(remark)
        yield row


def _bytes(path: Path) -> bytes:
    try:
        with file_errors(path):
            return read_bounded(path, MAX_BYTES)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(
            f"{path} cannot be read: {error} (256 MiB); take a sample of its rows"
        ) from error


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Raise DataError, with the remedy, where the block cannot open ``path``."""
    try:
        yield
    except IsADirectoryError as error:
        raise DataError(f"{path} is a directory; name one file in it") from error
    except FileNotFoundError as error:
        names: list[str] = []
        with suppress(OSError):
            names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
        raise DataError(
            f"there is no file {path}{did_you_mean(path.name, names)}; check the path (the working"
            f" directory is {Path.cwd()})"
        ) from error
    except OSError as error:
        problem = error.strerror
        if isinstance(error, PermissionError):
            problem = f"{problem}; check its permissions"
        raise DataError(f"{path} cannot be read: {problem}") from error


def _text_lines(path: Path, text: str) -> Iterator[Record]:
    """One row a line that is not blank, with the column ``prompt``."""
    first = text.strip().partition("\n")[0]
    if first.startswith(("{", "[")) and _is_json(first):
        raise DataError(
            f"{path} holds JSON, and each line of a {TEXT_SUFFIX} file is a prompt; name the file"
            " .jsonl"
        )
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            prompt = {"prompt": line.strip()}
            yield Record(path, number, tuple(prompt), prompt, textual=True)


def _json_lines(path: Path, text: str) -> Iterator[Record]:
    # Not splitlines(): it also breaks at U+2028, which JSON strings may hold.
    lines = text.split("\n")
    is_only_line = sum(1 for line in lines if line.strip()) == 1
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _json_record(path, number, line.strip(), is_only_line)


def _json_record(path: Path, number: int, line: str, is_document: bool) -> Record:
    record = Record(path, number, (), {}, textual=False, whole=is_document)
    try:
        value = _loads(line)
    except (ValueError, RecursionError) as error:
        raise record.error(
            f"not JSON: {error}; found {shorten(line)}; write one JSON object a line"
        ) from error
    return _of_object(record, value)


def _of_object(record: Record, value: object) -> Record:
    """``record`` with the columns of a JSON object. Raises DataError: the value is none."""
    if not isinstance(value, dict):
        unit = "row"
        if record.unit == "line":
            unit = "line"
        raise record.error(f"{shorten(value)} is not an object; write one JSON object a {unit}")
    present = {key: item for key, item in value.items() if item is not None}
    return replace(record, columns=tuple(value), values=present)


def _is_document(text: str) -> bool:
    """Whether the text is one JSON array or object over several lines, not one object a line."""
    first, newline, _ = text.strip().partition("\n")
    if not newline:
        return first.startswith("[")
    if _is_json(first):
        return False
    return first.startswith("[") or first.strip() == "{" or _is_json(text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _json_document(path: Path, text: str, field: str | None) -> Iterator[Record]:
    """The rows of a file that is one JSON value: its array, the array under ``field``, or itself
    as the only row.
    """
    try:
        value = _loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise DataError(
            f"{path}, line {line}: not JSON: {error}; correct it, or write one JSON object a line"
        ) from error
    if field is not None:
        rows = _rows_under(path, value, field)
    elif isinstance(value, list):
        rows = value
    else:
        yield _of_object(Record(path, 1, (), {}, textual=False, whole=True), value)
        return
    for number, row in enumerate(rows, start=1):
        record = Record(path, number, (), {}, textual=False, unit="row")
        yield _of_object(record, row)


def _rows_under(path: Path, value: object, field: str) -> list[Any]:
    rows = value_at(value, field)
    if isinstance(rows, list):
        return rows
    names = arrays_in(value)
    listed = "it holds no array of objects"
    if names:
        listed = f"its arrays are {', '.join(names)}"
    problem = "no array"
    if rows is not None:
        problem = f"{shorten(rows)}, which is no array,"
    raise DataError(
        f"{path} has {problem} under the field {shorten(field)}{did_you_mean(field, names)};"
        f" {listed}; correct ``field``"
    )


def arrays_in(value: object) -> list[str]:
    """The paths to arrays of objects in a JSON object, one level deep or two."""
    paths = []
    if not isinstance(value, dict):
        return []
    for key, inner in value.items():
        if _is_array_of_objects(inner):
            paths.append(key)
        elif isinstance(inner, dict):
            paths += [f"{key}.{name}" for name in inner if _is_array_of_objects(inner[name])]
    return paths


def _is_array_of_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _loads(text: str) -> object:
    value = strict_json(text)
    if r"\ud" in text.lower():
        _refuse_lone_surrogates(value)
    return value


def _refuse_lone_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(_lone_surrogate(error)) from error


def _lone_surrogate(error: UnicodeEncodeError) -> str:
    return f"a lone surrogate {error.object[error.start]!a} is no character"


def _delimiter(text: str, candidates: Sequence[str]) -> str:
    """The first candidate that divides the header and the row below into as many cells; else the
    first that divides the header, else the first of all.
    """
    dividing = []
    for candidate in candidates:
        reader = csv.reader(io.StringIO(text.lstrip(), newline=""), delimiter=candidate)
        try:
            header = next(reader, [])
            row = next(reader, [])
        except csv.Error:
            continue
        if len(header) == len(row) > 1:
            return candidate
        if len(header) > 1:
            dividing.append(candidate)
    return next(iter(dividing), candidates[0])


def _table(path: Path, text: str, delimiter: str) -> Iterator[Record]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = _csv_rows(path, reader)
    start, header = next(rows, (1, []))
    if not header:
        raise DataError(f"{path} has no header; its first row must name the columns")
    names = [name.strip() for name in header]
    columns = tuple(filter(None, names))  # empty ones beside a table, and the index of pandas
    repeated = sorted(name for name, count in Counter(columns).items() if count > 1)
    if repeated:
        raise DataError(
            f"{path}, line {start}: the header names {shorten(', '.join(repeated))} twice; rename"
            " one column"
        )
    for line, cells in rows:
        trimmed = [cell.strip() for cell in cells]
        present = {name: cell for name, cell in zip(names, trimmed, strict=False) if name and cell}
        record = Record(path, line, columns, present, textual=True)
        if len(cells) != len(names):
            raise record.error(
                f"{len(cells)} cells, but the header has {len(names)} ({', '.join(columns)}); quote"
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
