"""``phases``: learning a vector for each phase, and declining them where one vector for all
positions earns as much.

The objective is a sum over positions, so that each phase is a problem of its own, with the weights
of the whole completions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from blackbox_lb.bias.phases import PhasedBias, Phases, PhaseVector
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

    bias: as it is sent. rows: those of the file, all phases but the rest. rest: the candidate of
    the rest, on the tokens of all. errors: (s,) standard errors of its values in nats, NaN where
    not known. earned: beside the fixed bias on validation prompts.
    """

    bias: PhasedBias
    rows: tuple[PhaseVector, ...]
    rest: Candidate
    errors: Vector
    earned: PairedGain

    @property
    def sentence(self) -> str:
        """What was chosen, and by what."""
        earned = self.earned
        named = zip(self.bias.phases.names, self.bias.vectors, strict=True)
        return (
            f"phases {', '.join(f'{name} ({len(vector)} entries)' for name, vector in named)}; on"
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
    parts = [_Part(training, numbers == number) for number in range(len(phases.names))]
    sweep = plan.sweep
    if fixed.estimator in ROWS:
        sweep = replace(sweep, estimators=(fixed.estimator,))
    fields = list[list[Candidate]]()
    for name, part in zip(phases.names, parts, strict=True):
        found = part.learned(sweep, limits)
        if isinstance(found, str):
            trials.report.notice(f"phase {name}: {found}; it gets the common vector")
        fields.append([fixed] if isinstance(found, str) else found)
    if all(field == [fixed] for field in fields):
        return "no phase has enough to be learned from"
    combinations = list(_together(fields))
    results = list[tuple[PairedGain, tuple[Candidate, ...], PhasedBias]]()
    for rung in Search.of(plan).race(len(combinations), len(task.validation)):
        results = []
        for chosen in combinations[: rung.candidates]:
            bias = PhasedBias(phases, tuple(candidate.logit_bias for candidate in chosen))
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
    ids = np.unique(np.concatenate([each.sparse.token_ids for each in chosen]))
    errors = [part.errors(each, ids) for part, each in zip(parts, chosen, strict=True)]
    values = [
        np.array([vector.get(token, 0.0) for token in ids.tolist()]) for vector in bias.vectors
    ]
    rows = tuple(
        PhaseVector(
            phase=name,
            values=tuple(value.tolist()),
            errors=(
                ()
                if np.isnan(error).all()
                else tuple(None if np.isnan(each) else round(each, 3) for each in error.tolist())
            ),
            positions=int(part.positions.sum()),
        )
        for name, value, error, part in zip(phases.names[:-1], values, errors, parts, strict=False)
    )
    rest = replace(chosen[-1], sparse=replace(chosen[-1].sparse, token_ids=ids, values=values[-1]))
    rest = replace(rest, settings={**rest.settings, "phases": phases.spec})
    return PhasedCandidate(bias, rows, rest, errors[-1], earned)


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
