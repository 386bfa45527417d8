"""Every id of real vocabularies, against the rank files themselves, a second implementation, or
what llama.cpp makes of them.

The vocabularies of two of the models are checked where BLB_TEST_MODELS names a folder that holds
their .gguf files.
"""

from __future__ import annotations

import base64
import importlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from blackbox_lb.api.local.engine import resolve_model
from blackbox_lb.vocabulary import load_vocabulary
from blackbox_lb.vocabulary.gguf import token_texts
from blackbox_lb.vocabulary.tokenizer import PROBE_TEXT
from tests.support.smollm import FINGERPRINT as SMOLLM
from tests.support.smollm import tokenizer_json

MODELS = {
    # file: ordinary tokens, those of them whose bytes another one has, too
    "SmolLM2-135M-Instruct.Q4_1.gguf": (49_135, 0),
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf": (151_645, 0),
    "gemma-3-270m-q4_k_m.gguf": (255_895, 220),
}


def ranks(folder: Path, encoding: str) -> Iterator[tuple[bytes, int]]:
    """The lines of the rank file that tiktoken reads: base64 of the bytes, and the id."""
    size = {"cl100k_base": 1_681_126, "o200k_base": 3_613_922}[encoding]
    (file,) = [path for path in folder.iterdir() if path.stat().st_size == size]
    for line in file.read_bytes().splitlines():
        text, rank = line.split()
        yield base64.b64decode(text), int(rank)


@pytest.mark.parametrize(
    ("encoding", "tokens", "special", "size"),
    [("cl100k_base", 100_256, 5, 100_277), ("o200k_base", 199_998, 2, 200_019)],
)
def test_every_id_of_openai_comes_back(
    tiktoken_cache: Path, encoding: str, tokens: int, special: int, size: int
) -> None:
    """Id to bytes to id is the identity over the whole rank file, no two ids share bytes, and all
    other ids are no tokens.
    """
    vocabulary = load_vocabulary(encoding)
    listed = 0
    for raw, token in ranks(tiktoken_cache, encoding):
        assert vocabulary.bytes_of(token) == raw
        assert vocabulary.id_of(raw) == token
        listed += 1
    nothing = [token for token in range(size) if vocabulary.bytes_of(token) is None]
    assert (listed, len(vocabulary.special), len(nothing)) == (
        tokens,
        special,
        size - tokens - special,
    )
    assert vocabulary.size == size
    assert not vocabulary.shared


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
def test_every_special_token_of_openai_has_its_name_and_no_bytes(
    tiktoken_cache: Path, encoding: str
) -> None:
    """A special token is found by its name, and never by the bytes of that name."""
    vocabulary = load_vocabulary(encoding)
    for name, token in vocabulary.special.items():
        assert vocabulary.id_of_special(name) == token
        assert vocabulary.id_of_text(name) == token
        assert vocabulary.bytes_of(token) == name.encode()
        assert vocabulary.id_of(name.encode()) is None


def test_chat_end_tokens_lie_past_what_a_bias_can_reach(tiktoken_cache: Path) -> None:
    """100257 is the limit in OpenAI's own error message; gpt-oss' <|end|> and <|return|> have ids
    above its limit.
    """
    assert load_vocabulary("cl100k_base").end_of_text == 100_257
    harmony = load_vocabulary("o200k_harmony")
    assert harmony.end_of_text == 199_999
    assert (harmony.id_of_special("<|return|>"), harmony.id_of_special("<|end|>")) == (
        200_002,
        200_007,
    )
    assert (
        harmony.id_of_special("<|reserved_200018|>")
        == harmony.id_of_special("<|endofprompt|>")
        == 200_018
    )
    assert harmony.bytes_of(200_018) == b"<|endofprompt|>"
    assert load_vocabulary("o200k_base").id_of_special("<|end|>") is None


def test_every_display_string_of_cl100k_comes_back(tiktoken_cache: Path) -> None:
    """What legacy completions print for a token leads back to its id, but for the 9 that hold
    U+FFFD themselves.
    """
    vocabulary = load_vocabulary("cl100k_base")
    lost = []
    for token, raw in vocabulary.ordinary.items():
        try:
            shown = raw.decode()
        except UnicodeDecodeError:
            shown = "bytes:" + "".join(
                chr(byte) if byte < 128 else f"\\x{byte:02x}" for byte in raw
            )
        found = vocabulary.id_of_text(shown)
        assert found in (token, None)
        if found is None:
            lost.append(raw)
    assert len(lost) == 9
    assert all("\N{REPLACEMENT CHARACTER}".encode() in raw for raw in lost)


@pytest.mark.filterwarnings("ignore:open_binary is deprecated:DeprecationWarning")
@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
def test_a_second_implementation_gives_the_same_fingerprint(
    tiktoken_cache: Path, encoding: str
) -> None:
    """The probe text becomes the same ids in GitHub's encoder, which shares no code with
    tiktoken.
    """
    second = importlib.import_module("bpe_openai").get_encoding(encoding)
    assert load_vocabulary(encoding).encode(PROBE_TEXT) == second.encode(PROBE_TEXT)


def model_file(name: str) -> Path:
    """A .gguf file: SmolLM2 from the development dependencies, the others from the folder in
    BLB_TEST_MODELS.
    """
    if name.startswith("SmolLM2"):
        return resolve_model()
    folder = os.environ.get("BLB_TEST_MODELS")
    if folder is None:
        pytest.skip(
            f"{name} is looked for in the folder that BLB_TEST_MODELS names, and it names none"
        )
    path = Path(folder, name)
    if not path.is_file():
        pytest.skip(f"BLB_TEST_MODELS names {folder}, which has no {name}")
    return path


@pytest.mark.parametrize("name", MODELS)
def test_the_texts_of_a_gguf_file_tell_its_tokens_apart(name: str) -> None:
    """But for the bytes that Gemma 3 writes as a piece and as a <0xNN> token."""
    texts = token_texts(model_file(name))
    times = Counter(texts.values())
    assert (len(texts), sum(times[raw] > 1 for raw in texts.values())) == MODELS[name]


@pytest.fixture(scope="module")
def smollm_json() -> Path:
    """SmolLM2's tokenizer as a tokenizer.json."""
    return tokenizer_json()


def test_one_vocabulary_from_two_files(smollm_json: Path) -> None:
    """A tokenizer.json and a .gguf file of one model agree on every id, and the tokenizer is the
    one that llama.cpp runs, by its own answer to /tokenize.
    """
    vocabulary = load_vocabulary(smollm_json)
    assert vocabulary.ordinary == token_texts(resolve_model())
    assert vocabulary.fingerprint == SMOLLM


def test_bytes_are_what_the_tokenizers_library_decodes(smollm_json: Path) -> None:
    """Over the whole vocabulary the library's own decoding of an id is the UTF-8 of the bytes, with
    U+FFFD for fragments.
    """
    vocabulary = load_vocabulary(smollm_json)
    tokenizer = Tokenizer.from_file(str(smollm_json))
    for token in range(vocabulary.size):
        raw = vocabulary.bytes_of(token)
        assert raw is not None
        assert tokenizer.decode([token], skip_special_tokens=False) == raw.decode(errors="replace")


def test_special_names_in_a_text_are_text(smollm_json: Path) -> None:
    """A user who writes <|im_end|> ends nothing: no special token is ever encoded."""
    vocabulary = load_vocabulary(smollm_json)
    ids = vocabulary.encode("say <|im_end|> now")
    assert not set(ids) & set(vocabulary.special.values())
    assert b"".join(vocabulary.ordinary[token] for token in ids) == b"say <|im_end|> now"
