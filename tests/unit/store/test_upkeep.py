"""Upkeep of stores: damage is found, several become one with all that is intact in them, and Parquet
gives the same bits back.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.errors import InputError, StoreError
from blackbox_lb.store import RolloutStore
from blackbox_lb.store.database import TABLES
from blackbox_lb.store.upkeep import check, merge
from blackbox_lb.types import Prompt
from tests.support.commands import blb
from tests.support.errors import raises_naming
from tests.unit.store.stores import SETTINGS, Rows, completion, killed_after, make, rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of some dozen pages."""
    return make(tmp_path_factory.mktemp("whole") / "s.db")


def readable(path: Path) -> Iterator[tuple[tuple[str, Any], dict[str, Any]]]:
    """The rows that SQLite itself still reads, up to the first damage of each table, by table and
    key.
    """
    with suppress(sqlite3.Error):
        db = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
        for table, columns in TABLES.items():
            with suppress(sqlite3.Error, UnicodeDecodeError):
                for values in db.execute(f"SELECT {', '.join(columns)} FROM {table}"):
                    key = values[: 2 if table == "token_bytes" else 1]
                    yield (table, key), dict(zip(columns, values, strict=True))
        db.close()


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
        assert {name for name, row in readable(path) if row == before.get(name)} <= after.keys()
        if sound(path):
            # SQLite puts zeros in the place of what is missing of the last page: now and then
            # those were there.
            assert rows(path) == before
        for file in tmp_path.glob(f"{path.name}*"):
            file.unlink()
    assert kept / trials / len(before) >= least


def test_a_log_that_was_never_written_back_is_merged(tmp_path: Path) -> None:
    """After SIGKILL all that ``add`` returned for is in the -wal, and comes from there."""
    path = tmp_path / "s.db"

    def work() -> None:
        store = RolloutStore(path)
        for seed in range(12):
            store.add(SETTINGS, Prompt.user("a"), seed, completion(seed))

    killed_after(work)
    assert merge([path], tmp_path / "new.db").added["completions"] == 12
    assert check(tmp_path / "new.db").sound
    with RolloutStore(path) as store:
        assert store.size().completions == 12


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
