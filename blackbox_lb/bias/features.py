"""What a bias may depend on: features of the prompt, read from the parts of a request's body or of
a row of a task.

    delta(prompt, prefix) = delta_0 + sum_j phi_j(prompt, prefix) delta_j

A feature gives numbers phi, and has a vector delta for each of them; those of the answer so far
stand in ``phases``. ``delta_0`` are the entries of the bias file, whose number is always 1. The
same text has the same numbers everywhere, and a text of any size costs a bounded time.

A new kind of feature is one class here and its name in ``PROMPT_FEATURES``.

They are read in the client before the request is sent, from the prompt alone, but for a group,
which the request names. Nothing here needs numpy.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from math import log, sqrt
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, Strict, model_validator

from blackbox_lb.errors import InputError
from blackbox_lb.records import Finite, Name, Row
from blackbox_lb.safety.printable import printable

if TYPE_CHECKING:
    from blackbox_lb.types import Prompt

GROUP = "blb_group"
"""Field of a request that names the group of its prompt; it is taken out before the request is
sent.
"""
MOST_READ = 20_000
"""Characters of a text that are read, from its beginning: about 5,000 tokens, in 5 ms."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """The parts of a prompt that features are read from.

    user: the last user message, "" where there is none.
    system: the system messages, joined by blank lines.
    group: the name of its group in a request, None where nobody names it.
    columns: further columns of its row in a task.
    vector: (d,) the embedding of ``user``, empty where it is not needed.
    """

    user: str
    system: str = ""
    group: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    vector: tuple[float, ...] = ()

    @classmethod
    def of(cls, messages: Iterable[tuple[str, str]], group: str | None = None) -> PromptText:
        """From ``(role, text)`` pairs; without a user message the last one counts as such."""
        rows = list(messages)
        user_texts = [text for role, text in rows if role == "user"] or [
            text for _, text in rows[-1:]
        ]
        system = "\n\n".join(text for role, text in rows if role in ("system", "developer"))
        user = ""
        if user_texts:
            user = user_texts[-1]
        return cls(user, system, group)

    @classmethod
    def of_prompt(cls, prompt: Prompt) -> PromptText:
        """Of a prompt of a task, with the columns of its row."""
        text = cls.of((message.role, message.content) for message in prompt.messages)
        return cls(text.user, text.system, columns=prompt.columns)

    @classmethod
    def of_request(cls, document: Mapping[str, Any]) -> PromptText | None:
        """Of a request's body, chat or completions; None where it has neither text nor group
        (images, token ids, several prompts).
        """
        messages = document.get("messages")
        group = document.get(GROUP)
        group = group if isinstance(group, str) else None
        if isinstance(messages, list):
            pairs = [pair for pair in map(_message, messages) if pair is not None]
            if group or any(text for _, text in pairs):
                return cls.of(pairs, group)
            return None
        prompt = document.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        text = ""
        if isinstance(prompt, str):
            text = prompt
        if text or group:
            return cls(text, group=group)
        return None


def _message(message: object) -> tuple[str, str] | None:
    """Role and text of a chat message; the text parts of one with several."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return None
    content = message.get("content")
    parts: Sequence[object] = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return message["role"], "\n".join(text for text in texts if isinstance(text, str))


Scope: TypeAlias = Literal["always", "prompt", "prefix"]
"""What the numbers of a feature are told by: by nothing, by the prompt, by the answer so far."""

BUCKETS = 4_096
"""Buckets that words and pairs of words are hashed into: 300 prompts have about 2,000 different
ones.
"""
LONGEST_NAME = 200
"""Characters of the name of a system prompt; a longer one is told by its beginning and its SHA-256.
"""
FEWEST_PROMPTS = 2
"""Training prompts that must have a number for a vector of it to be learned."""
WORDS_SHOWN = 3
"""Words of a bucket that the bias file names."""
_WORDS = re.compile(r"\w+").findall


class FeatureVector(Row):
    """One number of a feature, and the vector that belongs to it.

    name: the route, group or system prompt, or the commonest words of a bucket, for a person to
    read. bucket: of words, the number that they hash to. weight: what the count of a word is
    multiplied by, 1 for others. values: (s,) nats a unit, in the order of the entries. errors: (s,)
    their standard errors, None where not known; empty where none is.
    """

    name: str
    bucket: Annotated[int, Strict(), Field(ge=0, lt=BUCKETS)] | None = None
    weight: Annotated[Finite, Field(gt=0)] = 1.0
    values: tuple[Finite, ...] = ()
    errors: tuple[Annotated[Finite, Field(ge=0)] | None, ...] = ()

    @property
    def key(self) -> str | int:
        """What ``counted`` calls it."""
        if self.bucket is None:
            return self.name
        return self.bucket


class Feature(Row):
    """What a bias depends on beside its entries.

    scope: what tells its numbers. vectors: one for each number.
    """

    scope: ClassVar[Scope]
    kind: str
    vectors: tuple[FeatureVector, ...] = ()

    @model_validator(mode="after")
    def _has_no_number_twice(self) -> Self:
        if len({vector.key for vector in self.vectors}) < len(self.vectors):
            raise ValueError(f"a number of {self.kind} is listed twice; keep one vector of each")
        return self

    @property
    def spec(self) -> str:
        """As it is given on the command line."""
        raise NotImplementedError

    def with_values(
        self, values: Sequence[Sequence[float]], errors: Sequence[Sequence[float | None]] = ()
    ) -> Self:
        """The same with a row of ``values`` (s,) for each number, and of their standard errors."""
        rows = errors or [()] * len(values)
        return self.replacing(
            vectors=tuple(
                vector.replacing(values=tuple(row), errors=tuple(error))
                for vector, row, error in zip(self.vectors, values, rows, strict=True)
            )
        )


class PromptFeature(Feature):
    """A feature of the prompt. A subclass says its ``kind``, how it is ``parsed`` and what it
    counts in a prompt.

    takes: what ``depends_on`` has behind the kind and a colon, empty for nothing.
    weighs_rare: whether what few prompts have counts more (inverse document frequency).
    """

    scope: ClassVar[Scope] = "prompt"
    takes: ClassVar[str] = ""
    weighs_rare: ClassVar[bool] = False

    @classmethod
    def form(cls) -> str:
        """As it is written in ``depends_on``: KIND, or KIND:VALUE."""
        kind: str = cls.model_fields["kind"].default
        if cls.takes:
            return f"{kind}:{cls.takes}"
        return kind

    @classmethod
    def parsed(cls, text: str) -> Self | None:
        """From what stands behind the kind in ``depends_on``, without vectors; None where that is
        none. A kind that needs nothing more takes none. InputError: it is wrong.
        """
        if text:
            return None
        return cls.model_validate({})

    @property
    def spec(self) -> str:
        """See ``Feature``; of a kind that needs nothing more, its name."""
        return self.kind

    def counted(self, text: PromptText) -> dict[str | int, float]:
        """Number -> its amount in a prompt, before any weight."""
        raise NotImplementedError

    def numbers(self, text: PromptText) -> dict[int, float]:
        """Place among ``vectors`` -> phi of a prompt: what is counted times its weight, of length 1
        together. Empty where it has none of the known numbers.
        """
        places = self._places
        values = {
            places[key]: amount * self.vectors[places[key]].weight
            for key, amount in self.counted(text).items()
            if key in places
        }
        length = sqrt(sum(value * value for value in values.values()))
        if length:
            return {place: value / length for place, value in values.items()}
        return {}

    @cached_property
    def _places(self) -> dict[str | int, int]:
        return {vector.key: place for place, vector in enumerate(self.vectors)}

    def seen_in(self, texts: Sequence[PromptText]) -> Self:
        """With a number for what at least ``FEWEST_PROMPTS`` of the texts have, and not all of
        them; its vectors have no values yet.
        """
        counts = Counter(key for text in texts for key in self.counted(text))
        keys = [key for key, count in counts.items() if self._tells(count, len(texts))]
        names = self.shown(keys, texts)
        vectors = []
        for key in sorted(keys, key=str):
            weight = 1.0
            if self.weighs_rare:
                weight = round(log((1 + len(texts)) / (1 + counts[key])) + 1, 6)
            bucket = None
            if isinstance(key, int):
                bucket = key
            vectors.append(FeatureVector(name=names[key], bucket=bucket, weight=weight))
        return self.replacing(vectors=tuple(vectors))

    def _tells(self, count: int, prompts: int) -> bool:
        """Whether what ``count`` of the prompts have tells some from others."""
        return FEWEST_PROMPTS <= count < prompts

    def shown(
        self, keys: Sequence[str | int], texts: Sequence[PromptText]
    ) -> Mapping[str | int, str]:
        """What a person reads of each number."""
        del texts
        return {key: str(key) for key in keys}


class Words(PromptFeature):
    """The words of the last user message and their pairs, hashed into buckets: ``1 + log(count)``
    of each.
    """

    weighs_rare: ClassVar[bool] = True
    kind: Literal["words"] = "words"

    def counted(self, text: PromptText) -> dict[str | int, float]:
        """See ``PromptFeature``."""
        buckets = Counter([bucket_of(gram) for gram in grams(text.user)])
        return {bucket: 1.0 + log(count) if count > 1 else 1.0 for bucket, count in buckets.items()}

    def shown(
        self, keys: Sequence[str | int], texts: Sequence[PromptText]
    ) -> Mapping[str | int, str]:
        """The commonest words of each bucket."""
        words: dict[str | int, Counter[str]] = {key: Counter() for key in keys}
        for text in texts:
            for gram in set(grams(text.user)):
                if bucket_of(gram) in words:
                    words[bucket_of(gram)][gram] += 1
        return {
            key: " | ".join(word for word, _ in counts.most_common(WORDS_SHOWN))
            for key, counts in words.items()
        }


class Routes(PromptFeature):
    """The first of some regular expressions that the last user message matches.

    routes: name and expression of each, in their order; those without a vector take part, too.
    """

    takes: ClassVar[str] = "NAME=REGEX,..."
    kind: Literal["route"] = "route"
    routes: Annotated[tuple[tuple[str, str], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _are_expressions(self) -> Self:
        try:
            _ = self._patterns
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    @classmethod
    def parsed(cls, text: str) -> Self | None:
        """See ``PromptFeature``."""
        pairs = tuple(_route(part) for part in re.split(r",(?=[\w-]+=)", text))
        if len({name for name, _ in pairs}) < len(pairs):
            raise InputError(
                f"``depends_on='route:{printable(text)}'`` names a route twice; give each a name of"
                " its own"
            )
        for _, pattern in pairs:
            _compiled(pattern)
        return cls(routes=pairs)

    @property
    def spec(self) -> str:
        """See ``Feature``."""
        return "route:" + ",".join(f"{name}={pattern}" for name, pattern in self.routes)

    @cached_property
    def _patterns(self) -> list[tuple[str, re.Pattern[str]]]:
        return [(name, _compiled(pattern)) for name, pattern in self.routes]

    def counted(self, text: PromptText) -> dict[str | int, float]:
        """See ``PromptFeature``."""
        read = text.user[:MOST_READ]
        for name, pattern in self._patterns:
            if pattern.search(read):
                return {name: 1.0}
        return {}


class Groups(PromptFeature):
    """The group that a request names, as a column of the data does.

    column: of the data.
    """

    takes: ClassVar[str] = "COLUMN"
    kind: Literal["groups"] = "groups"
    column: Name

    @classmethod
    def parsed(cls, text: str) -> Self | None:
        """See ``PromptFeature``."""
        if text:
            return cls(column=text)
        return None

    @property
    def spec(self) -> str:
        """See ``Feature``."""
        return f"groups:{self.column}"

    def counted(self, text: PromptText) -> dict[str | int, float]:
        """See ``PromptFeature``."""
        group = text.group or text.columns.get(self.column)
        if group:
            return {_short(group): 1.0}
        return {}


class SystemPrompt(PromptFeature):
    """The system prompt, word for word."""

    kind: Literal["system-prompt"] = "system-prompt"

    def counted(self, text: PromptText) -> dict[str | int, float]:
        """See ``PromptFeature``."""
        if text.system:
            return {_short(text.system): 1.0}
        return {}


class Embedding(PromptFeature):
    """The numbers of the last user message's embedding.

    model: as ``TextVectors`` takes it. probe: the first numbers of a known text's embedding, by
    which the model is known again.
    """

    takes: ClassVar[str] = "MODEL"
    kind: Literal["embedding"] = "embedding"
    model: Name
    probe: tuple[Finite, ...] = ()

    @classmethod
    def parsed(cls, text: str) -> Self | None:
        """See ``PromptFeature``."""
        if text:
            return cls(model=text)
        return None

    @property
    def spec(self) -> str:
        """See ``Feature``."""
        return f"embedding:{self.model}"

    def counted(self, text: PromptText) -> dict[str | int, float]:
        """See ``PromptFeature``."""
        return {str(number): value for number, value in enumerate(text.vector)}

    def _tells(self, count: int, prompts: int) -> bool:
        return count >= FEWEST_PROMPTS


PROMPT_FEATURES: tuple[type[PromptFeature], ...] = (Words, SystemPrompt, Groups, Embedding, Routes)
"""All kinds. The text before the first colon of a ``depends_on`` is a kind."""


def parse_feature(spec: str) -> PromptFeature | None:
    """The feature that ``depends_on`` names, None for ``nothing``. InputError: there is none."""
    if spec == "nothing":
        return None
    kind, _, text = spec.partition(":")
    for feature in PROMPT_FEATURES:
        if kind == feature.form().partition(":")[0]:
            parsed = feature.parsed(text)
            if parsed is not None:
                return parsed
    forms = ", ".join(feature.form() for feature in PROMPT_FEATURES)
    raise InputError(
        f"``depends_on={printable(spec)!r}`` is not known; give nothing, or one of {forms}"
    )


def grams(text: str) -> list[str]:
    """The words of a text in lower case, and the pairs of neighbours."""
    words = _WORDS(text[:MOST_READ].lower())
    return words + [f"{first} {second}" for first, second in pairwise(words)]


def bucket_of(gram: str) -> int:
    """The bucket of a word or pair."""
    return zlib.crc32(gram.encode("utf-8", "surrogatepass")) % BUCKETS


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
