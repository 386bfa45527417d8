"""The long lists of a chat answer from bytes to columns: no dictionary a token, and nothing that the plain reader reads otherwise.

An answer of 1,024 tokens with 20 alternatives is 1.3 MB, nearly all of it in ``logprobs.content``. ``Lists.loads`` cuts these lists
out and reads them by their type (msgspec); the rest, a kilobyte, is read as any answer is. Whatever is not of the plain kind (a key
twice, an unknown field, a number that stands for "not given" among the alternatives, an entry that the profile does not describe)
raises ``Aside``, and the whole answer is read by ``wire.response`` from its bytes: that reader is the truth.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from blackbox_lb.errors import BlbError
from blackbox_lb.profiles import Profile
from blackbox_lb.rules import EndpointRules
from blackbox_lb.types import UNNAMED
from blackbox_lb.wire.identity import Identity, checked_bytes

if TYPE_CHECKING:
    from blackbox_lb.vocabulary import Vocabulary

__all__ = ["Answer", "Aside", "Columns", "Lists", "loads"]

OPENING, BETWEEN, CLOSING = b'"logprobs":{"content":[', b"}]},", b"}]}]"
"""Where a list begins, what is between its positions, and how the last one ends, as JSON without blanks has them."""
PIECE = 1 << 14
"""Bytes of a list that are decoded at once, about."""
LONGEST = 900
"""Bytes from one key to the next: a longer number or a deeper list than these the plain reader may refuse."""
MOST_NAMES = 1 << 19
"""Tokens that are remembered; twice the largest vocabularies."""
_PLACE = secrets.token_hex(16)
"""Stands for a list in the rest of its answer; no server can know it."""
_TOKEN, _BYTES, _LOGPROB, _TOP = (attrgetter(name) for name in ("token", "bytes", "logprob", "top_logprobs"))


class Aside(Exception):
    """Not of the plain kind."""


class _Entry(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    token: str
    logprob: float
    bytes: msgspec.Raw


class _Position(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    token: str
    logprob: float
    bytes: msgspec.Raw
    top_logprobs: list[_Entry]


_DECODER = msgspec.json.Decoder(list[_Position])


@dataclass(frozen=True, slots=True)
class Columns:
    """What a list says, before any check of its numbers: t positions with ``widths`` (t,) alternatives each, n in all.

    ``ids`` (t,) and ``logprobs`` (t,) float64: of the sampled tokens; ``top_ids`` (n,), ``top_logprobs`` (n,): of the alternatives.
    ``token_bytes``: id -> bytes of the alternatives, where the profile's are exact.
    """

    ids: Any
    logprobs: Any
    widths: Any
    top_ids: Any
    top_logprobs: Any
    token_bytes: dict[int, bytes]


def _columns(names: _Names, raw: bytes) -> Columns:
    """The list ``raw`` in columns. Raises Aside, and what msgspec and ``Identity`` raise."""
    parts = [_part(names, _DECODER.decode(piece)) for piece in _pieces(raw)]
    own, logprobs, widths, listed, top_logprobs = (np.concatenate(each) for each in zip(*parts, strict=True))
    if not raw.isascii():
        raw.decode()  # what msgspec skips it does not decode
    _check_keys(raw, 4 * len(own) + 3 * len(listed) + int(names.colons[own].sum() + names.colons[listed].sum()))
    return Columns(names.ids[own], logprobs, widths, names.ids[listed], top_logprobs, names.bytes_of(listed))


def _check_keys(raw: bytes, colons: int) -> None:
    """Every key is there, as its type says, so that none is there twice if ``colons``, with those in tokens, are all there are."""
    found = np.flatnonzero(np.frombuffer(raw, np.uint8) == ord(":"))
    if len(found) != colons or b"\\u00" in raw:
        raise Aside("a key stands twice, or cannot be counted")
    if np.diff(found, prepend=0, append=len(raw)).max() > LONGEST:
        raise Aside("a long entry")


def _pieces(raw: bytes) -> Iterator[bytes]:
    """A list as several short ones, so that what becomes of each can stay in the processor's cache."""
    start, last = 1, len(raw) - 1
    while (end := raw.find(BETWEEN, start + PIECE)) >= 0:
        end += len(BETWEEN) - 1
        yield b"[%b]" % raw[start:end]
        start = end + 1
    yield b"[%b]" % raw[start:last]


def _part(names: _Names, positions: list[_Position]) -> tuple[Any, ...]:
    """Numbers and logprobs of the sampled tokens, widths of their lists, numbers and logprobs of the alternatives."""
    entries = list(chain.from_iterable(map(_TOP, positions)))
    return (
        names.numbers(positions),
        np.fromiter(map(_LOGPROB, positions), np.float64, len(positions)),
        np.fromiter(map(len, map(_TOP, positions)), np.intp, len(positions)),
        names.numbers(entries),
        np.fromiter(map(_LOGPROB, entries), np.float64, len(entries)),
    )


class _Names:
    """The tokens of one endpoint by the text, and where those matter the bytes, that entries give: each is looked up once."""

    def __init__(self, profile: Profile, rules: EndpointRules, vocabulary: Vocabulary | None) -> None:
        self._identity, self._provider = Identity(profile, rules, vocabulary), profile.name
        self._exact = profile.tokens.bytes_exact
        self._by_bytes = self._exact or (rules.id or profile.tokens.id) == "bytes"
        self._numbers: dict[str, int] = {}
        self._spelled: dict[tuple[str, bytes], int] = {}
        self._raw: list[bytes] = []
        self._bytes: list[bytes] = []
        self.ids = np.zeros(1024, dtype=np.int32)
        self.colons = np.zeros(1024, dtype=np.int32)
        self._spelled_here = np.zeros(1024, dtype=np.bool_)

    def numbers(self, entries: list[Any]) -> Any:
        """The number of each entry's token here, as an array. Raises Aside, and what ``Identity`` raises."""
        tokens = list(map(_TOKEN, entries))
        found = list(map(self._numbers.get, tokens))
        if None in found:
            missing = {each.token: each for each, number in zip(entries, found, strict=True) if number is None}
            for each in missing.values():
                self._numbers[each.token] = self._add(each.token, bytes(each.bytes))
            found = list(map(self._numbers.__getitem__, tokens))
        if self._by_bytes:
            raws = list(map(_BYTES, entries))
            # Lists and null end by themselves: joined they are equal only if each is.
            if b"".join(raws) != b"".join(map(self._raw.__getitem__, found)):  # type: ignore[arg-type]
                found = [self._of(token, bytes(raw)) for token, raw in zip(tokens, raws, strict=True)]
        return np.fromiter(found, np.intp, len(found))

    def bytes_of(self, numbers: Any) -> dict[int, bytes]:
        """Id -> bytes of these tokens. Raises Aside where one id has two."""
        if not self._exact:
            return {}
        seen = np.zeros(len(self.ids), dtype=np.bool_)
        seen[numbers] = True
        used = np.flatnonzero(seen & self._spelled_here)
        tokens, raws = self.ids[used].tolist(), list(map(self._bytes.__getitem__, used.tolist()))
        table = dict(zip(tokens, raws, strict=True))
        if len(table) != len(used) and len(table) != len(set(zip(tokens, raws, strict=True))):
            raise Aside("a token with two lists of bytes")
        return table

    def _of(self, token: str, raw: bytes) -> int:
        found = self._spelled.get((token, raw))
        return self._add(token, raw) if found is None else found

    def _add(self, token: str, raw: bytes) -> int:
        number = self._spelled.get((token, raw))
        if number is not None:
            return number
        given = json.loads(raw)
        found = self._identity.of_entry({"token": token, "bytes": given})
        spelled = checked_bytes(self._provider, given) if self._exact and given and found != UNNAMED else b""
        number = len(self._bytes)
        if number == len(self.ids):
            columns = (self.ids, self.colons, self._spelled_here)
            self.ids, self.colons, self._spelled_here = (
                np.concatenate([each, np.zeros_like(each)]) for each in columns
            )
        self.ids[number], self.colons[number], self._spelled_here[number] = found, token.count(":"), bool(spelled)
        self._raw.append(raw)
        self._bytes.append(spelled)
        self._spelled[token, raw] = number
        return number

    @property
    def full(self) -> bool:
        """Whether more is remembered than any vocabulary needs."""
        return len(self._bytes) > MOST_NAMES


class Answer(dict[str, Any]):
    """An answer whose lists are ``Columns``. ``content``: its bytes, for the plain reader."""

    content: bytes


class Lists:
    """Reads the answers of one endpoint; remembers the tokens that they show. For one thread at a time."""

    def __init__(self, profile: Profile, rules: EndpointRules, vocabulary: Vocabulary | None) -> None:
        self.vocabulary = vocabulary
        self._about = (profile, rules, vocabulary)
        kind = (rules.id or profile.tokens.id).partition(" ")[0]
        self._plain = rules.dialect != "content" or kind == "field" or profile.logprobs.propensity != "logprob"
        self._names = _Names(*self._about)

    def loads(self, content: bytes) -> Any:
        """The JSON in ``content``, an ``Answer`` where its lists could be read as such. Raises what ``loads`` does."""
        if self._plain:
            return loads(content)
        try:
            return self._cut(content)
        except (Aside, BlbError, msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
            return loads(content)

    def _cut(self, content: bytes) -> Answer:
        if self._names.full:
            self._names = _Names(*self._about)
        rest, end, lists = list[bytes](), 0, list[Columns]()
        while (start := content.find(OPENING, end)) >= 0:
            following = content.find(OPENING, start + 1)
            last = content.rfind(CLOSING, start, len(content) if following < 0 else following) + len(CLOSING)
            begin = start + len(OPENING) - 1
            if last <= start:
                raise Aside("a list without an end")
            raw = content[begin:last]
            rest += [content[end:begin], f'"{_PLACE}{len(lists)}"'.encode()]
            lists.append(_columns(self._names, raw))
            end = last
        if not lists:
            raise Aside("no list")
        found = loads(b"".join([*rest, content[end:]]))
        return self._joined(found, lists, content)

    def _joined(self, found: Any, lists: list[Columns], content: bytes) -> Answer:
        """The rest of an answer with its lists in their places."""
        choices = found.get("choices") if isinstance(found, dict) else None
        holders = [each.get("logprobs") for each in choices or () if isinstance(each, dict)]
        at = {
            each["content"]: each for each in holders if isinstance(each, dict) and isinstance(each.get("content"), str)
        }
        for number, columns in enumerate(lists):
            if f"{_PLACE}{number}" not in at:
                raise Aside("a list that is none of a choice")
            at[f"{_PLACE}{number}"]["content"] = columns
        answer = Answer(found)
        answer.content = content
        return answer


def loads(content: bytes) -> Any:
    """The JSON in ``content``. Raises ValueError where it is none or a key has two values; RecursionError."""
    return json.loads(content, object_pairs_hook=_unambiguous)


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. ValueError where a key has two values, of which a dict would quietly keep the last."""
    table = dict(pairs)
    if len(table) < len(pairs) and any(table[name] != value for name, value in pairs):
        raise ValueError("one key of an object has two values")
    return table
