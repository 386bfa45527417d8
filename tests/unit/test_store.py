"""The store: what goes in comes out bit for bit, once, and only from files that are ours."""

from __future__ import annotations

import sqlite3
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from blackbox_lb.errors import StoreError
from blackbox_lb.store import MIGRATIONS, RolloutStore, canonical, prompt_hash, request_hash, rollout_key
from blackbox_lb.store.packing import Arrays, pack, unpack
from blackbox_lb.types import Completion, Prompt

SETTINGS = {"model": "m", "tokenizer": "t", "sampling": {"temperature": 1.0}}
HELLO = Prompt.user("hello")


def completion(text: str = "hi", tokens: int = 3) -> Completion:
    """A completion with two alternatives a token."""
    return Completion(
        text=text,
        finish_reason="stop",
        token_ids=np.arange(tokens, dtype=np.int32),
        logprobs=-np.arange(tokens, dtype=np.float32),
        top_ids=np.arange(2 * tokens, dtype=np.int32).reshape(tokens, 2),
        top_logprobs=-np.arange(2 * tokens, dtype=np.float32).reshape(tokens, 2),
        prompt_tokens=9,
        model="m",
        token_bytes={0: b"a", 1: b"\xff"},
    )


def arrays_of(completion: Completion) -> Arrays:
    """All arrays of a completion."""
    return Arrays(*(getattr(completion, name) for name in Arrays._fields))


def assert_same(one: Arrays, other: Arrays) -> None:
    """The same arrays, bit for bit, with the same ones missing."""
    for before, after in zip(one, other, strict=True):
        assert (before is None) == (after is None)
        if before is not None and after is not None:
            assert (before.shape, before.dtype) == (after.shape, after.dtype)
            assert before.tobytes() == after.tobytes()


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


def test_columns_of_different_lengths_are_not_stored() -> None:
    """What could not be read back is refused when it comes, not when it is needed."""
    good = arrays_of(completion())
    for bad in (
        good._replace(propensities=good.logprobs[:-1]),
        good._replace(bounded=np.ones(2, np.bool_)),
        good._replace(top_ids=good.top_ids[:, :1]),
    ):
        with pytest.raises(StoreError, match="cannot be stored"):
            pack(bad)


def packed_before(given_: Arrays) -> bytes:
    """A blob of format 1, as the first version wrote it."""
    columns = [given_.token_ids.astype("<i4"), given_.logprobs.astype("<f4")]
    columns += [given_.top_ids.T.astype("<i4"), given_.top_logprobs.T.astype("<f4")]
    planes = [np.ascontiguousarray(column).view(np.uint8).reshape(-1, 4).T.tobytes() for column in columns]
    return struct.pack("<BII", 1, *given_.top_ids.shape) + zlib.compress(b"".join(planes), 6)


@given(arrays())
def test_blobs_of_the_first_format_stay_readable(given_: Arrays) -> None:
    """Format 1 gives the same bits, and says nothing of propensities or bounds."""
    assert_same(unpack(packed_before(given_)), given_._replace(propensities=None, bounded=None))


@pytest.mark.parametrize("blob", [b"", b"\x01", b"\x01\x01\x00\x00\x00\x01\x00\x00\x00rubbish", b"\x00rubbish"])
def test_a_damaged_blob_is_refused(blob: bytes) -> None:
    """Rubbish never becomes numbers."""
    with pytest.raises(StoreError, match="damaged"):
        unpack(blob)


def test_a_blob_that_is_cut_or_newer_is_refused() -> None:
    """Columns that are missing, columns that nobody knows, and another format."""
    blob = pack(arrays_of(completion()))
    body = zlib.decompress(blob[10:])
    for damaged in (blob[:10] + zlib.compress(body[:-1]), blob[:9] + b"\x01" + blob[10:], blob[:9] + b"\x08" + blob[10:]):
        with pytest.raises(StoreError, match="damaged, or of a newer version"):
            unpack(damaged)
    with pytest.raises(StoreError, match="format 4, this version reads 3; upgrade"):
        unpack(b"\x04" + blob[1:])


def test_a_completion_comes_back_as_it_was(tmp_path: Path) -> None:
    """Every field survives closing and opening."""
    with RolloutStore(tmp_path / "s.db") as store:
        key = store.add(SETTINGS, HELLO, 0, completion())
    with RolloutStore(tmp_path / "s.db") as store:
        (back,) = store.completions([key])
        assert (back.text, back.finish_reason, back.prompt_tokens, back.model, back.whole) == ("hi", "stop", 9, "m", True)
        assert back.top_logprobs.tolist() == completion().top_logprobs.tolist()
        assert store.token_bytes("t") == {0: b"a", 1: b"\xff"}
        assert store.keys(request_hash(SETTINGS)) == {key}
        assert (store.size().completions, store.size().tokens) == (1, 3)


def test_what_the_provider_kept_back_survives_and_is_counted(tmp_path: Path) -> None:
    """Propensities, bounds, unnamed alternatives and the provider's own token count come back; ``size`` adds up the counts."""
    plain = completion()
    rich = replace(
        plain,
        propensities=plain.logprobs - np.float32(0.1),
        bounded=np.array([False, True, False]),
        top_ids=np.array([[0, -2], [5, 6], [2, -1]], dtype=np.int32),
        generated=7,
        whole=False,
    )
    with RolloutStore(tmp_path / "s.db") as store:
        keys = [store.add(SETTINGS, HELLO, n, each) for n, each in enumerate((plain, rich, Completion.empty("content_filter")))]
    with RolloutStore(tmp_path / "s.db") as store:
        for key, before in zip(keys, (plain, rich, Completion.empty("content_filter")), strict=True):
            (after,) = store.completions([key])
            assert_same(arrays_of(after), arrays_of(before))
            assert (after.generated, after.whole, after.n_tokens) == (before.generated, before.whole, before.n_tokens)
        size = store.size()
        assert (size.completions, size.tokens, size.bounded, size.outside, size.uncounted) == (3, 6, 1, 3, 0)


FIRST_SCHEMA = """
    CREATE TABLE prompts (
        hash TEXT PRIMARY KEY,
        messages TEXT NOT NULL           -- canonical JSON: [{"role", "content"}]
    ) WITHOUT ROWID;
    CREATE TABLE requests (
        hash TEXT PRIMARY KEY,
        settings TEXT NOT NULL           -- canonical JSON: provider, model, tokenizer, endpoint, sampling, bias
    ) WITHOUT ROWID;
    CREATE TABLE completions (
        key TEXT PRIMARY KEY,            -- hash of (request_hash, prompt_hash, sample)
        request_hash TEXT NOT NULL REFERENCES requests (hash),
        prompt_hash TEXT NOT NULL REFERENCES prompts (hash),
        sample INTEGER NOT NULL,         -- 0, 1, ...: which of the samples of this prompt
        text TEXT NOT NULL,
        finish_reason TEXT NOT NULL,
        model TEXT NOT NULL,             -- as the provider named it in the answer
        prompt_tokens INTEGER NOT NULL,
        n_tokens INTEGER NOT NULL,
        whole INTEGER NOT NULL,          -- 0 where the provider listed fewer tokens than it generated
        tokens BLOB NOT NULL,            -- ids, logprobs, top ids, top logprobs: see blackbox_lb.store.packing
        received REAL NOT NULL           -- seconds since 1970
    );
    CREATE INDEX completions_by_request ON completions (request_hash, prompt_hash, sample);
    CREATE TABLE token_bytes (
        tokenizer TEXT NOT NULL,         -- fingerprint
        id INTEGER NOT NULL,
        bytes BLOB NOT NULL,
        PRIMARY KEY (tokenizer, id)
    ) WITHOUT ROWID;
    """


def first_store(path: Path, each: Completion) -> str:
    """A store of schema 1 with one completion, made by the statements of the first version; returns the completion's key."""
    request, asked = request_hash(SETTINGS), prompt_hash(HELLO)
    key = rollout_key(request, asked, 0)
    db = sqlite3.connect(path)
    db.executescript(f"PRAGMA application_id = {0x626C6221}; {FIRST_SCHEMA} PRAGMA user_version = 1;")
    row = (key, request, asked, 0, each.text, each.finish_reason, each.model, each.prompt_tokens, 3, True)
    with db:
        db.execute("INSERT INTO prompts VALUES (?, ?)", (asked, '[{"content":"hello","role":"user"}]'))
        db.execute("INSERT INTO requests VALUES (?, ?)", (request, canonical(SETTINGS)))
        db.execute("INSERT INTO completions VALUES (?,?,?,?,?,?,?,?,?,?,?,?)", (*row, packed_before(arrays_of(each)), 1.0))
        db.execute("INSERT INTO token_bytes VALUES ('t', 0, ?)", (b"a",))
    db.close()
    return key


def test_a_store_of_the_first_schema_goes_on(tmp_path: Path) -> None:
    """It is migrated when it is opened: what is in it comes back, new completions go in, and what was never counted says so."""
    path = tmp_path / "s.db"
    key = first_store(path, completion())
    for _ in range(2):  # the second time there is nothing to migrate
        with RolloutStore(path) as store:
            assert store.keys(request_hash(SETTINGS)) == {key}
            (back,) = store.completions([key])
            assert_same(arrays_of(back), arrays_of(completion()))
            assert (back.text, back.model, back.whole, back.generated) == ("hi", "m", True, None)
            assert store.token_bytes("t") == {0: b"a"}
            assert store.size().uncounted == 1
    with RolloutStore(path) as store:
        assert store.add(SETTINGS, HELLO, 0, completion("again")) == key
        store.add(SETTINGS, HELLO, 1, completion())
        size = store.size()
        assert (size.completions, size.tokens, size.bounded, size.outside, size.uncounted) == (2, 6, 0, 2, 1)


def test_migrated_and_new_stores_have_one_schema(tmp_path: Path) -> None:
    """Old or new, a store has the same columns, and the released migration is as it was released."""
    first_store(tmp_path / "old.db", completion())
    assert MIGRATIONS[0] == FIRST_SCHEMA
    found: list[Any] = []
    for name in ("old.db", "new.db"):
        RolloutStore(tmp_path / name).close()
        db = sqlite3.connect(tmp_path / name)
        found.append([db.execute(f"PRAGMA table_info({table})").fetchall() for table in ("completions", "prompts")])
        found[-1] += db.execute("PRAGMA user_version").fetchall()
        db.close()
    assert found[0] == found[1]
    assert found[0][-1] == (len(MIGRATIONS),)


def test_the_first_answer_to_a_key_stays(tmp_path: Path) -> None:
    """A second answer to the same question changes nothing, so no estimate moves under a running fit."""
    with RolloutStore(tmp_path / "s.db") as store:
        key = store.add(SETTINGS, HELLO, 0, completion("first"))
        assert store.add(SETTINGS, HELLO, 0, completion("second")) == key
        assert next(store.completions([key])).text == "first"


def test_keys_tell_everything_apart() -> None:
    """Another setting, prompt or sample number is another key; the order of settings is not."""
    base = rollout_key(request_hash(SETTINGS), prompt_hash(HELLO), 0)
    assert rollout_key(request_hash(dict(reversed(SETTINGS.items()))), prompt_hash(HELLO), 0) == base
    others = {
        rollout_key(request_hash({**SETTINGS, "model": "n"}), prompt_hash(HELLO), 0),
        rollout_key(request_hash(SETTINGS), prompt_hash(Prompt.user("hello ")), 0),
        rollout_key(request_hash(SETTINGS), prompt_hash(HELLO), 1),
    }
    assert len(others | {base}) == 4


def test_canonical_json_has_one_spelling() -> None:
    """Sorted keys, no spaces, text as itself."""
    assert canonical({"b": [1.5, "é"], "a": None}) == '{"a":null,"b":[1.5,"é"]}'


def test_a_missing_completion_is_named(tmp_path: Path) -> None:
    """Asking for what is not there is an error, not an empty answer."""
    with RolloutStore(tmp_path / "s.db") as store, pytest.raises(StoreError, match="has no completion abc"):
        list(store.completions(["abc"]))


def test_foreign_and_newer_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    """Another program's database, a newer schema, and what is no database at all."""
    foreign, newer, text = tmp_path / "f.db", tmp_path / "n.db", tmp_path / "t.db"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    RolloutStore(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    text.write_text("not a database, but long enough to look like one" * 20)
    before = [path.read_bytes() for path in (foreign, newer, text)]
    for path, sentence in ((foreign, "another program"), (newer, "upgrade blackbox_lb"), (text, "cannot open")):
        with pytest.raises(StoreError, match=sentence):
            RolloutStore(path)
    assert [path.read_bytes() for path in (foreign, newer, text)] == before


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    """A path that cannot be a file says so."""
    with pytest.raises(StoreError, match="cannot open"):
        RolloutStore(tmp_path)


def test_what_add_returned_for_survives_sigkill(tmp_path: Path) -> None:
    """A process that kills itself right after ``add`` leaves the completion behind."""
    path = tmp_path / "s.db"
    script = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[2])\n"
        "from test_store import *\n"
        "store = RolloutStore(sys.argv[1])\n"
        "for n in range(5): store.add(SETTINGS, HELLO, n, completion())\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(path), str(Path(__file__).parent)], check=False)
    with RolloutStore(path) as store:
        assert store.size().completions == 5
