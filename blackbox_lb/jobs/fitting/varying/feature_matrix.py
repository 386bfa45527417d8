"""The feature matrix of a fit, which is what a bias may depend on at every training position, and
the bias learned from it as a challenger beside the one that stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
from scipy import sparse

from blackbox_lb.bias.features import Embedding, Feature, Groups, PromptFeature, PromptText
from blackbox_lb.bias.phases import Phases, PrefixFeature
from blackbox_lb.bias.request_bias import (
    DIGITS,
    MOST_NUMBERS,
    PROBED,
    RequestBias,
    SentRange,
    with_vectors,
)
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import PositionWeights, Rollouts, weighting
from blackbox_lb.estimate.projection.with_features import (
    FeaturePositions,
    FeatureTable,
    fit_features,
    standard_errors,
)
from blackbox_lb.jobs.fitting.choosing.scorers import Challenger
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


def specs_of(of_prompt: PromptFeatures | None, phases: Phases) -> str:
    """The features of a bias as they are given on the command line."""
    names = [] if of_prompt is None else [of_prompt.feature.spec]
    return ", ".join([*names, *phases.names])


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


SLOPE_L2 = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
"""Strengths of the pull of each feature's vector to 0, in weighted positions; the strongest first.
"""
NO_SLOPE = 1e9
"""The strength that leaves no feature anything."""
FOLDS = 5
DRAWS = 20
"""Draws of the bootstrap for standard errors, each a fit that begins at the solution."""
MOST_WORK = 50_000_000
"""Numbers in the table of features x tokens, above which there are no standard errors: a minute of
fits.
"""
NO_FEATURE = "no two training prompts have a feature that others lack"


def weights_of(standing: Candidate, rollouts: Rollouts) -> PositionWeights:
    """The weights of ``rollouts`` as the standing candidate was learned from them."""
    if standing.projected is not None:
        return standing.projected.weights(rollouts)
    return weighting(float(standing.settings.get("tau") or 1.0)).weights(rollouts)


def learned_challenger(
    standing: Candidate,
    matrix: FeatureMatrix,
    positions: Callable[[Ids], FeaturePositions],
    tokens: Ids,
    limits: CompileLimits,
    *,
    slope_l2: float,
    model_weight: float | None = None,
    left_out: Vector | None = None,
) -> Challenger:
    """A bias with the features of ``matrix``, learned with all training prompts, on the tokens that
    move most where the provider or a file takes fewer.

    Args:
        standing: the bias without features, whose settings it has.
        matrix: of the training positions.
        positions: of tokens that may be biased.
        tokens: those that may be.
        limits: the provider's.
        slope_l2: pull of each feature's vector to 0, in weighted positions.
        model_weight: what the model's own logits weigh in ``positions``; the vectors are scaled to
            go with whole ones. None for whole ones.
        left_out: gains over the standing bias on training prompts that were left out.
    """
    l2 = float(standing.settings.get("l2") or 1.0)
    weight = model_weight or 1.0
    all_positions = positions(tokens)
    most = MOST_NUMBERS // max(matrix.table.shape[1], 1)
    if limits.entries is not None:
        most = min(limits.entries, most)
    fit = fit_features(all_positions, matrix.table, l2=l2, slope_l2=slope_l2)
    if len(fit.token_ids) > most:
        columns = np.argsort(-fit.impact(matrix.table, all_positions.usage))[:most]
        all_positions = positions(np.sort(fit.token_ids[columns]))
        fit = fit_features(all_positions, matrix.table, l2=l2, slope_l2=slope_l2)
    errors = np.full(len(fit.common), np.nan)
    slope_errors = None
    if matrix.table.nnz * len(fit.common) <= MOST_WORK:
        errors, slope_errors = standard_errors(
            all_positions,
            matrix.table,
            fit,
            l2=l2,
            slope_l2=slope_l2,
            draws=DRAWS,
            prompts=matrix.prompts,
        )
        errors = errors / weight
        slope_errors = (slope_errors / weight).round(3)
    values = (fit.common / weight).round(DIGITS)
    features = matrix.with_values((fit.slopes / weight).round(DIGITS), slope_errors)
    sent = SentRange.within(limits.low, limits.high, integers=limits.integers)
    common = dict(zip(fit.token_ids.tolist(), values.tolist(), strict=True))
    vectors = None
    if matrix.of_prompt is not None:
        vectors = matrix.of_prompt.vectors
    settings: dict[str, float | int | str | None] = {**standing.settings, "slope_l2": slope_l2}
    specs = specs_of(matrix.of_prompt, matrix.phases)
    origin = f"depends on {specs}: {matrix.table.shape[1]:,} vectors, slope_l2 {slope_l2:g}"
    if matrix.of_prompt is not None:
        settings["depends_on"] = matrix.of_prompt.feature.spec
    if matrix.phases.features:
        settings["phases"] = matrix.phases.spec
    if model_weight is not None:
        settings["model_weight"] = model_weight
        origin = f"{origin}, the model's logits weighing {model_weight:g}"
    candidate = replace(
        standing,
        settings=settings,
        sparse=replace(standing.sparse, token_ids=fit.token_ids, values=values),
        projected=None,
        origin=origin,
        stands=False,
    )
    if left_out is None:
        left_out = np.zeros(0)
    bias = RequestBias(common, features, sent, vectors=vectors)
    return Challenger(candidate, bias, errors, left_out)


def with_lift(challenger: Challenger, token_ids: set[int], nats: float) -> Challenger:
    """The same with more nats on the entries of some tokens."""
    candidate = challenger.candidate
    before = challenger.bias
    common = {
        token: value + nats if token in token_ids else value
        for token, value in before.common.items()
    }
    lifted = replace(
        candidate,
        settings={**candidate.settings, "lift": nats},
        sparse=replace(candidate.sparse, values=np.array(list(common.values()))),
        origin=f"{candidate.origin}, labels lifted by {nats:g} nats",
    )
    bias = RequestBias(common, before.features, before.sent, vectors=before.vectors)
    return replace(challenger, candidate=lifted, bias=bias)
