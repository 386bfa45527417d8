"""An import of Parquet says every row and value that it cannot keep, and takes none that cannot
be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb.errors import InputError, StoreError
from blackbox_lb.store import RolloutStore
from blackbox_lb.store.parquet import export_store, import_store
from blackbox_lb.store.upkeep import check, merge
from blackbox_lb.types import Completion, Prompt
from tests.support.commands import blb, refused
from tests.support.errors import names, raises_naming
from tests.unit.store.stores import SETTINGS, completion, make, rows

pytestmark = pytest.mark.needs("pyarrow")
pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
ROWS = {"completions": 40, "rewards": 10, "token_bytes": 3}
OPTIONAL = {"generated", "propensities", "bounded", "received"}


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """The folder of an export."""
    folder = tmp_path / "exported"
    export_store(make(tmp_path / "s.db"), folder)
    return folder


def change(folder: Path, table: str, column: str, value: Any, row: int = -1) -> None:
    """Put a value in one row of a file."""
    path = folder / f"{table}.parquet"
    content = pq.read_table(path)
    place = content.schema.get_field_index(column)
    field = content.schema.field(place)
    values = content.column(place).to_pylist()
    values[row] = value
    pq.write_table(content.set_column(place, field, pa.array(values, field.type)), path)


@pytest.mark.parametrize(
    ("table", "value"), [("completions", None), ("completions", float("nan")), ("rewards", np.inf)]
)
def test_a_row_without_a_time_of_receipt_is_stored(
    table: str, value: float | None, exported: Path, tmp_path: Path
) -> None:
    """It is information only: as pandas writes a missing number it is stored as 0, and counted."""
    change(exported, table, "received", value)
    done = blb("store", "import", exported, tmp_path / "new.db", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert {name: result["added"][name] for name in ROWS} == ROWS
    assert (result["there"], result["undated"]) == ({}, 1)
    times = [
        row["received"] for (name, _), row in rows(tmp_path / "new.db").items() if name == table
    ]
    assert times.count(0.0) == 1
    assert check(tmp_path / "new.db").sound
    said = blb("store", "import", exported, tmp_path / "again.db")
    assert names(said.stdout, "1 rows have no time of receipt")


@pytest.mark.parametrize("table", list(ROWS))
def test_a_missing_value_is_refused_by_row_and_column(
    table: str, exported: Path, tmp_path: Path
) -> None:
    """Null in any column that has to have a value: one sentence, and what was before it is there."""
    path = exported / f"{table}.parquet"
    content = pq.read_table(path)
    for column in content.column_names:
        if column in OPTIONAL:
            continue
        pq.write_table(content, path)
        change(exported, table, column, None)
        message = refused("store", "import", path, tmp_path / "new.db")
        assert names(message, path, f"row {ROWS[table] - 1}", column)
        assert "NoneType" not in message


@pytest.mark.parametrize("table", list(ROWS))
def test_a_column_that_is_there_twice_is_refused(
    table: str, exported: Path, tmp_path: Path
) -> None:
    """Which of the two holds is not known; a repeated column of another tool does not matter."""
    path = exported / f"{table}.parquet"
    content = pq.read_table(path)
    for column in content.column_names:
        pq.write_table(content.append_column(column, content.column(column)), path)
        assert names(refused("store", "import", path, tmp_path / "new.db"), path, column)
    key = content.column(0)
    pq.write_table(content.append_column("mine", key).append_column("mine", key), path)
    assert blb("store", "import", path, tmp_path / "new.db").exit_code == 0


def first(value: Any) -> Callable[[Any], Any]:
    """A copy of an array whose first entry is this value."""

    def changed(array: Any) -> Any:
        array = array.copy()
        array.flat[0] = value
        return array

    return changed


IMPOSSIBLE: list[tuple[str, Callable[[Any], Any], str]] = [
    ("logprobs", first(5.0), "5"),
    ("logprobs", first(np.nan), "nan"),
    ("propensities", first(np.nan), "nan"),
    ("top_logprobs", first(5.0), "5"),
    ("top_logprobs", first(np.nan), "nan"),
    ("token_ids", first(-1), "-1"),
    ("top_ids", first(-3), "-3"),
    ("prompt_tokens", lambda count: -1, "-1"),
    ("generated", lambda count: -1, "-1"),
]


def possible() -> Completion:
    """A completion with every column, whose sampled tokens are the first of their lists. Rounding
    above 0, padding, a listed token without an id and minus infinity are possible.
    """
    top_ids = np.array([[0, -2], [2, -1], [4, 5], [6, 7]], np.int32)
    top_logprobs = np.array([[1e-4, -1], [-2, -np.inf], [-4, -5], [-6, -7]], np.float32)
    return completion(
        9,
        4,
        token_ids=top_ids[:, 0].copy(),
        logprobs=top_logprobs[:, 0].copy(),
        top_ids=top_ids,
        top_logprobs=top_logprobs,
    )


@pytest.mark.parametrize(("column", "changed", "value"), IMPOSSIBLE)
def test_values_that_cannot_be_are_refused_and_reported(
    column: str, changed: Callable[[Any], Any], value: str, tmp_path: Path
) -> None:
    """At import by row; in a store that has them by ``check``, and merging leaves them out and
    counts them.
    """
    made = possible()
    path = tmp_path / "s.db"
    with RolloutStore(path) as store:
        store.add(SETTINGS, Prompt.user("a"), 0, made)
    assert check(path).sound
    export_store(path, tmp_path / "out")
    import_store(tmp_path / "out", tmp_path / "same.db")
    assert rows(tmp_path / "same.db") == rows(path)
    changed_value = changed(getattr(made, column))
    if hasattr(changed_value, "tolist"):
        changed_value = changed_value.tolist()
    change(tmp_path / "out", "completions", column, changed_value)
    message = refused("store", "import", tmp_path / "out", tmp_path / "new.db")
    assert names(message, "row 0", value)
    with RolloutStore(path) as store:
        bad = replace(made, **{column: changed(getattr(made, column))})
        key = store.add(SETTINGS, Prompt.user("b"), 0, bad)
    checkup = check(path)
    assert checkup.damaged == {"completions": 1}
    assert [problem for problem in checkup.problems if names(problem, f"{key[:12]}...", value)]
    assert blb("store", "check", path).exit_code == 2
    assert merge([path], tmp_path / "merged.db").damaged == {"completions": 1}
    assert check(tmp_path / "merged.db").sound


def test_an_impossible_id_of_a_token_is_refused(exported: Path, tmp_path: Path) -> None:
    """By its row."""
    change(exported, "token_bytes", "id", -7)
    message = refused("store", "import", exported / "token_bytes.parquet", tmp_path / "new.db")
    assert names(message, "token_bytes.parquet", f"row {ROWS['token_bytes'] - 1}")


@pytest.mark.parametrize(("difference", "count"), [(3.0, 1), (0.5, 0)])
def test_a_logprob_that_contradicts_its_list_is_counted(
    difference: float, count: int, tmp_path: Path
) -> None:
    """3 nats between a sampled token and its own entry are a finding of ``check`` and ``import``,
    and no damage, because that is what was received.
    """
    made = possible()
    path = tmp_path / "s.db"
    with RolloutStore(path) as store:
        store.add(SETTINGS, Prompt.user("a"), 0, made)
        odd = replace(made, logprobs=made.logprobs - np.float32(difference))
        store.add(SETTINGS, Prompt.user("b"), 0, odd)
    done = blb("store", "check", path, "--json")
    assert (done.exit_code, json.loads(done.stdout)["contradictory"]) == (0, count)
    assert names(blb("store", "check", path).stdout, "1 completions") == bool(count)
    export_store(path, tmp_path / "out")
    result = json.loads(
        blb("store", "import", tmp_path / "out", tmp_path / "b.db", "--json").stdout
    )
    assert (result["added"]["completions"], result["contradictory"]) == (2, count)


def test_another_answer_under_a_stored_key_is_counted(exported: Path, tmp_path: Path) -> None:
    """The first one stays, in the store as in the file, and the other is no duplicate."""
    import_store(exported, tmp_path / "new.db")
    before = rows(tmp_path / "new.db")
    change(exported, "completions", "text", "another answer")
    done = blb("store", "import", exported, tmp_path / "new.db", "--json")
    result = json.loads(done.stdout)
    assert result["differing"] == {"completions": 1}
    assert (result["added"], result["there"]["completions"]) == ({}, 39)
    assert rows(tmp_path / "new.db") == before
    path = exported / "completions.parquet"
    both = [pq.read_table(path), pq.read_table(path)]
    pq.write_table(pa.concat_tables(both), path)
    change(exported, "completions", "text", "a third answer")
    twice = import_store(path, tmp_path / "twice.db")
    assert (twice.added["completions"], twice.same["completions"]) == (40, 39)
    assert twice.differing == {"completions": 1}


def test_rows_before_a_bad_one_are_stored_and_counted(tmp_path: Path) -> None:
    """Of 1,200 rows the last is bad: the message says how many are stored, and so many are."""
    with RolloutStore(tmp_path / "s.db") as store:
        store.add_rewards({f"{number:064x}": "1" for number in range(1200)})
    export_store(tmp_path / "s.db", tmp_path / "out")
    change(tmp_path / "out", "rewards", "answer", None)
    with raises_naming(InputError, "row 1199", "1,000 rows"):
        import_store(tmp_path / "out" / "rewards.parquet", tmp_path / "new.db")
    assert len(rows(tmp_path / "new.db")) == 1000


def test_parquet_there_and_back(exported: Path, tmp_path: Path) -> None:
    """An export imported into a new store gives the same keys and the same bits, all tables; a
    second import adds nothing.
    """
    import_store(exported, tmp_path / "back.db")
    assert rows(tmp_path / "back.db") == rows(tmp_path / "s.db")
    again = import_store(exported, tmp_path / "back.db")
    assert (again.added.total(), again.same["completions"]) == (0, 40)
    with raises_naming(StoreError, "exported", "Parquet"):
        export_store(tmp_path / "s.db", exported)


def test_datasets_reads_an_export(exported: Path, tmp_path: Path) -> None:
    """``datasets`` sees lists of ids and logprobs and nested lists of alternatives, as the store
    has them.
    """
    datasets = pytest.importorskip("datasets")
    file = str(exported / "completions.parquet")
    table = datasets.load_dataset(
        "parquet", data_files=file, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert table.column_names[:4] == ["key", "request_hash", "prompt_hash", "sample"]
    with RolloutStore(tmp_path / "s.db", read_only=True) as store:
        for row in table:
            (there,) = store.completions([row["key"]])
            assert row["text"] == there.text
            assert row["token_ids"] == there.token_ids.tolist()
            assert row["top_ids"] == there.top_ids.tolist()
            assert np.array_equal(
                np.array(row["top_logprobs"], np.float32).reshape(there.top_logprobs.shape),
                there.top_logprobs,
            )
            assert row["messages"][0]["role"] == "user"


def test_an_export_with_rows_left_out_and_columns_added(exported: Path, tmp_path: Path) -> None:
    """Half the rows and a column more can be imported, one file alone under any name; added columns
    are told.
    """
    table = pq.read_table(exported / "completions.parquet")
    mine = table.slice(0, 20).append_column("mine", table.slice(0, 20)["key"])
    pq.write_table(mine, tmp_path / "half.parquet")
    done = blb("store", "import", tmp_path / "half.parquet", tmp_path / "back.db")
    assert done.exit_code == 0, done.output
    assert "columns of no use here: mine" in done.stdout
    back = rows(tmp_path / "back.db")
    assert sum(table == "completions" for table, _ in back) == 20
    before = rows(tmp_path / "s.db")
    assert all(before[name] == row for name, row in back.items())


def test_a_changed_export_is_refused(exported: Path, tmp_path: Path) -> None:
    """Another key, prompt, settings or shape, a missing column, a cut file: each an error with the
    row or the column.
    """
    file = exported / "completions.parquet"
    table, n = pq.read_table(file), 40

    def changed(name: str, value: Any) -> Any:
        field = table.schema.field(name)
        return table.set_column(
            table.column_names.index(name), field, pa.array([value] * n, field.type)
        )

    bad = {
        "key": changed("key", "0" * 64),
        "its key is .*, its contents give": changed(
            "messages", [{"role": "user", "content": "other"}]
        ),
        "its (key|request_hash) is": changed("settings", "{}"),
        "has not": changed("alternatives", 9),
        "lacks the columns token_ids": table.drop_columns(["token_ids"]),
    }
    for words, each in bad.items():
        pq.write_table(each, file)
        with pytest.raises(InputError, match=words):
            import_store(exported, tmp_path / "back.db")
    file.write_bytes(b"PAR1" + bytes(200))
    with raises_naming(InputError, "completions.parquet"):
        import_store(file, tmp_path / "back.db")
    with raises_naming(InputError, "completions.parquet"):
        import_store(tmp_path / "nowhere", tmp_path / "back.db")
