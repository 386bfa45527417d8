"""The feature matrix of a fit: what a bias may depend on, at every training position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
from scipy import sparse

from blackbox_lb.bias.features import Embedding, Feature, Groups, PromptFeature
from blackbox_lb.bias.phases import Phases, PrefixFeature
from blackbox_lb.bias.prompt_text import PromptText
from blackbox_lb.bias.request_bias import PROBED, with_vectors
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.estimate.projection.with_features import FeatureTable
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks import Task
from blackbox_lb.types import Example, Prompt
from blackbox_lb.vocabulary.embedding import EXTRA, PROBE, TextVectors, of_an_api, resolve_encoder


@dataclass(frozen=True, slots=True, eq=False)
class PromptFeatures:
    """A feature of the prompt on the training prompts.

    feature: with a number for what tells some of them from others; its vectors have no values yet.
    table: (p, f) the numbers. vectors: the embedding model, None where there is none.
    """

    feature: PromptFeature
    table: FeatureTable
    vectors: TextVectors | None = None

    @classmethod
    def of(
        cls,
        feature: PromptFeature,
        examples: Sequence[Example],
        vectors: TextVectors | None = None,
    ) -> PromptFeatures:
        """The numbers that at least two of the prompts have, and not all of them; of an embedding,
        whose model ``vectors`` is, all.
        """
        texts = _texts(examples, vectors)
        fitted = feature.seen_in(texts)
        if isinstance(fitted, Embedding) and vectors is not None:
            fitted = fitted.replacing(probe=vectors.of([PROBE])[0][:PROBED])
        return cls(fitted, _table(fitted, texts), vectors)

    def of_examples(self, examples: Sequence[Example]) -> FeatureTable:
        """(p, f) the same numbers of other prompts."""
        return _table(self.feature, _texts(examples, self.vectors))


def _texts(examples: Sequence[Example], vectors: TextVectors | None) -> list[PromptText]:
    texts = [PromptText.of_prompt(example.prompt) for example in examples]
    if vectors is None:
        return texts
    return with_vectors(texts, vectors)


def _table(feature: PromptFeature, texts: Sequence[PromptText]) -> FeatureTable:
    cells = [
        (row, column, value)
        for row, text in enumerate(texts)
        for column, value in feature.numbers(text).items()
    ]
    at = ([row for row, _, _ in cells], [column for _, column, _ in cells])
    shape = (len(texts), len(feature.vectors))
    return sparse.csr_array(([value for _, _, value in cells], at), shape=shape)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureMatrix:
    """The features of all training positions; those with equal numbers are one context.

    of_prompt: the features of the prompts, None where none is used. phases: those of the answer so
    far. table: (c, f) the numbers of each context. prompts: (c,) its prompt. contexts: (m,) of each
    position. held: (j,) positions where each feature of the answer so far holds.
    """

    of_prompt: PromptFeatures | None
    phases: Phases
    table: FeatureTable
    prompts: Ids
    contexts: Ids
    held: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        of_prompt: PromptFeatures | None,
        phases: Phases,
        prompt_of: Ids,
        phase_of: Ids,
        prompts: int,
    ) -> FeatureMatrix:
        """prompt_of, phase_of: (m,) of each position. prompts: how many there are."""
        count = phases.count
        bits = (np.arange(count)[:, None] >> np.arange(len(phases.features))) & 1
        table = sparse.csr_array(np.tile(bits.astype(np.float64), (prompts, 1)))
        if of_prompt is not None:
            rows = of_prompt.table[np.repeat(np.arange(prompts), count)]
            table = sparse.csr_array(sparse.hstack([rows, table]))
        counts = bits[phase_of].sum(axis=0)
        return cls(
            of_prompt,
            phases,
            table,
            np.repeat(np.arange(prompts), count),
            np.asarray(prompt_of * count + phase_of, np.int64),
            tuple(counts.tolist()),
        )

    @property
    def spec(self) -> str:
        """The features as they are given on the command line."""
        names = [] if self.of_prompt is None else [self.of_prompt.feature.spec]
        return ", ".join([*names, *self.phases.names])

    def with_values(
        self, values: npt.NDArray[np.float64], errors: npt.NDArray[np.float64] | None
    ) -> tuple[Feature, ...]:
        """The features with their vectors: ``values`` (f, s) nats and their standard errors."""
        rows = values.tolist()
        row_errors = [()] * len(rows) if errors is None else errors.tolist()
        features: list[Feature] = []
        start = 0
        if self.of_prompt is not None:
            start = len(self.of_prompt.feature.vectors)
            features.append(self.of_prompt.feature.with_values(rows[:start], row_errors[:start]))
        phase_rows = zip(self.phases.features, rows[start:], row_errors[start:], strict=True)
        for (feature, row, error), count in zip(phase_rows, self.held, strict=True):
            of_phase: PrefixFeature = feature.replacing(positions=count)
            features.append(of_phase.one_vector(row, error))
        return tuple(features)


def check_features(depends_on: Iterable[PromptFeature], task: Task, limit: int | None) -> None:
    """Raise InputError before anything is paid for: no prompt has the column of the groups, equal
    prompts are in two groups, or an embedding model is not on this machine and no hub can have it.
    """
    for feature in depends_on:
        if isinstance(feature, Groups):
            training = task.train[:limit]
            _check_groups(feature, training, [*training, *task.validation, *task.test])
        if isinstance(feature, Embedding) and not of_an_api(feature.model):
            resolve_encoder(feature.model)
            if find_spec("sentence_transformers") is None:
                raise InputError(
                    f"``depends_on={feature.spec}`` needs sentence-transformers, which is not"
                    f" installed: {EXTRA}"
                )


def _check_groups(
    feature: Groups, training: Sequence[Example], everything: Sequence[Example]
) -> None:
    if not any(example.prompt.columns.get(feature.column) for example in training):
        columns = (
            ", ".join(
                dict.fromkeys(name for example in training for name in example.prompt.columns)
            )
            or "none"
        )
        raise InputError(
            f"``depends_on={feature.spec}``: no training row has a text in that column (short"
            f" columns: {columns})"
        )
    of_prompt: dict[Prompt, str | None] = {}
    for example in everything:
        group = example.prompt.columns.get(feature.column)
        if of_prompt.setdefault(example.prompt, group) != group:
            raise InputError(
                f"``depends_on={feature.spec}``: the prompt {shorten(example.prompt.text)} is in"
                f" the groups {of_prompt[example.prompt]!r} and {group!r}; the model is shown the"
                " same text, so keep one"
            )
