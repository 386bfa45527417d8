"""``phases``: learning a vector for each phase, and declining them where one vector for all
positions earns as much.

The objective is a sum over positions, so that each phase is a problem of its own, with the weights
of the whole completions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.request_bias import DIGITS, WIDEST, RequestBias, SentRange
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits, candidates
from blackbox_lb.estimate.choice.table import ROWS
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.jobs.fitting.choosing.select import Search
from blackbox_lb.jobs.fitting.explain import sent_errors
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.jobs.fitting.varying.depends_on_samples import PairedGain, paired_gain
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.phased import phases_of
from blackbox_lb.rollouts.progress import short
from blackbox_lb.rollouts.training import Training
from blackbox_lb.tasks import Task

LEAST = 100
"""Positions that a phase is learned from; one with fewer gets the common vector."""


@dataclass(frozen=True, slots=True, eq=False)
class PhasedCandidate:
    """A bias with phases.

    bias: as it is sent. rest: the candidate of the rest, on the tokens of all. errors: (s,)
    standard errors of its values in nats, NaN where not known. earned: beside the fixed bias on
    validation prompts.
    """

    bias: RequestBias
    rest: Candidate
    errors: Vector
    earned: PairedGain

    @property
    def sentence(self) -> str:
        """What was chosen, and by what."""
        earned = self.earned
        return (
            f"phases {self.bias.phases.spec} ({len(self.bias)} entries); on"
            f" {len(earned.gains)} validation prompts, {earned.measure} {short(earned.found)}"
            f" (fixed bias {short(earned.fixed)})"
        )


async def phased_candidate(
    phases: Phases,
    trials: Trials,
    task: Task,
    training: Training,
    fixed: Candidate,
    limits: CompileLimits,
    plan: FitPlan,
) -> PhasedCandidate | str:
    """The best bias with these phases, or the sentence why the ``fixed`` one is kept.

    Each phase is learned by the estimator of the fixed bias, with all settings of the sweep. The
    combinations at one tau race on fresh completions of the validation prompts. The best by the
    goal must be better than the fixed bias by two standard errors.
    """
    numbers = await phases_of(
        trials.session,
        phases,
        training.rollouts,
        trials.store.token_bytes(trials.tokenizer.fingerprint),
    )
    order = [*(2**j for j in range(len(phases.names))), 0]
    names = [*phases.names, "rest"]
    parts = [_Part(training, numbers == phase) for phase in order]
    sweep = plan.sweep
    if fixed.estimator in ROWS:
        sweep = replace(sweep, estimators=(fixed.estimator,))
    fields = list[list[Candidate]]()
    for name, part in zip(names, parts, strict=True):
        found = part.learned(sweep, limits)
        if isinstance(found, str):
            trials.report.notice(f"phase {name}: {found}; it gets the common vector")
        fields.append([fixed] if isinstance(found, str) else found)
    if all(field == [fixed] for field in fields):
        return "no phase has enough to be learned from"
    combinations = list(_together(fields))
    results = list[tuple[PairedGain, tuple[Candidate, ...], RequestBias]]()
    for rung in Search.of(plan).race(len(combinations), len(task.validation)):
        results = []
        for chosen in combinations[: rung.candidates]:
            bias = _joined(phases, chosen, [part.positions.sum() for part in parts], limits)
            title = f"phases {phases.spec}, {chosen[-1].label}"
            earned = await paired_gain(
                trials, task, training, plan, fixed, title, bias, rung.samples
            )
            results.append((earned, chosen, bias))
        order = plan.goal.ranking(
            results[0][0].fixed_outcome, [earned.outcome for earned, _, _ in results]
        )
        results = [results[place] for place in order]
        combinations = [chosen for _, chosen, _ in results]
    earned, chosen, bias = results[0]
    if not earned.proven:
        return earned.declined
    ids = np.array(bias.token_ids, np.int64)
    errors = parts[-1].errors(chosen[-1], ids)
    values = np.array(list(bias.common.values()))
    rest = replace(chosen[-1], sparse=replace(chosen[-1].sparse, token_ids=ids, values=values))
    rest = replace(rest, settings={**rest.settings, "phases": phases.spec})
    return PhasedCandidate(bias, rest, errors, earned)


def _joined(
    phases: Phases, chosen: Sequence[Candidate], positions: Sequence[int], limits: CompileLimits
) -> RequestBias:
    vectors = [candidate.logit_bias for candidate in chosen]
    ids = sorted({token for vector in vectors for token in vector})
    common = {token: vectors[-1].get(token, 0.0) for token in ids}
    features = [
        feature.replacing(positions=int(count)).one_vector(
            [round(vector.get(token, 0.0) - common[token], DIGITS) for token in ids]
        )
        for feature, vector, count in zip(phases.features, vectors, positions, strict=False)
    ]
    sent = SentRange(
        low=max(limits.low, -WIDEST), high=min(limits.high, WIDEST), integers=limits.integers
    )
    return RequestBias(common, features, sent)


def _together(fields: Sequence[Sequence[Candidate]]) -> Iterator[tuple[Candidate, ...]]:
    """Candidates of all phases with one tau: those of the largest l2, then the second ones, the
    last where a phase has no further one.
    """
    for tau in dict.fromkeys(each.settings.get("tau") for field in fields for each in field):
        rows = [
            sorted(
                [each for each in field if each.settings.get("tau") == tau] or field,
                key=lambda candidate: -float(candidate.settings.get("l2") or 0.0),
            )
            for field in fields
        ]
        for row in zip_longest(*rows):
            yield tuple(each or own[-1] for each, own in zip(row, rows, strict=True))


class _Part:
    """The positions of one phase. positions: (m,) whether each is one."""

    def __init__(self, training: Training, positions: Bools) -> None:
        self.training = training
        self.positions = positions
        self.rollouts = training.rollouts.at(positions)

    def learned(self, sweep: Sweep, limits: CompileLimits) -> list[Candidate] | str:
        """A candidate for each setting, or why there is none."""
        if self.positions.sum() < LEAST:
            return f"{self.positions.sum()} positions are too few, {LEAST} are needed"
        try:
            return list(
                candidates(
                    self.rollouts, self.training.next_token.take(self.positions), sweep, limits
                )
            )
        except InputError as error:
            return str(error)

    def errors(self, candidate: Candidate, ids: Ids) -> Vector:
        """(s,) the standard errors of the values of ``ids``, NaN where not known or not sent."""
        found = np.full(len(ids), np.nan)
        if self.positions.sum() >= LEAST:
            table = self.training.next_token.take(self.positions)
            found[np.searchsorted(ids, candidate.sparse.token_ids)] = sent_errors(
                self.rollouts, table, candidate
            )
        return found
