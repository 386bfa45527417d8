"""Reading only the sampled tokens: the same columns as of whole completions, and the same
refusals.
"""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.sampled import sampled, unpack_sampled
from blackbox_lb.errors import StoreCorrupt
from blackbox_lb.store import RolloutStore
from blackbox_lb.store.rows import Arrays, pack
from blackbox_lb.types import Completion, Prompt
from tests.support.errors import raises_naming

SETTINGS = {"model": "m", "tokenizer": "t"}


def arrays_of(
    t: int, k: int, seed: int, *, propensities: bool = False, bounded: bool = False
) -> Arrays:
    """The arrays of one made-up completion."""
    rng = np.random.default_rng(seed)
    return Arrays(
        rng.integers(0, 1 << 17, t, dtype=np.int32),
        -rng.exponential(size=t).astype(np.float32),
        rng.integers(0, 1 << 17, (t, k), dtype=np.int32),
        -np.sort(rng.exponential(size=(t, k)), axis=1).astype(np.float32),
        -rng.exponential(size=t).astype(np.float32) if propensities else None,
        rng.random(t) < 0.5 if bounded else None,
    )


def stored(path: Path, each: list[Arrays]) -> list[str]:
    """The keys of these completions of one prompt in a new store."""
    with RolloutStore(path) as store:
        completions = {
            n: Completion(
                text="x", finish_reason="stop", prompt_tokens=3, model="m", **arrays._asdict()
            )
            for n, arrays in enumerate(each)
        }
        return store.add_answer(SETTINGS, Prompt.user("q"), completions)


@given(st.integers(0, 70), st.integers(0, 4), st.booleans(), st.booleans(), st.integers(0, 9))
def test_sampled_columns_are_those_of_the_whole(
    t: int, k: int, propensities: bool, bounded: bool, seed: int
) -> None:
    """Bit for bit, the propensities where the provider tells them from the base's logprobs."""
    arrays = arrays_of(t, k, seed, propensities=propensities, bounded=bounded)
    ids, logprobs, bounds = unpack_sampled(pack(arrays))
    np.testing.assert_array_equal(ids, arrays.token_ids)
    np.testing.assert_array_equal(
        logprobs, arrays.logprobs if arrays.propensities is None else arrays.propensities
    )
    assert (bounds is None) == (arrays.bounded is None)
    if arrays.bounded is not None:
        np.testing.assert_array_equal(bounds, arrays.bounded)


def test_damage_behind_the_sampled_columns_is_found(tmp_path: Path) -> None:
    """A byte that is not even inflated is checked all the same, by the row's checksum."""
    keys = stored(tmp_path / "s.db", [arrays_of(50, 4, 1)])
    with sqlite3.connect(tmp_path / "s.db") as db:
        ((blob,),) = db.execute("SELECT tokens FROM completions").fetchall()
        damaged = bytearray(blob)
        damaged[-1] ^= 1
        unpack_sampled(bytes(damaged))
        with pytest.raises(zlib.error):
            zlib.decompress(bytes(damaged[10:]))
        db.execute("UPDATE completions SET tokens = ?", (bytes(damaged),))
    db.close()
    with (
        RolloutStore(tmp_path / "s.db", read_only=True) as store,
        raises_naming(StoreCorrupt, "s.db", keys[0][:12]),
    ):
        list(sampled(store, keys))
