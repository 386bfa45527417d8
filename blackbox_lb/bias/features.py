"""Features of a prompt that a bias may depend on: its group, its system prompt, a named route, its
words or its embedding.

They are read in the client before the request is sent, from the prompt alone, but for a group,
which the request names. The same text has the same features everywhere, and a text of any size
costs a bounded time. Nothing here needs numpy.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from math import log, sqrt
from typing import Literal, TypeAlias, cast

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import printable

Kind: TypeAlias = Literal["groups", "system-prompt", "route", "words", "embedding"]
GROUP = "blb_group"
"""Field of a request that names the group of its prompt; it is taken out before the request is
sent.
"""

BUCKETS = 4_096
"""Buckets that words and pairs of words are hashed into: 300 prompts have about 2,000 different
ones.
"""
MOST_READ = 20_000
"""Characters of a text that are read, from its beginning: about 5,000 tokens, in 5 ms."""
LONGEST_NAME = 200
"""Characters of the name of a system prompt; a longer one is told by its beginning and its SHA-256.
"""
_WORDS = re.compile(r"\w+").findall


@dataclass(frozen=True, slots=True)
class PromptText:
    """The parts of a prompt that features are read from.

    user: the last user message, "" where there is none.
    system: the system messages, joined by blank lines.
    group: the name of its group, None where nobody names it.
    vector: (d,) the embedding of ``user``, empty where it is not needed.
    """

    user: str
    system: str = ""
    group: str | None = None
    vector: tuple[float, ...] = ()

    @classmethod
    def of(cls, messages: Iterable[tuple[str, str]], group: str | None = None) -> PromptText:
        """From ``(role, text)`` pairs; without a user message the last one counts as such."""
        rows = list(messages)
        said = [text for role, text in rows if role == "user"] or [text for _, text in rows[-1:]]
        system = "\n\n".join(text for role, text in rows if role in ("system", "developer"))
        return cls(said[-1] if said else "", system, group)


@dataclass(frozen=True, slots=True)
class DependsOn:
    """What a bias depends on.

    kind: which part of the prompt. routes: of ``route``, names with the regular expressions that
    the last user message must match, first match first. of: of ``groups`` the column that holds
    them, of ``embedding`` the model.
    """

    kind: Kind
    routes: tuple[tuple[str, str], ...] = ()
    of: str = ""
    _patterns: tuple[tuple[str, re.Pattern[str]], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_patterns", tuple((name, _compiled(pattern)) for name, pattern in self.routes)
        )

    @classmethod
    def parse(cls, given: str) -> DependsOn | None:
        """``nothing`` (None) or one of the kinds, as ``blb fit --help`` lists them. InputError:
        another.
        """
        kind, mark, rest = given.partition(":")
        if given == "nothing":
            return None
        if given in ("system-prompt", "words") or (rest and kind in ("groups", "embedding")):
            return cls(cast(Kind, kind), of=rest)
        if kind == "route" and mark:
            pairs = tuple(_route(part) for part in re.split(r",(?=[\w-]+=)", rest))
            if len({name for name, _ in pairs}) < len(pairs):
                raise InputError(
                    f"``depends_on={given!r}`` names a route twice; give each a name of its own"
                )
            return cls("route", routes=pairs)
        raise InputError(
            f"``depends_on={printable(given)!r}`` is not known; give nothing, words, system-prompt,"
            " groups:COLUMN, embedding:MODEL or route:NAME=REGEX,..."
        )

    @property
    def name(self) -> str:
        """As it is given on the command line."""
        rest = self.of or ",".join(f"{name}={pattern}" for name, pattern in self.routes)
        return f"{self.kind}:{rest}" if rest else self.kind

    def group(self, text: PromptText) -> str | None:
        """The group, system prompt or route of a prompt; None where it has none."""
        if self.kind in ("groups", "system-prompt"):
            named = text.group if self.kind == "groups" else text.system
            return _short(named) if named else None
        return next(
            (name for name, pattern in self._patterns if pattern.search(text.user[:MOST_READ])),
            None,
        )

    def counted(self, text: PromptText) -> dict[str | int, float]:
        """Feature -> its amount in a prompt, before any weight: 1 for a route, group or system
        prompt, ``1 + log(count)`` for a bucket of words, the numbers of an embedding."""
        if self.kind == "embedding":
            return {str(number): value for number, value in enumerate(text.vector)}
        if self.kind != "words":
            group = self.group(text)
            return {} if group is None else {group: 1.0}
        buckets = Counter([bucket_of(gram) for gram in grams(text.user)])
        return {bucket: 1.0 + log(count) if count > 1 else 1.0 for bucket, count in buckets.items()}


def grams(text: str) -> list[str]:
    """The words of a text in lower case, and the pairs of neighbours."""
    words = _WORDS(text[:MOST_READ].lower())
    return words + [f"{first} {second}" for first, second in pairwise(words)]


def bucket_of(gram: str) -> int:
    """The bucket of a word or pair."""
    return zlib.crc32(gram.encode("utf-8", "surrogatepass")) % BUCKETS


def weighed(
    counted: Mapping[str | int, float], weights: Mapping[str | int, float]
) -> dict[str | int, float]:
    """The features that have a weight, times it, and of length 1 together; none where no feature is
    known.
    """
    values = {name: value * weights[name] for name, value in counted.items() if name in weights}
    length = sqrt(sum(value * value for value in values.values()))
    return {name: value / length for name, value in values.items()} if length else {}


def document_frequency_weights(
    rows: Sequence[Mapping[str | int, float]], least: int = 2
) -> dict[str | int, float]:
    """Feature -> ``log((1 + p) / (1 + prompts that have it)) + 1`` for those of at least ``least``
    of p prompts (inverse document frequency, as scikit-learn has it)."""
    counts = Counter(name for row in rows for name in row)
    return {
        name: log((1 + len(rows)) / (1 + count)) + 1
        for name, count in counts.items()
        if count >= least
    }


def _short(name: str) -> str:
    if len(name) <= LONGEST_NAME:
        return name
    return (
        f"{name[: LONGEST_NAME - 76]}... SHA-256"
        f" {sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
    )


def _route(part: str) -> tuple[str, str]:
    name, mark, pattern = part.partition("=")
    if not mark or not re.fullmatch(r"[\w-]+", name) or not pattern:
        raise InputError(
            f"``depends_on`` has the route {printable(part)!r}; give NAME=REGEX, with a comma"
            " between routes"
        )
    return name, pattern


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(
            f"``depends_on`` has the regular expression {printable(pattern)!r}, which is none"
            f" ({error})"
        ) from None
