"""A bias with features of the prompt, of the answer so far, or of both, learned from completions
that were drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.request_bias import RequestBias, SentRange
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.projection.with_features import FeaturePositions, fit_features
from blackbox_lb.jobs.fitting.choosing.scorers import Challenger
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.varying.feature_matrix import (
    FOLDS,
    NO_FEATURE,
    NO_SLOPE,
    SLOPE_L2,
    FeatureMatrix,
    PromptFeatures,
    learned_challenger,
    specs_of,
    weights_of,
    with_lift,
)
from blackbox_lb.rollouts.phased import phases_of
from blackbox_lb.rollouts.positions import Positions

LEAST_HELD = 100
"""Positions with and without a feature of the answer so far that its vector is learned from."""
SCREENED = 2_000
"""Tokens, the most used first, whose pull by the features is looked at."""
MOVED = 300
"""Tokens that may depend on features: those that the features pull most."""
COMPARED = 100
"""Tokens on which strengths are compared."""
LIFTS = (1.0, 2.0, 4.0)
"""Nats on all labels that are tried beside none, where shares of labels are wanted."""
MOST_LIFT = 8.0
"""Tried as well where the bias acts nowhere but at the label. Anywhere else so much makes the model
say labels for the rest of the text: 95 in 100 completions of wanted shares had no single label.
"""


@dataclass(frozen=True, slots=True, eq=False)
class BySamples:
    """Proposes a bias with features; its strength is the one under which the weighted completions
    of left-out training prompts are likeliest.

    features: of the training prompts, None for none. phases: of the completions. phase_of: (m,) of
    each training position. prompts: how many there are. label_tokens: those that lifts are tried
    on, where shares of labels are wanted. lifts: on all of them, in nats.
    """

    features: PromptFeatures | None
    phases: Phases
    training: Positions
    phase_of: Ids
    prompts: int
    limits: CompileLimits
    seed: int = 0
    label_tokens: frozenset[int] = frozenset()
    lifts: tuple[float, ...] = LIFTS

    @property
    def name(self) -> str:
        """See ``Challengers``."""
        return specs_of(self.features, self.phases)

    async def challenge(self, standing: Candidate) -> list[Challenger] | str:
        """See ``Challengers``."""
        if self.features is not None and not self.features.table.shape[1]:
            return NO_FEATURE
        search = _Search(self, standing)
        slope_l2 = search.best(self.seed)
        if slope_l2 is None:
            return (
                "it makes the rewarded completions of left-out training prompts no likelier than"
                " the fixed bias does"
            )
        challenger = learned_challenger(
            standing,
            search.matrix,
            search.positions,
            search.tokens,
            self.limits,
            slope_l2=slope_l2,
        )
        lifts = self.lifts if self.label_tokens else ()
        return [
            challenger,
            *(with_lift(challenger, set(self.label_tokens), nats) for nats in lifts),
        ]


async def learned_phases(job: FitJob, rollouts: Rollouts) -> tuple[Phases, Ids]:
    """The phases of the plan that enough positions are in, and (m,) that of each training
    position; none where they confine the bias.
    """
    trials = job.trials
    nowhere = np.zeros(len(rollouts.token_ids), np.int64)
    if job.plan.parsed_phases is None or job.plan.confined_to is not None:
        return Phases(), nowhere
    token_bytes = trials.store.token_bytes(trials.tokenizer.fingerprint)
    phase_of = await phases_of(trials.session, job.plan.parsed_phases, rollouts, token_bytes)
    features_kept = []
    for j, feature in enumerate(job.plan.parsed_phases.features):
        positions = int(((phase_of >> j) & 1).sum())
        if LEAST_HELD <= positions <= len(phase_of) - LEAST_HELD:
            features_kept.append(feature)
            continue
        trials.report.notice(
            f"phase {feature.spec}: it holds at {positions:,} of {len(phase_of):,} positions,"
            f" and {LEAST_HELD} with and without it are needed: it is left out"
        )
    phases = Phases(tuple(features_kept))
    if not features_kept:
        return phases, nowhere
    return phases, await phases_of(trials.session, phases, rollouts, token_bytes)


def confined(job: FitJob, bias: RequestBias) -> RequestBias:
    """The bias at the first tokens alone, where the plan confines it to these."""
    phases = job.plan.confined_to
    if phases is None:
        return bias
    limits = job.limits
    sent = SentRange.within(limits.low, limits.high, integers=limits.integers)
    common = dict(sorted(bias.common.items()))
    features = (*bias.features, *phases.features)
    return RequestBias(common, features, sent, vectors=bias.vectors)


async def challengers_by_samples(
    job: FitJob,
    positions: Positions,
    features: Sequence[PromptFeatures],
    label_tokens: frozenset[int] = frozenset(),
) -> list[BySamples]:
    """What proposes biases with features: each of the prompt, the phases of completions, and each
    of the former with the latter.

    positions: that are learned from. label_tokens: see ``BySamples``.
    """
    phases, phase_of = await learned_phases(job, positions.rollouts)
    lifts = LIFTS if job.plan.confined_to is None else (*LIFTS, MOST_LIFT)

    def by_samples(of_prompt: PromptFeatures | None, of_prefix: Phases) -> BySamples:
        return BySamples(
            of_prompt,
            of_prefix,
            positions,
            phase_of if of_prefix.features else np.zeros_like(phase_of),
            len(job.examples),
            job.limits,
            job.plan.sweep.seed,
            label_tokens,
            lifts,
        )

    challengers = [by_samples(of_prompt, Phases()) for of_prompt in features]
    if phases.features:
        challengers.append(by_samples(None, phases))
        challengers += [by_samples(of_prompt, phases) for of_prompt in features]
    return challengers


class _Search:
    """Compares strengths by the completions of left-out prompts.

    tokens: (s,) those that may depend on features: the ones of the standing bias, and those that
    the features pull most.
    """

    def __init__(self, source: BySamples, standing: Candidate) -> None:
        training = source.training
        limits = source.limits
        self.table = training.next_token
        self.size = source.prompts
        self.l2 = float(standing.settings.get("l2") or 1.0)
        self.rollouts = training.rollouts
        self.weights = weights_of(standing, self.rollouts)
        prompt_of = self.rollouts.prompts[self.rollouts.rollout_of]
        self.matrix = FeatureMatrix.of(
            source.features, source.phases, prompt_of, source.phase_of, self.size
        )
        ids = self.table.named().token_ids
        usable_ids = ids
        if limits.highest_id is not None:
            usable_ids = ids[ids <= limits.highest_id]
        positions = self.positions(usable_ids)
        screened = self.positions(
            np.sort(positions.token_ids[np.argsort(-positions.occurrence)[:SCREENED]])
        )
        common = np.array(
            [standing.logit_bias.get(token, 0.0) for token in screened.token_ids.tolist()]
        )
        table = self.matrix.table
        standing_alone = np.zeros((1 + table.shape[1], len(common)))
        standing_alone[0] = common
        _, slope = screened.problem(table, l2=0.0, slope_l2=0.0).loss(standing_alone)
        strength = (slope[1:] ** 2).sum(axis=0) / screened.occurrence
        self.order = screened.token_ids[np.argsort(-strength)]
        largest = np.argsort(-np.abs(standing.sparse.values))[:MOVED]
        self.tokens = np.union1d(standing.sparse.token_ids[largest], self.order[:MOVED])

    def positions(self, tokens: Ids) -> FeaturePositions:
        """The completions, weighted by their rewards."""
        matrix = self.matrix
        return FeaturePositions.of(
            self.table,
            self.weights,
            tokens,
            matrix.contexts,
            len(matrix.prompts),
        )

    def best(self, seed: int) -> float | None:
        """The strength under which left-out completions are likeliest; None where that is none of
        them.
        """
        table = self.matrix.table
        folds = np.random.default_rng(seed).permutation(self.size) % FOLDS
        fold_of = folds[self.matrix.prompts]
        positions = self.positions(np.sort(self.order[:COMPARED]))
        strengths = (NO_SLOPE, *SLOPE_L2)
        log_likelihoods = np.zeros(len(strengths))
        for fold in range(FOLDS):
            left_out = fold_of == fold
            train = positions.only(~left_out)
            start = None
            if not train.weights.any():
                continue
            for row, slope_l2 in enumerate(strengths):
                start = fit_features(train, table, l2=self.l2, slope_l2=slope_l2, start=start)
                log_likelihoods[row] += positions.log_likelihood(start.bias(table))[left_out].sum()
        best = int(np.argmax(log_likelihoods))
        if best:
            return strengths[best]
        return None
