"""A token is the id that its bytes, its text or its own field settle, and nothing where they do
not.
"""

from __future__ import annotations

from typing import Any

import pytest

from blackbox_lb.api.wire.identity import Identity
from blackbox_lb.errors import CorruptResponse, ProfileError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.types import UNNAMED
from blackbox_lb.vocabulary import Vocabulary
from tests.support.errors import raises_naming
from tests.wire.conftest import ProfileWith


def identity(profile: Profile, kind: str, vocabulary: Vocabulary | None) -> Identity:
    """The reader of ids for an endpoint whose row ``id`` is ``kind``."""
    rules = {**dict(profile.endpoint("chat")), "id": kind}
    return Identity(profile, EndpointRules.model_construct(**rules), vocabulary)


@pytest.mark.parametrize(
    ("raw", "text", "token"),
    [
        (b" cat", " cat", 2),
        (b" cat", "anything: the text is for eyes", 2),
        (b"\xf0\x9f", "\\xf0\\x9f", 3),
        (b"\xef\xbf\xbd", "\ufffd", 7),
        (None, "<|end|>", 8),
        (b"<|end|>", "<|end|>", 8),
        (None, "<|unheard of|>", UNNAMED),
        (b" dog", " dog", UNNAMED),
        (None, " cat", UNNAMED),
    ],
)
def test_bytes_name_a_token(
    profile_with: ProfileWith, vocabulary: Vocabulary, raw: bytes | None, text: str, token: int
) -> None:
    """The bytes decide; without them only a special token's name does."""
    entry = {"token": text, "bytes": None if raw is None else list(raw)}
    assert identity(profile_with(), "bytes", vocabulary).of_entry(entry) == token


def test_bytes_of_a_printed_text_do_not_name_a_fragment(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """Where the bytes are those of the printed text, U+FFFD may be any fragment."""
    printed = identity(profile_with(tokens={"bytes_exact": False}), "bytes", vocabulary)
    assert printed.of_entry({"token": "\ufffd", "bytes": list("\ufffd".encode())}) == UNNAMED
    assert printed.of_entry({"token": " cat", "bytes": list(b" cat")}) == 2


def test_what_two_tokens_share_names_none(profile_with: ProfileWith) -> None:
    """Neither two ordinary tokens, nor an ordinary and a special one, are told apart by the same
    bytes; where two tokens print as a letter, a third that could is no better.
    """
    letter = "\u00e9".encode()
    tokens = {0: b"\n", 1: b"\n", 2: b"<s>", 4: letter, 5: letter, 6: b"\xe9"}
    shared = Vocabulary("toy", tokens, {"<s>": 3}, 7, lambda text: [0])
    reader = identity(profile_with(), "bytes", shared)
    assert reader.of_entry({"token": "\n", "bytes": [10]}) == UNNAMED
    assert reader.of_entry({"token": "<s>", "bytes": list(b"<s>")}) == UNNAMED
    assert identity(profile_with(), "latin-1", shared).of_text("\u00e9") == UNNAMED


@pytest.mark.parametrize(
    ("text", "as_text", "as_latin"),
    [
        (" cat", 2, 2),
        ("bytes:\\xf0\\x9f", 3, 3),
        ("<|pad|>", 9, 9),
        ("\ufffd", UNNAMED, UNNAMED),
        ("\u00e9", 5, UNNAMED),  # the letter, or one byte of another character printed as Latin-1
        ("\u00f0\u009f", UNNAMED, 3),
        ("\U0001f99c", UNNAMED, UNNAMED),
        (" dog", UNNAMED, UNNAMED),
    ],
)
def test_text_names_a_token_only_where_it_is_one_tokens(
    profile_with: ProfileWith, vocabulary: Vocabulary, text: str, as_text: int, as_latin: int
) -> None:
    """The two ways of printing fragments read differently: what could be either token is
    neither.
    """
    for kind, token in (("text", as_text), ("latin-1", as_latin)):
        reader = identity(profile_with(), kind, vocabulary)
        assert reader.of_text(text) == token
        assert reader.of_entry({"token": text, "bytes": None}) == token


def test_ids_that_are_given_need_no_vocabulary(profile_with: ProfileWith) -> None:
    """A field and a prefixed string carry the id themselves; a server that prints a token's text in
    its place is named.
    """
    field = identity(profile_with(), "field token_id", None)
    assert field.of_entry({"token_id": 5, "token": " x"}) == 5
    string = identity(profile_with(), "string id=", None)
    assert string.of_entry({"token": "id=5"}) == 5
    assert string.of_text("id=7") == 7
    with raises_naming(CorruptResponse, "id=N"):
        string.of_text(" Paris")


@pytest.mark.parametrize("value", [-1, 1.5, True, "5", None])
def test_an_id_that_is_none_is_refused(profile_with: ProfileWith, value: Any) -> None:
    """A field that holds anything else than a whole number from 0 is no id."""
    with raises_naming(CorruptResponse, f"token id {value!r}", "0"):
        identity(profile_with(), "field id", None).of_entry({"id": value, "token": ""})


@pytest.mark.parametrize("kind", ["bytes", "text", "latin-1"])
def test_a_missing_vocabulary_is_named(profile_with: ProfileWith, kind: str) -> None:
    """No token is named before the user has said which tokenizer it is."""
    with raises_naming(ProfileError, kind, "``tokenizer``"):
        identity(profile_with(), kind, None).of_entry({"token": " cat", "bytes": list(b" cat")})


@pytest.mark.parametrize("kind", ["bytes", "field id"])
def test_a_row_that_looks_where_nothing_is_says_so(
    profile_with: ProfileWith, vocabulary: Vocabulary, kind: str
) -> None:
    """Legacy completions give strings only; a profile that reads bytes or fields there is wrong,
    not the answer.
    """
    with raises_naming(ProfileError, 'id = "text"'):
        identity(profile_with(), kind, vocabulary).of_text(" cat")
