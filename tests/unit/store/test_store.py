"""The store: what goes in comes out bit for bit, once, and only from files that are ours."""

from __future__ import annotations

import sqlite3
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from blackbox_lb.errors import StoreCorrupt, StoreError
from blackbox_lb.store import RolloutStore, prompt_hash, request_hash
from blackbox_lb.store.parquet import export_store, import_store
from blackbox_lb.store.rows import Arrays, pack, unpack
from blackbox_lb.types import Completion, ListedBytes, Message, Prompt
from tests.support.errors import raises_naming
from tests.unit.store.stores import (
    HELLO,
    SETTINGS,
    arrays_of,
    assert_same,
    completion,
)


@st.composite
def arrays(draw: st.DrawFn) -> Arrays:
    """Any ids, floats and bits, with and without the optional columns."""
    t, k = draw(st.integers(0, 20)), draw(st.integers(0, 5))
    return Arrays(
        token_ids=draw(hnp.arrays(np.int32, t)),
        logprobs=draw(hnp.arrays(np.float32, t)),
        top_ids=draw(hnp.arrays(np.int32, (t, k))),
        top_logprobs=draw(hnp.arrays(np.float32, (t, k))),
        propensities=draw(st.none() | hnp.arrays(np.float32, t)),
        bounded=draw(st.none() | hnp.arrays(np.bool_, t)),
    )


@given(arrays())
def test_packing_keeps_every_bit(given_: Arrays) -> None:
    """``unpack(pack(x))`` is x, for any ids, floats and bits, whatever columns there are."""
    assert_same(unpack(pack(given_)), given_)


def test_a_blob_that_is_cut_or_newer_is_refused() -> None:
    """Columns that are missing, columns that nobody knows, and another format."""
    blob = pack(arrays_of(completion(4)))
    body = zlib.decompress(blob[10:])
    for damaged in (
        blob[:10] + zlib.compress(body[:-1]),
        blob[:9] + b"\x01" + blob[10:],
        blob[:9] + b"\x08" + blob[10:],
    ):
        with raises_naming(StoreCorrupt, "damaged", "newer version"):
            unpack(damaged)
    with raises_naming(StoreError, "4", "3"):
        unpack(b"\x04" + blob[1:])


def test_completions_come_back_as_they_were(tmp_path: Path) -> None:
    """Every field survives closing and opening, and ``size`` adds up what the provider kept back."""
    drawn = completion(8, 20)
    first_of_lists = replace(drawn, token_ids=np.maximum(drawn.top_ids[:, 0], 0))
    stored = (*map(completion, range(8)), first_of_lists, Completion.empty("content_filter"))
    with RolloutStore(tmp_path / "s.db") as store:
        keys = [store.add(SETTINGS, HELLO, n, each) for n, each in enumerate(stored)]
        assert store.add(SETTINGS, HELLO, 0, completion(9)) == keys[0], "the first answer stays"
        with raises_naming(StoreError, "abc"):
            list(store.completions(["abc"]))
    with RolloutStore(tmp_path / "s.db") as store:
        assert store.keys(request_hash(dict(reversed(SETTINGS.items())))) == set(keys)
        assert store.token_bytes("t") == completion(3).token_bytes
        for key, before in zip(keys, stored, strict=True):
            (after,) = store.completions([key])
            assert_same(arrays_of(after), arrays_of(before))
            for name in ("text", "finish_reason", "prompt_tokens", "model", "whole", "generated"):
                assert getattr(after, name) == getattr(before, name)
        size = store.size()
    bounded = [each.bounded.sum() for each in stored if each.bounded is not None]
    outside = [
        (each.token_ids[:, None] != each.top_ids).all(axis=1).sum()
        for each in stored
        if each.n_tokens
    ]
    assert (size.completions, size.bounded, size.outside) == (10, sum(bounded), sum(outside))
    assert size.tokens == sum(len(each.token_ids) for each in stored) > size.outside


def test_bytes_are_stored_with_the_first_answer_that_is_stored(tmp_path: Path) -> None:
    """Those of an answer that was not stored come with the next one; those of ids beyond the table
    come every time.
    """
    far = (1 << 20) + 5
    with RolloutStore(tmp_path / "s.db") as store:

        def rows(*tokens: int, sample: int) -> dict[str, list[dict[str, Any]]]:
            spelled = [f"t{token}".encode() for token in tokens]
            ids, places = np.array(tokens, np.int32), np.arange(len(tokens), dtype=np.int32)
            made = completion(token_bytes=ListedBytes(ids, places, spelled))
            return store.rows_of(SETTINGS, HELLO, {sample: made})

        def shown(found: dict[str, list[dict[str, Any]]]) -> list[int]:
            return [row["id"] for row in found["token_bytes"]]

        assert shown(rows(3, 5, 3, sample=0)) == [3, 5]  # and lost
        again = rows(3, 5, far, sample=1)
        assert shown(again) == [3, 5, far]
        store.add_answers([again])
        assert shown(rows(5, far, 8, sample=2)) == [8, far]
        store.add_answers([rows(5, far, 8, sample=2)])
        assert store.token_bytes("t") == {3: b"t3", 5: b"t5", 8: b"t8", far: f"t{far}".encode()}
        plain = completion(token_bytes={5: b"t5", 9: b"t9"})
        other = store.rows_of({**SETTINGS, "tokenizer": "another"}, HELLO, {0: plain})
        assert (shown(other), shown(store.rows_of(SETTINGS, HELLO, {5: plain}))) == ([5, 9], [9])


def test_foreign_and_newer_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    """Another program's database, a newer schema, and what is no database at all."""
    foreign, newer, text = tmp_path / "f.db", tmp_path / "n.db", tmp_path / "t.db"
    RolloutStore(newer).close()
    for path, statement in (
        (foreign, "CREATE TABLE theirs (x)"),
        (newer, "PRAGMA user_version = 99"),
    ):
        with sqlite3.connect(path) as db:
            db.execute(statement)
        db.close()
    text.write_text("not a database, but long enough to look like one" * 20)
    before = [path.read_bytes() for path in (foreign, newer, text)]
    for path, error, facts in (
        (foreign, StoreError, ("another program", "``store``")),
        (newer, StoreError, ("schema 99", "blackbox_lb")),
        (text, StoreCorrupt, ("blb store check",)),
    ):
        for read_only in (False, True):
            with raises_naming(error, path, *facts):
                RolloutStore(path, read_only=read_only)
    assert [path.read_bytes() for path in (foreign, newer, text)] == before


def test_a_store_that_cannot_be_opened_for_lack_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite does not say why; the remedy is the limit, and not the folder."""
    folder = tmp_path / "a folder.db"
    folder.mkdir()
    for none_left in (False, True):
        monkeypatch.setattr("blackbox_lb.store.database.none_left", lambda there=none_left: there)
        with pytest.raises(StoreError) as caught:
            RolloutStore(folder)
        assert ("ulimit -n" in str(caught.value)) == none_left


def test_a_prompt_with_tools_is_another_prompt_and_comes_back(tmp_path: Path) -> None:
    """Its completions have keys of their own, in the store and through Parquet files, and so has
    one with a call and its result; a prompt without them keeps its key.
    """
    equipped = replace(HELLO, tools='[{"function": {"name": "weather"}, "type": "function"}]')
    call = '[{"function": {"arguments": "{}", "name": "weather"}, "id": "c1", "type": "function"}]'
    turn = Message("assistant", "", call)
    results = [Message("tool", "rain", tool_call_id="c1", name=name) for name in ("", "weather")]
    answered = [Prompt((*HELLO.messages, turn, result)) for result in results]
    prompts = {HELLO, equipped, *answered}
    assert len({prompt_hash(prompt) for prompt in prompts}) == len(prompts)
    assert prompt_hash(replace(equipped, tools="")) == prompt_hash(HELLO)
    with RolloutStore(tmp_path / "a.db") as store:
        for prompt in prompts:
            store.add(SETTINGS, prompt, 0, completion())
        assert set(store.prompts(request_hash(SETTINGS)).values()) == prompts
    export_store(tmp_path / "a.db", tmp_path / "files")
    import_store(tmp_path / "files", tmp_path / "b.db")
    with RolloutStore(tmp_path / "b.db") as store:
        assert set(store.prompts(request_hash(SETTINGS)).values()) == prompts
