"""The tokenizer of SmolLM2-135M-Instruct, the model of recorded answers and of the live tests."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from pathlib import Path

from blackbox_lb.api.local.engine import resolve_model
from blackbox_lb.vocabulary.gguf import read_metadata, token_texts

FINGERPRINT = "probe-sha256:cd84d358e4b578e905070cbdfe1dab8d"
"""By llama.cpp's own answer to /tokenize."""
SPECIAL = 17
"""The first so many tokens stand for no text."""
END = {b"<|im_end|>": 2}


@cache
def ids() -> dict[bytes, int]:
    """The token of each byte string, and of the end of a turn by its name."""
    return {raw: token for token, raw in token_texts(resolve_model()).items()} | END


@cache
def tokenizer_json() -> Path:
    """A tokenizer.json, put together by the tokenizers library from the .gguf file's table."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    metadata = read_metadata(resolve_model())
    pieces = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({piece: token for token, piece in enumerate(pieces)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, by_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in pieces[:SPECIAL]])
    tokenizer.enable_truncation(7)
    folder = tempfile.TemporaryDirectory(prefix="smollm-")
    atexit.register(folder.cleanup)
    path = Path(folder.name, "tokenizer.json")
    tokenizer.save(str(path))
    return path
