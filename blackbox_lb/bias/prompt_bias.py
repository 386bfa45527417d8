"""A bias that depends on the prompt, as its file holds it and as a request gets it.

    delta(x) = delta_0 + sum_j phi_j(x) delta_j

``delta_0`` are the entries of the bias file, and the features with their vectors stand beside them.
Applying it needs numpy, reading the file does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, Strict, field_validator, model_validator

from blackbox_lb.bias.features import BUCKETS, GROUP, MOST_READ, DependsOn, PromptText, weighed
from blackbox_lb.bias.phases import PhasedBias
from blackbox_lb.bias.records import Finite, Flag, Name, Row
from blackbox_lb.errors import BiasError
from blackbox_lb.vocabulary.embedding import PROBE, AnswerStore, TextVectors

if TYPE_CHECKING:
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.types import AnyBias, Prompt

DIGITS = 4
"""Decimals of a nat that are kept: a thousandth of what any fit tells."""
SCALE = 10.0**DIGITS
OF_EACH_PROMPT = "of each prompt"
"""How a store names the bias of a request that depends on the prompt, with its identity."""
OF_EACH_PHASE = "of each phase"
MOST_NUMBERS = 2_000_000
"""Features x tokens of one file: 16 MB."""
PROBED = 8
"""Numbers of an embedding that the file keeps to know its model again; they may differ by
``ROUNDING``.
"""
ROUNDING = 0.01


class Feature(Row):
    """A feature of the prompt and the vector that belongs to it.

    name: the route or system prompt, or the commonest words of a bucket, for a person to read.
    bucket: of words, the number that they hash to. weight: what the count of a word is multiplied
    by, 1 for others. values: (s,) nats a unit, in the order of the entries. errors: (s,) their
    standard errors, empty where not known.
    """

    name: str
    bucket: Annotated[int, Strict(), Field(ge=0, lt=BUCKETS)] | None = None
    weight: Annotated[Finite, Field(gt=0)] = 1.0
    values: tuple[Finite, ...]
    errors: tuple[Finite, ...] = ()

    @property
    def key(self) -> str | int:
        """What ``DependsOn.counted`` calls it."""
        return self.name if self.bucket is None else self.bucket


class Dependence(Row):
    """What the bias depends on, beside its common vector.

    on: as given to ``depends_on``. model_weight: what the model's own logits weighed while it was
    learned; the vectors are scaled to go with whole ones. low, high, integers: the range in nats
    and the kind of numbers that the provider takes of each request. probe: the first numbers of a
    known text's embedding, empty where it depends on none. fingerprint: SHA-256 of all else here
    but standard errors; a file whose features were changed by hand is refused.
    """

    on: Name
    model_weight: Annotated[Finite, Field(gt=0, le=1)] = 1.0
    low: Finite
    high: Finite
    integers: Flag = False
    features: tuple[Feature, ...]
    probe: tuple[Finite, ...] = ()
    fingerprint: str = ""

    @field_validator("on")
    @classmethod
    def _known(cls, on: str) -> str:
        if DependsOn.parse(on) is None:
            raise ValueError("a bias that depends on nothing has no features; leave the field out")
        return on

    @model_validator(mode="after")
    def _whole(self) -> Dependence:
        if not self.low <= 0 <= self.high:
            raise ValueError(f"the range from {self.low} to {self.high} does not hold 0")
        if sum(len(feature.values) for feature in self.features) > MOST_NUMBERS:
            raise ValueError(f"more than {MOST_NUMBERS:,} numbers; learn it with fewer entries")
        if len({feature.key for feature in self.features}) < len(self.features):
            raise ValueError("a feature is listed twice; keep one")
        if self.fingerprint and self.fingerprint != self.computed:
            raise ValueError(
                "its features are not those that were learned: the fingerprint differs; restore the"
                " file, or fit again"
            )
        return self

    @property
    def computed(self) -> str:
        """The fingerprint that belongs to these features."""
        document = self.model_dump(
            mode="json", exclude={"fingerprint"} | (set() if self.probe else {"probe"})
        )
        for feature in document["features"]:
            del feature["errors"]
        return sha256(
            json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        ).hexdigest()

    def signed(self) -> Dependence:
        """The same with its fingerprint."""
        return self.replacing(fingerprint=self.computed)


class PromptBias:
    """The bias of each prompt.

    ids: (s,) the tokens that may be biased. common: token id -> nats that all prompts have in
    common. depends: the features with their vectors. identity: a hash of both. unread: requests so
    far whose prompt holds no text that can be read. vectors: its embedding model, where that is
    loaded.
    """

    def __init__(
        self, common: Mapping[int, float], depends: Dependence, vectors: TextVectors | None = None
    ) -> None:
        import numpy as np

        self.ids, self.common, self.depends, self._on = (
            tuple(common),
            dict(common),
            depends,
            DependsOn.parse(depends.on),
        )
        if any(
            len(feature.values) != len(common) or len(feature.errors) not in (0, len(common))
            for feature in depends.features
        ):
            raise BiasError(
                f"a feature has not one value for each of the {len(common)} entries; restore the"
                " file, or fit again"
            )
        self.unread = 0
        self.vectors = vectors
        self._ids, self._common = (
            np.array(self.ids, np.int64),
            np.array(list(common.values()), np.float64),
        )
        self._rows = {feature.key: row for row, feature in enumerate(depends.features)}
        self._weights = {feature.key: feature.weight for feature in depends.features}
        self._slopes = np.array(
            [feature.values for feature in depends.features], np.float64
        ).reshape(-1, len(common))
        told = json.dumps(
            [sorted(common.items()), depends.fingerprint or depends.computed], separators=(",", ":")
        )
        self.identity = sha256(told.encode()).hexdigest()

    @classmethod
    def of(cls, bias: Bias, kept: AnswerStore | None = None) -> PromptBias | None:
        """Of a bias file; None where its bias is the same for all prompts. kept: see
        ``TextVectors``.
        """
        if bias.depends is None:
            return None
        return cls(
            bias.logit_bias, bias.depends, vectors_of(DependsOn.parse(bias.depends.on), kept)
        )

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, prompt: Prompt) -> dict[int, float]:
        """Token id -> nats for one prompt."""
        return self.of_text(read(prompt, self._on))

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Compute the embeddings of many prompts at once, where it depends on those. Raises
        BiasError: see ``of_text``.
        """
        if self.vectors is not None:
            self._embedded([read(prompt, self._on) for prompt in prompts], self.vectors)

    def _embedded(self, texts: Sequence[PromptText], vectors: TextVectors) -> list[PromptText]:
        """The texts with their vectors, of the model that it was learned with."""
        probe = vectors.of([PROBE])[0]
        size = len(self.depends.features)
        far = max(
            (abs(one - other) for one, other in zip(probe, self.depends.probe, strict=False)),
            default=0.0,
        )
        if len(probe) != size or far > ROUNDING:
            raise BiasError(
                f"the embedding model {vectors.name} gives other vectors than when the bias was"
                f" learned ({len(probe)} numbers, {size} expected; the largest difference is"
                f" {far:.3f}); use the same model, or fit again"
            )
        return embedded(texts, vectors)

    def of_text(self, text: PromptText | None) -> dict[int, float]:
        """Token id -> nats; the common vector where there is no text, or none of its features is
        known.

        Raises BiasError: the embedding model is another than the one it was learned with.
        """
        import numpy as np

        if text is not None and self.vectors is not None:
            (text,) = self._embedded([text], self.vectors)
        values = self._common
        found = (
            {}
            if text is None or self._on is None
            else weighed(self._on.counted(text), self._weights)
        )
        if found:
            rows = [self._rows[name] for name in found]
            values = values + np.array(list(found.values())) @ self._slopes[rows]
        values = np.minimum(np.maximum(values, self.depends.low), self.depends.high)
        sent = (
            np.rint(values).astype(np.int64)
            if self.depends.integers
            else np.rint(values * SCALE) / SCALE
        )
        if sent.all():
            return dict(zip(self.ids, sent.tolist(), strict=True))
        there = sent.nonzero()[0]
        return dict(zip(self._ids[there].tolist(), sent[there].tolist(), strict=True))


def vectors_of(on: DependsOn | None, kept: AnswerStore | None = None) -> TextVectors | None:
    """The embedding model that is depended on, None where there is none. kept: see
    ``TextVectors``.
    """
    return TextVectors(on.of, kept) if on is not None and on.kind == "embedding" else None


def to_request_bias(bias: Bias, kept: AnswerStore | None = None) -> AnyBias:
    """The bias as requests get it: of each phase, of each prompt, or one for all."""
    return PhasedBias.of(bias) or PromptBias.of(bias, kept) or bias.logit_bias


def store_key(bias: AnyBias) -> object:
    """How a store names a bias in the settings of its requests."""
    if isinstance(bias, Mapping):
        return sorted([token, value] for token, value in bias.items())
    return {OF_EACH_PHASE if isinstance(bias, PhasedBias) else OF_EACH_PROMPT: bias.identity}


def strongest(bias: Bias, shown: int = 3) -> list[tuple[str, str]]:
    """The features of the prompt, or the phases, those that move a token most first: the name of
    each, and the tokens that it moves most, in nats, with standard errors where they are known."""
    features = bias.depends.features if bias.depends else ()
    parts = list[tuple[str, tuple[float, ...], tuple[float | None, ...]]]()
    parts += [(feature.name, feature.values, feature.errors) for feature in features]
    parts += [
        (f"{phase.phase} ({phase.positions:,} positions)", phase.values, phase.errors)
        for phase in bias.phases
    ]
    rows = []
    for name, values, known in parts:
        errors = ["" if error is None else f" ± {error:.2f}" for error in known] or [""] * len(
            values
        )
        moved = sorted(
            zip(bias.entries, values, errors, strict=True), key=lambda row: -abs(row[1])
        )[:shown]
        told = ", ".join(
            f"'{entry.readable}' {value:+.2f}{error}" for entry, value, error in moved if value
        )
        rows.append((abs(moved[0][1]) if moved else 0.0, name, told))
    return [(name, told) for _, name, told in sorted(rows, key=lambda row: -row[0])]


def read(prompt: Prompt, on: DependsOn | None) -> PromptText:
    """The parts of a prompt, with the group that its column names."""
    group = prompt.columns.get(on.of) if on is not None and on.kind == "groups" else None
    return PromptText.of(((message.role, message.content) for message in prompt.messages), group)


def embedded(texts: Sequence[PromptText], vectors: TextVectors) -> list[PromptText]:
    """The texts with the vectors of their last user messages, of which no more than ``MOST_READ``
    characters are read.
    """
    found = vectors.of([text.user[:MOST_READ] for text in texts])
    return [replace(text, vector=vector) for text, vector in zip(texts, found, strict=True)]


def text_of(document: Mapping[str, Any]) -> PromptText | None:
    """The text of a request's body, chat or completions, and its group; None where it has neither
    (images, token ids, several).
    """
    messages = document.get("messages")
    group = document.get(GROUP)
    group = group if isinstance(group, str) else None
    if isinstance(messages, list):
        pairs = [_message(message) for message in messages]
        found = [pair for pair in pairs if pair is not None]
        return PromptText.of(found, group) if group or any(text for _, text in found) else None
    prompt = document.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    text = prompt if isinstance(prompt, str) else ""
    return PromptText(text, group=group) if text or group else None


def _message(message: object) -> tuple[str, str] | None:
    """Role and text of a chat message; the text parts of one with several."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return None
    content = message.get("content")
    parts: Sequence[object] = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return message["role"], "\n".join(text for text in texts if isinstance(text, str))
