"""Learning a bias with features, as a proposal beside the one that stands."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from blackbox_lb.bias.request_bias import DIGITS, MOST_NUMBERS, WIDEST, RequestBias, SentRange
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import PositionWeights, Rollouts, weighting
from blackbox_lb.estimate.projection.with_features import (
    FeaturePositions,
    fit_features,
    standard_errors,
)
from blackbox_lb.jobs.fitting.choosing.scorers import Proposal
from blackbox_lb.jobs.fitting.varying.feature_matrix import FeatureMatrix

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


def like_standing(standing: Candidate, rollouts: Rollouts) -> tuple[Rollouts, PositionWeights]:
    """``rollouts`` and their weights as the standing candidate was learned from them."""
    projected = standing.projected
    if projected is None:
        rule = weighting(float(standing.settings.get("tau") or 1.0))
    else:
        rule = projected.rule
        rollouts = replace(rollouts, shares=projected.shares)
    return rollouts, rule.weights(rollouts)


def learned_proposal(
    standing: Candidate,
    matrix: FeatureMatrix,
    positions: Callable[[Ids], FeaturePositions],
    tokens: Ids,
    limits: CompileLimits,
    *,
    slope_l2: float,
    model_weight: float | None = None,
    draws: int = DRAWS,
    left_out: Vector | None = None,
) -> Proposal:
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
        draws: for standard errors; none without.
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
    if draws and matrix.table.nnz * len(fit.common) <= MOST_WORK:
        errors, slope_errors = standard_errors(
            all_positions,
            matrix.table,
            fit,
            l2=l2,
            slope_l2=slope_l2,
            draws=draws,
            prompts=matrix.prompts,
        )
        errors = errors / weight
        slope_errors = (slope_errors / weight).round(3)
    values = (fit.common / weight).round(DIGITS)
    features = matrix.with_values((fit.slopes / weight).round(DIGITS), slope_errors)
    sent = SentRange(
        low=max(limits.low, -WIDEST), high=min(limits.high, WIDEST), integers=limits.integers
    )
    common = dict(zip(fit.token_ids.tolist(), values.tolist(), strict=True))
    vectors = None
    if matrix.of_prompt is not None:
        vectors = matrix.of_prompt.vectors
    settings: dict[str, float | int | str | None] = {**standing.settings, "slope_l2": slope_l2}
    origin = f"depends on {matrix.spec}: {matrix.table.shape[1]:,} vectors, slope_l2 {slope_l2:g}"
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
        varying=RequestBias(common, features, sent, vectors=vectors),
        projected=None,
        origin=origin,
        stands=False,
    )
    return Proposal(candidate, matrix.spec, errors, np.zeros(0) if left_out is None else left_out)


def with_lift(proposal: Proposal, token_ids: set[int], nats: float) -> Proposal:
    """The same with more nats on the entries of some tokens."""
    candidate = proposal.candidate
    assert isinstance(candidate.varying, RequestBias)
    before = candidate.varying
    common = {
        token: value + nats if token in token_ids else value
        for token, value in before.common.items()
    }
    lifted = replace(
        candidate,
        settings={**candidate.settings, "lift": nats},
        sparse=replace(candidate.sparse, values=np.array(list(common.values()))),
        varying=RequestBias(common, before.features, before.sent, vectors=before.vectors),
        origin=f"{candidate.origin}, labels lifted by {nats:g} nats",
    )
    return replace(proposal, candidate=lifted)
