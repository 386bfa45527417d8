"""A bias as requests get it: entries, and features of the prompt and of the answer so far.

    delta(prompt, prefix) = delta_0 + sum_j phi_j(prompt, prefix) delta_j

A fixed bias is the one without features. The sender asks for the ``scopes``: with "prefix" there is
a request for each phase, with "prompt" the numbers are computed of each request, with neither all
requests get the same map. Only features of the prompt need numpy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, Union

from pydantic import Field, model_validator

from blackbox_lb.bias.features import (
    MOST_READ,
    PROMPT_FEATURES,
    Embedding,
    Feature,
    PromptFeature,
    PromptText,
    Scope,
)
from blackbox_lb.bias.phases import PREFIX_FEATURES, Phases, PrefixFeature
from blackbox_lb.errors import BiasError
from blackbox_lb.records import Finite, Flag, Row
from blackbox_lb.vocabulary.embedding import PROBE, AnswerStore, TextVectors

if TYPE_CHECKING:
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.bias.phrases import PhraseList
    from blackbox_lb.types import Prompt

if TYPE_CHECKING:
    AnyFeature: TypeAlias = Feature
else:
    AnyFeature = Annotated[
        Union[PROMPT_FEATURES + PREFIX_FEATURES],  # noqa: UP007  # of as many as there are
        Field(discriminator="kind"),
    ]
"""A feature as a bias file holds it."""
DIGITS = 4
"""Decimals of a nat that are sent where features are added up: a thousandth of what any fit tells.
"""
SCALE = 10.0**DIGITS
BY_FEATURES = "by features"
"""How a store names the bias of a request that is not the same for all, with its identity."""
WITHOUT_PHRASES = "without phrases"
"""How a store names the bias of an answer that phrases were kept out of, with its identity."""
MOST_NUMBERS = 2_000_000
"""Vectors x tokens of one file: 16 MB."""
PROBED = 8
"""Numbers of an embedding that the file keeps to know its model again; they may differ by
``ROUNDING``.
"""
ROUNDING = 0.01
WIDEST = 1e6
"""Nats; the range where a provider has none."""


class SentRange(Row):
    """The range in nats and the kind of numbers that the provider takes of each request."""

    low: Finite
    high: Finite
    integers: Flag = False

    @classmethod
    def within(cls, low: float, high: float, *, integers: bool) -> SentRange:
        """The range of a provider that takes ``low`` to ``high`` nats, infinite for no limit."""
        return cls(low=max(low, -WIDEST), high=min(high, WIDEST), integers=integers)

    @model_validator(mode="after")
    def _holds_zero(self) -> SentRange:
        if not self.low <= 0 <= self.high:
            raise ValueError(f"the range from {self.low} to {self.high} does not hold 0")
        return self


def features_hash(features: Iterable[Feature], sent: SentRange | None) -> str:
    """SHA-256 of features with their vectors, without standard errors."""
    rows = [feature.model_dump(mode="json") for feature in features]
    for row in rows:
        for vector in row["vectors"]:
            del vector["errors"]
    document = [rows, None if sent is None else sent.model_dump(mode="json")]
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


class RequestBias:
    """A bias as requests get it, which features may change.

    Args:
        common: token id -> nats of delta_0.
        features: in the order of the bias file; none of a fixed bias.
        sent: the range of what goes out, where there are features.
        answers: the store of an embedding model.
        vectors: the embedding model, where it is loaded already.
        phrase_entries: what the sender keeps out of an answer, as a bias file writes it.

    Attributes:
        token_ids: (s,) the tokens that may be biased.
        phases: the features of the answer so far.
        scopes: what the bias depends on beside its entries.
        unread: requests so far whose prompt holds no text that can be read.
        vectors: the embedding model, where one is needed.
    """

    def __init__(
        self,
        common: Mapping[int, float],
        features: Sequence[Feature] = (),
        sent: SentRange | None = None,
        answers: AnswerStore | None = None,
        vectors: TextVectors | None = None,
        phrase_entries: Sequence[str] = (),
    ) -> None:
        check_sizes(len(common), features)
        self.token_ids = tuple(common)
        self.common = dict(common)
        self.features = tuple(features)
        self.sent = sent
        self.phases = phases_of_features(features)
        self.scopes: frozenset[Scope] = frozenset(feature.scope for feature in features)
        self.phrase_entries = tuple(phrase_entries)
        self.unread = 0
        self.vectors = vectors or embedding_model(features, answers)
        self._of_prompt = [row for row in self.features if isinstance(row, PromptFeature)]
        self._arrays: tuple[Any, ...] | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_in_parts(self) -> bool:
        """Whether an answer takes several requests: it changes within an answer, or keeps phrases
        out.
        """
        return "prefix" in self.scopes or bool(self.phrase_entries)

    @cached_property
    def identity(self) -> str:
        """A hash of the entries, the features, the range, and of phrases where there are any."""
        parts: list[object] = [
            sorted(self.common.items()),
            features_hash(self.features, self.sent),
        ]
        if self.phrase_entries:
            parts.append(self.phrase_entries)
        serialized = json.dumps(parts)
        return sha256(serialized.encode()).hexdigest()

    @cached_property
    def phrases(self) -> PhraseList | None:
        """What the sender keeps out of an answer by stepping back, None for nothing; read when it
        is asked for first.
        """
        if not self.phrase_entries:
            return None
        from blackbox_lb.bias.phrases import PhraseList

        return PhraseList.of_entries(self.phrase_entries)

    @property
    def store_key(self) -> object:
        """How a store names the bias in the settings of its requests."""
        if self.phrase_entries:
            return {WITHOUT_PHRASES: self.identity}
        if self.features:
            return {BY_FEATURES: self.identity}
        return sorted([token, value] for token, value in self.common.items())

    @cached_property
    def _of_phase(self) -> list[list[float]]:
        """(phases, s) nats that all prompts have in common."""
        return [self._summed(phase) for phase in range(self.phases.count)]

    def at(self, prompt: Prompt, phase: int | None = None) -> dict[int, float]:
        """Token id -> nats for a prompt of a task in a phase, by default that of the first token.

        Raises BiasError: the embedding model is another than the one it was learned with.
        """
        if not self._of_prompt:
            return self.of_text(None, phase)
        return self.of_text(PromptText.of_prompt(prompt), phase)

    def read(self, document: Mapping[str, Any]) -> PromptText | None:
        """What the features read of a request's body, with its embedding where one is needed;
        None, which is counted, where the prompt holds no text that can be read.
        """
        if "prompt" not in self.scopes:
            return None
        text = PromptText.of_request(document)
        if text is None:
            self.unread += 1
            return None
        return self.embedded([text])[0]

    def numbers(self, text: PromptText | None) -> dict[int, float]:
        """Place among all vectors of features of the prompt -> phi."""
        entries: dict[int, float] = {}
        start = 0
        if text is None:
            return entries
        if self.vectors is not None and not text.vector:
            (text,) = self.embedded([text])
        for feature in self._of_prompt:
            for place, value in feature.numbers(text).items():
                entries[start + place] = value
            start += len(feature.vectors)
        return entries

    def names_of_numbers(self) -> list[str]:
        """What each number of the prompt is called in a request to a server that computes the bias
        itself, in the order of their places.
        """
        return [
            f"{feature.kind}:{vector.key}"
            for feature in self._of_prompt
            for vector in feature.vectors
        ]

    def of_text(self, text: PromptText | None, phase: int | None = None) -> dict[int, float]:
        """Token id -> nats of a prompt in a phase; where there is no text, or none of its features
        is known, what all prompts have in common. What features change has no zeros.
        """
        if not self.features:
            return self.common
        if phase is None:
            phase = self.phases.of_state(0, 0)
        if not self._of_prompt:
            return self._rounded(self._of_phase[phase])
        return self.of_numbers(self.numbers(text), phase)

    def of_numbers(self, numbers: Mapping[int, float], phase: int = 0) -> dict[int, float]:
        """Token id -> nats where the features of the prompt have these ``numbers``."""
        import numpy as np

        if self._arrays is None:
            rows = [vector.values for row in self._of_prompt for vector in row.vectors]
            slopes = np.array(rows, np.float64).reshape(-1, len(self.token_ids))
            self._arrays = (
                np.array(self.token_ids, np.int64),
                np.array(self._of_phase, np.float64),
                slopes,
            )
        if self.phases.is_unbiased(phase):
            return {}
        assert self.sent is not None  # given with features
        ids, of_phase, slopes = self._arrays
        values = of_phase[phase]
        if numbers:
            values = values + np.array(list(numbers.values())) @ slopes[list(numbers)]
        values = np.minimum(np.maximum(values, self.sent.low), self.sent.high)
        if self.sent.integers:
            rounded = np.rint(values).astype(np.int64)
        else:
            rounded = np.rint(values * SCALE) / SCALE
        if rounded.all():
            return dict(zip(self.token_ids, rounded.tolist(), strict=True))
        positions = rounded.nonzero()[0]
        return dict(zip(ids[positions].tolist(), rounded[positions].tolist(), strict=True))

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Compute the embeddings of many prompts at once, where it depends on those."""
        self.embedded([PromptText.of_prompt(prompt) for prompt in prompts])

    def embedded(self, texts: Sequence[PromptText]) -> list[PromptText]:
        """The texts with their embeddings, where it depends on those.

        Raises BiasError: the embedding model is another than the one it was learned with.
        """
        if self.vectors is None:
            return list(texts)
        (feature,) = [row for row in self.features if isinstance(row, Embedding)]
        embedding = self.vectors.of([PROBE])[0]
        size = len(feature.vectors)
        pairs = zip(embedding, feature.probe, strict=False)
        far = max((abs(now - then) for now, then in pairs), default=0.0)
        if len(embedding) != size or far > ROUNDING:
            raise BiasError(
                f"the embedding model {self.vectors.name} gives other vectors than when the bias"
                f" was learned ({len(embedding)} numbers, {size} expected; the largest difference"
                f" is {far:.3f}); use the same model, or fit again"
            )
        return with_vectors(texts, self.vectors)

    def _summed(self, phase: int) -> list[float]:
        """(s,) nats of a phase that all prompts have in common."""
        total = list(self.common.values())
        if self.phases.is_unbiased(phase):
            return [0.0] * len(total)
        for j, feature in enumerate(self.phases.features):
            if phase & 1 << j and feature.vectors:
                values = feature.vectors[0].values
                total = [value + more for value, more in zip(total, values, strict=True)]
        return total

    def _rounded(self, values: Sequence[float]) -> dict[int, float]:
        """Token id -> nats as they are sent, without zeros."""
        assert self.sent is not None  # given with features
        low = self.sent.low
        high = self.sent.high
        digits = None
        if not self.sent.integers:
            digits = DIGITS
        sent = {
            token: round(min(max(value, low), high), digits)
            for token, value in zip(self.token_ids, values, strict=True)
        }
        return {token: value for token, value in sent.items() if value}


def phases_of_features(features: Iterable[Feature]) -> Phases:
    """Those of the features that read the answer so far."""
    return Phases(tuple(row for row in features if isinstance(row, PrefixFeature)))


def check_sizes(entries: int, features: Sequence[Feature]) -> None:
    """Raise BiasError: a vector has not one value for each entry, or there are too many."""
    vectors = [vector for feature in features for vector in feature.vectors]
    if any(len(vector.values) != entries for vector in vectors) or any(
        len(vector.errors) not in (0, entries) for vector in vectors
    ):
        raise BiasError(
            f"a feature has not one value for each of the {entries} entries; restore the file, or"
            " fit again"
        )
    if entries * len(vectors) > MOST_NUMBERS:
        raise BiasError(f"more than {MOST_NUMBERS:,} numbers; learn it with fewer entries")


def embedding_model(
    features: Iterable[Feature], answers: AnswerStore | None = None
) -> TextVectors | None:
    """The embedding model that one of the features reads, None where there is none. answers: see
    ``TextVectors``.
    """
    for feature in features:
        if isinstance(feature, Embedding):
            return TextVectors(feature.model, answers)
    return None


def with_vectors(texts: Sequence[PromptText], vectors: TextVectors) -> list[PromptText]:
    """The texts with the embeddings of their last user messages, of which no more than
    ``MOST_READ`` characters are read.
    """
    embeddings = vectors.of([text.user[:MOST_READ] for text in texts])
    return [replace(text, vector=vector) for text, vector in zip(texts, embeddings, strict=True)]


NO_BIAS = RequestBias({})
"""What the model itself is asked with."""
AnyBias: TypeAlias = RequestBias | Mapping[int, float] | None
"""A bias as Python's users give it: token id -> nats, None for none."""


def to_request_bias(bias: Bias | AnyBias, answers: AnswerStore | None = None) -> RequestBias:
    """The bias of a caller as requests get it. answers: the store of an embedding model."""
    if bias is None:
        return NO_BIAS
    if isinstance(bias, RequestBias):
        return bias
    if isinstance(bias, Mapping):
        return RequestBias(bias)
    return RequestBias(
        bias.logit_bias, bias.features, bias.sent, answers, phrase_entries=bias.phrases
    )


def to_vector(bias: Bias | AnyBias) -> RequestBias:
    """The same without phrases: what is drawn by a command that does not step back, and what a
    store holds of it.
    """
    sent = to_request_bias(bias)
    if not sent.phrase_entries:
        return sent
    return RequestBias(sent.common, sent.features, sent.sent, vectors=sent.vectors)


def with_phrases(bias: RequestBias, entries: Iterable[str]) -> RequestBias:
    """The same, and these phrases kept out beside those that it keeps out already."""
    both = dict.fromkeys((*bias.phrase_entries, *entries))
    return RequestBias(
        bias.common, bias.features, bias.sent, vectors=bias.vectors, phrase_entries=tuple(both)
    )


def strongest(bias: Bias) -> list[tuple[str, str]]:
    """The vectors of the features, those that move a token most first: the name of each, and the
    three tokens that it moves most, in nats, with standard errors where they are known.
    """
    rows = []
    for feature in bias.features:
        for vector in feature.vectors:
            name = vector.name
            if isinstance(feature, PrefixFeature):
                name = f"{feature.spec} ({feature.positions:,} positions)"
            errors = vector.errors or (None,) * len(vector.values)
            moved = sorted(
                zip(bias.entries, vector.values, errors, strict=True), key=lambda row: -abs(row[1])
            )[:3]
            phrases = [
                f"'{entry.readable}' {value:+.2f}" + ("" if error is None else f" ± {error:.2f}")
                for entry, value, error in moved
                if value
            ]
            largest = 0.0
            if moved:
                largest = abs(moved[0][1])
            rows.append((largest, name, ", ".join(phrases)))
    return [(name, phrases) for _, name, phrases in sorted(rows, key=lambda row: -row[0])]
