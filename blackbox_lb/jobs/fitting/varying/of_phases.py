"""Phases of completions: those that enough positions are in to learn a vector for each, and the
first tokens that confine a bias.
"""

import numpy as np

from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.request_bias import RequestBias, SentRange
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.rollouts.phased import phases_of

LEAST_HELD = 100
"""Positions with and without a feature of the answer so far that its vector is learned from."""


async def learned_phases(job: FitJob, rollouts: Rollouts) -> tuple[Phases, Ids]:
    """The phases of the plan that enough positions are in, and (m,) that of each training
    position; none where they confine the bias.
    """
    trials = job.trials
    nowhere = np.zeros(len(rollouts.token_ids), np.int64)
    if job.plan.phases is None or job.plan.confined_to is not None:
        return Phases(), nowhere
    token_bytes = trials.store.token_bytes(trials.tokenizer.fingerprint)
    phase_of = await phases_of(trials.session, job.plan.phases, rollouts, token_bytes)
    features_kept = []
    for j, feature in enumerate(job.plan.phases.features):
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
