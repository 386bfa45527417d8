"""The schema of a rollout store: the statements that make it, and the resulting columns."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

APPLICATION_ID = 0x626C6221
"""Marks the file as this package's, so that another program's database is refused and never written
to.
"""
SCHEMA = 5
"""The number in ``PRAGMA user_version``; a file of another number is refused."""
_SCRIPT = """
    CREATE TABLE prompts (
        hash TEXT PRIMARY KEY,
        messages TEXT NOT NULL           -- canonical JSON: [{"role", "content"}]; tools are the last, of the role tools
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
        received REAL NOT NULL,          -- seconds since 1970
        bounded INTEGER NOT NULL DEFAULT 0,    -- sampled tokens without a logprob, only a bound
        outside INTEGER,                 -- sampled tokens missing from their list
        generated INTEGER,               -- tokens as the provider counts them; NULL: it does not
        fingerprint TEXT NOT NULL DEFAULT '',  -- the answer's system_fingerprint; '': it had none
        checksum INTEGER                 -- CRC-32 of the other columns in order
    );
    CREATE INDEX completions_by_request ON completions (request_hash, prompt_hash, sample);
    CREATE TABLE token_bytes (
        tokenizer TEXT NOT NULL,         -- fingerprint
        id INTEGER NOT NULL,
        bytes BLOB NOT NULL,
        checksum INTEGER,
        PRIMARY KEY (tokenizer, id)
    ) WITHOUT ROWID;
    CREATE TABLE next_tokens (
        key TEXT PRIMARY KEY,            -- hash of (settings of the request, prompt_hash, token ids of the completion so far)
        tokens BLOB NOT NULL,            -- one position with every token of the vocabulary, by id: see blackbox_lb.store.packing
        received REAL NOT NULL,          -- seconds since 1970
        checksum INTEGER
    );
    CREATE TABLE rewards (
        key TEXT PRIMARY KEY,            -- hash of (endpoint or judge, all that it was told of a completion)
        answer TEXT NOT NULL,            -- what came: an endpoint's number of nats, or a judge's words
        received REAL NOT NULL,          -- seconds since 1970
        checksum INTEGER
    ) WITHOUT ROWID
"""  # noqa: E501
CREATION = _SCRIPT.split(";\n")
"""The statements that make the tables and the index of a new store."""

TABLES = {
    "prompts": ("hash", "messages"),
    "requests": ("hash", "settings"),
    "completions": (
        *(
            "key",
            "request_hash",
            "prompt_hash",
            "sample",
            "text",
            "finish_reason",
            "model",
            "prompt_tokens",
        ),
        *(
            "n_tokens",
            "whole",
            "tokens",
            "received",
            "bounded",
            "outside",
            "generated",
            "fingerprint",
            "checksum",
        ),
    ),
    "token_bytes": ("tokenizer", "id", "bytes", "checksum"),
    "next_tokens": ("key", "tokens", "received", "checksum"),
    "rewards": ("key", "answer", "received", "checksum"),
}
"""The columns, in the order of the file."""
KEY_COLUMNS = dict.fromkeys(TABLES, 1) | {"token_bytes": 2}
"""The number of columns, from the first on, in the primary key."""


def selection(table: str, condition: str = "") -> str:
    """The statement that reads all columns of a table."""
    return f"SELECT {', '.join(TABLES[table])} FROM {table} {condition}"  # noqa: S608  (names of ours)


def named(table: str, row: Sequence[Any]) -> dict[str, Any]:
    """The values of ``selection``, by column."""
    return dict(zip(TABLES[table], row, strict=True))


def insertion(table: str) -> str:
    """The statement that adds a row, unless there is one under its key."""
    columns = TABLES[table]
    values = ", ".join(f":{name}" for name in columns)
    return f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({values})"  # noqa: S608  (names of ours)


def shape_of(db: sqlite3.Connection) -> list[tuple[object, ...]]:
    """The tables, indices and columns of a connection's file."""
    shape = db.execute(
        "SELECT type, name, tbl_name FROM main.sqlite_master ORDER BY name"
    ).fetchall()
    for table in TABLES:
        shape += db.execute(f"PRAGMA main.table_info({table})").fetchall()
    return shape


def right_shape() -> list[tuple[object, ...]]:
    """The ``shape_of`` a sound store."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        for statement in CREATION:
            fresh.execute(statement)
        return shape_of(fresh)
