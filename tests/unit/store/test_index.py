"""What is stored is found under its key or said to be damaged: never passed over, which would be
paid for again, and never another row.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.errors import StoreCorrupt, StoreError
from blackbox_lb.store import RolloutStore, request_hash
from tests.support.commands import asking, blb, options
from tests.support.errors import names, raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_rows
from tests.unit.store.stores import SETTINGS, make

INDEX_LEAF = 0x0A
INDEX_PAGES = (INDEX_LEAF, 0x02)
"""First bytes of a page (https://www.sqlite.org/fileformat2.html): a leaf, and any of an index."""
REQUESTS = [request_hash({**SETTINGS, "bias": [[number, 1.0]]}) for number in (0, 1)]


@pytest.fixture(scope="module")
def store_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a store whose indices have more than one page."""
    return make(tmp_path_factory.mktemp("whole") / "s.db", 200).read_bytes()


def contents(path: Path, *, read_only: bool = False) -> dict[str, Any]:
    """All that a store hands out."""
    with RolloutStore(path, read_only=read_only) as store:
        keys = [sorted(store.keys(request)) for request in REQUESTS]
        return {
            "keys": keys,
            "prompts": [store.prompts(request) for request in REQUESTS],
            "requests": store.requests(),
            "size": store.size(),
            "texts": [[row.text for row in store.completions(some)] for some in keys],
            "spent": [store.spent(some) for some in keys],
            "rewards": store.rewards([f"{seed:064x}" for seed in range(50)]),
            "token bytes": store.token_bytes("t"),
        }


def written(path: Path, data: bytes | bytearray) -> Path:
    """A file with these bytes, and no log of the one before it."""
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("copies", [80, pytest.param(3000, marks=pytest.mark.slow)])
def test_flipped_bits_never_hide_a_row(copies: int, store_bytes: bytes, tmp_path: Path) -> None:
    """1 to 10 bits flipped anywhere in the file, or one in an index: everything is handed out, or
    the damage is said.
    """
    whole = contents(written(tmp_path / "whole.db", store_bytes))
    draw = random.Random(5)
    outcomes = Counter[str]()
    indices = [
        start for start in range(4096, len(store_bytes), 4096) if store_bytes[start] in INDEX_PAGES
    ]
    for copy in range(copies):
        data = bytearray(store_bytes)
        places = [draw.randrange(len(data)) for _ in range(draw.randint(1, 10))]
        if copy % 2:
            places = [draw.choice(indices) + draw.randrange(4096)]
        for place in places:
            data[place] ^= 1 << draw.randrange(8)
        path = written(tmp_path / "s.db", data)
        try:
            assert contents(path, read_only=draw.random() < 0.5) == whole
            outcomes["whole"] += 1
        except StoreError:
            outcomes["said"] += 1
    assert outcomes["whole"] > 0
    assert outcomes["said"] > copies / 2


@pytest.mark.parametrize("most", [20, pytest.param(10_000, marks=pytest.mark.slow)])
def test_swapped_pages_never_give_another_row(
    store_bytes: bytes, tmp_path: Path, most: int
) -> None:
    """Two pages in each other's place, above all two of an index, also after the store was opened:
    what comes for a key is what was stored under it.
    """
    size = 4096
    whole = contents(written(tmp_path / "whole.db", store_bytes))
    chain = itertools.chain
    texts = dict(zip(chain(*whole["keys"]), chain(*whole["texts"]), strict=True))
    numbers = range(2, len(store_bytes) // size)
    leaves = [number for number in numbers if store_bytes[number * size] == INDEX_LEAF]
    pages = list(itertools.combinations(leaves, 2))
    pairs = random.Random(3).sample(pages, min(most, len(pages)))
    pairs += random.Random(3).sample(list(itertools.combinations(numbers, 2)), 10)
    refused = 0
    for first, second in pairs:
        data = bytearray(store_bytes)
        for target, source in ((first, second), (second, first)):
            data[target * size : (target + 1) * size] = store_bytes[
                source * size : (source + 1) * size
            ]
        path = written(tmp_path / "s.db", data)
        try:
            store = RolloutStore(path, check_file=False)
        except StoreError:
            refused += 1
            continue
        with store:
            for key, text in texts.items():
                try:
                    (completion,) = store.completions([key])
                except StoreError:
                    refused += 1
                else:
                    assert completion.text == text
    assert refused > 0


def test_a_damaged_index_costs_nothing(tmp_path: Path) -> None:
    """The same collection over a store with one flipped bit ends with exit code 2 and sends no
    request for a completion; over a merge of the store it sends none either.
    """
    data = tmp_path / "data.jsonl"
    write_rows(data, [{"prompt": f"q {number}"} for number in range(60)])
    with ExactServer(ExactModel(12, 6, end=True, prompts=64, sharpness=0.7)) as server:
        drawn = options(max_tokens=6, top_logprobs=4, samples_per_prompt=6)
        command = ("collect", *asking(server, data=data, reward="length"), *drawn)
        path = tmp_path / "run" / "rollouts.db"
        assert blb(*command, "--out", path.parent).exit_code == 0
        paid = len(requests_of(server))
        assert paid > 0
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            (request,) = db.execute("SELECT hash FROM requests").fetchone()
            query = "SELECT rootpage FROM sqlite_master WHERE name = 'completions_by_request'"
            (root,) = db.execute(query).fetchone()
        db.close()
        content = bytearray(path.read_bytes())
        content[content.index(request.encode(), (root - 1) * 4096)] ^= 1
        written(path, content)
        again = blb(*command, "--out", path.parent)
        assert (again.exit_code, "Traceback" in again.output) == (2, False)
        assert names(again.output, path, f"blb store merge {path} --out NEW")
        assert blb("store", "check", path).exit_code == 2
        assert len(requests_of(server)) == paid
        new = tmp_path / "new.db"
        assert blb("store", "merge", path, "--out", new).exit_code == 0
        written(path, new.read_bytes())
        assert blb(*command, "--out", path.parent).exit_code == 0
        assert len(requests_of(server)) == paid


def requests_of(server: ExactServer) -> list[Any]:
    """Bodies of the requests for completions."""
    return [body for path, body in server.calls if path == "/v1/chat/completions"]


@pytest.mark.parametrize("table", ["prompts", "requests"])
def test_a_lost_prompt_is_said_and_stored_again(table: str, tmp_path: Path) -> None:
    """Completions without their prompt or settings are not passed over; the collection that asked
    for them stores both again and sends nothing.
    """
    data = tmp_path / "data.jsonl"
    splits = ("train", "validation", "test")
    rows = [{"prompt": f"{split} {n}", "split": split} for split in splits for n in range(3)]
    write_rows(data, [{**row, "answer": "a"} for row in rows])
    with ExactServer(ExactModel(12, 6, end=True, prompts=4, sharpness=0.7)) as server:
        plan = (*asking(server, data=data, reward="length"), "--quiet")
        command = ("collect", *plan, *options(max_tokens=6, top_logprobs=4, samples_per_prompt=2))
        path = tmp_path / "run" / "rollouts.db"
        assert blb(*command, "--out", path.parent).exit_code == 0
        paid = len(requests_of(server))
        with sqlite3.connect(path) as db:
            db.execute(f"DELETE FROM {table}")
        db.close()
        with RolloutStore(path, read_only=True) as store:
            (request,) = {row["request_hash"] for row in store.rows("completions")}
            with raises_naming(StoreCorrupt, path, table):
                store.requests() if table == "requests" else store.prompts(request)
        assert blb(*command, "--out", path.parent).exit_code == 0
        assert len(requests_of(server)) == paid
        with RolloutStore(path, read_only=True) as store:
            assert len(store.prompts(request)) == paid
            assert list(store.requests()) == [request]


def test_a_row_that_cannot_be_stored_is_no_duplicate(tmp_path: Path) -> None:
    """A missing value is an error; only a row whose key is there is left out without one."""
    with RolloutStore(tmp_path / "s.db") as store:
        store.add_rewards({"k": "1"})
        (row,) = store.rows("rewards")
        assert store.add_rows({"rewards": [row]}) == {"rewards": 0}
        with raises_naming(StoreError, "s.db", "rewards.received"):
            store.add_rows({"rewards": [{**row, "key": "l", "received": None}]})


def test_a_file_whose_tables_were_never_made_becomes_a_store(tmp_path: Path) -> None:
    """What a kill leaves between the file and its tables is filled by the next command."""
    path = tmp_path / "s.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
    db.close()
    with raises_naming(StoreError, path):
        RolloutStore(path, read_only=True)
    with RolloutStore(path) as store:
        assert store.size().completions == 0
