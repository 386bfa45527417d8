"""A bias with phases: one vector for the first token, another inside thinking, another for the
rest.

The tokens so far decide the phase of the next one, so each position of a completion has one phase
and each phase its own vector. Texts are looked for in the bytes of the tokens, however they are
split: a phase changes after the token that completes a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from blackbox_lb.bias.records import Count, Finite, Name, Row
from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import printable

if TYPE_CHECKING:
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.types import Prompt

REST = "rest"
"""The name of all positions that no named phase has."""
LONGEST = 100
"""Bytes of a text that begins or ends a phase: each is a row of a table over the vocabulary."""
MOST_FIRST = 1_000
"""Tokens of an opening."""
MOST_PARTS = 16
"""Requests of one completion; where a text returns more often, the last phase has all that follows.
"""
_KINDS = re.compile(r",(?=(?:first|rest)(?:,|$)|(?:opening|until|after|inside):)")


class PhaseVector(Row):
    """The bias of one phase.

    phase: as given to ``phases``.
    values: (s,) nats, in the order of the file's entries, which are those of the rest.
    errors: (s,) their standard errors, empty where not known.
    positions: logged positions that it was learned from.
    """

    phase: Name
    values: tuple[Finite, ...]
    errors: tuple[Annotated[Finite, Field(ge=0)] | None, ...] = ()
    positions: Count = 0


@dataclass(frozen=True)
class Phases:
    """Named phases that share no position, and the rest.

    names: as given, the rest last. Phases are numbered in this order. first: how many tokens the
    phase at the beginning has, 0 where there is none; beginning: its number. until: the text that
    the first of two stretches ends with, "" where no phase has texts. back: the text that leads
    from the second stretch back to the first one, "" where the second one has no end. stretches:
    the numbers of the phases of both.
    """

    names: tuple[str, ...]
    first: int = 0
    beginning: int = 0
    until: str = ""
    back: str = ""
    stretches: tuple[int, int] = (0, 0)

    @classmethod
    def parse(cls, given: Iterable[str]) -> Phases:
        """``first``, ``opening:K``, ``until:TEXT``, ``after:TEXT`` and ``inside:OPEN..CLOSE``, each
        text of its own or several separated by commas; ``rest`` may be named.

        Raises InputError: one is not known, or two share positions.
        """
        names = [name for each in given for name in _KINDS.split(each)]
        named = [name for name in dict.fromkeys(names) if name != REST]
        if not named or len(named) < len([name for name in names if name != REST]):
            raise InputError(
                f"``phases={printable(','.join(names))!r}`` names"
                f" {'one twice' if named else 'none'}; give each once"
            )
        rest = len(named)
        found: dict[str, Any] = {}
        for number, name in enumerate(named):
            part = _parsed(name, number, rest)
            if part.keys() & found.keys():
                raise _overlap(named)
            found |= part
        beginning = found.get("stretches", (rest, rest))[0]
        if found.get("first") and found.get("until") and (beginning != rest or found["first"] > 1):
            raise _overlap(named)
        return cls((*named, REST), **{"stretches": (rest, rest), **found})

    @classmethod
    def of(cls, rows: Sequence[PhaseVector]) -> Phases:
        """Of a bias file. Raises InputError as ``parse`` does, and where a row is of several phases
        or of the rest.
        """
        found = cls.parse(row.phase for row in rows)
        names = [row.phase for row in rows]
        if names != [*found.names[:-1]]:
            raise InputError(
                f"{len(names)} rows are of the phases {printable(found.spec)}; give each phase"
                " one row"
            )
        return found

    @property
    def closing(self) -> str:
        """The text that ends the stretch which ``inside`` or ``until`` names."""
        return self.back or self.until

    @property
    def spec(self) -> str:
        """As it is given on the command line."""
        return ",".join(self.names[:-1])

    @cached_property
    def steps(self) -> tuple[tuple[int, ...], ...]:
        """(states, 256) the state after each byte; state 0 is the beginning.

        The states count how much of the awaited text the last bytes are: of ``until``, then of
        ``back``.
        """
        if not self.until:
            return ((0,) * 256,)
        opens = self.until.encode()
        closes = self.back.encode()
        second = len(opens)
        rows = [
            *_matching(opens, 0, second),
            *(_matching(closes, second, 0) if closes else [[second] * 256]),
        ]
        return tuple(tuple(row) for row in rows)

    def of_state(self, state: int, tokens: int) -> int:
        """The number of the phase of the next token, after so many tokens."""
        if tokens < self.first:
            return self.beginning
        return self.stretches[self.second(state)]

    def second(self, state: int) -> bool:
        """Whether a state belongs to the second stretch."""
        return state >= len(self.until.encode())

    def awaited(self, state: int) -> str:
        """The text at which the stretch of a state ends, "" where it does not."""
        return self.back if self.second(state) else self.until

    def after(self, state: int, raw: bytes) -> int:
        """The state after the bytes of one more token."""
        for byte in raw:
            state = self.steps[state][byte]
        return state

    def along(self, tokens: Iterable[bytes]) -> Iterator[int]:
        """The number of the phase of each token, and at last of the one that would follow."""
        state = count = 0
        for raw in tokens:
            yield self.of_state(state, count)
            state = self.after(state, raw)
            count = count + 1
        yield self.of_state(state, count)


@dataclass(frozen=True)
class PhasedBias:
    """A bias with phases, as it is sent.

    vectors: token id -> nats, of each phase by its number.
    """

    phases: Phases
    vectors: tuple[Mapping[int, float], ...]

    @classmethod
    def of(cls, bias: Bias) -> PhasedBias | None:
        """Of a bias file; None where its bias has no phases."""
        if not bias.phases:
            return None
        ids = [entry.id for entry in bias.entries]
        rows = [*(phase.values for phase in bias.phases), [entry.bias for entry in bias.entries]]
        vectors = tuple(
            {token: value for token, value in zip(ids, row, strict=True) if value} for row in rows
        )
        return cls(Phases.of(bias.phases), vectors)

    def __len__(self) -> int:
        return max(len(vector) for vector in self.vectors)

    def at(self, prompt: Prompt) -> Mapping[int, float]:
        """Token id -> nats of the first token, whatever the prompt."""
        return self.vectors[self.phases.of_state(0, 0)]

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Nothing takes long here."""

    @cached_property
    def identity(self) -> str:
        """What tells it from any other, as the store keeps it."""
        told = json.dumps(
            [self.phases.names, [sorted(each.items()) for each in self.vectors]],
            separators=(",", ":"),
        )
        return sha256(told.encode()).hexdigest()


def _parsed(name: str, number: int, rest: int) -> dict[str, Any]:
    """The fields of ``Phases`` that one phase sets. Raises InputError: it is not known."""
    kind, _, text = name.partition(":")
    if name == "first":
        return {"first": 1, "beginning": number}
    if kind == "opening" and text.isdecimal() and 0 < int(text) <= MOST_FIRST:
        return {"first": int(text), "beginning": number}
    if kind in ("until", "after") and _spelled(text):
        return {"until": text, "stretches": (number, rest) if kind == "until" else (rest, number)}
    opens, dots, closes = text.partition("..")
    if kind == "inside" and dots and _spelled(opens) and _spelled(closes):
        return {"until": opens, "back": closes, "stretches": (rest, number)}
    raise InputError(
        f"``phases={printable(name)!r}`` is not known; give first, opening:K of at most"
        f" {MOST_FIRST} tokens, until:TEXT, after:TEXT or inside:OPEN..CLOSE, with texts of 1 to"
        f" {LONGEST} bytes"
    )


def _spelled(text: str) -> bool:
    """Whether it has bytes, and not too many; half of a surrogate pair has none."""
    return (
        0 < len(text.encode("utf-8", "ignore")) <= LONGEST
        and text.encode("utf-8", "ignore").decode() == text
    )


def _overlap(named: Sequence[str]) -> InputError:
    return InputError(
        f"``phases={printable(','.join(named))!r}`` overlap; give at most one of first and"
        " opening:K and one with a text, and beside first only after:TEXT or inside:OPEN..CLOSE,"
        " beside opening:K none"
    )


def _matching(text: bytes, start: int, end: int) -> list[list[int]]:
    """(len(text), 256) the state after each byte: ``start`` and how much of ``text`` the last bytes
    are, ``end`` where all of it (Knuth, Morris and Pratt's automaton)."""
    rows = list[list[int]]()
    fallback = 0
    for size, byte in enumerate(text):
        row = [start] * 256 if size == 0 else list(rows[fallback])
        row[byte] = end if size + 1 == len(text) else start + size + 1
        rows.append(row)
        if size:
            fallback = rows[fallback][byte] - start
    return rows
