"""A store as Parquet files for any data tool, and back: the same keys, the same bits.

One file a table in one folder (docs/store.md has their columns): ``completions.parquet`` with
prompt and settings in each row, and, where there are any, ``token_bytes.parquet``,
``next_tokens.parquet``, ``rewards.parquet``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError, StoreError
from blackbox_lb.safety.files import replacing
from blackbox_lb.store import RolloutStore, completion_row, next_token_row, summed
from blackbox_lb.store.integrity import (
    check_row,
    distribution_of,
    name_of,
    prompt_of,
    settings_of_row,
)
from blackbox_lb.store.keys import canonical, tagged_hash
from blackbox_lb.store.packing import unpack
from blackbox_lb.types import Completion

if TYPE_CHECKING:
    import pyarrow as pa

MOST_VALUES = 1 << 21
"""Numbers in a row group, 8 MB, so that memory does not grow with the store."""
MOST_ROWS = 5_000
ARRAYS = ("token_ids", "logprobs", "propensities", "bounded", "top_ids", "top_logprobs")
PLAIN = ("text", "finish_reason", "model", "prompt_tokens", "whole", "generated", "fingerprint")
"""Columns of a completion with the same form in the store and in the file."""


@dataclass(slots=True)
class Transferred:
    """Written rows, by table; ``there``: rows of an import whose key the store had; ``ignored``:
    unused columns.
    """

    rows: Counter[str] = field(default_factory=Counter)
    there: Counter[str] = field(default_factory=Counter)
    ignored: tuple[str, ...] = ()


def arrow() -> Any:
    """pyarrow with its Parquet. InputError: it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            "Parquet needs pyarrow; install it with: pip install 'blackbox-lb[parquet]'"
        ) from error
    return pyarrow


def schemas() -> dict[str, pa.Schema]:
    """The columns of each file."""
    pa = arrow()
    ids = pa.list_(pa.int32())
    numbers = pa.list_(pa.float32())
    messages = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    received = ("received", pa.float64())
    completions = [
        *(
            ("key", pa.string()),
            ("request_hash", pa.string()),
            ("prompt_hash", pa.string()),
            ("sample", pa.int64()),
        ),
        *(
            ("messages", messages),
            ("settings", pa.string()),
            ("text", pa.string()),
            ("finish_reason", pa.string()),
        ),
        *(
            ("model", pa.string()),
            ("prompt_tokens", pa.int64()),
            ("whole", pa.bool_()),
            ("generated", pa.int64()),
        ),
        *(
            ("fingerprint", pa.string()),
            received,
            ("token_ids", ids),
            ("logprobs", numbers),
            ("propensities", numbers),
        ),
        *(("bounded", pa.list_(pa.bool_())), ("alternatives", pa.int32())),
        *(("top_ids", pa.list_(ids)), ("top_logprobs", pa.list_(numbers))),
    ]
    return {
        "completions": pa.schema(completions),
        "token_bytes": pa.schema(
            [("tokenizer", pa.string()), ("id", pa.int64()), ("bytes", pa.binary())]
        ),
        "next_tokens": pa.schema([("key", pa.string()), ("logprobs", numbers), received]),
        "rewards": pa.schema([("key", pa.string()), ("answer", pa.string()), received]),
    }


def export_store(path: Path, folder: Path) -> Transferred:
    """Write the store at ``path`` into ``folder`` as Parquet, a row group at a time. Every row is
    checked on the way.

    Raises InputError: pyarrow is not installed. StoreCorrupt: a row is damaged. StoreError: the
    folder holds Parquet files already, or cannot be written.
    """
    done = Transferred()
    with RolloutStore(path, read_only=True) as store:
        if folder.is_dir() and any(folder.glob("*.parquet")):
            raise StoreError(
                f"{folder} holds Parquet files already; give another folder, or delete them"
            )
        for table, schema in schemas().items():
            batches = _completions(store) if table == "completions" else _others(store, table)
            done.rows[table] = _write(
                folder / f"{table}.parquet", schema, batches, always=table == "completions"
            )
    return done


def _write(
    path: Path, schema: pa.Schema, batches: Iterator[dict[str, Any]], *, always: bool
) -> int:
    """Write under another name until the file is complete. Without any row and unless ``always``,
    write nothing.
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
    """Rows by the row group: at most so many, and with at most so many numbers."""
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


def _completions(store: RolloutStore) -> Iterator[dict[str, Any]]:
    """Columns of each row group. StoreError: a completion's prompt or settings are lost."""
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
            messages = [
                {"role": message.role, "content": message.content}
                for message in prompt_of(prompt).messages
            ]
            arrays = unpack(row["tokens"])._asdict()
            yield {**row, **arrays, "messages": messages, "settings": settings[row["request_hash"]]}

    for group in _grouped(rows(), lambda row: int(row["top_ids"].size) + len(row["text"])):
        yield _columns(group)


def _columns(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    plain = (
        "key",
        "request_hash",
        "prompt_hash",
        "sample",
        "messages",
        "settings",
        *PLAIN,
        "received",
    )
    columns: dict[str, Any] = {name: [row[name] for row in group] for name in plain}
    columns["whole"] = [bool(column) for column in columns["whole"]]
    columns["alternatives"] = [row["top_ids"].shape[1] for row in group]
    for name in ARRAYS:
        arrays = [row[name] for row in group]
        columns[name] = list(map(list, arrays)) if name.startswith("top") else arrays
    return columns


def _others(store: RolloutStore, table: str) -> Iterator[dict[str, Any]]:
    def rows() -> Iterator[dict[str, Any]]:
        for row in _checked_rows(store, table):
            yield {**row, "logprobs": distribution_of(row)} if table == "next_tokens" else row

    names = schemas()[table].names
    for group in _grouped(rows(), lambda row: len(row.get("logprobs", ()))):
        yield {name: [row[name] for row in group] for name in names}


def import_store(source: Path, path: Path) -> Transferred:
    """Add an export to the store at ``path``, which may exist already. ``source``: the folder, or
    one of its files.

    Rows may have been left out and columns added by other tools. Raises InputError: no such file, a
    column is missing or of another type, or a row's key does not follow from its contents;
    everything before it is stored.
    """
    files = (
        [each for each in sorted(source.glob("*.parquet")) if each.stem in schemas()]
        if source.is_dir()
        else [source]
    )
    if not files or not source.exists():
        raise InputError(
            f"there is no {' or '.join(f'{name}.parquet' for name in schemas())} in {source}; give"
            " what blb store export wrote"
        )
    tables = [(_table_of(each), each) for each in files]
    done = Transferred()
    with RolloutStore(path) as store:
        for table, file in tables:
            _read(store, table, file, done)
    return done


def _table_of(path: Path) -> str:
    """The table in a file, by its name, else by its columns. Raises InputError: it cannot be read,
    or is none.
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


def _read(store: RolloutStore, table: str, path: Path, done: Transferred) -> None:
    pa = arrow()
    schema = schemas()[table]
    file = _opened(path)
    missing = [name for name in schema.names if name not in file.schema_arrow.names]
    if missing:
        raise InputError(
            f"{path} lacks the columns {', '.join(missing)}; docs/store.md lists what an export has"
        )
    done.ignored += tuple(name for name in file.schema_arrow.names if name not in schema.names)
    number = 0
    try:
        for batch in file.iter_batches(batch_size=500, columns=schema.names):
            columns = pa.table(batch).select(schema.names).cast(schema)
            rows = [
                _row(table, columns, place, path, number + place) for place in range(len(columns))
            ]
            tables = ("prompts", "requests", *schemas())
            added = store.add_rows(
                {name: [row[name] for row in rows if name in row] for name in tables}
            )
            done.rows.update(added)
            number += len(rows)
            done.there[table] += len(rows) - added.get(table, 0)
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
            return _completion(values, arrays)
        if table == "next_tokens":
            return {
                table: next_token_row(
                    values["key"], _array(arrays["logprobs"], np.float32), values["received"]
                )
            }
        row = summed(values)
        check_row(table, row)
        return {table: row}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path}, row {number}: {error}; it is not what an export wrote: export again, and"
            " leave rows out or add columns, but change none"
        ) from error


def _completion(values: dict[str, Any], arrays: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Rows of prompts, requests and completions. Raises ValueError: a key does not follow from its
    contents.
    """
    messages = canonical(
        [{"role": value["role"], "content": value["content"]} for value in values["messages"]]
    )
    prompt = {"hash": tagged_hash("prompt", messages), "messages": messages}
    request = {"hash": tagged_hash("request", values["settings"]), "settings": values["settings"]}
    k = values["alternatives"]
    ids = _array(arrays["token_ids"], np.int32)
    logprobs = _array(arrays["logprobs"], np.float32)
    completion = Completion(
        token_ids=ids,
        logprobs=logprobs,
        top_ids=_table(arrays["top_ids"], np.int32, len(ids), k),
        top_logprobs=_table(arrays["top_logprobs"], np.float32, len(ids), k),
        propensities=(
            None
            if arrays["propensities"].as_py() is None
            else _array(arrays["propensities"], np.float32)
        ),
        bounded=None if arrays["bounded"].as_py() is None else _array(arrays["bounded"], np.bool_),
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
    """A list of the file as an array (t,). ValueError: it is missing or holds nulls."""
    if not scalar.is_valid or scalar.values.null_count:
        raise ValueError("a list is missing or holds nulls")
    return np.asarray(scalar.values.to_numpy(zero_copy_only=False), dtype=kind)


def _table(scalar: Any, kind: type[np.generic], t: int, k: int) -> npt.NDArray[Any]:
    """A list of lists of the file as an array (t, k). ValueError: it is not of that shape."""
    if not scalar.is_valid or len(scalar.values) != t or scalar.values.null_count:
        raise ValueError(f"a list of alternatives has not {t} tokens")
    flat = scalar.values.flatten()
    if (
        flat.null_count
        or len(flat) != t * k
        or any(length != k for length in scalar.values.value_lengths().to_pylist())
    ):
        raise ValueError(f"a list of alternatives has not {t} x {k} entries")
    return np.asarray(flat.to_numpy(zero_copy_only=False), dtype=kind).reshape(t, k)
