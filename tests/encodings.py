"""An exact model's vocabulary as an encoding of tiktoken, for tests of providers whose tokenizer
tiktoken has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tiktoken.registry

__all__ = ["register_encoding"]


def register_encoding(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    texts: Sequence[str],
    end: int,
    special: str = "<|endoftext|>",
) -> None:
    """Make ``texts`` before ``end``, and all single bytes behind it, an encoding for one test.

    tiktoken and blackbox_lb keep encodings by name: each model's needs a name of its own.
    """
    tiktoken.list_encoding_names()
    ranks = {texts[token].encode(): token for token in range(end)}
    ranks |= {bytes([byte]): end + 1 + byte for byte in range(256)}
    rules = {
        "name": name,
        "pat_str": r"\s?\S+|\s",
        "mergeable_ranks": ranks,
        "special_tokens": {special: end},
    }
    constructors: Any = tiktoken.registry.ENCODING_CONSTRUCTORS
    monkeypatch.setitem(constructors, name, lambda: rules)
