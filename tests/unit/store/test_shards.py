"""Shards: a partition that keeps when prompts are appended, and stores that merge into the one of a
single machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.extras.batches.plan import Shard
from blackbox_lb.types import Example, Prompt
from tests.support.commands import blb, options, refused
from tests.support.errors import names
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_rows
from tests.unit.store.stores import rows


def examples(texts: list[str]) -> list[Example]:
    """An example a text."""
    return [Example(str(n), Prompt.user(text)) for n, text in enumerate(texts)]


@given(st.lists(st.text(), max_size=40), st.integers(1, 9))
def test_shards_are_a_partition(texts: list[str], count: int) -> None:
    """Every example is in exactly one shard, in its order, and examples of one prompt are in the
    same.
    """
    whole = examples(texts)
    parts = [Shard(index, count).of(whole) for index in range(1, count + 1)]
    assert sorted((each.id for part in parts for each in part), key=int) == [
        each.id for each in whole
    ]
    assert all(
        [int(each.id) for each in part] == sorted(int(each.id) for each in part) for part in parts
    )
    for text in texts:
        assert sum(any(each.prompt.text == text for each in part) for part in parts) == 1


@given(st.lists(st.text(), max_size=20), st.lists(st.text(), max_size=20), st.integers(1, 9))
def test_appended_prompts_move_none_of_the_others(
    texts: list[str], more: list[str], count: int
) -> None:
    """A shard of more prompts begins with the shard of the first."""
    for index in range(1, count + 1):
        before, after = (Shard(index, count).of(examples(each)) for each in (texts, texts + more))
        assert after[: len(before)] == before


@pytest.mark.parametrize(
    "text", ["0/4", "5/4", "x/y", "", "4", "1/0", "-1/4", "1/4/4", "1.0/4", "¹/4"]
)
def test_what_names_no_shard_is_refused(text: str) -> None:
    """With the text, and what one looks like; the command ends with exit code 2 before anything is
    opened.
    """
    said = refused("collect", "--reward", "length", "--shard", text)
    assert names(said, repr(text), "I/N", "1", "N")


def test_stores_of_shards_merge_into_that_of_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row for row and bit for bit, under a clock that stands still; a shard without prompts is an
    empty store.
    """
    monkeypatch.setattr("time.time", lambda: 1.8e9)
    splits = ["train"] * 7 + ["validation", "test"]
    data = tmp_path / "data.jsonl"
    rows_of_data = [
        {"prompt": f"question {n}", "answer": "a", "split": s} for n, s in enumerate(splits)
    ]
    write_rows(data, rows_of_data)
    shards = ["whole", *(f"{n}/6" for n in range(1, 7))]
    with ExactServer(ExactModel(12, 6, end=True, prompts=3)) as server:
        for name in shards:
            out = tmp_path / name.replace("/", "of")
            where = options(provider="llamacpp", base_url=server.base_url, data=data, out=out)
            task = options(reward="length", max_tokens=6, samples_per_prompt=2, seed=5)
            shard = () if name == "whole" else ("--shard", name)
            result = blb("collect", *where, *task, *shard, "--quiet")
            assert result.exit_code == 0, result.output
    parts = [tmp_path / name.replace("/", "of") for name in shards[1:]]
    stores = [part / "rollouts.db" for part in parts]
    merged = blb("store", "merge", *stores, "--out", tmp_path / "all.db")
    assert merged.exit_code == 0, merged.output
    assert rows(tmp_path / "all.db") == rows(tmp_path / "whole" / "rollouts.db")
    stored = [rows(part / "rollouts.db") for part in parts]
    sizes = [sum(table == "completions" for table, _ in each) for each in stored]
    assert sum(sizes) == 14
    assert 0 in sizes
    for name, part, size in zip(shards[1:], parts, sizes, strict=True):
        if size:
            record = json.loads((part / "run.json").read_text())
            assert record["runs"]["collect"]["settings"]["shard"] == name
