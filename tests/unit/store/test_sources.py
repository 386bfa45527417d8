"""Rollouts collected elsewhere: what stores and exports hold is found by key, bit for bit, and
nothing of it is asked for again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from blackbox_lb.errors import InputError, StoreError
from blackbox_lb.store import RolloutStore, request_hash
from blackbox_lb.store.joined import Gathered, open_sources
from blackbox_lb.store.parquet import export_store, import_store
from blackbox_lb.types import Prompt
from tests.support.commands import asking, blb, options
from tests.support.errors import names, raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_rows
from tests.unit.store.stores import SETTINGS, arrays_of, assert_same, completion

REQUEST = request_hash(SETTINGS)


def filled(path: Path, rows: Sequence[tuple[int, int]]) -> Path:
    """A store with a completion for each (prompt, sample), whose text names it."""
    with RolloutStore(path) as store:
        for prompt, sample in rows:
            made = completion(
                10 * prompt + sample,
                text=f"{prompt}.{sample}",
                token_bytes={prompt: bytes([prompt])},
                generated=sample,
            )
            store.add(SETTINGS, Prompt.user(str(prompt)), sample, made)
    return path


@pytest.fixture
def three(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Three stores; two of them share a completion."""
    return (
        filled(tmp_path / "own.db", [(0, 0), (0, 1)]),
        filled(tmp_path / "a[1].db", [(0, 1), (1, 0)]),
        filled(tmp_path / "b.db", [(2, s) for s in range(5)]),
    )


def test_sources_are_one_store(three: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Keys, completions in any order, counts, bytes and rewards are those of the merged store; new
    ones go into the own one.
    """
    own, a, b = three
    with RolloutStore(a) as store:
        store.add_rewards({"x": "a", "y": "a"})
    with RolloutStore(own) as store:
        store.add_rewards({"x": "own"})
    merged = tmp_path / "merged.db"
    shutil.copy(own, merged)
    for each in (a, b):
        export_store(each, tmp_path / f"out-{each.stem}")
        import_store(tmp_path / f"out-{each.stem}", merged)
    with RolloutStore(merged) as whole, Gathered(own, [str(a), str(b)]) as store:
        keys = sorted(whole.keys(REQUEST))
        assert store.keys(REQUEST) == set(keys)
        for one, other in zip(store.completions(keys), whole.completions(keys), strict=True):
            for name in ("text", "generated", "whole", "model"):
                assert getattr(one, name) == getattr(other, name)
            assert_same(arrays_of(one), arrays_of(other))
        assert store.spent(keys) == whole.spent(keys)
        assert store.token_bytes("t") == whole.token_bytes("t") == {0: b"\0", 1: b"\1", 2: b"\2"}
        assert store.rewards(["x", "y", "z"]) == {"x": "own", "y": "a"}
        assert sorted(store.order(keys)) == keys
        assert {each.text for each in store.completions(store.order(keys)[:2])} == {
            "0.0",
            "0.1",
        }, "its own first"
        store.add(SETTINGS, Prompt.user("9"), 0, completion(90))
        assert len(store.keys(REQUEST)) == len(keys) + 1
        with raises_naming(StoreError, "own.db", "nothing"):
            list(store.completions(["nothing"]))
    with RolloutStore(own) as store:
        assert len(store.keys(REQUEST)) == 3


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("nowhere.db", ("nowhere.db", "blb store import")),
        ("nowhere/*.db", ("nowhere/*.db", "blb store import")),
        ("empty", ("empty/rollouts.db", "blb store import")),
        ("export.parquet", ("export.parquet", "blb store import")),
        ("broken.db", ("broken.db", "blb store check")),
        ("s3://bucket/part-*", ("s3:/bucket/part-*", "blb store import")),
        (".", ("rollouts.db", "blb store import")),
        ("/", ("/rollouts.db", "blb store import")),
    ],
)
def test_what_is_no_source_is_named(
    name: str, facts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence with the remedy, and no file is made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.db").write_bytes(b"SQLite format 3\0 but not really")
    (tmp_path / "export.parquet").write_bytes(b"PAR1")
    before = sorted(tmp_path.iterdir())
    with raises_naming((InputError, StoreError), *facts):
        open_sources([name])
    assert sorted(tmp_path.iterdir()) == before


def plan_of(server: ExactServer, folder: Path) -> tuple[str, ...]:
    """Options of a small collection, and of a fit of it, with eight prompts a split."""
    splits = ("train", "validation", "test")
    rows = [{"prompt": f"{s} Question {n}?", "split": s} for s in splits for n in range(8)]
    data = write_rows(folder / "data.jsonl", [{**row, "answers": ["a"]} for row in rows])
    drawn = options(max_tokens=8, top_logprobs=5, samples_per_prompt=20, seed=1)
    return (*asking(server, data=data, reward="length"), *drawn, "--quiet")


def test_a_fit_from_shards_asks_for_nothing_new(tmp_path: Path) -> None:
    """Two machines' stores give the bias of a single one, and no completion is paid for twice."""
    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)) as server:
        plan = plan_of(server, tmp_path)
        fit = ("fit", *plan, "--validation-samples", 4, "--test-samples", 4, "--l2", 5)
        assert blb(*fit, "--out", tmp_path / "one").exit_code == 0
        _split(tmp_path / "one" / "rollouts.db", tmp_path / "a.db", tmp_path / "b.db")
        result = blb(*fit, "--out", tmp_path / "many", "--rollouts", tmp_path / "*.db")
        assert result.exit_code == 0, result.output
        with RolloutStore(tmp_path / "many" / "rollouts.db") as store:
            # Sums in another order are another bias in its last bits, whose completions nobody has;
            # the base's are all there.
            assert all(each["bias"] for each in store.requests().values())
        one, many = (
            json.loads((tmp_path / run / "bias.json").read_text()) for run in ("one", "many")
        )
    assert [(entry["id"], entry["seen"]) for entry in one["entries"]] == [
        (e["id"], e["seen"]) for e in many["entries"]
    ]
    np.testing.assert_allclose(
        [e["bias"] for e in one["entries"]], [e["bias"] for e in many["entries"]], atol=1e-9
    )


def _split(path: Path, one: Path, other: Path) -> None:
    """Every second completion into each of two stores."""
    with (
        RolloutStore(path, read_only=True) as whole,
        RolloutStore(one) as a,
        RolloutStore(other) as b,
    ):
        for table in ("prompts", "requests", "token_bytes", "completions"):
            for number, row in enumerate(list(whole.rows(table))):
                for turn, store in enumerate((a, b)):
                    if table != "completions" or number % 2 == turn:
                        store.add_rows({table: [row]})
    path.unlink()


def test_a_fit_of_what_is_stored_asks_for_no_training_completion(tmp_path: Path) -> None:
    """An unfinished collection is learned from as it is, where a prompt has none, too; without any
    the remedy is told.
    """
    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)) as server:
        plan = plan_of(server, tmp_path)
        sizes = options(validation_samples=4, test_samples=4, l2=5, out=tmp_path / "fit")
        fit = ("fit", *plan, *sizes, "--only-stored")
        empty = blb(*fit)
        assert (empty.exit_code, "Traceback" in empty.output) == (2, False)
        assert names(empty.output, "8 training prompts", "--only-stored")
        assert not any(
            "train" in json.dumps(body["messages"])
            for path, body in server.calls
            if "messages" in body
        )
        part = options(limit=5, samples_per_prompt=16, out=tmp_path / "part")
        assert blb("collect", *plan, *part).exit_code == 0
        asked = len(server.calls)
        result = blb(*fit, "--rollouts", tmp_path / "part", "--json")
        assert result.exit_code == 0, result.output
        judged = options(
            store=tmp_path / "fit" / "rollouts.db", out=tmp_path / "new" / "eval", test_samples=4
        )
        own = [word for word in plan if str(word) not in ("--samples-per-prompt", "20")]
        evaluated = blb("eval", tmp_path / "fit" / "bias.json", *own, *judged)
        assert evaluated.exit_code == 0, evaluated.output
        assert (tmp_path / "new" / "eval" / "evaluation.json").exists(), (
            "a folder that only --out names is made"
        )
        later = [
            json.dumps(body["messages"])
            for path, body in server.calls[asked:]
            if "messages" in body
        ]
    assert later, "validation and test are drawn"
    assert not any("train" in each for each in later)
    assert json.loads((tmp_path / "fit" / "bias.json").read_text())["rollouts"] == 5 * 16
