"""Export of a store to Parquet files for any data tool, and import with the same keys and bits.

A folder has one file for each table (docs/store.md has their columns): ``completions.parquet`` with
prompt and settings in each row, and, where there are any rows, ``token_bytes.parquet`` and
``rewards.parquet``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError, StoreError
from blackbox_lb.safety.files import replacing
from blackbox_lb.store import RolloutStore, completion_row, summed
from blackbox_lb.store.database import REFERENCES, how_to_check, how_to_recover
from blackbox_lb.store.rows import (
    canonical,
    check_row,
    is_contradictory,
    name_of,
    prompt_of,
    settings_of_row,
    stored_messages,
    tagged_hash,
    unpack,
)
from blackbox_lb.store.upkeep import BATCH, Merged, add_new
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
OPTIONAL = ("generated", "propensities", "bounded", "received")
"""Columns that may be null."""
PLAIN = ("text", "finish_reason", "model", "prompt_tokens", "whole", "generated", "fingerprint")
"""Columns of a completion with one form in the store and in the file."""


@dataclass(slots=True)
class Imported(Merged):
    """The result of an import: its rows by table as in ``Merged``, and these.

    undated: rows without a time of receipt, which is stored as 0.
    contradictory: completions as ``rows.is_contradictory`` says, which are stored.
    ignored: columns that no table has.
    """

    undated: int = 0
    contradictory: int = 0
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
        "rewards": pa.schema([("key", pa.string()), ("answer", pa.string()), received]),
    }


# --- Export


def export_store(path: Path, folder: Path) -> Counter[str]:
    """Write a store as Parquet files, a row group at a time; every row is checked on the way.

    Args:
        path: the store.
        folder: gets the files.

    Returns:
        The number of rows written, by table.

    Raises:
        InputError: pyarrow is not installed.
        StoreCorrupt: a row is damaged.
        StoreError: the folder has Parquet files already, or cannot be written.
    """
    written = Counter[str]()
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
            written[table] = rows
    return written


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
                f"{store.path}: {name_of(table, row)} cannot be exported: {error};"
                f" {how_to_check(store.path)}, {how_to_recover(store.path)}"
            ) from error
        yield row


def _grouped(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Rows by row group, with at most ``MOST_ROWS`` rows and about ``MOST_VALUES`` numbers and
    characters.
    """
    group = list[dict[str, Any]]()
    values = 0
    for row in rows:
        group.append(row)
        if "top_ids" in row:
            values += int(row["top_ids"].size) + len(row["text"])
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

    for group in _grouped(rows()):
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
    names = schemas()[table].names
    for group in _grouped(_checked_rows(store, table)):
        yield {name: [row[name] for row in group] for name in names}


# --- Import


def import_store(source: Path, path: Path) -> Imported:
    """Add an export to a store. Other tools may have removed rows and added columns.

    Args:
        source: the folder of the export, or one of its files.
        path: the store, which may exist already.

    Raises:
        InputError: no such file, a column is missing, repeated or of another type, or a row's key
            does not follow from its contents, or it holds a value that cannot be, such as a logprob
            above 0. The message says how many rows before it are stored.
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
    imported = Imported()
    with RolloutStore(path) as store:
        for table, file in tables:
            _read(store, table, file, imported)
    return imported


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


def _read(store: RolloutStore, table: str, path: Path, imported: Imported) -> None:
    pa = arrow()
    schema = schemas()[table]
    file = _opened(path)
    names = file.schema_arrow.names
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise InputError(
            f"{path} lacks the columns {', '.join(missing)}; docs/store.md lists what an export has"
        )
    repeated = [name for name in schema.names if names.count(name) > 1]
    if repeated:
        raise InputError(
            f"{path} has the columns {', '.join(repeated)} more than once; leave one of each"
        )
    imported.ignored += tuple(name for name in names if name not in schema.names)
    number = 0
    try:
        for batch in file.iter_batches(batch_size=BATCH, columns=schema.names):
            columns = pa.table(batch).select(schema.names).cast(schema)
            rows = []
            for place in range(len(columns)):
                values = {name: columns[name][place] for name in schema.names}
                try:
                    rows.append(_rows_by_table(table, values, imported))
                except ValueError as error:
                    raise InputError(
                        f"{path}, row {number + place}: {error}; it is not what an export wrote:"
                        " export again, and leave rows out or add columns, but change none"
                        f" ({number:,} rows before it are stored)"
                    ) from error
            if table == "completions":
                references = Merged()
                for name in REFERENCES:
                    add_new(store, name, (row[name] for row in rows), references)
                imported.added.update(references.added)
            add_new(store, table, (row[table] for row in rows), imported)
            number += len(rows)
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"cannot read {path} after {number:,} rows, which are stored: {error}; export it again"
        ) from error


def _rows_by_table(
    table: str, scalars: Mapping[str, Any], imported: Imported
) -> dict[str, dict[str, Any]]:
    """The store's rows for one row of a file, by table. Raises ValueError where it is not sound."""
    values: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for name, scalar in scalars.items():
        if not scalar.is_valid and name not in OPTIONAL:
            raise ValueError(f"its {name} is missing")
        if name in ARRAYS:
            arrays[name] = scalar
        else:
            values[name] = scalar.as_py()
    if "received" in values and not math.isfinite(values["received"] or math.nan):
        imported.undated += 1
        values["received"] = 0.0
    if table == "completions":
        return _completion_rows(values, arrays, imported)
    row = summed(values)
    check_row(table, row)
    return {table: row}


def _completion_rows(
    values: dict[str, Any], arrays: Mapping[str, Any], imported: Imported
) -> dict[str, dict[str, Any]]:
    """The rows of prompts, requests and completions for one completion.

    Raises:
        ValueError: a key does not follow from its contents, or a value cannot be.
    """
    if None in values["messages"]:
        raise ValueError("a message is missing")
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
    logprobs = _array(arrays["logprobs"], np.float32, len(ids))
    propensities = None
    if arrays["propensities"].is_valid:
        propensities = _array(arrays["propensities"], np.float32, len(ids))
    bounded = None
    if arrays["bounded"].is_valid:
        bounded = _array(arrays["bounded"], np.bool_, len(ids))
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
    imported.contradictory += is_contradictory(completion)
    return {"prompts": prompt, "requests": request, "completions": row}


def _array(scalar: Any, kind: type[np.generic], t: int | None = None) -> npt.NDArray[Any]:
    """A list of the file as an array (t,). Raises ValueError for nulls or another length."""
    if scalar.values.null_count:
        raise ValueError("a list holds nulls")
    if t is not None and len(scalar.values) != t:
        raise ValueError(f"a list has {len(scalar.values)} entries for {t} tokens")
    return np.asarray(scalar.values.to_numpy(zero_copy_only=False), dtype=kind)


def _table(scalar: Any, kind: type[np.generic], t: int, k: int) -> npt.NDArray[Any]:
    """A list of lists of the file as an array (t, k). Raises ValueError for another shape."""
    if k < 0:
        raise ValueError(f"its alternatives are {k}")
    if len(scalar.values) != t or scalar.values.null_count:
        raise ValueError(f"a list of alternatives has not {t} tokens")
    flat = scalar.values.flatten()
    lengths = scalar.values.value_lengths().to_pylist()
    if flat.null_count or len(flat) != t * k or any(length != k for length in lengths):
        raise ValueError(f"a list of alternatives has not {t} x {k} entries")
    return np.asarray(flat.to_numpy(zero_copy_only=False), dtype=kind).reshape(t, k)
