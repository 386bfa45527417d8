"""Answers are stored by a thread, several in a transaction, and each caller knows when its own is
durable.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.errors import StoreError
from blackbox_lb.store import RolloutStore, Writer, prompt_hash, request_hash, rollout_key
from blackbox_lb.store.rows import unpack
from blackbox_lb.types import Completion, Prompt
from tests.unit.store.stores import SETTINGS, completion

Rows = Mapping[str, Sequence[Mapping[str, Any]]]


class Counting(RolloutStore):
    """Notes how many answers each transaction held."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.sizes: list[int] = []

    def add_answers(self, answers: Sequence[Rows]) -> list[list[str]]:
        """As ever."""
        self.sizes.append(len(answers))
        return super().add_answers(answers)


def test_two_writers_of_one_store_keep_their_requests_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an answer is packed another thread may pack one of other settings: each has the row of
    its own request.
    """
    other, within = {**SETTINGS, "model": "another"}, list[Rows]()

    def interrupted(prompt: Prompt) -> str:
        if not within:
            within.append({})
            within.append(
                store.rows_of(other, prompt, {0: completion()})
            )  # the other thread's turn
        return prompt_hash(prompt)

    with RolloutStore(tmp_path / "s.db") as store:
        monkeypatch.setattr("blackbox_lb.store.rollouts.prompt_hash", interrupted)
        for of, rows in (
            (SETTINGS, store.rows_of(SETTINGS, Prompt.user("p"), {0: completion()})),
            (other, within[1]),
        ):
            (asked,), (stored,) = rows["requests"], rows["completions"]
            assert asked["hash"] == stored["request_hash"] == request_hash(of)
            assert stored["key"] == rollout_key(request_hash(of), prompt_hash(Prompt.user("p")), 0)


def added(store: RolloutStore, *answers: Completion) -> list[Any]:
    """Add answers that wait together, each to a prompt of its own; the keys or the error of each."""

    async def go() -> list[Any]:
        with Writer(store) as writer:
            adding = [
                writer.add_answer(SETTINGS, Prompt.user(f"p{i}"), {0: each})
                for i, each in enumerate(answers)
            ]
            return await asyncio.gather(*adding, return_exceptions=True)

    return asyncio.run(go())


def test_answers_that_wait_together_share_a_transaction(tmp_path: Path) -> None:
    """Of 40 answers given at once all are stored, by far fewer transactions, and each caller gets
    the keys of its own.
    """
    with Counting(tmp_path / "s.db") as store:
        keys = added(store, *[completion()] * 40)
        assert {key for (key,) in keys} == store.keys(request_hash(SETTINGS))
        assert sum(store.sizes) == 40
        assert len(store.sizes) < 20
        assert store.token_bytes("t") == completion().token_bytes


def test_an_answer_is_durable_when_its_caller_goes_on(tmp_path: Path) -> None:
    """Another connection sees the row as soon as ``add_answer`` has returned."""

    async def go(store: RolloutStore) -> int:
        with Writer(store) as writer:
            await writer.add_answer(SETTINGS, Prompt.user("p"), {0: completion()})
            with sqlite3.connect(store.path) as other:
                (number,) = other.execute("SELECT count(*) FROM completions").fetchone()
            other.close()
            return int(number)

    with RolloutStore(tmp_path / "s.db") as store:
        assert asyncio.run(go(store)) == 1


def test_an_answer_is_stored_although_its_caller_was_cancelled(tmp_path: Path) -> None:
    """What was received whole is kept, whatever becomes of the task that received it."""

    async def go(store: RolloutStore) -> None:
        with Writer(store) as writer:
            task = asyncio.create_task(
                writer.add_answer(SETTINGS, Prompt.user("p"), {0: completion()})
            )
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with RolloutStore(tmp_path / "s.db") as store:
        asyncio.run(go(store))
        assert store.size().completions == 1


def test_an_answer_that_cannot_be_stored_keeps_no_other_out(tmp_path: Path) -> None:
    """A completion with columns of different lengths is refused by name; those that waited beside
    it are stored.
    """
    broken = completion()
    object.__setattr__(broken, "logprobs", broken.logprobs[:1])
    with RolloutStore(tmp_path / "s.db") as store:
        found = added(store, completion(), broken, completion())
        assert [isinstance(each, StoreError) for each in found] == [False, True, False]
        assert store.size().completions == 2


def test_a_blob_of_the_format_before_is_read() -> None:
    """Bytes that were packed as format 2 by the version before, of two tokens with two alternatives
    each.
    """
    blob = bytes.fromhex(
        "02020000000200000000789c63e764408003fbf7b37372b23360030d0718f6efdb7f000062a806ab"
    )
    arrays = unpack(blob)
    assert blob[0] == 2
    assert arrays.token_ids.tolist() == [7, 9]
    assert arrays.logprobs.tolist() == [-0.5, -1.5]
    assert arrays.top_ids.tolist() == [[7, 9], [9, 7]]
    assert arrays.top_logprobs.tolist() == [[-0.5, -1.5], [-0.25, -2.0]]
