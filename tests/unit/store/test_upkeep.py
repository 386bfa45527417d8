"""Upkeep of stores: damage is found, several become one with all that is intact in them, and Parquet
gives the same bits back.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb.errors import InputError, StoreError
from blackbox_lb.store import RolloutStore
from blackbox_lb.store.database import TABLES
from blackbox_lb.store.parquet import export_store, import_store
from blackbox_lb.store.rows import check_row
from blackbox_lb.store.upkeep import check, merge
from blackbox_lb.types import Completion, Prompt
from tests.support.commands import blb
from tests.support.errors import raises_naming
from tests.unit.store.test_store import killed_after

SETTINGS = {"model": "m", "tokenizer": "t"}
Rows = dict[tuple[str, Any], dict[str, Any]]


def completion(seed: int, tokens: int | None = None) -> Completion:
    """Any completion: of no token up to some pages of them, with and without the optional
    columns.
    """
    draw = np.random.default_rng(seed)
    t = int(draw.integers(0, 60)) if tokens is None else tokens
    k = 0 if seed % 7 == 3 else 5
    return Completion(
        text=f"text {seed} \N{SNOWMAN}" * (seed % 5),
        finish_reason="length" if seed % 2 else "stop",
        token_ids=draw.integers(0, 2**17, t, dtype=np.int32),
        logprobs=-draw.random(t, dtype=np.float32),
        top_ids=draw.integers(-2, 2**17, (t, k), dtype=np.int32),
        top_logprobs=np.where(draw.random((t, k)) < 0.1, -np.inf, -draw.random((t, k))).astype(
            np.float32
        ),
        prompt_tokens=seed,
        model="m",
        whole=seed % 3 > 0,
        token_bytes={token: bytes([token, 255]) for token in range(seed % 4)},
        propensities=-draw.random(t, dtype=np.float32) if seed % 2 else None,
        bounded=draw.random(t) < 0.5 if seed % 3 == 0 else None,
        generated=t + 1 if seed % 2 else None,
        fingerprint=f"fp_{seed % 2}",
    )


def make(path: Path, samples: int = 40, start: int = 0) -> Path:
    """A store with something in each table."""
    with RolloutStore(path) as store:
        for seed in range(start, start + samples):
            settings = {**SETTINGS, "bias": [[seed % 2, 1.0]]}
            store.add(
                settings,
                Prompt.user(f"prompt {seed % 11} " * (seed % 5 * 40 + 1)),
                seed,
                completion(seed),
            )
        store.add_rewards(
            {f"{seed:064x}": f"{seed}.5" for seed in range(start, start + samples // 4)}
        )
    return path


def rows(path: Path) -> Rows:
    """Every row of a store by table and key."""
    with RolloutStore(path, read_only=True) as store:
        return {
            (table, tuple(row.values())[: 2 if table == "token_bytes" else 1]): row
            for table in TABLES
            for row in store.rows(table)
        }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of some dozen pages."""
    return make(tmp_path_factory.mktemp("whole") / "s.db")


def readable(path: Path) -> Rows:
    """The rows that SQLite itself still reads, up to the first damage of each table, and that are
    what was stored.
    """
    found: Rows = {}
    try:
        db = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error:
        return found
    for table, columns in TABLES.items():
        try:
            for values in db.execute(f"SELECT {', '.join(columns)} FROM {table}"):
                with suppress(StoreError):
                    row = dict(zip(columns, values, strict=True))
                    check_row(table, row)
                    found[table, values[: 2 if table == "token_bytes" else 1]] = row
        except (sqlite3.Error, UnicodeDecodeError):
            continue
    db.close()
    return found


def sound(path: Path) -> bool:
    """What ``check`` says; a file that is refused as another program's is not sound either."""
    try:
        return check(path).sound
    except StoreError:
        return False


def saved(damaged: Path, before: Rows, tmp: Path) -> Rows:
    """What a merge saves, each row the same as before; nothing where SQLite opens no store."""
    new = tmp / f"{damaged.name}.new"
    bytes_before = damaged.read_bytes()
    try:
        done = merge([damaged], new)
    except StoreError:
        assert not new.exists()
        return {}
    assert damaged.read_bytes() == bytes_before
    after = rows(new)
    assert done.added == {table: sum(each == table for each, _ in after) for table in done.added}
    assert all(before[name] == row for name, row in after.items())
    return after


def test_a_whole_store_is_sound(whole: Path) -> None:
    """Nothing is wrong."""
    found = check(whole)
    assert found.sound, found.problems
    assert found.rows["completions"] == 40


def flipped(data: bytearray, draw: random.Random) -> None:
    """Change one to eight bytes."""
    for _ in range(draw.choice((1, 1, 2, 8))):
        data[draw.randrange(len(data))] ^= draw.randrange(1, 256)


def cut(data: bytearray, draw: random.Random) -> None:
    """Cut the file anywhere behind its first fifth, and fill it up with zeros as docs/store.md
    says.
    """
    start = draw.randrange(len(data) // 5, len(data))
    data[start:] = bytes(len(data) - start)


def page_lost(data: bytearray, draw: random.Random) -> None:
    """Zeros in the place of a page that is not the first."""
    number = draw.randrange(1, len(data) // 4096)
    data[number * 4096 : (number + 1) * 4096] = bytes(4096)


@pytest.mark.parametrize("trials", [3, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("damage", "least"), [(flipped, 0.98), (cut, 0.3), (page_lost, 0.97)])
def test_the_share_of_rows_that_a_merge_saves(
    damage: Callable[[bytearray, random.Random], None], least: float, trials: int, tmp_path: Path
) -> None:
    """By kind of damage, at least the share that was measured less a margin; no wrong row, every row
    that SQLite still reads, and no damage that ``check`` passes over.
    """
    data = make(tmp_path / "s.db", 300).read_bytes()
    before = rows(tmp_path / "s.db")
    draw = random.Random(7)
    kept = 0
    for trial in range(trials):
        damaged = bytearray(data)
        damage(damaged, draw)
        path = tmp_path / f"damaged{trial}.db"
        path.write_bytes(damaged)
        after = saved(path, before, tmp_path)
        kept += len(after)
        assert readable(path).keys() <= after.keys()
        if sound(path):
            # SQLite puts zeros in the place of what is missing of the last page: now and then
            # those were there.
            assert rows(path) == before
        for file in tmp_path.glob(f"{path.name}*"):
            file.unlink()
    assert kept / trials / len(before) >= least


def test_a_log_that_was_never_written_back_is_merged(tmp_path: Path) -> None:
    """After SIGKILL all rows are in the -wal, and come from there."""
    path = tmp_path / "s.db"

    def work() -> None:
        store = RolloutStore(path)
        for seed in range(12):
            store.add(SETTINGS, Prompt.user("a"), seed, completion(seed))

    killed_after(work)
    assert merge([path], tmp_path / "new.db").added["completions"] == 12
    assert check(tmp_path / "new.db").sound


def test_a_damaged_row_is_named_and_its_neighbours_are_merged(whole: Path, tmp_path: Path) -> None:
    """A completion overwritten in its page is named by ``check`` and counted by ``merge``."""
    data = bytearray(whole.read_bytes())
    victim = next(
        row
        for (table, _), row in rows(whole).items()
        if table == "completions" and 100 < len(row["tokens"]) < 400
    )
    at = data.index(victim["tokens"])
    data[at + 50] ^= 1
    path = tmp_path / "s.db"
    path.write_bytes(bytes(data))
    done = blb("store", "merge", path, "--out", tmp_path / "new.db", "--json")
    assert json.loads(done.stdout)["damaged"] == {"completions": 1}
    assert (
        "left out because damaged: 1 completions"
        in blb("store", "merge", path, "--out", tmp_path / "again.db").stdout
    )
    found = blb("store", "check", path)
    assert found.exit_code == 2
    assert f"completions {victim['key'][:12]}" in found.stdout
    assert "blb store merge" in found.stderr
    assert rows(whole).keys() - rows(tmp_path / "new.db").keys() == {
        ("completions", (victim["key"],))
    }


def test_a_merge_says_where_pages_cannot_be_read(whole: Path, tmp_path: Path) -> None:
    """The table of a page of zeros is named."""
    data = bytearray(whole.read_bytes())
    with sqlite3.connect(whole) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'rewards'").fetchone()
    db.close()
    data[(root - 1) * 4096 : root * 4096] = bytes(4096)
    path = tmp_path / "s.db"
    path.write_bytes(bytes(data))
    done = blb("store", "merge", path, "--out", tmp_path / "new.db")
    assert done.exit_code == 0, done.output
    assert "cannot read, in the table of: rewards" in done.stdout
    assert rows(whole).keys() - rows(tmp_path / "new.db").keys() == {
        name for name in rows(whole) if name[0] == "rewards"
    }


def test_merging_takes_each_response_once(tmp_path: Path) -> None:
    """Shared rows once, other answers counted and left out, a second merge adds nothing, and any
    order has the same keys.
    """
    one, two, three = (
        make(tmp_path / f"{name}.db", 20, start) for name, start in (("1", 0), ("2", 10), ("3", 10))
    )
    with RolloutStore(two) as store:
        settings = {**SETTINGS, "bias": [[1, 1.0]]}
        store.add(settings, Prompt.user("new"), 0, completion(901))
    with RolloutStore(three) as store:
        store.add(settings, Prompt.user("new"), 0, completion(902))
    target = tmp_path / "all.db"
    done = merge([one, two, three], target)
    everything = rows(one) | rows(two) | rows(three)
    assert rows(target).keys() == everything.keys()
    assert done.differing == {"completions": 1}
    assert done.added["completions"] == 31
    assert done.same["completions"] == 10 + 20
    kept = next(
        row
        for (table, _), row in rows(target).items()
        if table == "completions" and row["sample"] == 0 and row["prompt_tokens"]
    )
    assert kept["prompt_tokens"] == 901
    assert merge([one, two, three], target).added == {}
    merge([three, two, one], tmp_path / "other.db")
    assert rows(tmp_path / "other.db").keys() == everything.keys()
    assert check(target).sound
    with raises_naming(InputError, "all.db", "``out``"):
        merge([one, target], target)


def test_parquet_there_and_back(whole: Path, tmp_path: Path) -> None:
    """An export imported into a new store gives the same keys and the same bits, all tables; a
    second import adds nothing.
    """
    out = export_store(whole, tmp_path / "out")
    assert out["completions"] == 40
    import_store(tmp_path / "out", tmp_path / "back.db")
    assert rows(tmp_path / "back.db") == rows(whole)
    again = import_store(tmp_path / "out", tmp_path / "back.db")
    assert (again.added.total(), again.same["completions"]) == (0, 40)
    with raises_naming(StoreError, "out", "Parquet"):
        export_store(whole, tmp_path / "out")


def test_datasets_reads_an_export(whole: Path, tmp_path: Path) -> None:
    """``datasets`` sees lists of ids and logprobs and nested lists of alternatives, as the store
    has them.
    """
    datasets = pytest.importorskip("datasets")
    export_store(whole, tmp_path / "out")
    file = str(tmp_path / "out" / "completions.parquet")
    table = datasets.load_dataset(
        "parquet", data_files=file, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert table.column_names[:4] == ["key", "request_hash", "prompt_hash", "sample"]
    with RolloutStore(whole, read_only=True) as store:
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


def test_an_export_with_rows_left_out_and_columns_added(whole: Path, tmp_path: Path) -> None:
    """Half the rows and a column more can be imported, one file alone under any name; added columns
    are told.
    """
    import pyarrow.parquet as pq

    export_store(whole, tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "completions.parquet")
    mine = table.slice(0, 20).append_column("mine", table.slice(0, 20)["key"])
    pq.write_table(mine, tmp_path / "half.parquet")
    done = blb("store", "import", tmp_path / "half.parquet", tmp_path / "back.db")
    assert done.exit_code == 0, done.output
    assert "columns of no use here: mine" in done.stdout
    back = rows(tmp_path / "back.db")
    assert sum(table == "completions" for table, _ in back) == 20
    assert all(rows(whole)[name] == row for name, row in back.items())


def test_a_changed_export_is_refused(whole: Path, tmp_path: Path) -> None:
    """Another key, prompt, settings or shape, a missing column, a cut file: each an error with the
    row or the column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    export_store(whole, tmp_path / "out")
    file = tmp_path / "out" / "completions.parquet"
    table, n = pq.read_table(file), 40

    def changed(name: str, value: Any) -> pa.Table:
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
        "is missing": changed("token_ids", None),
        "lacks the columns token_ids": table.drop_columns(["token_ids"]),
    }
    for words, each in bad.items():
        pq.write_table(each, tmp_path / "out" / "completions.parquet")
        with pytest.raises(InputError, match=words):
            import_store(tmp_path / "out", tmp_path / "back.db")
    file.write_bytes(b"PAR1" + bytes(200))
    with raises_naming(InputError, "completions.parquet"):
        import_store(file, tmp_path / "back.db")
    with raises_naming(InputError, "completions.parquet"):
        import_store(tmp_path / "nowhere", tmp_path / "back.db")
