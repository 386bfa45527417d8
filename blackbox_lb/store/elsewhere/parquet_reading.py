"""Rollouts in Parquet files, read in place, a row group at a time: exports of stores, on this disk or in object storage."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.store.elsewhere.parquet_exchange import PLAIN, arrow, opened_parquet, schemas
from blackbox_lb.types import Completion

if TYPE_CHECKING:
    import pyarrow as pa

GROUPS = 4
"""Row groups that are kept in memory; an export's have at most 8 MB of numbers."""
INDEX = ("key", "request_hash", "prompt_tokens", "generated")


class _Place(NamedTuple):
    file: int
    group: int
    row: int


class ParquetSource:
    """The files of one export, or of several: ``paths`` on ``filesystem``, which is fsspec's. Only reads.

    Keys and counts are read at once, everything else on demand.

    Raises InputError: pyarrow is not installed, or a file cannot be read or lacks the columns of an export.
    """

    def __init__(self, name: str, filesystem: Any, paths: Sequence[str]) -> None:
        self.name = name
        self._filesystem, self._paths = filesystem, [*paths]
        self._files: list[tuple[str, Any]] = []
        self._others: dict[str, list[tuple[str, Any]]] = {}
        self._places: dict[str, _Place] = {}
        self._spent: dict[str, tuple[int, int]] = {}
        self._requests: dict[str, set[str]] = {}
        self._groups: OrderedDict[tuple[int, int], _Group] = OrderedDict()
        for path in self._paths:
            self._open(path)

    def close(self) -> None:
        for _, file in [*self._files, *(each for files in self._others.values() for each in files)]:
            file.close(force=True)
        self._groups.clear()

    def keys(self, request: str) -> set[str]:
        """Keys of all completions of one request hash."""
        return self._requests.get(request, set())

    def order(self, keys: Collection[str]) -> dict[str, _Place]:
        """The places of those of ``keys`` that are here; in their sorted order each row group is read once."""
        return {key: place for key in keys if (place := self._places.get(key)) is not None}

    def completions(self, keys: Iterable[str]) -> Iterator[Completion]:
        """The completions with these keys, in this order. Raises KeyError: one is not here."""
        for key in keys:
            place = self._places[key]
            yield self._group(place.file, place.group).completion(place.row)

    def spent(self, keys: Iterable[str]) -> tuple[int, int, int]:
        """The number of completions with these keys, and their tokens: of their prompts, one for each, and generated."""
        rows = [self._spent[key] for key in keys if key in self._spent]
        return len(rows), sum(prompt for prompt, _ in rows), sum(generated for _, generated in rows)

    def rewards(self, keys: Iterable[str]) -> dict[str, str]:
        """The stored answers for remote rewards, for those of ``keys`` that are here."""
        wanted = set(keys)
        found = self._table("rewards", ("key", "answer"))
        return {key: answer for key, answer in found if key in wanted}

    def token_bytes(self, tokenizer: str) -> dict[int, bytes]:
        """The bytes of every token of this tokenizer in any answer."""
        found = self._table("token_bytes", ("tokenizer", "id", "bytes"))
        return {token: raw for name, token, raw in found if name == tokenizer}

    def _open(self, path: str) -> None:
        table, file = opened_parquet(path, self._filesystem)
        if table != "completions":
            self._others.setdefault(table, []).append((path, file))
            return
        self._files.append((path, file))
        for group in range(file.num_row_groups):
            rows = self._read(path, file, group, INDEX).to_pydict()
            here = enumerate(zip(*(rows[name] for name in INDEX), strict=True))
            for row, (key, request, prompt_tokens, generated) in here:
                self._places.setdefault(key, _Place(len(self._files) - 1, group, row))
                self._requests.setdefault(request, set()).add(key)
                self._spent.setdefault(key, (prompt_tokens, generated or 0))

    def _read(self, path: str, file: Any, group: int, names: Sequence[str]) -> pa.Table:
        pa = arrow()
        kinds = {each.name: each for schema in schemas().values() for each in schema}
        try:
            return file.read_row_group(group, columns=list(names)).select(names).cast(pa.schema([kinds[n] for n in names]))
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"cannot read {path}, row group {group}: {error}; export it again") from error

    def _group(self, number: int, group: int) -> _Group:
        found = self._groups.pop((number, group), None)
        if found is None:
            path, file = self._files[number]
            found = _Group.of(
                f"{path}, row group {group}", self._read(path, file, group, (*PLAIN, "alternatives", *KINDS, *NESTED))
            )
        self._groups[number, group] = found
        while len(self._groups) > GROUPS:
            self._groups.popitem(last=False)
        return found

    def _table(self, table: str, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        for path, file in self._others.get(table, ()):
            for group in range(file.num_row_groups):
                rows = self._read(path, file, group, names).to_pydict()
                yield from zip(*(rows[name] for name in names), strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Lists:
    """A column of lists: row r holds ``values[starts[r]:starts[r + 1]]``, and nothing where it is ``missing``."""

    starts: npt.NDArray[np.int64]
    values: npt.NDArray[Any]
    missing: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, column: pa.ListArray, kind: type[np.generic]) -> _Lists:
        """Raises ValueError: a value is null."""
        # Not .flatten(), which leaves out the values behind missing rows, and so moves the starts.
        starts, values = np.asarray(column.offsets, dtype=np.int64), column.values
        if values.null_count:
            raise ValueError("a list holds nulls")
        return cls(starts, values.to_numpy(zero_copy_only=False).astype(kind, copy=False), np.asarray(column.is_null()))

    def __getitem__(self, row: int) -> npt.NDArray[Any] | None:
        return None if self.missing[row] else self.values[self.starts[row] : self.starts[row + 1]].copy()


KINDS: dict[str, type[np.generic]] = {
    "token_ids": np.int32,
    "logprobs": np.float32,
    "propensities": np.float32,
    "bounded": np.bool_,
}
NESTED: dict[str, type[np.generic]] = {"top_ids": np.int32, "top_logprobs": np.float32}


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    name: str
    plain: Mapping[str, Sequence[Any]]
    lists: Mapping[str, _Lists]
    nested: Mapping[str, tuple[_Lists, npt.NDArray[np.int64]]]

    @classmethod
    def of(cls, name: str, table: pa.Table) -> _Group:
        """Raises InputError: the row group is not from an export."""
        columns = {each: table[each].combine_chunks() for each in table.column_names}
        try:
            return cls(
                name,
                {each: columns[each].to_pylist() for each in (*PLAIN, "alternatives")},
                {each: _Lists.of(columns[each], kind) for each, kind in KINDS.items()},
                {each: _nested(columns[each], kind) for each, kind in NESTED.items()},
            )
        except ValueError as error:
            raise InputError(f"{name}: {error}; it is not what an export wrote: export it again") from error

    def completion(self, row: int) -> Completion:
        """Raises InputError: the arrays of the row are not of one length."""
        arrays: dict[str, Any] = {each: lists[row] for each, lists in self.lists.items()}
        ids, k = arrays["token_ids"], self.plain["alternatives"][row]
        tables: dict[str, Any] = {each: self._nested_row(each, row, k) for each in self.nested}
        lengths = {len(each) for each in (*arrays.values(), *tables.values()) if each is not None}
        if ids is None or arrays["logprobs"] is None or lengths != {len(ids)}:
            raise InputError(f"{self.name}, row {row}: its columns have {sorted(lengths)} tokens; export it again")
        return Completion(**{each: self.plain[each][row] for each in PLAIN}, **arrays, **tables)

    def _nested_row(self, column: str, row: int, k: int) -> npt.NDArray[Any]:
        rows, ends = self.nested[column]
        first, last = int(rows.starts[row]), int(rows.starts[row + 1])
        values = rows.values[ends[first] : ends[last]]
        if rows.missing[row] or len(values) != (last - first) * k or (np.diff(ends[first : last + 1]) != k).any():
            raise InputError(f"{self.name}, row {row}: its {column} are not lists of {k} alternatives; export it again")
        return values.reshape(last - first, k).copy()


def _nested(column: pa.ListArray, kind: type[np.generic]) -> tuple[_Lists, npt.NDArray[np.int64]]:
    """A column of lists of lists: rows of inner lists, whose values lie between the second."""
    if column.values.null_count:
        raise ValueError("a list of alternatives is missing")
    inner = _Lists.of(column.values, kind)
    return _Lists(np.asarray(column.offsets, dtype=np.int64), inner.values, np.asarray(column.is_null())), inner.starts
