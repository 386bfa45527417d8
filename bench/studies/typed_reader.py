"""``python -m bench.studies.typed_reader``: would typed msgspec structs read answers as fast as the byte scanner does?

Both readers go from the bytes of an answer to a ``Completion`` and share the checks of numbers behind the columns. Both account for
every byte: a key twice, an unknown field, or a ``-0`` sends an answer to the plain reader. They take turns, in processor time.
"""

from __future__ import annotations

import base64
import json
import operator
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from bench.collector_server import DIALECTS, Dialect, answers, rank_file
from bench.measuring import OUT, alternately, markdown, ratio, row, write
from blackbox_lb import Completion, Sampling, load_profile
from blackbox_lb.api.wire import AnswerReader, parse_response
from blackbox_lb.api.wire.columns.byte_spans import OPENING, Aside
from blackbox_lb.api.wire.columns.parse import Answer, LogprobColumns
from blackbox_lb.api.wire.columns.token_cache import TokenSpellings
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.vocabulary import Vocabulary

__all__ = ["TypedReader", "main"]

COUNT, TOP = 8, 20
SIZES = ((1024, 1), (16, 50))
"""Tokens of an answer, and how often the eight answers are read in a turn."""
PROVIDERS: dict[Dialect, str] = {"openai": "openai", "vllm": "vllm"}
SAME = ("token_ids", "logprobs", "top_ids", "top_logprobs")


class TypedEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A token with its logprob; ``bytes`` as JSON, to be compared to those that the token had before."""

    token: str
    logprob: float
    bytes: msgspec.Raw


class TypedPosition(TypedEntry, forbid_unknown_fields=True, gc=False):
    """A sampled token with its alternatives."""

    top_logprobs: list[TypedEntry]


class TypedLists(msgspec.Struct):
    """The field ``logprobs`` of a choice."""

    content: msgspec.Raw


class TypedChoice(msgspec.Struct):
    """A choice; its other fields are read with the rest of the answer."""

    logprobs: TypedLists


class TypedAnswer(msgspec.Struct):
    """A chat completion."""

    choices: list[TypedChoice]


ENVELOPE, POSITIONS = msgspec.json.Decoder(TypedAnswer), msgspec.json.Decoder(list[TypedPosition])
TOKEN, LOGPROB, BYTES = map(operator.attrgetter, ("token", "logprob", "bytes"))


class TypedSpellings(TokenSpellings):
    """Numbers of tokens by their text; the second list of bytes of a text is looked up with the text."""

    def __init__(self, profile: Profile, rules: EndpointRules, vocabulary: Vocabulary | None) -> None:
        super().__init__(profile, rules, vocabulary)
        self._by_text: dict[str, int] = {}
        self._raw = [msgspec.Raw(b"")]
        self.quotes = np.zeros(1, np.int64)

    def of_entries(self, entries: Sequence[TypedEntry]) -> Any:
        """The number of each entry's token (n,)."""
        numbers = list(map(self._by_text.get, map(TOKEN, entries)))
        if None in numbers:
            numbers = [self._by_text.get(each.token) or self._new(each) for each in entries]
        given, known = list(map(BYTES, entries)), list(map(self._raw.__getitem__, numbers))  # type: ignore[arg-type]
        if given != known:
            for at, (one, other) in enumerate(zip(given, known, strict=True)):
                if one != other:
                    numbers[at] = self._new(entries[at])
        return np.array(numbers, np.int32)

    def _new(self, entry: TypedEntry) -> int:
        token, raw = json.dumps(entry.token, ensure_ascii=False)[1:-1].encode(), bytes(entry.bytes)
        key = token + b"\0" + raw
        number = self._numbers.get(key)
        if number is None:
            number = self._add(key, token, raw)
            self._raw.append(msgspec.Raw(raw))
            self.quotes = np.append(self.quotes, token.count(b'"'))
            self._by_text.setdefault(entry.token, number)
        return number


class TypedReader(AnswerReader):
    """Reads the lists of an answer into structs."""

    def __init__(self, profile: Profile, rules: EndpointRules, vocabulary: Vocabulary | None) -> None:
        super().__init__(profile, rules, vocabulary)
        self._spellings = TypedSpellings(profile, rules, vocabulary)

    def _lists(self, content: bytes) -> Iterator[tuple[int, int, LogprobColumns]]:
        end = 0
        for choice in ENVELOPE.decode(content).choices:
            opening = OPENING.match(content, content.find(b'"logprobs":', end))
            if opening is None or not content.startswith(choice.logprobs.content, opening.end()):
                raise Aside("a list in another place")
            begin, end = opening.end(), opening.end() + len(choice.logprobs.content)
            yield begin, end, self._columns(choice.logprobs.content)

    def _columns(self, content: msgspec.Raw) -> LogprobColumns:
        if b"\\u0022" in bytes(content):
            raise Aside("a quote that is not counted as one")
        positions = POSITIONS.decode(content)
        entries = [each for position in positions for each in (position, *position.top_logprobs)]
        numbers = self._spellings.of_entries(entries)
        logprobs = np.fromiter(map(LOGPROB, entries), np.float64, len(entries))
        quotes = np.count_nonzero(np.frombuffer(memoryview(content), np.uint8) == ord('"'))
        keys = 8 * len(entries) + 2 * len(positions)
        if quotes != keys + self._spellings.quotes[numbers].sum():
            raise Aside("a key twice, or one that cannot be counted")
        if ((logprobs == 0) & np.signbit(logprobs)).any():
            raise Aside("-0, which is 0, or -0.0, which is not")
        widths = np.array([len(each.top_logprobs) for each in positions])
        own = np.zeros(len(entries), np.bool_)
        own[np.cumsum(widths + 1) - widths - 1] = True
        listed, names = numbers[~own], self._spellings
        return LogprobColumns(
            names.ids[numbers[own]], logprobs[own], widths, names.ids[listed], logprobs[~own], names.bytes_of(listed)
        )


def _seconds(work: Callable[[], object], times: int) -> float:
    """Processor seconds of one call."""
    begin = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begin) / times


def _known() -> Vocabulary:
    """The ordinary tokens of o200k_base."""
    rows = (line.split() for line in rank_file().splitlines())
    tokens = {int(rank): base64.b64decode(raw) for raw, rank in rows}
    return Vocabulary("o200k_base", tokens, {}, len(tokens), lambda text: [])


def _read(reader: AnswerReader, profile: Profile, bodies: Sequence[bytes], sampling: Sampling) -> list[Completion]:
    return [each for body in bodies for each in parse_response(profile, "chat", reader.loads(body), sampling, reader.vocabulary)]


@click.command()
@click.option("--repeats", default=15, show_default=True, type=click.IntRange(1), help="Turns of each reader.")
@OUT
def main(repeats: int, out: Path | None) -> None:
    """Processor time of both readers, from the bytes of an answer to a completion."""
    rows, ratios, table = list[dict[str, Any]](), dict[str, float](), list[list[str]]()
    for dialect in DIALECTS:
        profile, known = load_profile(PROVIDERS[dialect]), _known()
        rules = profile.endpoint("chat")
        for tokens, times in SIZES:
            sampling = Sampling(max_tokens=tokens, top_logprobs=TOP)
            bodies = answers(tokens, TOP, COUNT, dialect)
            readers = {"byte scanner": AnswerReader(profile, rules, known), "typed structs": TypedReader(profile, rules, known)}
            found = [_read(each, profile, bodies, sampling) for each in readers.values()]
            for one, other in zip(*found, strict=True):
                assert all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in SAME)
            assert all(isinstance(each.loads(body), Answer) for each in readers.values() for body in bodies)
            work = {
                name: partial(_seconds, partial(_read, each, profile, bodies, sampling), times) for name, each in readers.items()
            }
            taken = {name: statistics.median(each) for name, each in alternately(work, repeats, warm_up=2).items()}
            speed = ratio(taken["byte scanner"], taken["typed structs"])
            label = f"{tokens} tokens, {dialect}"
            ratios[f"typed_reader/{label}: speed of typed structs over byte scanner"] = speed
            for name, seconds in taken.items():
                rows.append(row(f"{label}: {name}", seconds / COUNT * 1e3, "ms an answer"))
            table.append([label, *(f"{each / COUNT * 1e3:.2f}" for each in taken.values()), f"{speed:.2f}"])
    click.echo(markdown(["answer", *(f"{name}, ms" for name in readers), "speed of typed structs"], table))
    write(out, rows, ratios)


if __name__ == "__main__":
    main()
