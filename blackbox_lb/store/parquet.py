"""Export of a store to Parquet files for any data tool, and import with the same keys and bits.

A folder has one file for each table (docs/store.md has their columns): ``completions.parquet`` with
prompt and settings in each row, and, where there are any rows, ``token_bytes.parquet``,
``next_tokens.parquet`` and ``rewards.parquet``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError, StoreError
from blackbox_lb.safety.files import replacing
from blackbox_lb.store import RolloutStore, completion_row, next_token_row, summed
from blackbox_lb.store.rows import (
    canonical,
    check_row,
    distribution_of,
    name_of,
    prompt_of,
    settings_of_row,
    stored_messages,
    tagged_hash,
    unpack,
)
from blackbox_lb.types import Completion, Message

if TYPE_CHECKING:
    import pyarrow as pa


MOST_VALUES = 1 << 21
"""Numbers in a row group (8 MB), so that memory does not grow with the store."""
MOST_ROWS = 5_000
"""Rows in a row group."""
ARRAYS = ("token_ids", "logprobs", "propensities", "bounded", "top_ids", "top_logprobs")
MESSAGE_FIELDS = tuple(part.name for part in fields(Message))
"""Fields of a message; a file has null where the store has none."""
PLAIN = ("text", "finish_reason", "model", "prompt_tokens", "whole", "generated", "fingerprint")
"""Columns of a completion with one form in the store and in the file."""


@dataclass(slots=True)
class Transferred:
    """The result of an export or import.

    rows: rows written, by table.
    duplicates: rows of an import whose key the store had already, by table.
    ignored: columns of an import that no table has.
    """

    rows: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    ignored: tuple[str, ...] = ()


def arrow() -> Any:
    """pyarrow with its Parquet. Raises InputError where it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            "Parquet needs pyarrow; install it with: pip install '.[parquet]' in the checkout"
        ) from error
    return pyarrow


def schemas() -> dict[str, pa.Schema]:
    """The columns of each file."""
    pa = arrow()
    ids = pa.list_(pa.int32())
    numbers = pa.list_(pa.float32())
    messages = pa.list_(pa.struct([(name, pa.string()) for name in MESSAGE_FIELDS]))
    received = ("received", pa.float64())
    completions = [
        ("key", pa.string()),
        ("request_hash", pa.string()),
        ("prompt_hash", pa.string()),
        ("sample", pa.int64()),
        ("messages", messages),
        ("settings", pa.string()),
        ("text", pa.string()),
        ("finish_reason", pa.string()),
        ("model", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("whole", pa.bool_()),
        ("generated", pa.int64()),
        ("fingerprint", pa.string()),
        received,
        ("token_ids", ids),
        ("logprobs", numbers),
        ("propensities", numbers),
        ("bounded", pa.list_(pa.bool_())),
        ("alternatives", pa.int32()),
        ("top_ids", pa.list_(ids)),
        ("top_logprobs", pa.list_(numbers)),
    ]
    return {
        "completions": pa.schema(completions),
        "token_bytes": pa.schema(
            [("tokenizer", pa.string()), ("id", pa.int64()), ("bytes", pa.binary())]
        ),
        "next_tokens": pa.schema([("key", pa.string()), ("logprobs", numbers), received]),
        "rewards": pa.schema([("key", pa.string()), ("answer", pa.string()), received]),
    }


# --- Export


def export_store(path: Path, folder: Path) -> Transferred:
    """Write a store as Parquet files, a row group at a time; every row is checked on the way.

    Args:
        path: the store.
        folder: gets the files.

    Raises:
        InputError: pyarrow is not installed.
        StoreCorrupt: a row is damaged.
        StoreError: the folder has Parquet files already, or cannot be written.
    """
    transferred = Transferred()
    with RolloutStore(path, read_only=True) as store:
        if folder.is_dir() and any(folder.glob("*.parquet")):
            raise StoreError(
                f"{folder} holds Parquet files already; give another folder, or delete them"
            )
        for table, schema in schemas().items():
            file = folder / f"{table}.parquet"
            if table == "completions":
                rows = _write(file, schema, _completion_columns(store), always=True)
            else:
                rows = _write(file, schema, _table_columns(store, table), always=False)
            transferred.rows[table] = rows
    return transferred


def _write(
    path: Path, schema: pa.Schema, batches: Iterator[dict[str, Any]], *, always: bool
) -> int:
    """Write row groups to a file, which appears when it is complete.

    always: whether a file without rows is written.

    Returns:
        The number of rows.
    """
    pa = arrow()
    rows = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        first = list(islice(batches, 1))
        if not first and not always:
            return 0
        with (
            replacing(path) as draft,
            pa.parquet.ParquetWriter(draft, schema, compression="zstd") as writer,
        ):
            for batch in chain(first, batches):
                writer.write_table(pa.table(batch, schema=schema))
                rows += len(next(iter(batch.values())))
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            f"cannot write {path}: {error}; free some space on its disk, or give another folder"
        ) from error
    return rows


def _checked_rows(store: RolloutStore, table: str) -> Iterator[dict[str, Any]]:
    for row in store.rows(table, ordered=True):
        try:
            check_row(table, row)
        except StoreError as error:
            raise type(error)(
                f"{store.path}: {name_of(table, row)} cannot be exported: {error}; blb store check"
                f" {store.path} lists what is damaged, blb store recover {store.path} NEW copies"
                " what is intact"
            ) from error
        yield row


def _grouped(
    rows: Iterator[dict[str, Any]], weight: Callable[[dict[str, Any]], int]
) -> Iterator[list[dict[str, Any]]]:
    """Rows by row group, with at most ``MOST_ROWS`` rows and about ``MOST_VALUES`` numbers."""
    group = list[dict[str, Any]]()
    values = 0
    for row in rows:
        group.append(row)
        values += weight(row)
        if values >= MOST_VALUES or len(group) >= MOST_ROWS:
            yield group
            group = []
            values = 0
    if group:
        yield group


def _completion_columns(store: RolloutStore) -> Iterator[dict[str, Any]]:
    """Columns of each row group of completions.

    Raises:
        StoreError: the prompt or the settings of a completion are lost.
    """
    settings = {row["hash"]: row["settings"] for row in _checked_rows(store, "requests")}

    def rows() -> Iterator[dict[str, Any]]:
        for row in _checked_rows(store, "completions"):
            prompt = store.row("prompts", (row["prompt_hash"],))
            if prompt is None or row["request_hash"] not in settings:
                raise StoreError(
                    f"{store.path}: {name_of('completions', row)} cannot be exported: its prompt or"
                    " its settings are lost; blb store check lists such completions, delete them"
                    " to export the others"
                )
            messages = stored_messages(prompt_of(prompt))
            arrays = unpack(row["tokens"])._asdict()
            yield {**row, **arrays, "messages": messages, "settings": settings[row["request_hash"]]}

    for group in _grouped(rows(), lambda row: int(row["top_ids"].size) + len(row["text"])):
        yield _columns(group)


def _columns(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = ["key", "request_hash", "prompt_hash", "sample", "messages", "settings"]
    names += [*PLAIN, "received"]
    columns: dict[str, Any] = {name: [row[name] for row in group] for name in names}
    columns["whole"] = [bool(value) for value in columns["whole"]]
    columns["alternatives"] = [row["top_ids"].shape[1] for row in group]
    for name in ARRAYS:
        columns[name] = [row[name] for row in group]
    for name in ("top_ids", "top_logprobs"):
        columns[name] = [list(table) for table in columns[name]]
    return columns


def _table_columns(store: RolloutStore, table: str) -> Iterator[dict[str, Any]]:
    """Columns of each row group of any table but that of completions."""

    def rows() -> Iterator[dict[str, Any]]:
        for row in _checked_rows(store, table):
            if table == "next_tokens":
                row["logprobs"] = distribution_of(row)
            yield row

    names = schemas()[table].names
    for group in _grouped(rows(), lambda row: len(row.get("logprobs", ()))):
        yield {name: [row[name] for row in group] for name in names}


# --- Import


def import_store(source: Path, path: Path) -> Transferred:
    """Add an export to a store. Other tools may have removed rows and added columns.

    Args:
        source: the folder of the export, or one of its files.
        path: the store, which may exist already.

    Raises:
        InputError: no such file, a column is missing or of another type, or a row's key does not
            follow from its contents. The rows before it are stored.
    """
    files = [source]
    if source.is_dir():
        files = [file for file in sorted(source.glob("*.parquet")) if file.stem in schemas()]
    if not files or not source.exists():
        raise InputError(
            f"there is no {' or '.join(f'{name}.parquet' for name in schemas())} in {source}; give"
            " what blb store export wrote"
        )
    tables = [(_table_of(file), file) for file in files]
    transferred = Transferred()
    with RolloutStore(path) as store:
        for table, file in tables:
            _read(store, table, file, transferred)
    return transferred


def _table_of(path: Path) -> str:
    """The table in a file, by the file's name, else by its columns.

    Raises:
        InputError: the file cannot be read, or has no table of a store.
    """
    names = set(_opened(path).schema_arrow.names)
    for table, schema in schemas().items():
        if table == path.stem or (names >= set(schema.names) and path.stem not in schemas()):
            return table
    raise InputError(
        f"{path} has not the columns of any table of an export; docs/store.md lists them"
    )


def _opened(path: Path) -> Any:
    pa = arrow()
    try:
        return pa.parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"cannot read {path} as Parquet: {error}; give what blb store export wrote"
        ) from error


def _read(store: RolloutStore, table: str, path: Path, transferred: Transferred) -> None:
    pa = arrow()
    schema = schemas()[table]
    file = _opened(path)
    missing = [name for name in schema.names if name not in file.schema_arrow.names]
    if missing:
        raise InputError(
            f"{path} lacks the columns {', '.join(missing)}; docs/store.md lists what an export has"
        )
    transferred.ignored += tuple(
        name for name in file.schema_arrow.names if name not in schema.names
    )
    number = 0
    try:
        for batch in file.iter_batches(batch_size=500, columns=schema.names):
            columns = pa.table(batch).select(schema.names).cast(schema)
            rows = [
                _row(table, columns, place, path, number + place) for place in range(len(columns))
            ]
            store_tables = ("prompts", "requests", *schemas())
            added = store.add_rows(
                {name: [row[name] for row in rows if name in row] for name in store_tables}
            )
            transferred.rows.update(added)
            transferred.duplicates[table] += len(rows) - added.get(table, 0)
            number += len(rows)
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"cannot read {path} after {number:,} rows: {error}; export it again"
        ) from error


def _row(
    table: str, columns: pa.Table, place: int, path: Path, number: int
) -> dict[str, dict[str, Any]]:
    """The store's rows for one row of a file, by table."""
    values = {
        name: columns[name][place].as_py() for name in columns.column_names if name not in ARRAYS
    }
    arrays = {name: columns[name][place] for name in columns.column_names if name in ARRAYS}
    try:
        if table == "completions":
            return _completion_rows(values, arrays)
        if table == "next_tokens":
            logprobs = _array(arrays["logprobs"], np.float32)
            return {table: next_token_row(values["key"], logprobs, values["received"])}
        row = summed(values)
        check_row(table, row)
        return {table: row}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path}, row {number}: {error}; it is not what an export wrote: export again, and"
            " leave rows out or add columns, but change none"
        ) from error


def _completion_rows(
    values: dict[str, Any], arrays: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The rows of prompts, requests and completions for one completion.

    Raises:
        ValueError: a key does not follow from its contents.
    """
    messages = canonical(
        [
            {name: message[name] for name in MESSAGE_FIELDS if message.get(name) is not None}
            for message in values["messages"]
        ]
    )
    prompt = {"hash": tagged_hash("prompt", messages), "messages": messages}
    request = {"hash": tagged_hash("request", values["settings"]), "settings": values["settings"]}
    k = values["alternatives"]
    ids = _array(arrays["token_ids"], np.int32)
    logprobs = _array(arrays["logprobs"], np.float32)
    propensities = None
    if arrays["propensities"].is_valid:
        propensities = _array(arrays["propensities"], np.float32)
    bounded = None
    if arrays["bounded"].is_valid:
        bounded = _array(arrays["bounded"], np.bool_)
    completion = Completion(
        token_ids=ids,
        logprobs=logprobs,
        top_ids=_table(arrays["top_ids"], np.int32, len(ids), k),
        top_logprobs=_table(arrays["top_logprobs"], np.float32, len(ids), k),
        propensities=propensities,
        bounded=bounded,
        **{name: values[name] for name in PLAIN},
    )
    row = completion_row(
        request["hash"], prompt["hash"], values["sample"], completion, values["received"]
    )
    for name in ("key", "request_hash", "prompt_hash"):
        if row[name] != values[name]:
            raise ValueError(
                f"its {name} is {str(values[name])[:12]}..., its contents give {row[name][:12]}..."
            )
    settings_of_row(request)
    check_row("prompts", prompt)
    check_row("completions", row)
    return {"prompts": prompt, "requests": request, "completions": row}


def _array(scalar: Any, kind: type[np.generic]) -> npt.NDArray[Any]:
    """A list of the file as an array (t,). Raises ValueError where it is missing or has nulls."""
    if not scalar.is_valid or scalar.values.null_count:
        raise ValueError("a list is missing or holds nulls")
    return np.asarray(scalar.values.to_numpy(zero_copy_only=False), dtype=kind)


def _table(scalar: Any, kind: type[np.generic], t: int, k: int) -> npt.NDArray[Any]:
    """A list of lists of the file as an array (t, k). Raises ValueError for another shape."""
    if not scalar.is_valid or len(scalar.values) != t or scalar.values.null_count:
        raise ValueError(f"a list of alternatives has not {t} tokens")
    flat = scalar.values.flatten()
    lengths = scalar.values.value_lengths().to_pylist()
    if flat.null_count or len(flat) != t * k or any(length != k for length in lengths):
        raise ValueError(f"a list of alternatives has not {t} x {k} entries")
    return np.asarray(flat.to_numpy(zero_copy_only=False), dtype=kind).reshape(t, k)
