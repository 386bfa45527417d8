"""Data sets of the hub, of folders and of Parquet files, by the ``datasets`` library: quietly, and
with no long wait offline.
"""

import importlib
import logging
import os
import socket
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.literals import Split
from blackbox_lb.safety.files import is_folder
from blackbox_lb.safety.printable import first_line, shell_line, shorten
from blackbox_lb.safety.untrusted import open_regular, text_of_file
from blackbox_lb.tasks.records.records import (
    MAX_BYTES,
    SUFFIXES,
    Record,
    file_errors,
    read_records,
)

HUB = "hf:"
"""The prefix of a data set of the hub: hf:NAME[/CONFIG][@SPLIT]."""

NAMES: dict[str, Split] = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
"""The names of splits in data sets."""
PARQUET = ".parquet"
ROWS = 256
"""Rows of a Parquet file that are unpacked at a time: few enough for the memory, for any readable
file.
"""
HUB_SECONDS = 3.0
_NOISY = ("lm_eval", "datasets", "huggingface_hub", "fsspec", "httpx", "urllib3")


def library(name: str, purpose: str) -> Any:
    """Import the module ``name`` of the extra ``tasks``. Raises InputError: it is not installed, or
    not with what it needs.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"{purpose} needs {name.partition('.')[0]} ({error}): pip install '.[tasks]' in the"
            " checkout"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress other libraries' log lines below errors, progress bars and warnings; their settings
    are restored after.
    """
    datasets = library("datasets", "this data set")
    bars = datasets.utils.logging.is_progress_bar_enabled()
    levels = {name: logging.getLogger(name).level for name in _NOISY}
    datasets.disable_progress_bars()
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if bars:
            datasets.enable_progress_bars()


@contextmanager
def offline_without_hub() -> Iterator[bool]:
    """Use the cache alone where the hub does not answer within 3 seconds; yields whether it
    answers.

    The library itself would wait for half a minute. Behind a proxy server the answer cannot be
    known beforehand, so it decides.
    """
    config = library("datasets", "this data set").config
    constants = library("huggingface_hub.constants", "this data set")
    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    answers = not before[1] and _answers(constants.ENDPOINT)
    if not answers:
        config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield answers
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _answers(endpoint: str) -> bool:
    if any(
        os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    ):
        return True
    address = urlsplit(endpoint)
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), HUB_SECONDS).close()
    except OSError:
        return False
    return True


def read_folder(folder: Path) -> Any:
    """A DatasetDict of the files in ``folder``, each a split that is named by its stem
    (train.jsonl, test.parquet).

    JSON lines, CSV and TSV (of texts) and Parquet. DataError: no such folder, no such file in it,
    two files of one split, or a broken row.
    """
    if not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}; name one with a file for each split, as train.jsonl and"
            " test.jsonl"
        )
    files = _files_by_stem(folder)
    if not files:
        suffixes = ", ".join((*SUFFIXES, PARQUET))
        raise DataError(
            f"{folder} has no data file ({suffixes}); give it one for each split, as train.jsonl"
            " and test.jsonl"
        )
    return library("datasets", "a data folder").DatasetDict(
        {name: _table(path) for name, path in files.items()}
    )


def _files_by_stem(folder: Path) -> dict[str, Path]:
    """The data files of a folder. Raises DataError: two of them have one stem."""
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix.lower() in (*SUFFIXES, PARQUET):
            if path.stem in files:
                raise DataError(
                    f"{folder} has both {files[path.stem].name} and {path.name} for one split;"
                    " remove one"
                )
            files[path.stem] = path
    return files


def records_of(path: Path, field: str | None = None) -> Iterator[Record]:
    """The rows of a file in order, before any meaning is given to them; it is opened for the first.

    field: see ``read_records``. Raises DataError: it cannot be read.
    """
    if path.suffix.lower() == PARQUET:
        with file_errors(path), open_regular(path):
            pass  # it is a file, and can be read
        yield from _records(path, _table(path))
    else:
        yield from read_records(path, field)


def dataset_records(spec: str) -> dict[str, Iterator[Record]]:
    """The rows of ``hf:NAME[/CONFIG][@SPLIT]``, or of a folder, by the names of its splits.

    NAME is as the hub has it, OWNER/NAME. The files of a folder that are named after splits are
    read as files are, since the library would take None and N/A in a CSV file for empty cells, and
    01 for 1. InputError: it cannot be had, with the library's reason. DataError: two files of one
    split.
    """
    name = spec
    split = ""
    if spec.startswith(HUB):
        name, _, split = spec.removeprefix(HUB).partition("@")
    owner, *rest = name.split("/", 2)
    path = name
    config = None
    dataset = None
    if is_folder(name):
        files = _files_by_stem(Path(name))
        if not files.keys().isdisjoint(NAMES):
            return {part: records_of(file) for part, file in files.items()}
        dataset = _from_disk(Path(name))
    elif len(rest) == 2:
        path = f"{owner}/{rest[0]}"
        config = rest[1]
    if dataset is None:
        dataset = _loaded(spec, path, config)
    if split and split not in dataset:
        raise InputError(
            f"{spec.partition('@')[0]} has the splits {', '.join(dataset)}, not {split!r}; name one"
            " of them after @"
        )
    chosen = list(dataset)
    if split:
        chosen = [split]
    return {
        part: _records(Path(f"{spec.partition('@')[0]}@{part}"), dataset[part]) for part in chosen
    }


def _from_disk(folder: Path) -> Any:
    """Load the output of ``save_to_disk``; None where the folder is not one."""
    datasets = library("datasets", f"reading {folder}")
    if (folder / "dataset_dict.json").is_file():
        return datasets.load_from_disk(str(folder))
    if (folder / "state.json").is_file():
        return {"train": datasets.load_from_disk(str(folder))}
    return None


def _loaded(spec: str, path: str, config: str | None) -> Any:
    datasets = library("datasets", f"``data={spec}``")
    try:
        with quiet(), offline_without_hub() as online:
            return datasets.load_dataset(path, config)
    except (
        Exception
    ) as error:  # missing, gated, without a config, unreadable: each has its own type
        if is_folder(path):
            reason = first_line(error.__cause__ or error)
            raise InputError(_unreadable(Path(path), reason)) from error
        reason = first_line(error)
        if isinstance(error, datasets.exceptions.DatasetGenerationError):
            reason = first_line(error.__cause__ or error)
        where = ""
        if not online:
            where = " (the hub does not answer and the cache does not have it)"
        raise InputError(
            f"the data set {spec} cannot be loaded{where}: {reason}; check name and config"
            " (hf:OWNER/NAME/CONFIG), log in where it is gated (hf auth login), or give its files"
            " with ``data``"
        ) from error


def _unreadable(folder: Path, reason: str) -> str:
    """Why a folder cannot be read, and what to do: the library reads files in UTF-8 alone."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix.lower() not in SUFFIXES:
            continue
        try:
            text_of_file(path.read_bytes())
        except ValueError as problem:
            return f"{path}: {problem} {shell_line(path)} > NEW{path.suffix}"
    return (
        f"the folder {folder} cannot be read: {reason}; give its files with ``data``,"
        " ``validation_data`` and ``test_data``"
    )


def _records(name: Path, table: Any) -> Iterator[Record]:
    _leave_undecoded(table.info.features)
    for number, row in enumerate(table, start=1):
        record = Record(name, number, tuple(row), {}, textual=False, unit="row")
        for column, value in row.items():
            try:
                decoded = _decoded(value, table.features[column])
            except ValueError as error:
                raise record.error(f"{column}: {error}; correct the row or the names") from error
            if decoded is not None:
                record.values[column] = decoded
        yield record


def _leave_undecoded(feature: Any) -> None:
    """Let a table give its images, sounds and other files as bytes: nothing here looks at them, and
    the library that decodes them may be missing.
    """
    if hasattr(feature, "embed_storage"):
        feature.decode = False
    elif isinstance(feature, dict):
        for inner in feature.values():
            _leave_undecoded(inner)
    elif hasattr(feature, "feature"):
        _leave_undecoded(feature.feature)


def _decoded(value: Any, feature: Any, *, is_padded: bool = False) -> Any:
    """A cell of an Arrow table as the file means it.

    The number of a class is its name, and -1 is no label, as ``datasets`` has it. Arrow pads the
    objects in a list with null so that all have the same fields (``is_padded``): these are left
    out. Values of the type Json are no structs and keep their nulls.

    Raises ValueError: a number that no class has.
    """
    if value is None:
        return None
    names = getattr(feature, "names", None)
    if names and isinstance(value, int):
        if not -1 <= value < len(names):
            raise ValueError(f"{value} is none of the {len(names)} classes that the file names")
        if value == -1:
            return None
        return names[value]
    if isinstance(feature, dict) and isinstance(value, dict):
        fields = {
            field: _decoded(inner, feature[field], is_padded=is_padded)
            for field, inner in value.items()
        }
        if is_padded:
            return {field: inner for field, inner in fields.items() if inner is not None}
        return fields
    if hasattr(feature, "feature") and isinstance(value, list):
        items = [_decoded(item, feature.feature, is_padded=True) for item in value]
        if hasattr(feature.feature, "names"):
            return [item for item in items if item is not None]
        return items
    return value


def _check_parquet(path: Path) -> None:
    """Raise DataError for a Parquet file that is too large as it is read, because a small one can
    hold a huge table, and for two columns of one name.
    """
    parquet = library("pyarrow.parquet", f"reading {path}")
    size = 0
    with parquet.ParquetFile(path) as file:
        counts = Counter(file.schema_arrow.names)
        repeated = [name for name, count in counts.items() if count > 1]
        if repeated:
            raise DataError(
                f"{path} has the column {shorten(repeated[0])} twice; rename or drop one"
            )
        for rows in file.iter_batches(batch_size=ROWS):
            size += rows.nbytes
            if size > MAX_BYTES:
                raise DataError(
                    f"{path} holds more than {MAX_BYTES:,} bytes, the limit; take a sample of its"
                    " rows"
                )


def _table(path: Path) -> Any:
    """The rows of a file as a table of the library's; cells of CSV and TSV are texts."""
    dataset = library("datasets", f"reading {path}").Dataset
    if path.suffix.lower() != PARQUET:
        rows = list(read_records(path))
        names = dict.fromkeys(name for row in rows for name in row.columns)
        return dataset.from_list([{**names, **row.values} for row in rows])
    try:
        _check_parquet(path)
        with quiet(), tempfile.TemporaryDirectory() as cache:
            return dataset.from_parquet(str(path), cache_dir=cache, keep_in_memory=True)
    except (DataError, InputError):
        raise
    except Exception as error:  # pyarrow and datasets have their own errors, and not one root
        reason = first_line(error.__cause__ or error)
        raise DataError(
            f"{path} cannot be read as parquet: {reason}; check that the file is whole"
        ) from error
