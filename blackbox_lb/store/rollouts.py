"""The rollout store: every paid completion in one SQLite file, durable before the next request is
awaited.

A completion's key is a hash of everything that determined it: the request without the prompt, the
prompt, and the number of the sample. Asking for a stored key is free; resuming a collection means
no more than that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from blackbox_lb.errors import StoreCorrupt, StoreError
from blackbox_lb.store.database import PATIENCE, Database
from blackbox_lb.store.integrity import (
    answer_of,
    completion_of,
    distribution_of,
    name_of,
    outside_of,
    prompt_of,
    settings_of_row,
    sum_of,
    token_of,
)
from blackbox_lb.store.keys import canonical, messages_of, prompt_hash, request_hash, rollout_key
from blackbox_lb.store.packing import Arrays, pack
from blackbox_lb.store.schema import TABLES, insertion, named, selection
from blackbox_lb.types import Completion, FloatArray, IntArray, ListedBytes, Prompt

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredSize:
    """Contents of a store: completions, listed tokens, and bytes of packed token data.

    ``bounded`` tokens have only a bound for a logprob; ``outside`` ones were sampled and are
    missing from their lists.
    """

    completions: int
    tokens: int
    token_bytes: int
    bounded: int
    outside: int


def _storable(text: str) -> str:
    """``text`` with half a surrogate pair, which JSON allows and UTF-8 does not, as U+FFFD, as
    tokenizers read it.
    """
    return (
        text
        if text.isascii()
        else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )


def completion_row(
    request: str, prompt: str, sample: int, completion: Completion, received: float
) -> dict[str, Any]:
    """The row of a completion; ``request`` and ``prompt`` are hashes, ``received`` seconds since
    1970.
    """
    arrays = Arrays(*(getattr(completion, name) for name in Arrays._fields))
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
        "bounded": 0 if arrays.bounded is None else int(arrays.bounded.sum()),
        "outside": outside_of(arrays),
        "generated": completion.generated,
        "fingerprint": _storable(completion.fingerprint),
    }
    return summed(row)


def next_token_row(key: str, logprobs: FloatArray, received: float) -> dict[str, Any]:
    """The row of a whole vocabulary's logprobs (v,), by id."""
    ids = np.arange(len(logprobs), dtype=np.int32)
    none = np.zeros(1)
    blob = pack(Arrays(none.astype(np.int32), none.astype(np.float32), ids[None], logprobs[None]))
    return summed({"key": key, "tokens": blob, "received": received})


class _Shown:
    """The ids whose bytes are stored. Those above ``HIGHEST`` count as not stored, and are stored
    again.
    """

    HIGHEST = 1 << 20

    def __init__(self) -> None:
        self._there = np.zeros(self.HIGHEST + 1, np.bool_)

    def missing(self, token_bytes: Mapping[int, bytes]) -> dict[int, bytes]:
        """Those of an answer that are not stored yet."""
        if isinstance(token_bytes, ListedBytes):
            ids: IntArray = token_bytes.ids
        else:
            ids = np.fromiter(token_bytes, np.int32, len(token_bytes))
        new = ids[~self._there[np.minimum(ids, self.HIGHEST)]]
        return {token: token_bytes[token] for token in new.tolist()}

    def add(self, ids: Sequence[int]) -> None:
        """These are stored now."""
        self._there[
            np.array([identity for identity in ids if identity < self.HIGHEST], np.int64)
        ] = True


def summed(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its checksum as the last column."""
    return {**row, "checksum": sum_of(row)}


class RolloutStore:
    """Completions by content-hash key in one SQLite file. Use as a context manager. Any number of
    processes may have it open.

    ``read_only``: the file is neither created nor written (SQLite may leave an empty -wal and a
    -shm beside it).
    ``patience``: seconds to wait for another process that writes.

    Raises, here and from every method:
        StoreError: the path cannot be opened or written (a full disk, say), is another program's
        file, or of another version. StoreBusy: another process keeps it locked. StoreCorrupt: it,
        or a row read from it, is damaged.
    """

    def __init__(
        self, path: Path | str, *, read_only: bool = False, patience: float = PATIENCE
    ) -> None:
        self.path = Path(path)
        self._db = Database(self.path, read_only=read_only, patience=patience)
        # By tokenizer: bytes come with every answer.
        self._shown: dict[str, _Shown] = {}
        self._asked: tuple[Mapping[str, Any], dict[str, str]] = {}, {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; everything added is already durable."""
        self._db.close()

    def add(
        self, settings: Mapping[str, Any], prompt: Prompt, sample: int, completion: Completion
    ) -> str:
        """Store one received completion; see ``add_answer``. Returns its key."""
        return self.add_answer(settings, prompt, {sample: completion})[0]

    def add_answer(
        self, settings: Mapping[str, Any], prompt: Prompt, completions: Mapping[int, Completion]
    ) -> list[str]:
        """Store the completions of one answer by sample number, in one transaction, safe from a
        crash afterwards.

        Returns their keys.
        """
        return self.add_answers([self.rows_of(settings, prompt, completions)])[0]

    def rows_of(
        self, settings: Mapping[str, Any], prompt: Prompt, completions: Mapping[int, Completion]
    ) -> dict[str, list[dict[str, Any]]]:
        """The rows of one answer by table, packed; ``add_answers`` takes them."""
        before, row = self._asked  # read once: another writer's thread may change it
        if settings != before:  # those of the answer before, mostly
            row = {"hash": request_hash(settings), "settings": canonical(settings)}
            self._asked = settings, row
        request = row["hash"]
        asked = prompt_hash(prompt)
        now = time.time()
        tokenizer = settings.get("tokenizer", "")
        shown = dict[int, bytes]()
        known = self._shown.setdefault(tokenizer, _Shown())
        for completion in completions.values():
            shown |= known.missing(completion.token_bytes)
        return {
            "prompts": [{"hash": asked, "messages": messages_of(prompt)}],
            "requests": [row],
            "completions": [
                completion_row(request, asked, sample, each, now)
                for sample, each in completions.items()
            ],
            "token_bytes": [
                summed({"tokenizer": tokenizer, "id": token, "bytes": raw})
                for token, raw in sorted(shown.items())
            ],
        }

    def add_answers(
        self, answers: Sequence[Mapping[str, Sequence[Mapping[str, Any]]]]
    ) -> list[list[str]]:
        """Store several results of ``rows_of``, all in one transaction. Returns the keys of
        each.
        """
        together = {table: [row for rows in answers for row in rows[table]] for table in answers[0]}
        self.add_rows(
            together
            | {"requests": list({row["hash"]: row for row in together["requests"]}.values())}
        )
        for rows in answers:
            if shown := rows["token_bytes"]:
                self._shown.setdefault(shown[0]["tokenizer"], _Shown()).add(
                    [row["id"] for row in shown]
                )
        return [[row["key"] for row in rows["completions"]] for rows in answers]

    def add_rows(self, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, int]:
        """Store whole rows by table, in one transaction, without those with a stored key. Returns
        the number added, by table.
        """
        with self._db.transaction() as db:
            return {
                table: db.executemany(insertion(table), each).rowcount
                for table, each in rows.items()
                if each
            }

    def rows(self, table: str, *, ordered: bool = False) -> Iterator[dict[str, Any]]:
        """All rows of a table, unchecked, one by one; ``ordered``: completions by request, prompt
        and sample.
        """
        order = (
            "ORDER BY request_hash, prompt_hash, sample"
            if ordered and table == "completions"
            else ""
        )
        for row in self._db.stream(selection(table, order)):
            yield named(table, row)

    def row(self, table: str, key: Sequence[Any]) -> dict[str, Any] | None:
        """The row with this primary key, unchecked; None where there is none."""
        where = " AND ".join(f"{name} = ?" for name in TABLES[table][: len(key)])
        found = self._read(table, f"WHERE {where}", key)
        return found[0] if found else None

    def _read(self, table: str, condition: str, arguments: Sequence[Any]) -> list[dict[str, Any]]:
        return [named(table, row) for row in self._db.read(selection(table, condition), arguments)]

    def _one(self, table: str, key: str, parse: Callable[[Mapping[str, Any]], T]) -> T | None:
        row = self.row(table, (key,))
        return None if row is None else self._parsed(table, row, parse)

    def _parsed(
        self, table: str, row: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], T]
    ) -> T:
        try:
            return parse(row)
        except StoreCorrupt as error:
            raise StoreCorrupt(
                f"{self.path}: {name_of(table, row)} is damaged: {error}; blb store check"
                f" {self.path} lists what is, blb store recover {self.path} NEW copies what is"
                " intact"
            ) from error

    def requests(self) -> dict[str, dict[str, Any]]:
        """Request hash -> settings (see ``collect.settings_of``) of all requests so far."""
        return {
            row["hash"]: self._parsed("requests", row, settings_of_row)
            for row in self.rows("requests")
        }

    def keys(self, request: str) -> set[str]:
        """Keys of all stored completions of one request hash."""
        return {
            key
            for (key,) in self._db.read(
                "SELECT key FROM completions WHERE request_hash = ?", (request,)
            )
        }

    def prompts(self, request: str) -> dict[str, Prompt]:
        """Key -> prompt, of all stored completions of one request hash, the samples of a prompt
        together and in order.
        """
        rows = self._db.read(
            "SELECT key, hash, messages FROM completions JOIN prompts ON prompts.hash = prompt_hash"
            " WHERE request_hash = ? ORDER BY prompt_hash, sample",
            (request,),
        )
        texts = {name: text for _, name, text in rows}
        known = {
            name: self._parsed("prompts", {"hash": name, "messages": text}, prompt_of)
            for name, text in texts.items()
        }
        return {key: known[name] for key, name, _ in rows}

    def again(self, keys: Collection[str]) -> Callable[[], RolloutStore]:
        """A function that opens it again for reading these keys, in any process with access to the
        same file.
        """
        return partial(RolloutStore, self.path.resolve(), read_only=True)

    def order(self, keys: Collection[str]) -> dict[str, Any]:
        """The places of ``keys``, all of them here, in the cheapest order to read; here the given
        order.
        """
        return {key: number for number, key in enumerate(keys)}

    def completions(self, keys: Iterable[str]) -> Iterator[Completion]:
        """The completions with these keys, in this order. Raises StoreError for a missing one."""
        for key in keys:
            found = self._one("completions", key, completion_of)
            if found is None:
                raise StoreError(
                    f"{self.path} has no completion {key[:12]}...; run the same command again to"
                    " collect it"
                )
            yield found

    def add_next_token(self, key: str, logprobs: FloatArray) -> int:
        """Store the logprobs (v,) of a whole vocabulary, safe from a crash afterwards. Returns the
        bytes used.
        """
        row = next_token_row(key, logprobs, time.time())
        self.add_rows({"next_tokens": [row]})
        return len(row["tokens"])

    def next_token(self, key: str) -> FloatArray | None:
        """The logprobs (v,) stored under ``key``; None where there are none."""
        return self._one("next_tokens", key, distribution_of)

    def add_rewards(self, answers: Mapping[str, str]) -> None:
        """Store answers for remote rewards, by key, in one transaction, safe from a crash
        afterwards.
        """
        now = time.time()
        rows = [
            {"key": key, "answer": _storable(answer), "received": now}
            for key, answer in answers.items()
        ]
        self.add_rows({"rewards": list(map(summed, rows))})

    def rewards(self, keys: Iterable[str]) -> dict[str, str]:
        """The stored answers for remote rewards, for those of ``keys`` that are there."""
        found = ((key, self._one("rewards", key, answer_of)) for key in keys)
        return {key: answer for key, answer in found if answer is not None}

    def token_bytes(self, tokenizer: str) -> dict[int, bytes]:
        """The bytes of every token of this tokenizer in any stored answer."""
        rows = self._read("token_bytes", "WHERE tokenizer = ?", (tokenizer,))
        return dict(self._parsed("token_bytes", row, token_of) for row in rows)

    def token_bytes_for(self, key: str) -> dict[int, bytes]:
        """``token_bytes`` of the tokenizer of the completion with this key."""
        return self.token_bytes(self.tokenizer_of(key))

    def tokenizer_of(self, key: str) -> str:
        """The fingerprint of the tokenizer of the completion with this key; "" where it is not
        known.
        """
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
        """Store the bytes of tokens that no answer shows, by id, under the tokenizer's
        fingerprint.
        """
        rows = [
            summed({"tokenizer": tokenizer, "id": token, "bytes": raw})
            for token, raw in sorted(token_bytes.items())
        ]
        self.add_rows({"token_bytes": rows})

    def spent(self, keys: Iterable[str]) -> tuple[int, int, int]:
        """The number of completions with these keys, and their tokens: of their prompts, one for
        each, and generated.
        """
        query = (
            "SELECT CAST(prompt_tokens AS INTEGER), CAST(coalesce(generated, n_tokens) AS INTEGER)"
            " FROM completions WHERE key = ?"
        )
        rows = [row for key in keys for row in self._db.read(query, (key,))]
        return len(rows), sum(prompt for prompt, _ in rows), sum(generated for _, generated in rows)

    def size(self) -> StoredSize:
        """The size of the store, and the part of it that the provider withheld."""
        sums = ", ".join(
            f"total(CAST({name} AS INTEGER))"
            for name in ("n_tokens", "length(tokens)", "bounded", "outside")
        )
        (row,) = self._db.read(f"SELECT count(*), {sums} FROM completions")  # noqa: S608
        return StoredSize(*(int(value) for value in row))
