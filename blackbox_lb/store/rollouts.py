"""The rollout store: every paid completion in one SQLite file.

A completion is durable before the next request is awaited. Its key is a hash of everything that
determined it: the request without the prompt, the prompt, and the number of the sample. To resume a
collection is to ask for the same keys again, and those in the store cost nothing.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from blackbox_lb.errors import StoreCorrupt, StoreError
from blackbox_lb.store.database import (
    PATIENCE,
    REFERENCES,
    TABLES,
    Database,
    how_to_check,
    how_to_recover,
    insertion,
    named,
    selection,
)
from blackbox_lb.store.rows import (
    Arrays,
    answer_of,
    canonical,
    completion_of,
    messages_of,
    name_of,
    pack,
    prompt_hash,
    prompt_of,
    request_hash,
    rollout_key,
    settings_of_row,
    sum_of,
    token_of,
)
from blackbox_lb.types import Completion, IntArray, ListedBytes, Prompt

T = TypeVar("T")

READ_TOGETHER = 16
"""Keys of one query: a row of many costs two thirds of a single one, and all rows of a query are in
memory, with lists of up to a whole vocabulary.
"""


@dataclass(frozen=True, slots=True)
class StoredSize:
    """Contents of a store.

    completions: their number.
    tokens: listed tokens.
    bounded: sampled tokens with only a bound for a logprob.
    outside: sampled tokens that are missing from their lists.
    """

    completions: int
    tokens: int
    bounded: int
    outside: int


def _storable(text: str) -> str:
    """``text`` with U+FFFD for half a surrogate pair, as tokenizers read it.

    JSON allows half a pair, UTF-8 does not.
    """
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def completion_row(
    request: str, prompt: str, sample: int, completion: Completion, received: float
) -> dict[str, Any]:
    """The row of a completion.

    request, prompt: their hashes.
    sample: the number of the completion among those of the prompt, from 0.
    received: seconds since 1970.
    """
    arrays = Arrays(*(getattr(completion, name) for name in Arrays._fields))
    bounded = 0
    if arrays.bounded is not None:
        bounded = int(arrays.bounded.sum())
    is_listed = (arrays.top_ids == arrays.token_ids[:, None]).any(axis=1)
    row = {
        "key": rollout_key(request, prompt, sample),
        "request_hash": request,
        "prompt_hash": prompt,
        "sample": sample,
        "text": _storable(completion.text),
        "finish_reason": _storable(completion.finish_reason),
        "model": _storable(completion.model),
        "prompt_tokens": completion.prompt_tokens,
        "n_tokens": len(completion.token_ids),
        "whole": int(completion.whole),
        "tokens": pack(arrays),
        "received": received,
        "bounded": bounded,
        "outside": int((~is_listed).sum()),
        "generated": completion.generated,
        "fingerprint": _storable(completion.fingerprint),
    }
    return summed(row)


class _StoredIds:
    """The token ids whose bytes are stored, of one tokenizer.

    Ids above ``HIGHEST`` count as not stored, so their bytes are written with every answer.
    """

    HIGHEST = 1 << 20

    def __init__(self) -> None:
        self._is_stored = np.zeros(self.HIGHEST + 1, np.bool_)

    def missing(self, token_bytes: Mapping[int, bytes]) -> dict[int, bytes]:
        """The bytes of an answer's tokens that are not stored yet."""
        if isinstance(token_bytes, ListedBytes):
            ids: IntArray = token_bytes.ids
        else:
            ids = np.fromiter(token_bytes, np.int32, len(token_bytes))
        new = ids[~self._is_stored[np.minimum(ids, self.HIGHEST)]]
        return {token: token_bytes[token] for token in new.tolist()}

    def add(self, ids: Sequence[int]) -> None:
        """Mark ids as stored."""
        low_ids = [token for token in ids if token < self.HIGHEST]
        self._is_stored[np.array(low_ids, np.int64)] = True


def _slices(keys: Iterable[str]) -> Iterator[list[str]]:
    """``keys`` in their order, ``READ_TOGETHER`` at a time."""
    remaining = iter(keys)
    while some_keys := list(islice(remaining, READ_TOGETHER)):
        yield some_keys


def _among(keys: Sequence[str]) -> str:
    """The clause of a query for the rows with these keys."""
    return f"WHERE key IN ({', '.join('?' * len(keys))})"


def summed(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its checksum as the last column."""
    return {**row, "checksum": sum_of(row)}


def _token_rows(tokenizer: str, token_bytes: Mapping[int, bytes]) -> list[dict[str, Any]]:
    return [
        summed({"tokenizer": tokenizer, "id": token, "bytes": raw})
        for token, raw in sorted(token_bytes.items())
    ]


class RolloutStore:
    """Completions by content-hash key in one SQLite file. Use as a context manager.

    Any number of processes may have it open.

    Args:
        path: the file.
        read_only: the file is neither created nor written. SQLite may leave an empty -wal and a
            -shm beside it.
        patience: seconds to wait for another process that writes.
        check_file: compare indices with tables and look at every page. A row that an index has lost
            would be requested and paid for again. It takes about 0.6 s for 100,000 completions.

    Raises, here and from every method:
        StoreError: the path cannot be opened or written (a full disk, say), is another program's
            file, or of another version.
        StoreBusy: another process keeps it locked.
        StoreCorrupt: it, or a row read from it, is damaged.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        read_only: bool = False,
        patience: float = PATIENCE,
        check_file: bool = True,
    ) -> None:
        self.path = Path(path)
        self._db = Database(self.path, read_only=read_only, patience=patience)
        if check_file:
            try:
                self._check_file()
            except BaseException:
                self.close()
                raise
        self._stored_ids: defaultdict[str, _StoredIds] = defaultdict(_StoredIds)
        """By tokenizer. Bytes come with every answer and are stored once."""
        self._rewards_are_checked = False
        self._without_orphans = set[str]()
        self._last_request: tuple[Mapping[str, Any], dict[str, str]] = {}, {}
        """Settings, and the row of ``requests`` for them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; everything added is already durable."""
        self._db.close()

    def _check_file(self) -> None:
        ((finding,),) = self._db.read("PRAGMA main.integrity_check(1)")
        if finding != "ok":
            raise StoreCorrupt(
                f"{self.path} is damaged, so stored completions might not be found and be paid for"
                f" again (SQLite: {' '.join(str(finding).split())[:200]});"
                f" {how_to_recover(self.path)}, then use NEW in its place"
            )

    def add(
        self, settings: Mapping[str, Any], prompt: Prompt, sample: int, completion: Completion
    ) -> str:
        """Store one completion, safe from a crash afterwards, and return its key.

        Args:
            settings: those of the request.
            prompt: the prompt.
            sample: the number of the completion among those of the prompt, from 0.
            completion: the completion.
        """
        [[key]] = self.add_answers([self.rows_of(settings, prompt, {sample: completion})])
        return key

    def rows_of(
        self, settings: Mapping[str, Any], prompt: Prompt, completions: Mapping[int, Completion]
    ) -> dict[str, list[dict[str, Any]]]:
        """The rows of one answer by table, packed; ``add_answers`` takes them.

        completions: by sample number.
        """
        # Read once, because the thread of another ``Writer`` may change it. Most answers have the
        # settings of the answer before them.
        last_settings, request_row = self._last_request
        if settings != last_settings:
            request_row = {"hash": request_hash(settings), "settings": canonical(settings)}
            self._last_request = settings, request_row
        prompt_key = prompt_hash(prompt)
        received = time.time()
        tokenizer = settings.get("tokenizer", "")
        stored_ids = self._stored_ids[tokenizer]
        new_bytes = dict[int, bytes]()
        for completion in completions.values():
            new_bytes |= stored_ids.missing(completion.token_bytes)
        return {
            "prompts": [{"hash": prompt_key, "messages": messages_of(prompt)}],
            "requests": [request_row],
            "completions": [
                completion_row(request_row["hash"], prompt_key, sample, completion, received)
                for sample, completion in completions.items()
            ],
            "token_bytes": _token_rows(tokenizer, new_bytes),
        }

    def add_answers(
        self, answers: Sequence[Mapping[str, Sequence[Mapping[str, Any]]]]
    ) -> list[list[str]]:
        """Store several results of ``rows_of`` in one transaction, safe from a crash afterwards.

        Returns:
            The keys of the completions of each.
        """
        rows = {table: [row for answer in answers for row in answer[table]] for table in answers[0]}
        rows["requests"] = list({row["hash"]: row for row in rows["requests"]}.values())
        self.add_rows(rows)
        for answer in answers:
            token_rows = answer["token_bytes"]
            if token_rows:  # all are of one tokenizer
                tokenizer = token_rows[0]["tokenizer"]
                self._stored_ids[tokenizer].add([row["id"] for row in token_rows])
        return [[row["key"] for row in answer["completions"]] for answer in answers]

    def add_rows(self, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, int]:
        """Store rows by table in one transaction; a row with a stored key is left out.

        Returns:
            The number of rows added, by table.
        """
        with self._db.transaction() as db:
            return {
                table: db.executemany(insertion(table), table_rows).rowcount
                for table, table_rows in rows.items()
                if table_rows
            }

    def restore_references(
        self, settings: Mapping[str, Any], prompts: Mapping[str, Prompt]
    ) -> None:
        """Store again the settings and prompts that a merge of a damaged store did not find.

        Args:
            settings: those of a request of which there are completions.
            prompts: by hash.
        """
        if not any(self._count_orphans(table) for table in REFERENCES):
            return
        request = {"hash": request_hash(settings), "settings": canonical(settings)}
        rows = [{"hash": name, "messages": messages_of(prompt)} for name, prompt in prompts.items()]
        self.add_rows({"requests": [request], "prompts": rows})

    def rows(self, table: str, *, ordered: bool = False) -> Iterator[dict[str, Any]]:
        """All rows of a table, unchecked, one by one.

        ordered: whether completions come by request, prompt and sample.
        """
        order = ""
        if ordered and table == "completions":
            order = "ORDER BY request_hash, prompt_hash, sample"
        for row in self._db.stream(selection(table, order)):
            yield named(table, row)

    def row(self, table: str, key: Sequence[Any]) -> dict[str, Any] | None:
        """The row with this primary key; None where there is none.

        Only its key is checked, because a damaged index may lead to another row.
        """
        names = TABLES[table][: len(key)]
        where = " AND ".join(f"{name} = ?" for name in names)
        for row in self._read(table, f"WHERE {where}", key):
            if [row[name] for name in names] != list(key):
                raise StoreCorrupt(
                    f"{self.path} has {name_of(table, row)} in the place of {table}"
                    f" {str(key[0])[:12]}...; {how_to_recover(self.path)}"
                )
            return row
        return None

    def _read(self, table: str, condition: str, arguments: Sequence[Any]) -> list[dict[str, Any]]:
        return [named(table, row) for row in self._db.read(selection(table, condition), arguments)]

    def _parsed_rows(
        self, table: str, keys: Iterable[str], parse: Callable[[Mapping[str, Any]], T]
    ) -> Iterator[tuple[str, T | None]]:
        """Each of ``keys``, in this order, with what its row holds; None where it has no row."""
        for some_keys in _slices(keys):
            rows = {row["key"]: row for row in self._read(table, _among(some_keys), some_keys)}
            for key in rows.keys() - some_keys:  # a damaged index may lead to another row
                raise StoreCorrupt(
                    f"{self.path} has {name_of(table, rows[key])} in the place of another row of"
                    f" {table}; {how_to_recover(self.path)}"
                )
            for key in some_keys:
                if key in rows:
                    yield key, self._parsed(table, rows[key], parse)
                else:
                    yield key, None

    def _parsed(
        self, table: str, row: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], T]
    ) -> T:
        try:
            return parse(row)
        except StoreCorrupt as error:
            raise StoreCorrupt(
                f"{self.path}: {name_of(table, row)} is damaged: {error};"
                f" {how_to_check(self.path)}, {how_to_recover(self.path)}"
            ) from error

    def requests(self) -> dict[str, dict[str, Any]]:
        """Request hash -> settings (see ``collect.settings_of``), of all requests so far.

        Raises StoreCorrupt where those of a completion are lost.
        """
        self._refuse_orphans("requests")
        return {
            row["hash"]: self._parsed("requests", row, settings_of_row)
            for row in self.rows("requests")
        }

    def _count_orphans(self, table: str) -> int:
        """``Database.count_orphans``, until there are none: every new row has its references."""
        if table not in self._without_orphans:
            orphans = self._db.count_orphans(table)
            if orphans:
                return orphans
            self._without_orphans.add(table)
        return 0

    def _refuse_orphans(self, table: str) -> None:
        orphans = self._count_orphans(table)
        if orphans:
            raise StoreCorrupt(
                f"{orphans:,} completions in {self.path} have lost their rows of {table}; run the"
                " command that collected them again with this store: it stores these rows again,"
                " and requests only completions that are missing"
            )

    def keys(self, request: str) -> set[str]:
        """Keys of all stored completions of one request hash."""
        return {
            key
            for (key,) in self._db.read(
                "SELECT key FROM completions WHERE request_hash = ?", (request,)
            )
        }

    def prompts(self, request: str) -> dict[str, Prompt]:
        """Key -> prompt, of all stored completions of one request hash.

        The samples of a prompt stand together and in order. Raises StoreCorrupt where the prompt of
        a completion is lost.
        """
        self._refuse_orphans("prompts")
        rows = self._db.read(
            "SELECT key, prompt_hash, messages FROM completions JOIN prompts"
            " ON prompts.hash = prompt_hash WHERE request_hash = ? ORDER BY prompt_hash, sample",
            (request,),
        )
        texts = {name: text for _, name, text in rows}
        prompts = {
            name: self._parsed("prompts", {"hash": name, "messages": text}, prompt_of)
            for name, text in texts.items()
        }
        return {key: prompts[name] for key, name, _ in rows}

    def again(self, keys: Collection[str]) -> Callable[[], RolloutStore]:
        """A function that opens the store again for reading these keys.

        It works in any process with access to the same file.
        """
        return partial(RolloutStore, self.path.resolve(), read_only=True, check_file=False)

    def order(self, keys: Collection[str]) -> list[str]:
        """``keys`` in the cheapest order to read, which is any order here."""
        return list(keys)

    def completions(self, keys: Iterable[str]) -> Iterator[Completion]:
        """The completions with these keys, in this order. Raises StoreError for a missing one."""
        for key, completion in self._parsed_rows("completions", keys, completion_of):
            if completion is None:
                raise StoreError(
                    f"{self.path} has no completion {key[:12]}...; run the same command again to"
                    " collect it"
                )
            yield completion

    def by_prompt(self, keys: Sequence[Sequence[str]]) -> Iterator[list[Completion]]:
        """The completions of each row of keys, as ``completions`` reads them."""
        completions = self.completions(chain.from_iterable(keys))
        for row in keys:
            yield list(islice(completions, len(row)))

    def add_rewards(self, answers: Mapping[str, str]) -> None:
        """Store answers for remote rewards by key, safe from a crash afterwards."""
        received = time.time()
        rows = [
            summed({"key": key, "answer": _storable(answer), "received": received})
            for key, answer in answers.items()
        ]
        self.add_rows({"rewards": rows})

    def rewards(self, keys: Iterable[str]) -> dict[str, str]:
        """The stored answers for remote rewards with these keys; a missing key is left out.

        The first call checks all rows, because no other row names them: an answer under a damaged
        key would be paid for again.
        """
        if not self._rewards_are_checked:
            for row in self.rows("rewards"):
                self._parsed("rewards", row, answer_of)
            self._rewards_are_checked = True
        answers = self._parsed_rows("rewards", keys, answer_of)
        return {key: answer for key, answer in answers if answer is not None}

    def token_bytes(self, tokenizer: str) -> dict[int, bytes]:
        """The bytes of every token of this tokenizer in any stored answer."""
        token_bytes: dict[int, bytes] = {}
        for row in self._read("token_bytes", "", ()):  # all, so that a damaged name is noticed
            token, raw = self._parsed("token_bytes", row, token_of)
            if row["tokenizer"] == tokenizer:
                token_bytes[token] = raw
        return token_bytes

    def tokenizer_of(self, key: str) -> str:
        """The fingerprint of the tokenizer of a completion; "" where it is not known."""
        rows = self._db.read(
            "SELECT hash, settings FROM completions JOIN requests ON requests.hash = request_hash"
            " WHERE key = ?",
            (key,),
        )
        for name, settings in rows:
            row = {"hash": name, "settings": settings}
            request = self._parsed("requests", row, settings_of_row)
            return str(request.get("tokenizer", ""))
        return ""

    def add_token_bytes(self, tokenizer: str, token_bytes: Mapping[int, bytes]) -> None:
        """Store the bytes of tokens that no answer shows.

        tokenizer: its fingerprint.
        token_bytes: by id.
        """
        self.add_rows({"token_bytes": _token_rows(tokenizer, token_bytes)})

    def spent(self, keys: Iterable[str]) -> tuple[int, int, int]:
        """Completions with these keys, tokens of their prompts, and generated tokens.

        The tokens of a prompt count once for each of its completions.
        """
        query = (
            "SELECT CAST(prompt_tokens AS INTEGER), CAST(coalesce(generated, n_tokens) AS INTEGER)"
            " FROM completions "
        )
        rows = [
            row
            for some_keys in _slices(keys)
            for row in self._db.read(query + _among(some_keys), some_keys)
        ]
        return len(rows), sum(prompt for prompt, _ in rows), sum(generated for _, generated in rows)

    def size(self) -> StoredSize:
        """The size of the store, and how much the provider withheld."""
        sums = ", ".join(
            f"total(CAST({name} AS INTEGER))" for name in ("n_tokens", "bounded", "outside")
        )
        (row,) = self._db.read(f"SELECT count(*), {sums} FROM completions")  # noqa: S608
        return StoredSize(*(int(value) for value in row))


# --- Storing from a thread


@dataclass(frozen=True, slots=True)
class _Pending:
    """An answer that waits to be stored.

    stored: gets the keys of its completions, or the error.
    """

    settings: Mapping[str, Any]
    prompt: Prompt
    completions: Mapping[int, Completion]
    stored: asyncio.Future[list[str]]


class Writer:
    """A thread that stores answers while others are received. Use as a context manager.

    A commit waits for the disk (``synchronous = FULL``), and SQLite releases the interpreter
    meanwhile, as does the deflation of an answer. The answers that arrive during one commit share
    the next. A worker awaits its own commit before it sends another request, so at most one answer
    a worker is not stored. At the end of the context everything is stored.
    """

    def __init__(self, store: RolloutStore) -> None:
        self._store = store
        self._queue: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        """None ends the thread."""
        self._thread = threading.Thread(target=self._run, name="blackbox_lb store", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._queue.put(None)
        self._thread.join()

    async def add_answer(
        self, settings: Mapping[str, Any], prompt: Prompt, completions: Mapping[int, Completion]
    ) -> list[str]:
        """Store the completions of one answer, by sample number, safe from a crash afterwards.

        The answer is stored even where the caller is cancelled.

        Returns:
            Their keys.

        Raises:
            StoreError: the answer is not stored.
        """
        stored: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._queue.put(_Pending(settings, prompt, completions, stored))
        return await stored

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch = list[_Pending]()
            pending = self._queue.get()
            while pending is not None:
                batch.append(pending)
                if self._queue.empty():
                    break
                pending = self._queue.get()
            is_open = pending is not None
            if batch:
                self._commit(batch)

    def _commit(self, batch: list[_Pending]) -> None:
        try:
            rows = [
                self._store.rows_of(pending.settings, pending.prompt, pending.completions)
                for pending in batch
            ]
            results: list[list[str] | Exception] = [*self._store.add_answers(rows)]
        except Exception as error:  # noqa: BLE001  (raised where the answer came from)
            if len(batch) > 1:  # a failing answer must not keep the others out
                for pending in batch:
                    self._commit([pending])
                return
            results = [error]
        loop = batch[0].stored.get_loop()
        with suppress(RuntimeError):  # the loop has been closed, so nobody waits
            loop.call_soon_threadsafe(_settle, batch, results)


def _settle(batch: list[_Pending], results: list[list[str] | Exception]) -> None:
    for pending, result in zip(batch, results, strict=True):
        if pending.stored.done():
            continue
        if isinstance(result, Exception):
            pending.stored.set_exception(result)
        else:
            pending.stored.set_result(result)
