"""``python -m bench.studies.typed_reader``: would typed msgspec structs collect as fast as the
reader of columns does?

Both readers go from the bytes of answers to the same arrays and account for every byte: a key
twice, an unknown field or ``-0`` sends an answer to the plain reader. The clients of whole
collections take turns in one run.
"""

from __future__ import annotations

import asyncio
import base64
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from bench.collector import BARE, OURS, Client, compare, shown, summary
from bench.collector_server import DIALECTS, Dialect, answers, rank_file
from bench.measuring import OUT, alternately, markdown, ratio, row, write
from blackbox_lb import load_profile
from blackbox_lb.api.wire import AnswerReader
from blackbox_lb.api.wire.columns.byte_spans import OPENING, TokenSpellings, UnsupportedLayout
from blackbox_lb.api.wire.columns.parse import _PLACE, LogprobColumns, ParsedAnswer, loads, sort
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.vocabulary import Vocabulary

__all__ = ["TextReader", "TypedReader", "check_same", "main", "ordinary_tokens"]

SIZES = (4, 16, 1024)
TOP = 20
TYPED = "blb, typed structs"
TEXT = "blb, typed structs, tokens by their text alone"
CLIENTS = (
    Client(BARE, "plain", "bare"),
    Client(OURS, "blb", "blb"),
    Client(TYPED, "typed", "typed"),
    Client(TEXT, "typed", "text"),
)
TOGETHER = {4: (1, 32), 16: (1, 32), 1024: (1,)}
"""Tokens of an answer -> how many arrive in one turn of the event loop."""


class TypedEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A token with its logprob; ``bytes`` as JSON, to be compared with those it had before."""

    token: str
    logprob: float
    bytes: msgspec.Raw


class TypedPosition(TypedEntry, forbid_unknown_fields=True, gc=False):
    """A sampled token with its alternatives."""

    top_logprobs: list[TypedEntry]


class TextEntry(msgspec.Struct, gc=False):
    """A token with its logprob."""

    token: str
    logprob: float


class TextPosition(TextEntry, gc=False):
    """A sampled token with its alternatives."""

    top_logprobs: list[TextEntry]


class TypedLists(msgspec.Struct, gc=False):
    """The field ``logprobs`` of a choice."""

    content: msgspec.Raw


class TypedChoice(msgspec.Struct, gc=False):
    """A choice; its other fields are read with the rest of the answer."""

    logprobs: TypedLists


class TypedAnswer(msgspec.Struct, gc=False):
    """A chat completion."""

    choices: list[TypedChoice]


ENVELOPE = msgspec.json.Decoder(TypedAnswer)
POSITIONS = msgspec.json.Decoder(list[TypedPosition])
TEXTS = msgspec.json.Decoder(list[TextPosition])
TOKEN = attrgetter("token")
LOGPROB = attrgetter("logprob")
BYTES = attrgetter("bytes")


class TypedSpellings(TokenSpellings):
    """Numbers of tokens by their text; a second list of bytes is looked up with the text."""

    def __init__(
        self, profile: Profile, rules: EndpointRules, vocabulary: Vocabulary | None
    ) -> None:
        super().__init__(profile, rules, vocabulary)
        self.texts: dict[str, int] = {}
        self._raw = [msgspec.Raw(b"")]
        self.quotes = np.zeros(1024, np.int64)
        self.ambiguous = np.zeros(1024, np.bool_)

    def numbers_of(self, entries: Sequence[TypedEntry]) -> Any:
        """The number of each entry's token (n,)."""
        numbers: list[Any] = list(map(self.texts.get, map(TOKEN, entries)))
        if None in numbers:
            for place, entry in enumerate(entries):
                if numbers[place] is None:
                    numbers[place] = self.texts.get(entry.token) or self._new(entry)
        given = list(map(BYTES, entries))
        remembered = list(map(self._raw.__getitem__, numbers))
        if given != remembered:
            for place, raw in enumerate(given):
                if raw != remembered[place]:
                    numbers[place] = self._new(entries[place])
        return np.array(numbers, np.int32)

    def _new(self, entry: TypedEntry) -> int:
        token = json.dumps(entry.token, ensure_ascii=False)[1:-1].encode()
        raw = bytes(entry.bytes)
        key = token + b"\0" + raw
        number = self._numbers.get(key)
        if number is None:
            number = self._add(key, token, raw)
            self._raw.append(msgspec.Raw(raw))
            if number == len(self.quotes):
                self.quotes = np.concatenate([self.quotes, np.zeros_like(self.quotes)])
                self.ambiguous = np.concatenate([self.ambiguous, np.zeros_like(self.ambiguous)])
            self.quotes[number] = token.count(b'"')
            self.ambiguous[number] = "\ufffd" in entry.token
            self.texts.setdefault(entry.token, number)
        return number


class TypedReader(AnswerReader):
    """Reads the lists of answers into structs, and all structs of a turn into one set of arrays."""

    def __init__(
        self, profile: Profile, rules: EndpointRules, vocabulary: Vocabulary | None
    ) -> None:
        super().__init__(profile, rules, vocabulary)
        self._names: TypedSpellings = TypedSpellings(*self._about)

    def _cut(self, contents: Sequence[bytes]) -> list[ParsedAnswer]:
        places: list[list[tuple[int, int]]] = []
        positions: list[Any] = []
        entries: list[Any] = []
        numbers: list[Any] = []
        lengths: list[int] = []
        quotes = 0
        for content in contents:
            places.append(_lists_in(content))
            for begin, end in places[-1]:
                some, some_entries, some_numbers = self._decoded(content, begin, end)
                positions += some
                entries += some_entries
                numbers.append(some_numbers)
                lengths.append(len(some))
                quotes += content.count(b'"', begin, end)
        columns = self._columns(positions, entries, np.concatenate(numbers), lengths, quotes)
        read = []
        for content, spans in zip(contents, places, strict=True):
            rest = []
            before = 0
            for number, (begin, end) in enumerate(spans):
                rest += [content[before:begin], f'"{_PLACE}{number}"'.encode()]
                before = end
            lists = [columns.pop(0) for _ in spans]
            read.append(self._joined(loads(b"".join([*rest, content[before:]])), lists, content))
        return read

    def _decoded(self, content: bytes, begin: int, end: int) -> tuple[list[Any], list[Any], Any]:
        """Positions, entries, and the number of each entry's token."""
        positions: list[Any] = POSITIONS.decode(memoryview(content)[begin:end])
        entries = _entries(positions)
        return positions, entries, self._names.numbers_of(entries)

    def _columns(
        self,
        positions: list[Any],
        entries: list[Any],
        numbers: Any,
        lengths: list[int],
        quotes: int,
    ) -> list[LogprobColumns]:
        names = self._names
        logprobs = np.fromiter(map(LOGPROB, entries), np.float64, len(entries))
        keys = 8 * len(entries) + 2 * len(positions)
        if quotes != keys + names.quotes[numbers].sum():
            raise UnsupportedLayout("a key twice, or one that cannot be counted")
        if ((logprobs == 0) & np.signbit(logprobs)).any():
            raise UnsupportedLayout("-0, which is 0, or -0.0, which is not")
        widths = np.fromiter(
            (len(position.top_logprobs) for position in positions), np.int64, len(positions)
        )
        sampled = np.zeros(len(entries), np.bool_)
        sampled[np.cumsum(widths + 1) - widths - 1] = True
        listed = numbers[~sampled]
        ids = names.ids[numbers[sampled]]
        top_ids, top_logprobs = sort(widths, names.ids[listed], logprobs[~sampled])
        columns = []
        row_begin = 0
        listed_begin = 0
        for length in lengths:
            rows = slice(row_begin, row_begin + length)
            width = int(widths[rows].max())
            count = int(widths[rows].sum())
            columns.append(
                LogprobColumns(
                    ids[rows],
                    logprobs[sampled][rows],
                    widths[rows],
                    (top_ids[rows, :width], top_logprobs[rows, :width]),
                    names.bytes_of(listed[listed_begin : listed_begin + count]),
                )
            )
            row_begin += length
            listed_begin += count
        return columns


class TextReader(TypedReader):
    """Reads a token by its text alone, without a second look at its bytes: as fast as typed structs
    can be, and less careful.
    """

    def _decoded(self, content: bytes, begin: int, end: int) -> tuple[list[Any], list[Any], Any]:
        names = self._names
        positions: list[Any] = TEXTS.decode(memoryview(content)[begin:end])
        entries = _entries(positions)
        numbers: list[Any] = list(map(names.texts.get, map(TOKEN, entries)))
        if None in numbers:
            return super()._decoded(content, begin, end)
        found = np.array(numbers, np.int32)
        if names.ambiguous[found].any():
            return super()._decoded(content, begin, end)
        return positions, entries, found


def _entries(positions: list[Any]) -> list[Any]:
    entries: list[Any] = []
    for position in positions:
        entries.append(position)
        entries += position.top_logprobs
    return entries


def _lists_in(content: bytes) -> list[tuple[int, int]]:
    """Begin and end of each choice's list."""
    places = []
    end = 0
    for choice in ENVELOPE.decode(content).choices:
        opening = OPENING.match(content, content.find(b'"logprobs":', end))
        if opening is None or not content.startswith(choice.logprobs.content, opening.end()):
            raise UnsupportedLayout("a list in another place")
        begin = opening.end()
        end = begin + len(memoryview(choice.logprobs.content))
        places.append((begin, end))
    return places


def ordinary_tokens() -> Vocabulary:
    """Those of o200k_base."""
    rows = (line.split() for line in rank_file().splitlines())
    tokens = {int(rank): base64.b64decode(raw) for raw, rank in rows}
    return Vocabulary("o200k_base", tokens, {}, len(tokens), lambda text: [])


async def _read(reader: AnswerReader, bodies: Sequence[bytes], together: int) -> list[Any]:
    """All answers, ``together`` in a turn of the event loop."""
    found: list[Any] = []
    for start in range(0, len(bodies), together):
        turn: list[Awaitable[Any]] = [
            reader.read(body) for body in bodies[start : start + together]
        ]
        found += await asyncio.gather(*turn)
    return found


def _seconds(reader: AnswerReader, bodies: Sequence[bytes], together: int) -> float:
    """Processor seconds an answer."""
    begin = time.process_time()
    asyncio.run(_read(reader, bodies, together))
    return (time.process_time() - begin) / len(bodies)


def check_same(readers: Sequence[AnswerReader], bodies: Sequence[bytes]) -> None:
    """All readers give the same arrays, to the last bit."""
    ours, *others = [_arrays(asyncio.run(_read(reader, bodies, 4))) for reader in readers]
    if any(other != ours for other in others):
        raise click.ClickException("the readers do not agree")


def _arrays(found: Sequence[Any]) -> list[bytes]:
    """The bytes of all arrays of these answers."""
    arrays: list[bytes] = []
    for answer in found:
        columns = answer["choices"][0]["logprobs"]["content"]
        if not isinstance(columns, LogprobColumns):
            raise click.ClickException("an answer was left to the plain reader")
        kept = (columns.ids, columns.logprobs, columns.widths, *columns.listed)
        arrays.extend(array.tobytes() for array in kept)
    return arrays


def reading_alone(dialect: Dialect, repeats: int) -> list[dict[str, Any]]:
    """Processor time an answer of both readers, in turns."""
    profile = load_profile(dialect)
    rules = profile.endpoint("chat")
    rows = []
    for tokens, groups in TOGETHER.items():
        bodies = answers(tokens, TOP, 8, dialect) * max(1, 512 // tokens)
        readers = [
            kind(profile, rules, ordinary_tokens())
            for kind in (AnswerReader, TypedReader, TextReader)
        ]
        check_same(readers, bodies[:8])
        for together in groups:
            work: dict[str, Callable[[], float]] = {
                title: partial(_seconds, reader, bodies, together)
                for title, reader in zip((OURS, TYPED, TEXT), readers, strict=True)
            }
            taken = alternately(work, repeats, warm_up=2)
            for title, seconds in taken.items():
                label = f"{dialect}, {tokens} tokens, {together} at a time: {title}"
                rows.append(row(label, statistics.median(seconds) * 1e3, "ms an answer"))
    return rows


@click.command()
@click.option("--repeats", default=9, show_default=True, type=click.IntRange(1))
@click.option(
    "--seconds", default=4.0, show_default=True, help="Of each turn of a collection, about."
)
@click.option("--dialect", "dialects", multiple=True, default=DIALECTS, show_default=True)
@OUT
def main(repeats: int, seconds: float, dialects: tuple[Dialect, ...], out: Path | None) -> None:
    """Whole collections by both readers in turns, and reading alone."""
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    for dialect in dialects:
        alone = reading_alone(dialect, repeats)
        click.echo(
            markdown(
                ["reading alone", "ms an answer"],
                [[line["name"], f"{line['value']:.3f}"] for line in alone],
            )
        )
        rows += alone
        for tokens in SIZES:
            options = {
                "tokens": tokens,
                "top": TOP,
                "concurrency": 32,
                "seconds": seconds,
                "dir": None,
            }
            turns = compare(CLIENTS, repeats, options, dialect)
            lines = [summary(title, found, tokens) for title, found in turns.items()]
            click.echo(f"\n{dialect}, {tokens} tokens\n{shown(lines)}")
            rates = {title: _rates(found) for title, found in turns.items()}
            for title in (TYPED, TEXT):
                pairs = [
                    ratio(typed, ours)
                    for ours, typed in zip(rates[OURS], rates[title], strict=True)
                ]
                name = f"typed reader/{dialect}, {tokens} tokens: {title} over columns"
                ratios[name] = statistics.median(pairs)
                span = f"from {min(pairs):.3f} to {max(pairs):.3f}"
                click.echo(f"{name}: {ratios[name]:.3f}, {span}")
            rows += [{**line, "name": f"{dialect}, {tokens}: {line['name']}"} for line in lines]
    write(out, rows, ratios)


def _rates(turns: Sequence[dict[str, Any]]) -> list[float]:
    return [turn["completions"] / turn["seconds"] for turn in turns]


if __name__ == "__main__":
    main()
