"""The rollout store: every paid completion in one SQLite file, durable before the next request is awaited.

A completion's key is a hash of everything that determined it: the request without the prompt, the prompt, and the number of the
sample. Asking for a key that is there is free; that is all that resuming a collection means.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from blackbox_lb.errors import StoreError
from blackbox_lb.packing import Arrays, pack, unpack
from blackbox_lb.types import Completion, FloatArray, Message, Prompt

__all__ = [
    "RolloutStore",
    "StoredSize",
    "canonical",
    "next_token_key",
    "prompt_hash",
    "request_hash",
    "rollout_key",
]

APPLICATION_ID = 0x626C6221
"""Marks the file as ours, so that somebody else's database is refused and never written to."""

MIGRATIONS = (
    """
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
        tokens BLOB NOT NULL,            -- ids, logprobs, top ids, top logprobs: see blackbox_lb.packing
        received REAL NOT NULL           -- seconds since 1970
    );
    CREATE INDEX completions_by_request ON completions (request_hash, prompt_hash, sample);
    CREATE TABLE token_bytes (
        tokenizer TEXT NOT NULL,         -- fingerprint
        id INTEGER NOT NULL,
        bytes BLOB NOT NULL,
        PRIMARY KEY (tokenizer, id)
    ) WITHOUT ROWID;
    """,
    """
    ALTER TABLE completions ADD COLUMN bounded INTEGER NOT NULL DEFAULT 0;  -- sampled tokens without a logprob, only a bound
    ALTER TABLE completions ADD COLUMN outside INTEGER;   -- sampled tokens missing from their list; NULL: not counted (schema 1)
    ALTER TABLE completions ADD COLUMN generated INTEGER; -- tokens as the provider counts them; NULL: it does not, or schema 1
    """,
    """
    CREATE TABLE next_tokens (
        key TEXT PRIMARY KEY,            -- hash of (settings of the request, prompt_hash, token ids of the completion so far)
        tokens BLOB NOT NULL,            -- one position with every token of the vocabulary, by id: see blackbox_lb.packing
        received REAL NOT NULL           -- seconds since 1970
    );
    """,
    """
    CREATE TABLE rewards (
        key TEXT PRIMARY KEY,            -- hash of (endpoint or judge, all that it was told of a completion)
        answer TEXT NOT NULL,            -- what came: an endpoint's number of nats, or a judge's words
        received REAL NOT NULL           -- seconds since 1970
    ) WITHOUT ROWID;
    """,
)
"""Applied in order, each once; ``PRAGMA user_version`` counts them. Never edit one that was released: append."""

INSERT = """
    INSERT OR IGNORE INTO completions
    (key, request_hash, prompt_hash, sample, text, finish_reason, model, prompt_tokens, n_tokens, whole, tokens, received,
     bounded, outside, generated)
    VALUES (:key, :request_hash, :prompt_hash, :sample, :text, :finish_reason, :model, :prompt_tokens, :n_tokens, :whole,
     :tokens, :received, :bounded, :outside, :generated)
"""


def canonical(value: Any) -> str:
    """``value`` as JSON with one spelling: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _tagged_hash(tag: str, text: str) -> str:
    return hashlib.sha256(f"blackbox-lb/{tag}\n{text}".encode()).hexdigest()


def _messages(prompt: Prompt) -> str:
    return canonical([{"role": message.role, "content": message.content} for message in prompt.messages])


def prompt_hash(prompt: Prompt) -> str:
    """The content hash of a prompt."""
    return _tagged_hash("prompt", _messages(prompt))


def request_hash(settings: Mapping[str, Any]) -> str:
    """The content hash of a request's settings, the prompt aside."""
    return _tagged_hash("request", canonical(settings))


def next_token_key(settings: Mapping[str, Any], prompt: str, prefix: Sequence[int]) -> str:
    """The key of one next-token distribution: ``prompt`` is a hash, ``prefix`` the token ids of the completion so far."""
    return _tagged_hash("next token", canonical([settings, prompt, list(prefix)]))


def rollout_key(request: str, prompt: str, sample: int) -> str:
    """The key of one completion: ``request`` and ``prompt`` are hashes, ``sample`` counts from 0."""
    return _tagged_hash("rollout", f"{request}\n{prompt}\n{sample}")


@dataclass(frozen=True, slots=True)
class StoredSize:
    """What a store holds: completions, listed tokens, and bytes of packed token data.

    ``bounded`` tokens came without a logprob, only with a bound on it; ``outside`` were sampled and missing from their lists.
    ``uncounted`` completions were stored by a version that did not count ``outside``.
    """

    completions: int
    tokens: int
    token_bytes: int
    bounded: int
    outside: int
    uncounted: int


def _row(completion: Completion) -> dict[str, Any]:
    """The columns that come from the completion itself."""
    arrays = Arrays(*(getattr(completion, name) for name in Arrays._fields))
    outside = ~(arrays.top_ids == arrays.token_ids[:, None]).any(axis=1)
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "model": completion.model,
        "prompt_tokens": completion.prompt_tokens,
        "n_tokens": len(completion.token_ids),
        "whole": completion.whole,
        "tokens": pack(arrays),
        "received": time.time(),
        "bounded": 0 if arrays.bounded is None else int(arrays.bounded.sum()),
        "outside": int(outside.sum()),
        "generated": completion.generated,
    }


class RolloutStore:
    """Completions by content-hash key in one SQLite file. Use as a context manager.

    Raises:
        StoreError: the path cannot be opened, is another program's file, or was written by a newer version.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, isolation_level=None)
        except (sqlite3.Error, OSError) as error:
            raise self._unusable(error) from error
        try:
            self._migrate()
        except sqlite3.Error as error:
            self.close()
            raise self._unusable(error) from error
        except StoreError:
            self.close()
            raise

    def _unusable(self, error: Exception) -> StoreError:
        return StoreError(f"cannot open the rollout store {self.path}: {error}; give another with --out or --store")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; everything added is already durable."""
        self._db.close()

    def _migrate(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (mark,) = self._db.execute("PRAGMA application_id").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if mark != APPLICATION_ID and tables:
            raise StoreError(f"{self.path} is a database of another program; give another path with --out")
        if version > len(MIGRATIONS):
            raise StoreError(
                f"{self.path} has schema {version}, this version knows {len(MIGRATIONS)}; upgrade blackbox_lb"
            )
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA busy_timeout = 10000")
        for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
            self._db.executescript(
                f"BEGIN; PRAGMA application_id = {APPLICATION_ID}; {script} PRAGMA user_version = {number}; COMMIT;"
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All that is written inside, or nothing; durable at the end."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def add(self, settings: Mapping[str, Any], prompt: Prompt, sample: int, completion: Completion) -> str:
        """Store one received completion; see ``add_answer``. Returns its key."""
        return self.add_answer(settings, prompt, {sample: completion})[0]

    def add_answer(
        self, settings: Mapping[str, Any], prompt: Prompt, completions: Mapping[int, Completion]
    ) -> list[str]:
        """Store the completions of one answer by sample number, in one transaction; when this returns, a crash cannot lose them.

        Returns their keys.
        """
        request, asked = request_hash(settings), prompt_hash(prompt)
        keys = [rollout_key(request, asked, sample) for sample in completions]
        same = {"request_hash": request, "prompt_hash": asked}
        rows = [
            {"key": key, **same, "sample": sample, **_row(completion)}
            for key, (sample, completion) in zip(keys, completions.items(), strict=True)
        ]
        tokenizer = settings.get("tokenizer", "")
        names = {(tokenizer, token): raw for each in completions.values() for token, raw in each.token_bytes.items()}
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO prompts VALUES (?, ?)", (asked, _messages(prompt)))
            self._db.execute("INSERT OR IGNORE INTO requests VALUES (?, ?)", (request, canonical(settings)))
            self._db.executemany(INSERT, rows)
            self._db.executemany(
                "INSERT OR IGNORE INTO token_bytes VALUES (?, ?, ?)", ((*name, raw) for name, raw in names.items())
            )
        return keys

    def requests(self) -> dict[str, dict[str, Any]]:
        """Request hash -> settings (see ``collect.settings_of``) of everything that was ever asked for."""
        return {name: json.loads(text) for name, text in self._db.execute("SELECT hash, settings FROM requests")}

    def keys(self, request: str) -> set[str]:
        """Keys of all stored completions of one request hash."""
        return {key for (key,) in self._db.execute("SELECT key FROM completions WHERE request_hash = ?", (request,))}

    def prompts(self, request: str) -> dict[str, Prompt]:
        """Key -> what was asked, of all stored completions of one request hash, the samples of a prompt together and in order."""
        rows = self._db.execute(
            "SELECT key, messages FROM completions JOIN prompts ON prompts.hash = prompt_hash WHERE request_hash = ? "
            "ORDER BY prompt_hash, sample",
            (request,),
        )
        return {key: Prompt(tuple(Message(**each) for each in json.loads(text))) for key, text in rows}

    def completions(self, keys: Iterable[str]) -> Iterator[Completion]:
        """The completions with these keys, in this order. Raises StoreError for one that is not there."""
        for key in keys:
            row = self._db.execute(
                "SELECT text, finish_reason, model, prompt_tokens, whole, generated, tokens FROM completions WHERE key = ?",
                (key,),
            ).fetchone()
            if row is None:
                raise StoreError(
                    f"{self.path} has no completion {key[:12]}...; run the same command again to collect it"
                )
            text, finish_reason, model, prompt_tokens, whole, generated, tokens = row
            yield Completion(
                text=text,
                finish_reason=finish_reason,
                prompt_tokens=prompt_tokens,
                model=model,
                whole=bool(whole),
                generated=generated,
                **unpack(tokens)._asdict(),
            )

    def add_next_token(self, key: str, logprobs: FloatArray) -> int:
        """Store the logprobs (v,) of a whole vocabulary; when this returns, a crash cannot lose them. Returns bytes taken."""
        ids, none = np.arange(len(logprobs), dtype=np.int32), np.zeros(1)
        blob = pack(Arrays(none.astype(np.int32), none.astype(np.float32), ids[None], logprobs[None]))
        self._db.execute("INSERT OR IGNORE INTO next_tokens VALUES (?, ?, ?)", (key, blob, time.time()))
        return len(blob)

    def next_token(self, key: str) -> FloatArray | None:
        """The logprobs (v,) that were stored under ``key``; None where there are none."""
        row = self._db.execute("SELECT tokens FROM next_tokens WHERE key = ?", (key,)).fetchone()
        return None if row is None else unpack(row[0]).top_logprobs[0]

    def add_rewards(self, answers: Mapping[str, str]) -> None:
        """Store what came for remote rewards, by key, in one transaction; when this returns, a crash cannot lose it."""
        now = time.time()
        with self._transaction():
            self._db.executemany(
                "INSERT OR IGNORE INTO rewards VALUES (?, ?, ?)",
                ((key, answer, now) for key, answer in answers.items()),
            )

    def rewards(self, keys: Iterable[str]) -> dict[str, str]:
        """What came for remote rewards, for those of ``keys`` that are there."""
        found = (self._db.execute("SELECT key, answer FROM rewards WHERE key = ?", (key,)).fetchone() for key in keys)
        return dict(row for row in found if row is not None)

    def token_bytes(self, tokenizer: str) -> dict[int, bytes]:
        """The bytes of every token of this tokenizer that any stored answer showed."""
        return dict(self._db.execute("SELECT id, bytes FROM token_bytes WHERE tokenizer = ?", (tokenizer,)))

    def spent(self, keys: Iterable[str]) -> tuple[int, int, int]:
        """How many completions with these keys there are, and their tokens: of their prompts, one for each, and generated."""
        query = "SELECT prompt_tokens, coalesce(generated, n_tokens) FROM completions WHERE key = ?"
        found = (self._db.execute(query, (key,)).fetchone() for key in keys)
        rows = [row for row in found if row is not None]
        return len(rows), sum(prompt for prompt, _ in rows), sum(generated for _, generated in rows)

    def size(self) -> StoredSize:
        """How much is stored, and how much of it the provider kept back."""
        row = self._db.execute(
            "SELECT count(*), total(n_tokens), total(length(tokens)), total(bounded), total(outside), "
            "count(*) - count(outside) FROM completions"
        ).fetchone()
        return StoredSize(*(int(value) for value in row))
