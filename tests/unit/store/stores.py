"""What the tests of the store share: completions of every kind, and stores of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from blackbox_lb.store import RolloutStore
from blackbox_lb.store.database import TABLES
from blackbox_lb.store.rows import Arrays
from blackbox_lb.types import Completion, Prompt

SETTINGS = {"model": "m", "tokenizer": "t"}
HELLO = Prompt.user("hello")
Rows = dict[tuple[str, Any], dict[str, Any]]


def completion(seed: int = 1, tokens: int | None = None, **fields: Any) -> Completion:
    """Any completion: of no token up to some pages of them, with and without the optional
    columns.
    """
    draw = np.random.default_rng(seed)
    t = int(draw.integers(0, 60)) if tokens is None else tokens
    k = 0 if seed % 7 == 3 else 5
    made: dict[str, Any] = {
        "text": f"text {seed} \N{SNOWMAN}" * (seed % 5),
        "finish_reason": "length" if seed % 2 else "stop",
        "token_ids": draw.integers(0, 2**17, t, dtype=np.int32),
        "logprobs": -draw.random(t, dtype=np.float32),
        "top_ids": draw.integers(-2, 2**17, (t, k), dtype=np.int32),
        "top_logprobs": np.where(draw.random((t, k)) < 0.1, -np.inf, -draw.random((t, k))).astype(
            np.float32
        ),
        "prompt_tokens": seed,
        "model": "m",
        "whole": seed % 3 > 0,
        "token_bytes": {token: bytes([token, 255]) for token in range(seed % 4)},
        "propensities": -draw.random(t, dtype=np.float32) if seed % 2 else None,
        "bounded": draw.random(t) < 0.5 if seed % 3 == 0 else None,
        "generated": t + 1 if seed % 2 else None,
        "fingerprint": f"fp_{seed % 2}",
    }
    return Completion(**{**made, **fields})


def make(path: Path, samples: int = 40, start: int = 0) -> Path:
    """A store with something in each table."""
    with RolloutStore(path) as store:
        for seed in range(start, start + samples):
            settings = {**SETTINGS, "bias": [[seed % 2, 1.0]]}
            prompt = Prompt.user(f"prompt {seed % 11} " * (seed % 5 * 40 + 1))
            store.add(settings, prompt, seed, completion(seed))
        store.add_rewards(
            {f"{seed:064x}": f"{seed}.5" for seed in range(start, start + samples // 4)}
        )
    return path


def rows(path: Path) -> Rows:
    """Every row of a store by table and key."""
    with RolloutStore(path, read_only=True) as store:
        return {
            (table, tuple(row.values())[: 2 if table == "token_bytes" else 1]): row
            for table in TABLES
            for row in store.rows(table)
        }


def killed_after(work: Callable[[], object]) -> None:
    """Work in a process that kills itself right afterwards."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


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
