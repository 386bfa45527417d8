"""Vocabularies small enough to read, files in every state of damage, and machines without
internet.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.vocabulary import Vocabulary, load_vocabulary, vocabulary_of_model
from blackbox_lb.vocabulary.gguf import token_texts
from blackbox_lb.vocabulary.tokenizer_files import CHARACTER_OF
from tests.support.errors import names, raises_naming

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def table(*tokens: bytes, **special: int) -> Vocabulary:
    """A vocabulary of these ordinary tokens, ids from 0, that encodes every text as its first
    token.
    """
    return Vocabulary(
        "table", dict(enumerate(tokens)), special, len(tokens) + len(special), lambda text: [0]
    )


# Bytes and ids


def test_bytes_that_two_ids_share_name_neither() -> None:
    """Where two ids have the same bytes there is no telling which was meant: no guess, and both are
    listed. So it is where one token's text is what another's bytes are displayed as; and U+FFFD may
    stand for any fragment. OpenAI's completions print fragments of characters as escapes; another
    backslash is of no known form.
    """
    vocabulary = table(b"a", b"\n", b"\n")
    assert vocabulary.id_of(b"a") == 0
    assert vocabulary.id_of(b"\n") is None
    assert vocabulary.id_of_text("\n") is None
    assert vocabulary.shared == {b"\n": (1, 2)}
    for shown, raw in (
        (r"bytes: \xe2\x80\x9c", b" \xe2\x80\x9c"),
        ("bytes:\n\\xE2", b"\n\xe2"),
        (r"bytes:\xe2é", b"\xe2\xc3\xa9"),
        (r"bytes:\xe2\x80", b"\xe2\x80"),
    ):
        assert table(b"a", raw).id_of_text(shown) == 1
    for shown in ("bytes:", "bytes:a", r"bytes:\n\xe2", r"\xe2\x80", ""):
        assert table(b"a", b"\xe2\x80", b"\n\xe2").id_of_text(shown) is None
    shown = r"bytes:\xe2\x80"
    assert table(shown.encode(), b"a").id_of_text(shown) == 0
    assert table(shown.encode(), b"\xe2\x80").id_of_text(shown) is None
    replaced = "\N{REPLACEMENT CHARACTER}"
    vocabulary = table(b"a", replaced.encode(), b"\xe2\x80")
    assert vocabulary.id_of_text(replaced) is None
    assert vocabulary.id_of(replaced.encode()) == 1


def test_special_tokens_have_names_and_no_bytes() -> None:
    """A special token is found by its name alone, and shows that name; no bytes at all name no
    token.
    """
    special = {"<|endoftext|>": 2, "<|end|>": 3, "<|also|>": 3}
    vocabulary = Vocabulary("v", {0: b"a", 1: b""}, special, 5, lambda text: [0])
    assert vocabulary.id_of(b"<|end|>") is None
    assert vocabulary.id_of(b"") is None
    assert vocabulary.id_of_special("<|end|>") == vocabulary.id_of_special("<|also|>") == 3
    assert vocabulary.id_of_special("<|start|>") is None
    assert vocabulary.bytes_of(3) == b"<|end|>"
    assert vocabulary.bytes_of(4) is None
    assert vocabulary.end_of_text == 2
    assert table(b"a").end_of_text is None


# Models


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-4o", "o200k_base"),
        ("gpt-3.5-turbo-instruct", "cl100k_base"),
        ("gpt-35-turbo", "cl100k_base"),
        ("ft:gpt-4.1-mini-2025-04-14:org:name:id", "o200k_base"),
        ("ft:davinci-002:org::id", "cl100k_base"),
        ("openai/gpt-4o-mini", "o200k_base"),
        ("openai/gpt-oss-120b", "o200k_harmony"),
        ("org/gpt-4o", None),
        ("", None),
    ],
)
def test_models_are_known_by_their_base(model: str, encoding: str | None) -> None:
    """A fine-tuned model has its base model's vocabulary (also gpt-4.1, which begins like gpt-4);
    others are unknown.
    """
    assert vocabulary_of_model(model) == encoding


# Files


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 5, struct.pack("<i", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _string(value)
    packed = [_value(item) for item in value]
    return 9, struct.pack("<IQ", packed[0][0], len(packed)) + b"".join(raw for _, raw in packed)


def gguf(path: Path, table: list[tuple[str, int, float]], *, version: int = 3, **rows: Any) -> Path:
    """A GGUF file of metadata alone, with ``table`` as (piece, type, score) and further rows under
    tokenizer.ggml.
    """
    pieces, types, scores = ([row[column] for row in table] for column in range(3))
    rows = {"tokens": pieces, "token_type": types, "scores": scores} | rows
    values = {key: _value(value) for key, value in rows.items()}
    pairs = [
        _string(f"tokenizer.ggml.{key}") + struct.pack("<I", kind) + raw
        for key, (kind, raw) in values.items()
    ]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs)) + b"".join(pairs))
    return path


def letters() -> list[tuple[str, int, float]]:
    """The 256 single characters of a byte-level vocabulary."""
    return [(character, NORMAL, 0.0) for character in CHARACTER_OF.values()]


def byte_level(folder: Path, **rows: Any) -> Path:
    """A byte-level vocabulary of the bytes, ``ab``, a user-defined ``<tool call>``, a control token,
    an unused id, and a piece that stands for no bytes.
    """
    tokens = [*letters(), ("ab", NORMAL, 0.0), ("<tool call>", USER_DEFINED, 0.0)]
    tokens += [("<|im_end|>", CONTROL, 0.0), ("[PAD]", UNUSED, 0.0), ("a b", NORMAL, 0.0)]
    return gguf(folder / "bpe.gguf", tokens, **{"model": "gpt2"} | rows)


def sentencepiece(folder: Path, **rows: Any) -> Path:
    """A SentencePiece vocabulary: <unk>, <s>, all bytes, then pieces, ``<b>`` and three spaces."""
    tokens = [
        ("<unk>", UNKNOWN, 0.0),
        ("<s>", CONTROL, 0.0),
        *((f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)),
        (f"{SPACE}ab", NORMAL, -3.0),
        ("<b>", USER_DEFINED, 0.0),
        ("   ", USER_DEFINED, 0.0),
    ]
    return gguf(folder / "spm.gguf", tokens, **{"model": "llama"} | rows)


def test_the_texts_of_files(tmp_path: Path) -> None:
    """Byte-level pieces are bytes written as characters, user-defined tokens are kept as they are
    written, and nothing else stands for text. In SentencePiece U+2581 is a space, <0xNN> a byte.
    """
    texts = token_texts(byte_level(tmp_path))
    assert sorted(texts.values())[:2] == [b"\x00", b"\x01"]
    assert [texts.get(token) for token in range(256, 260)] == [b"ab", b"<tool call>", None, None]
    assert len(texts) == 256 + 2
    texts = token_texts(sentencepiece(tmp_path))
    assert len(texts) == 256 + 3
    assert (texts[2], texts[2 + 0xC3]) == (b"\x00", b"\xc3")
    assert [texts[token] for token in (258, 259, 260)] == [b" ab", b"<b>", b"   "]


@pytest.mark.parametrize("build", [byte_level, sentencepiece])
def test_a_damaged_file_is_refused_wherever_it_ends(
    tmp_path: Path, build: Callable[[Path], Path]
) -> None:
    """However early a download stopped, the answer is one sentence that names the file."""
    whole = build(tmp_path).read_bytes()
    path = tmp_path / "cut.gguf"
    for end in [*range(4, 200), *range(200, len(whole) - 1, 97)]:
        path.write_bytes(whole[:end])
        with raises_naming(InputError, "cut.gguf"):
            token_texts(path)


@pytest.mark.parametrize(
    ("rows", "facts"),
    [
        ({"model": "bert"}, ("'bert'", "tokenizer.json")),
        ({"tokens": ["a", "b"]}, ("incomplete", "bpe.gguf")),
        ({"token_type": 7}, ("incomplete", "bpe.gguf")),
        ({"model": "llama", "token_type": [BYTE] * 261}, ("incomplete", "bpe.gguf")),
        ({"version": 1}, ("GGUF version 1",)),
        ({"version": 3 << 24}, ("GGUF version 50331648", "little-endian")),
    ],
)
def test_files_of_other_kinds_are_refused(
    tmp_path: Path, rows: dict[str, Any], facts: tuple[str, ...]
) -> None:
    """Each with what was found and what to do."""
    with raises_naming(InputError, *facts):
        token_texts(byte_level(tmp_path, **rows))


def tokenizer_json(
    path: Path, vocab: Any, decoder: Any, *, kind: str = "BPE", added: Any = ()
) -> Path:
    """A tokenizer.json with this vocabulary and decoder."""
    model: dict[str, Any] = {"type": kind, "vocab": vocab}
    if kind == "BPE":
        model |= {"merges": [], "byte_fallback": True, "unk_token": "<unk>"}
    if kind == "Unigram":
        model |= {"unk_id": 0}
    full = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    document = {
        "version": "1.0",
        "added_tokens": [full | token for token in added],
        "model": model,
        "decoder": decoder,
    }
    absent = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor")
    path.write_text(json.dumps(document | dict.fromkeys(absent)))
    return path


SPACES = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
FALLBACK = {"type": "Sequence", "decoders": [SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}]}
ADDED = [
    {"id": 0, "content": "<unk>", "special": True},
    {"id": 6, "content": "<b>", "special": False},
]


def test_a_sentencepiece_tokenizer_json(tmp_path: Path) -> None:
    """U+2581 is a space, <0xNN> a byte, an added token that is not special stands for its text,
    gaps are no tokens. A Unigram vocabulary is a list, and without a fallback step <0x61> stands
    for its six characters.
    """
    path = tmp_path / "tokenizer.json"
    vocab = {"<unk>": 0, "<0xC3>": 1, f"{SPACE}a": 2, "a": 3, "<0x61>": 5, "<b>": 6}
    vocabulary = load_vocabulary(tokenizer_json(path, vocab, FALLBACK, added=ADDED))
    assert vocabulary.ordinary == {1: b"\xc3", 2: b" a", 3: b"a", 5: b"a", 6: b"<b>"}
    assert vocabulary.size == 7
    assert vocabulary.shared == {b"a": (3, 5)}
    assert vocabulary.special == {"<unk>": 0}
    assert vocabulary.encode("a<b>") == [3, 6]
    rows = [["<unk>", 0.0], [f"{SPACE}a", -1.0], ["<0x61>", -2.0]]
    decoder = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    vocabulary = load_vocabulary(
        tokenizer_json(path, rows, decoder, kind="Unigram", added=ADDED[:1])
    )
    assert vocabulary.ordinary == {1: b" a", 2: b"<0x61>"}


@pytest.mark.parametrize(
    ("decoder", "says"),
    [
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "decoder of kind WordPiece"),
        (None, "decoder of kind none"),
    ],
)
def test_pieces_that_are_no_bytes_are_refused(tmp_path: Path, decoder: Any, says: str) -> None:
    """A tokenizer whose pieces do not spell the text cannot be matched with bytes."""
    with raises_naming(InputError, says):
        load_vocabulary(tokenizer_json(tmp_path / "tokenizer.json", {"a": 0}, decoder))


def test_ids_that_file_and_library_disagree_on_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library closes a gap before an added token: whether the model means 6 or 1 is unknown, so
    neither is taken. One that cannot encode is refused by the text; without the library, the
    command that installs it is named.
    """
    path = tokenizer_json(tmp_path / "tokenizer.json", {"<unk>": 0}, FALLBACK, added=ADDED)
    with raises_naming(InputError, "'<b>'", "6", "1"):
        load_vocabulary(path)
    unable = tokenizer_json(tmp_path / "unable.json", {"a": 0}, FALLBACK)
    with raises_naming(InputError, "'The quick"):
        load_vocabulary(unable)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with raises_naming(InputError, "'.[hf]'"):
        load_vocabulary(path)


# Names


def test_names_that_are_nothing_get_the_right_advice(tmp_path: Path) -> None:
    """A model's name, a folder, a rank file, files of other kinds and nothing at all are told
    apart; a file that does not say how texts are split gets the one that does.
    """
    (tmp_path / "o200k_base.tiktoken").write_bytes(b"IQ== 0\n")
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    (tmp_path / "other.json").write_text('{"model": {"type": "Unheard"}}')
    for name, facts in (
        ("gpt-4o", ("'gpt-4o'", "o200k_base")),
        (tmp_path, ("tokenizer.json",)),
        (tmp_path / "o200k_base.tiktoken", ("o200k_base", "TIKTOKEN_CACHE_DIR")),
        (tmp_path / "tokenizer.model", ("tokenizer.json", "save_pretrained")),
        (tmp_path / "other.json", ("other.json",)),
        (byte_level(tmp_path), ("bpe.gguf", "tokenizer.json")),
        ("unheard-of", ("cl100k_base", "o200k_base")),
        ("unheard/of", ("cl100k_base", "o200k_base")),
        ("a\0b", ("cl100k_base", "o200k_base")),
        ("~nobody-of-this-name/x", ("cl100k_base", "o200k_base")),
    ):
        with raises_naming(InputError, *facts):
            load_vocabulary(name)


def python(script: str, **environment: str) -> str:
    """What a fresh interpreter prints; the outside world is behind a proxy that is not there."""
    proxies = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    closed = dict.fromkeys(proxies, "http://127.0.0.1:9") | {"no_proxy": "", "NO_PROXY": ""}
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, **closed, **environment},
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


REFUSED = """
from blackbox_lb.errors import InputError
from blackbox_lb.vocabulary import load_vocabulary, vocabulary_of_model
print(vocabulary_of_model("gpt-4o-mini"))
try:
    load_vocabulary("o200k_base")
except InputError as error:
    print(error)
"""


def test_without_internet_and_cache_the_remedy_is_exact(tmp_path: Path) -> None:
    """The message has the address, the folder, the file's name there and the variable: enough to go
    on by hand.
    """
    said = python(REFUSED, TIKTOKEN_CACHE_DIR=str(tmp_path))
    url = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
    file = "fb374d419588a4632f3f557e76b4b70aebbca790"
    assert names(said, url, tmp_path, file, "TIKTOKEN_CACHE_DIR")
    said = python(REFUSED, TIKTOKEN_CACHE_DIR="")
    assert said.startswith("o200k_base\n"), "which encoding a model uses is known all the same"
    assert "switched off" in said


PLUGIN = """
def bytewise():
    ranks = {bytes([byte]): byte for byte in range(256)}
    return {"name": "bytewise", "pat_str": ".", "mergeable_ranks": ranks, "special_tokens": {"<|end|>": 300}}
ENCODING_CONSTRUCTORS = {"bytewise": bytewise}
"""


def test_encodings_of_plugins_are_known(tmp_path: Path) -> None:
    """A plugin of tiktoken adds its encodings; a broken one is named."""
    plugin = tmp_path / "tiktoken_ext" / "mine.py"
    plugin.parent.mkdir()
    plugin.write_text(PLUGIN)
    script = "from blackbox_lb.vocabulary import load_vocabulary as load; v = load('bytewise')"
    script += "; print(v.size, v.id_of(b'a'), v.special)"
    assert python(script, PYTHONPATH=str(tmp_path)).strip() == "301 97 {'<|end|>': 300}"
    plugin.write_text("")
    assert "a plugin of tiktoken cannot be loaded: tiktoken plugin" in python(
        REFUSED, PYTHONPATH=str(tmp_path)
    )


@pytest.mark.needs("tokenizers")
def test_a_panic_of_the_library_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own report of it is not shown, and what is written to stderr afterwards is."""
    path = tokenizer_json(tmp_path / "tokenizer.json", {"a": 0}, FALLBACK)
    document = json.loads(path.read_text(encoding="utf-8"))
    # A table of characters that ends too early, in Base64.
    document["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA/w=="}
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_vocabulary(path)
    assert str(path) in str(caught.value)
    os.write(2, b"still there")
    assert capfd.readouterr().err == "still there"
