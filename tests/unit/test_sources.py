"""Rollouts collected elsewhere: what stores and exports hold is found by key, bit for bit, and nothing of it is asked for again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox_lb.cli import main
from blackbox_lb.errors import InputError, StoreError
from blackbox_lb.store import RolloutStore, request_hash
from blackbox_lb.store.elsewhere.joined import Gathered, open_sources
from blackbox_lb.store.elsewhere.parquet_exchange import export_store, import_store
from blackbox_lb.types import Completion, Prompt
from tests.support.exact import ExactModel, ExactServer
from tests.unit.test_store import SETTINGS, arrays, arrays_of, assert_same, completion

REQUEST = request_hash(SETTINGS)


def filled(path: Path, rows: Sequence[tuple[int, int]]) -> Path:
    """A store with a completion for each (prompt, sample), whose text names it."""
    with RolloutStore(path) as store:
        for prompt, sample in rows:
            made = replace(completion(f"{prompt}.{sample}", 1 + sample), token_bytes={prompt: bytes([prompt])}, generated=sample)
            store.add(SETTINGS, Prompt.user(str(prompt)), sample, made)
    return path


@pytest.fixture
def three(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Three stores; two of them share a completion."""
    return (
        filled(tmp_path / "own.db", [(0, 0), (0, 1)]),
        filled(tmp_path / "a.db", [(0, 1), (1, 0)]),
        filled(tmp_path / "b.db", [(2, s) for s in range(5)]),
    )


def test_sources_are_one_store(three: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Keys, completions in any order, counts, bytes and rewards are those of the merged store; new ones go into the own one."""
    own, a, b = three
    with RolloutStore(a) as store:
        store.add_rewards({"x": "a", "y": "a"})
    with RolloutStore(own) as store:
        store.add_rewards({"x": "own"})
    export_store(b, tmp_path / "b")
    merged = tmp_path / "merged.db"
    shutil.copy(own, merged)
    for each in (a, b):
        export_store(each, tmp_path / f"out-{each.stem}")
        import_store(tmp_path / f"out-{each.stem}", merged)
    with RolloutStore(merged) as whole, Gathered(own, [str(a), str(tmp_path / "b")]) as store:
        keys = sorted(whole.keys(REQUEST))
        assert store.keys(REQUEST) == set(keys)
        for one, other in zip(store.completions(keys), whole.completions(keys), strict=True):
            assert (one.text, one.generated, one.whole, one.model) == (other.text, other.generated, other.whole, other.model)
            assert_same(arrays_of(one), arrays_of(other))
        assert store.spent(keys) == whole.spent(keys)
        assert store.token_bytes("t") == whole.token_bytes("t") == {0: b"\0", 1: b"\1", 2: b"\2"}
        assert store.rewards(["x", "y", "z"]) == {"x": "own", "y": "a"}
        assert sorted(store.order(keys)) == keys
        assert {each.text for each in store.completions([*store.order(keys)][:2])} == {"0.0", "0.1"}, "its own first"
        store.add(SETTINGS, Prompt.user("9"), 0, completion("9.0"))
        assert len(store.keys(REQUEST)) == len(keys) + 1
        with pytest.raises(StoreError, match="has no completion"):
            list(store.completions(["nothing"]))
    with RolloutStore(own) as store:
        assert len(store.keys(REQUEST)) == 3


@given(st.lists(st.tuples(arrays(), st.booleans(), st.none() | st.integers(0, 9)), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_what_is_read_of_parquet_is_what_was_exported(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    """Any columns, missing ones among them, from any row group, bit for bit."""
    folder = tmp_path_factory.mktemp("export")
    with RolloutStore(folder / "s.db") as store:
        keys = [
            store.add(
                SETTINGS,
                Prompt.user(str(number)),
                0,
                Completion(f"{number}", "stop", **each._asdict(), whole=whole, generated=generated),
            )
            for number, (each, whole, generated) in enumerate(rows)
        ]
        export_store(folder / "s.db", folder / "out")
        (source,) = open_sources([str(folder / "out")], folder)
        assert source.keys(REQUEST) == set(keys)
        for before, after in zip(store.completions(keys), source.completions(keys), strict=True):
            assert_same(arrays_of(before), arrays_of(after))
            assert (before.text, before.whole, before.generated) == (after.text, after.whole, after.generated)
        source.close()


def test_an_export_is_imported_once(tmp_path: Path) -> None:
    """And anew where it has changed."""
    filled(tmp_path / "s.db", [(p, s) for p in range(10) for s in range(4)])
    export_store(tmp_path / "s.db", tmp_path / "out")
    for _ in range(2):
        (source,) = open_sources([str(tmp_path / "out")], tmp_path)
        assert {each.text for each in source.completions(source.keys(REQUEST))} == {f"{p}.{s}" for p in range(10) for s in range(4)}
        source.close()
        (imported,) = tmp_path.glob("imported-*.db")
    path = tmp_path / "out" / "completions.parquet"
    pq.write_table(pq.read_table(path).slice(0, 7), path)
    (source,) = open_sources([str(tmp_path / "out")], tmp_path)
    assert (len(source.keys(REQUEST)), source.path == imported) == (7, False)
    source.close()


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[str]:
    """An export in object storage: fsspec's own in memory."""
    filled(tmp_path / "s.db", [(3, 0), (3, 1)])
    export_store(tmp_path / "s.db", tmp_path / "out")
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "out"), "/bucket/run", recursive=True)
    yield "memory://bucket/run"
    memory.rm("/bucket", recursive=True)


def test_object_storage(bucket: str, tmp_path: Path) -> None:
    """A URL stands for a folder, a file of it, or all that a pattern names."""
    for name in (bucket, f"{bucket}/completions.parquet", "memory://bucket/r*", f"{bucket}/*.parquet"):
        (source,) = open_sources([name], tmp_path)
        assert [each.text for each in source.completions(sorted(source.keys(REQUEST)))] in (["3.0", "3.1"], ["3.1", "3.0"])
        source.close()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.db", "no rollouts at .*nowhere.db; give a store"),
        ("nowhere/*.db", "nothing is called nowhere"),
        ("empty", "neither rollouts.db nor an export"),
        ("other.parquet", "has not the columns of any table"),
        ("broken.parquet", "cannot read .*broken.parquet as Parquet"),
        ("broken.db", "broken.db"),
        ("no-such-scheme://x/y", "cannot open no-such-scheme://x/y"),
        ("memory://x/rollouts.db", "no rollouts at"),
    ],
)
def test_what_is_no_source_is_named(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with the remedy, and no file is made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but not really")
    (tmp_path / "broken.db").write_bytes(b"SQLite format 3\0 but not really")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    before = sorted(tmp_path.iterdir())
    with pytest.raises((InputError, StoreError), match=said):
        open_sources([name], tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_a_remote_store_is_refused(tmp_path: Path) -> None:
    """SQLite reads no object storage; the remedy is named."""
    memory = fsspec.filesystem("memory")
    memory.pipe("/there/rollouts.db", b"x")
    try:
        with pytest.raises(InputError, match="blb store export"):
            open_sources(["memory://there"], tmp_path)
    finally:
        memory.rm("/there", recursive=True)


@pytest.mark.parametrize("column", ["token_ids", "logprobs", "top_ids", "bounded"])
def test_columns_out_of_step_are_told(column: str, tmp_path: Path) -> None:
    """An export that somebody edited ends with a sentence, wherever its lists are too short or hold nulls."""
    filled(tmp_path / "s.db", [(0, 2)])
    export_store(tmp_path / "s.db", tmp_path / "out")
    path = tmp_path / "out" / "completions.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    for value in ([], [None] * 3):
        changed = [{**rows[0], column: [value] * 3 if column == "top_ids" else value}]
        pq.write_table(pa.Table.from_pylist(changed, schema=table.schema), path)
        with pytest.raises(InputError, match=r"export (it )?again"):
            open_sources([str(path)], tmp_path)
    assert not [*tmp_path.glob("imported-*")]


def blb(*arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_a_fit_from_shards_asks_for_nothing_new(tmp_path: Path) -> None:
    """Two machines' stores, one of them exported, give the bias of a single one, and no completion is paid for twice."""
    data = tmp_path / "data.jsonl"
    rows = [{"prompt": f"Question {n}?", "answers": ["a"], "split": s} for s in ("train", "validation", "test") for n in range(8)]
    data.write_text("".join(json.dumps(row | {"prompt": f"{row['split']} {row['prompt']}"}) + "\n" for row in rows))
    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)) as server:
        where = ("--provider", "llamacpp", "--base-url", server.base_url, "--data", data, "--reward", "length")
        plan = (*where, "--max-tokens", 8, "--top-logprobs", 5, "--samples-per-prompt", 20, "--seed", 1, "--quiet")
        fit = ("fit", *plan, "--validation-samples", 4, "--test-samples", 4, "--l2", 5)
        assert blb(*fit, "--out", tmp_path / "one").exit_code == 0
        _split(tmp_path / "one" / "rollouts.db", tmp_path / "a.db", tmp_path / "b.db")
        export_store(tmp_path / "b.db", tmp_path / "b")
        result = blb(*fit, "--out", tmp_path / "many", "--rollouts", tmp_path / "*.db", "--rollouts", tmp_path / "b")
        assert result.exit_code == 0, result.output
        with RolloutStore(tmp_path / "many" / "rollouts.db") as store:
            # Sums in another order are another bias in its last bits, whose completions nobody has; the base's are all there.
            assert all(each["bias"] for each in store.requests().values())
        one, many = (json.loads((tmp_path / run / "bias.json").read_text()) for run in ("one", "many"))
    assert [(entry["id"], entry["seen"]) for entry in one["entries"]] == [(e["id"], e["seen"]) for e in many["entries"]]
    np.testing.assert_allclose([e["bias"] for e in one["entries"]], [e["bias"] for e in many["entries"]], atol=1e-9)


def _split(path: Path, one: Path, other: Path) -> None:
    """Every second completion into each of two stores."""
    with RolloutStore(path, read_only=True) as whole, RolloutStore(one) as a, RolloutStore(other) as b:
        for table in ("prompts", "requests", "token_bytes", "completions"):
            for number, row in enumerate(list(whole.rows(table))):
                for turn, store in enumerate((a, b)):
                    if table != "completions" or number % 2 == turn:
                        store.add_rows({table: [row]})
    path.unlink()
