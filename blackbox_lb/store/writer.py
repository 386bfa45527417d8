"""A thread that stores answers while others are received: waiting ones share a transaction, durable
before their callers go on.

A commit waits for the disk (``synchronous = FULL``), and SQLite releases the interpreter meanwhile;
the deflation of an answer does so, too. The answers that arrive during one commit share the next. A
worker awaits its own commit before it asks again, and this is all the back-pressure: at most one
answer a worker is not stored.
"""

import asyncio
import queue
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from blackbox_lb.store.rollouts import RolloutStore
from blackbox_lb.types import Completion, Prompt

Waiting = tuple[
    tuple[Mapping[str, Any], Prompt, Mapping[int, Completion]], asyncio.Future[list[str]]
]


class Writer:
    """Adds answers to ``store`` from a thread of its own. A context manager: at its end everything
    given is stored.
    """

    def __init__(self, store: RolloutStore) -> None:
        self._store = store
        self._waiting: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="blackbox_lb store", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._waiting.put(None)
        self._thread.join()

    async def add_answer(
        self, settings: Mapping[str, Any], prompt: Prompt, completions: Mapping[int, Completion]
    ) -> list[str]:
        """Run ``RolloutStore.add_answer``, with the same safety. Answers are stored even where the
        caller is cancelled.

        Raises StoreError: they are not stored.
        """
        done: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._waiting.put(((settings, prompt, completions), done))
        return await done

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            last = False
            while not self._waiting.empty() and not last:
                if (more := self._waiting.get()) is None:
                    last = True
                else:
                    batch.append(more)
            self._commit(batch)
            if last:
                return

    def _commit(self, batch: list[Waiting]) -> None:
        try:
            keys: list[list[str] | Exception] = [
                *self._store.add_answers([self._store.rows_of(*answer) for answer, _ in batch])
            ]
        except Exception as error:  # noqa: BLE001  (raised where the answer came from)
            if len(batch) > 1:  # a failing one must not keep the others out
                for each in batch:
                    self._commit([each])
                return
            keys = [error]
        with suppress(RuntimeError):  # the loop has been closed: nobody waits
            batch[0][1].get_loop().call_soon_threadsafe(_settle, [done for _, done in batch], keys)


def _settle(waiting: list[asyncio.Future[list[str]]], keys: list[list[str] | Exception]) -> None:
    for done, stored in zip(waiting, keys, strict=True):
        if done.done():
            continue
        if isinstance(stored, Exception):
            done.set_exception(stored)
        else:
            done.set_result(stored)
