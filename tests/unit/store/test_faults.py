"""The store under faults: many writers, locks that stay, full disks, files that may not be written,
clocks that jump.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.errors import StoreBusy, StoreCorrupt, StoreError
from blackbox_lb.store import RolloutStore, request_hash
from blackbox_lb.store.database import TABLES
from blackbox_lb.store.rows import sum_of
from blackbox_lb.store.upkeep import check
from blackbox_lb.types import Prompt
from tests.support.errors import raises_naming
from tests.unit.store.stores import SETTINGS, completion, killed_after

WRITERS = 12


def write(path: str, writer: int, answers: int, gate: Any) -> None:
    """Own prompts, and one that all writers ask: everything is added as soon as all have
    started.
    """
    gate.wait()
    with RolloutStore(path) as store:
        for sample in range(answers):
            made = completion(10 * writer + sample)
            store.add(SETTINGS, Prompt.user(f"own {writer}"), sample, made)
            store.add(SETTINGS, Prompt.user("shared"), sample, made)


def read(path: str, gate: Any, stop: Any, told: Any) -> None:
    """Look again and again, and once at least, also where the writers are done before its turn:
    what was there stays there, and each completion is whole.
    """
    gate.wait()
    while not Path(path).is_file():
        time.sleep(0.01)
    RolloutStore(path).close()
    looks, seen = 0, set[str]()
    while not (looks and stop.is_set()):
        with RolloutStore(path, read_only=True) as store:
            now = store.keys(request_hash(SETTINGS))
            if not seen <= now:
                told.put(f"lost {len(seen - now)}")
                return
            list(store.completions(now - seen))
        seen, looks = now, looks + 1
    told.put(looks)


def test_many_writers_and_a_reader(tmp_path: Path) -> None:
    """12 processes that start at once on a file that is not there lose nothing; the reader never
    sees half a response.
    """
    context, path, answers = multiprocessing.get_context("fork"), str(tmp_path / "s.db"), 4
    gate, stop, told = context.Barrier(WRITERS + 1), context.Event(), context.Queue()
    writers = [context.Process(target=write, args=(path, n, answers, gate)) for n in range(WRITERS)]
    reader = context.Process(target=read, args=(path, gate, stop, told))
    for process in (*writers, reader):
        process.start()
    for process in writers:
        process.join()
    stop.set()
    looks = told.get(timeout=120)
    reader.join()
    assert [process.exitcode for process in (*writers, reader)] == [0] * (WRITERS + 1)
    assert isinstance(looks, int), looks
    assert looks > 0
    with RolloutStore(path, read_only=True) as store:
        assert store.size().completions == WRITERS * answers + answers
    assert check(Path(path)).sound


def test_a_lock_that_stays_is_said(tmp_path: Path) -> None:
    """A writer waits as long as it was told, then says who may be at fault; a reader does not wait
    at all.
    """
    path = tmp_path / "s.db"
    with RolloutStore(path, patience=0.2) as store:
        store.add(SETTINGS, Prompt.user("a"), 0, completion(text="first"))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with raises_naming(StoreBusy, "s.db", "0.2 s"):
            store.add(SETTINGS, Prompt.user("a"), 1, completion())
        with raises_naming(StoreBusy, "s.db", "0.2 s"):
            RolloutStore(path, patience=0.2)
        with RolloutStore(path, read_only=True, patience=0.0) as reader:
            assert reader.size().completions == 1
        other.execute("ROLLBACK")
        other.close()
        store.add(SETTINGS, Prompt.user("a"), 1, completion())
        assert store.size().completions == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root may mount a small tmpfs; the limit on file sizes is tested instead")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(store: RolloutStore, before: int = 0) -> int:
    """Add until it fails; how many went in."""
    for sample in range(before, before + 2000):
        try:
            store.add(SETTINGS, Prompt.user("a"), sample, completion(sample, 200))
        except StoreError:
            return sample - before
    raise AssertionError("the disk never fills")


def test_a_disk_that_is_full_from_the_start_is_said_before_anything_is_paid(
    small_disk: Path,
) -> None:
    """Opening to write fails, not the first answer; what is in the store can still be read."""
    path = small_disk / "s.db"
    with RolloutStore(path) as store:
        key = store.add(SETTINGS, Prompt.user("a"), 0, completion(text="first"))
    with (small_disk / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    with raises_naming(StoreError, path, "bytes free"):
        RolloutStore(path)
    with raises_naming(StoreError, "s.db", "0 bytes free"):
        RolloutStore(small_disk / "new" / "s.db")
    with RolloutStore(path, read_only=True) as store:
        assert next(store.completions([key])).text == "first"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits on file sizes are Unix's")
def test_a_full_disk_costs_nothing_that_was_stored(tmp_path: Path) -> None:
    """A limit on file sizes needs no rights: the write fails with a sentence, all before it is
    there, and the same store goes on when there is room again.
    """
    path = tmp_path / "s.db"
    pid = os.fork()
    if not pid:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, most))
        with RolloutStore(path) as store:
            kept = fill(store)
            texts = list(store.completions(store.keys(request_hash(SETTINGS))))
            is_kept = store.size().completions == len(texts) == kept
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, most))
            more = fill(store, kept)
        (tmp_path / "kept").write_text(json.dumps([is_kept, kept, more]))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    is_kept, kept, more = json.loads((tmp_path / "kept").read_text())
    assert is_kept
    assert kept > 0
    assert more > 0
    found = check(path)
    assert found.sound, found.problems
    assert found.rows["completions"] == kept + more


def test_a_folder_that_may_not_be_written(small_disk: Path) -> None:
    """Opened to write, the store says so at once; read, it is as it was."""
    path = small_disk / "s.db"
    with RolloutStore(path) as store:
        key = store.add(SETTINGS, Prompt.user("a"), 0, completion(text="first"))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with raises_naming(StoreError, "s.db", "``out``", "``store``"):
        RolloutStore(path)
    with raises_naming(StoreError, "Read-only file system", "``out``"):
        RolloutStore(small_disk / "new" / "s.db")
    with RolloutStore(path, read_only=True) as store:
        assert next(store.completions([key])).text == "first"
    assert check(path).sound


def test_a_log_that_cannot_be_used_is_not_passed_over(small_disk: Path, tmp_path: Path) -> None:
    """Where nothing may be written, a store whose newest answers are in its log is refused rather
    than read without them.
    """
    path = small_disk / "s.db"
    killed_after(
        lambda: RolloutStore(path).add(SETTINGS, Prompt.user("a"), 0, completion(text="first"))
    )
    path.with_name("s.db-shm").unlink()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with raises_naming(StoreError, "s.db-wal"):
        RolloutStore(path, read_only=True)
    for name in ("s.db", "s.db-wal"):
        (tmp_path / name).write_bytes((small_disk / name).read_bytes())
    with RolloutStore(tmp_path / "s.db", read_only=True) as store:
        assert store.size().completions == 1


def test_a_clock_that_jumps_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of receipt order nothing: prompts and contents are the same under a clock that runs
    backwards.
    """
    found = []
    for name, step in (("forward", 1.0), ("backward", -(10.0**7))):
        clock = count(1e9, step)
        monkeypatch.setattr(time, "time", lambda clock=clock: next(clock))
        with RolloutStore(tmp_path / name) as store:
            for sample in range(6):
                store.add(SETTINGS, Prompt.user(f"{sample % 2}"), sample, completion(sample))
            prompts = store.prompts(request_hash(SETTINGS))
            texts = [each.text for each in store.completions(prompts)]
            found.append((list(prompts.items()), texts, store.size()))
    assert found[0] == found[1]
    assert check(tmp_path / "backward").sound


def test_values_that_sqlite_cannot_hold(tmp_path: Path) -> None:
    """Half a surrogate pair, which JSON can carry, is stored as U+FFFD; a number beyond 64 bits is
    an error of our tree.
    """
    with RolloutStore(tmp_path / "s.db") as store:
        key = store.add(SETTINGS, Prompt.user("a"), 0, completion(text="half \ud83d"))
        assert next(store.completions([key])).text == "half \ufffd"
        large = completion()
        object.__setattr__(large, "prompt_tokens", 1 << 70)
        with raises_naming(StoreError, "s.db", "``out``", "``store``"):
            store.add(SETTINGS, Prompt.user("a"), 1, large)
        assert store.size().completions == 1


def test_reading_makes_no_store(tmp_path: Path) -> None:
    """A path without a store and an empty file are named, and nothing appears or changes."""
    (tmp_path / "empty.db").touch()
    for name, facts in (("none.db", ("blb collect",)), ("empty.db", ("is empty", "``store``"))):
        with raises_naming(StoreError, tmp_path / name, *facts):
            RolloutStore(tmp_path / name, read_only=True)
    assert [each.name for each in tmp_path.iterdir()] == ["empty.db"]


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("TRIGGER t AFTER INSERT ON prompts BEGIN SELECT 1; END", "trigger 't'"),
        ("VIEW v AS SELECT 1", "view 'v'"),
    ],
)
def test_a_store_with_code_in_it_is_refused(what: str, name: str, tmp_path: Path) -> None:
    """A stranger's trigger or view never runs."""
    RolloutStore(tmp_path / "s.db").close()
    with sqlite3.connect(tmp_path / "s.db") as db:
        db.execute(f"CREATE {what}")
    db.close()
    for read_only in (True, False):
        with raises_naming(StoreError, tmp_path / "s.db", name):
            RolloutStore(tmp_path / "s.db", read_only=read_only)


RENEWED = f"UPDATE completions SET checksum = renewed({', '.join(TABLES['completions'])})"
"""The rows get the checksums of what stands in them."""


def renewed(*values: Any) -> int:
    return sum_of(dict(zip(TABLES["completions"], values, strict=True)))


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ("UPDATE completions SET text = 'other'", ("checksum", "contents")),
        ("UPDATE completions SET tokens = x'02'", ("checksum", "contents")),
        (
            "UPDATE completions SET tokens = x'02ffffffff', checksum = NULL",
            ("checksum", "NoneType"),
        ),
        (
            f"UPDATE completions SET tokens = x'02ffffffff'; {RENEWED}",
            ("newer version", "10 bytes"),
        ),
        (f"UPDATE completions SET sample = 7; {RENEWED}", ("key", "sample")),
        (f"UPDATE completions SET text = 5.5; {RENEWED}", ()),
        ("UPDATE completions SET text = CAST(x'ff' AS TEXT)", ("UTF-8", "'text'")),
        ("UPDATE completions SET text = x'ff'", ("text", "bytes")),
    ],
)
def test_a_damaged_row_is_named_and_never_becomes_numbers(
    change: str, facts: tuple[str, ...], tmp_path: Path
) -> None:
    """Reading it raises StoreCorrupt with its key and the command that says more; ``check`` finds
    the same.
    """
    path = tmp_path / "s.db"
    with RolloutStore(path) as store:
        key = store.add(SETTINGS, Prompt.user("a"), 0, completion(text="first"))
    with sqlite3.connect(path) as db:
        db.create_function("renewed", -1, renewed)
        db.executescript(change)
    db.close()
    with RolloutStore(path, read_only=True) as store:
        if (
            not facts
        ):  # TEXT affinity has made a text of it, and nothing says that it was another one
            assert next(store.completions([key])).text == "5.5"
            return
        with raises_naming(StoreCorrupt, f"blb store check {path}", *facts) as caught:
            list(store.completions([key]))
    assert "UTF-8" in facts or key[:12] in str(caught.value)
    found = check(path)
    assert found.damaged == {"completions": 1}
    assert json.dumps(found.problems)
