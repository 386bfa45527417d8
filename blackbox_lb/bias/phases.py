"""Features of the answer so far: its first tokens, before or after a text, inside of two texts.

The tokens so far decide the numbers at the next position, each of which is 0 or 1. So a position
has a *phase*, the set of the features that hold there, and a bias has one vector in each phase.
Texts are looked for in the bytes of the tokens, however they are split: a number changes after the
token that completes a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, Strict

from blackbox_lb.bias.features import Feature, FeatureVector, Scope
from blackbox_lb.errors import InputError
from blackbox_lb.records import Count
from blackbox_lb.safety.printable import printable

REST = "rest"
"""The name of all positions where no feature holds."""
LONGEST = 100
"""Bytes of a text that begins or ends a phase: each is a row of a table over the vocabulary."""
MOST_FIRST = 1_000
"""Tokens of an opening."""
MOST_PARTS = 16
"""Requests of one completion; where a text returns more often, the last phase has all that follows.
"""
ONLY = "only-"
"""Begins the name of first tokens that a bias is confined to."""
_KINDS = re.compile(
    r",(?=(?:(?:only-)?first|rest)(?:,|$)|(?:(?:only-)?opening|until|after|inside):)"
)


def _spelled(text: str) -> str:
    """A text that has bytes, and not too many; half of a surrogate pair has none."""
    size = len(text.encode("utf-8", "ignore"))
    if not 0 < size <= LONGEST or text.encode("utf-8", "ignore").decode() != text:
        raise ValueError(f"a text of a phase has 1 to {LONGEST} bytes")
    return text


Spelled = Annotated[str, AfterValidator(_spelled)]


class Prefix(NamedTuple):
    """What came of an answer so far: how many tokens, and their bytes."""

    tokens: int = 0
    text: bytes = b""


class Boundary(NamedTuple):
    """Where the next phase may begin.

    tokens: after so many more; None for no such place. text: after this one, "" for none.
    """

    tokens: int | None
    text: str


class PrefixFeature(Feature):
    """A feature of the answer so far, with one number and one vector.

    positions: logged positions where it held, of which its vector was learned.
    """

    scope: ClassVar[Scope] = "prefix"
    positions: Count = 0

    def one_vector(self, values: Iterable[float] = (), errors: Iterable[float | None] = ()) -> Self:
        """The same with this vector."""
        vector = FeatureVector(name=self.spec, values=tuple(values), errors=tuple(errors))
        return self.replacing(vectors=(vector,))


class FirstTokens(PrefixFeature):
    """1 at so many ``tokens`` at the beginning."""

    kind: Literal["first tokens"] = "first tokens"
    tokens: Annotated[int, Strict(), Field(ge=1, le=MOST_FIRST)]

    @property
    def spec(self) -> str:
        """See ``Feature``."""
        if self.tokens == 1:
            return "first"
        return f"opening:{self.tokens}"


class OnlyFirstTokens(FirstTokens):
    """The first ``tokens`` alone are biased, and none after them: it has no vector."""

    kind: Literal["only first tokens"] = "only first tokens"  # type: ignore[assignment]
    vectors: tuple[()] = ()

    @property
    def spec(self) -> str:
        """See ``Feature``."""
        return f"{ONLY}{super().spec}"


class TextFeature(PrefixFeature):
    """A feature that texts of the answer turn on and off: an answer has two stretches.

    begins_held: whether it holds in the first stretch, else in the second.
    """

    begins_held: ClassVar[bool] = False

    @property
    def first_end(self) -> str:
        """The text that ends the first stretch."""
        raise NotImplementedError

    @property
    def second_end(self) -> str:
        """The text that leads back to the first stretch, "" where the second one has no end."""
        return ""


class Until(TextFeature):
    """1 until ``text`` has come."""

    kind: Literal["until"] = "until"
    text: Spelled
    begins_held: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        """See ``Feature``."""
        return f"until:{self.text}"

    @property
    def first_end(self) -> str:
        """See ``TextFeature``."""
        return self.text


class After(TextFeature):
    """1 once ``text`` has come."""

    kind: Literal["after"] = "after"
    text: Spelled

    @property
    def spec(self) -> str:
        """See ``Feature``."""
        return f"after:{self.text}"

    @property
    def first_end(self) -> str:
        """See ``TextFeature``."""
        return self.text


class Inside(TextFeature):
    """1 between the text that ``opens`` and the one that ``closes``, again and again."""

    kind: Literal["inside"] = "inside"
    opens: Spelled
    closes: Spelled

    @property
    def spec(self) -> str:
        """See ``Feature``."""
        return f"inside:{self.opens}..{self.closes}"

    @property
    def first_end(self) -> str:
        """See ``TextFeature``."""
        return self.opens

    @property
    def second_end(self) -> str:
        """See ``TextFeature``."""
        return self.closes


PREFIX_FEATURES: tuple[type[PrefixFeature], ...] = (
    FirstTokens,
    OnlyFirstTokens,
    Until,
    After,
    Inside,
)
"""All kinds."""


@dataclass(frozen=True)
class Phases:
    """The features of the answer so far, read together.

    A phase is a number whose bit j tells whether ``features[j]`` holds; 0 is the rest.

    Raises:
        InputError: two count tokens, or two look for texts.
    """

    features: tuple[PrefixFeature, ...] = ()

    def __post_init__(self) -> None:
        for kind in (FirstTokens, TextFeature):
            if sum(isinstance(feature, kind) for feature in self.features) > 1:
                raise InputError(
                    f"``phases={printable(self.spec)!r}`` overlap; give at most one of first,"
                    " opening:K, only-first and only-opening:K, and at most one with a text"
                )

    @classmethod
    def parse(cls, specs: Iterable[str]) -> Phases:
        """``first``, ``opening:K``, the same behind ``only-``, ``until:TEXT``, ``after:TEXT`` and
        ``inside:OPEN..CLOSE``, each text of its own or several separated by commas; ``rest`` may be
        named.

        Raises InputError: one is not known, or see ``Phases``.
        """
        names = [name for spec in specs for name in _KINDS.split(spec) if name != REST]
        if not names or len(set(names)) < len(names):
            raise InputError(
                f"``phases={printable(','.join(names))!r}`` names"
                f" {'one twice' if names else 'none'}; give each once"
            )
        return cls(tuple(_parsed(name) for name in names))

    @property
    def names(self) -> tuple[str, ...]:
        """The features as they are given on the command line."""
        return tuple(feature.spec for feature in self.features)

    @property
    def spec(self) -> str:
        """All of them in one text."""
        return ",".join(self.names)

    @cached_property
    def first(self) -> int:
        """Tokens at the beginning that one of the features counts, 0 where none does."""
        return max((f.tokens for f in self.features if isinstance(f, FirstTokens)), default=0)

    @cached_property
    def confined(self) -> bool:
        """Whether the bias is confined to the tokens at the beginning."""
        return any(isinstance(feature, OnlyFirstTokens) for feature in self.features)

    def is_unbiased(self, phase: int) -> bool:
        """Whether no token is biased in a phase."""
        return self.confined and not phase & self.held_first

    @cached_property
    def _text(self) -> TextFeature | None:
        return next((f for f in self.features if isinstance(f, TextFeature)), None)

    @cached_property
    def until(self) -> str:
        """The text that ends the first of two stretches, "" where no feature has texts."""
        if self._text is None:
            return ""
        return self._text.first_end

    @cached_property
    def back(self) -> str:
        """The text that leads from the second stretch back, "" where it has no end."""
        if self._text is None:
            return ""
        return self._text.second_end

    @property
    def closing(self) -> str:
        """The text that ends the stretch which ``inside`` or ``until`` names."""
        return self.back or self.until

    @property
    def count(self) -> int:
        """How many phases can be told apart."""
        return 1 << len(self.features)

    @cached_property
    def held_first(self) -> int:
        """The phase of the features that count tokens, while these last."""
        return self._bits(FirstTokens)

    @cached_property
    def held_in(self) -> tuple[int, int]:
        """The phase of the features with texts, in either stretch."""
        bits = self._bits(TextFeature)
        begins_held = self._text is not None and self._text.begins_held
        if begins_held:
            return (bits, 0)
        return (0, bits)

    def _bits(self, kind: type[PrefixFeature]) -> int:
        bits = 0
        for j, feature in enumerate(self.features):
            if isinstance(feature, kind):
                bits |= 1 << j
        return bits

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
        """The phase of the next token, after so many tokens."""
        bits = self.held_in[self.second(state)]
        if tokens < self.first:
            bits |= self.held_first
        return bits

    def of(self, prefix: Prefix) -> int:
        """The phase of the token after ``prefix``."""
        return self.of_state(self.after(0, prefix.text), prefix.tokens)

    def boundary(self, state: int, tokens: int) -> Boundary:
        """Where the phase may change next."""
        remaining = self.first - tokens
        tokens_left = None
        if remaining > 0:
            tokens_left = remaining
        return Boundary(tokens_left, self.awaited(state))

    def second(self, state: int) -> bool:
        """Whether a state belongs to the second stretch."""
        return state >= len(self.until.encode())

    def awaited(self, state: int) -> str:
        """The text at which the stretch of a state ends, "" where it does not."""
        if self.second(state):
            return self.back
        return self.until

    def after(self, state: int, raw: bytes) -> int:
        """The state after the bytes of one more token."""
        if not self.until:
            return state
        for byte in raw:
            state = self.steps[state][byte]
        return state

    def along(self, tokens: Iterable[bytes]) -> Iterator[int]:
        """The phase of each token, and at last of the one that would follow."""
        state = count = 0
        for raw in tokens:
            yield self.of_state(state, count)
            state = self.after(state, raw)
            count = count + 1
        yield self.of_state(state, count)


def _parsed(name: str) -> PrefixFeature:
    """One feature. Raises InputError: it is not known."""
    kind, _, text = name.partition(":")
    fields: dict[str, Any] = {}
    feature_type: type[PrefixFeature] | None = None
    counting: type[FirstTokens] = FirstTokens
    if name.startswith(ONLY):
        counting = OnlyFirstTokens
    if name.removeprefix(ONLY) == "first":
        feature_type = counting
        fields = {"tokens": 1}
    elif kind.removeprefix(ONLY) == "opening" and text.isdecimal():
        feature_type = counting
        fields = {"tokens": int(text)}
    elif kind == "until":
        feature_type = Until
        fields = {"text": text}
    elif kind == "after":
        feature_type = After
        fields = {"text": text}
    elif kind == "inside" and ".." in text:
        opens, _, closes = text.partition("..")
        feature_type = Inside
        fields = {"opens": opens, "closes": closes}
    try:
        if feature_type is not None:
            return feature_type(**fields)
    except ValueError:  # the sentence below has all limits
        pass
    raise InputError(
        f"``phases={printable(name)!r}`` is not known; give first, opening:K of at most"
        f" {MOST_FIRST} tokens, only-first, only-opening:K, until:TEXT, after:TEXT or"
        f" inside:OPEN..CLOSE, with texts of 1 to {LONGEST} bytes"
    )


def _matching(text: bytes, start: int, end: int) -> list[list[int]]:
    """(len(text), 256) the state after each byte: ``start`` and how much of ``text`` the last bytes
    are, ``end`` where all of it (Knuth, Morris and Pratt's automaton).
    """
    rows = list[list[int]]()
    fallback = 0
    for size, byte in enumerate(text):
        row = [start] * 256 if size == 0 else list(rows[fallback])
        row[byte] = end if size + 1 == len(text) else start + size + 1
        rows.append(row)
        if size:
            fallback = rows[fallback][byte] - start
    return rows
