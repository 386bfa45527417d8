"""The tokenizer of SmolLM2-135M-Instruct, the model of the live tests."""

from __future__ import annotations

from functools import cache

from blackbox_lb.api.local.engine import resolve_model
from blackbox_lb.vocabulary.gguf import token_texts

FINGERPRINT = "probe-sha256:cd84d358e4b578e905070cbdfe1dab8d"
"""By llama.cpp's own answer to /tokenize."""


END = {b"<|im_end|>": 2}


@cache
def ids() -> dict[bytes, int]:
    """The token of each byte string, and of the end of a turn by its name."""
    return {raw: token for token, raw in token_texts(resolve_model()).items()} | END
