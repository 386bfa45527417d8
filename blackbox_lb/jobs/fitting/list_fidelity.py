"""Fidelity: what the lists and the compiles of a fit are worth against whole next-token distributions at reference positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from blackbox_lb.bias.document import ExactEffects
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.next_token.full_vocabulary import Compared, ListModel, compare
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.tail_calibration import Calibration, calibrate
from blackbox_lb.estimate.projection.projection import projection
from blackbox_lb.jobs.compiling.compile import STEPS
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.progress import short
from blackbox_lb.rollouts.reference import Reference, ask_reference
from blackbox_lb.rollouts.training import Training
from blackbox_lb.types import Example

__all__ = ["Calibrated", "Fidelity", "calibrated", "fidelity"]

PILOT_L2 = 5.0
"""Strength of the fit whose normaliser the tail is judged by, where the plan leaves l2 to cross-validation."""
CHOSEN, LEARNED = "sent", "learned"


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """The training set with the tail that the reference positions ask for, and how that was found.

    calibration: None where the reference positions do not agree with the log, so that nothing can be said by them.
    """

    training: Training
    reference: Reference
    calibration: Calibration | None

    @property
    def sentence(self) -> str:
        """What became of the tail."""
        found = self.calibration
        if found is None:
            return "exactness NOT CHECKED, and tails stay as samples have them: the reference positions do not agree with the log"
        before = f"{short(found.before)} nats (mean {found.bias_before:+.3g})"
        if found.worth == 0:
            return (
                f"tails stay as samples have them: error of the log normaliser {before}, which no reference tail lowers"
            )
        return (
            f"tails by the reference positions, each worth {found.worth:g} samples: error of the log normaliser "
            f"{short(found.after)} nats (mean {found.bias_after:+.3g}) at held-out positions, {before} by samples alone"
        )


@dataclass(frozen=True, slots=True)
class Fidelity:
    """``rows``: the learned bias first, its compiles, the bias that is sent last; none where the positions do not ``agree``.

    ``listed`` in a row is what the fit's own lists and tail say of the very same positions; with a calibrated tail, one that saw
    no position of the same half of the prompts. worth, tail_before, tail_after: see ``Calibration``, None without one.
    """

    positions: int
    vocabulary: int
    agree: bool
    disagreement: float
    distance: float
    unanswered: int
    rows: tuple[Compared, ...]
    worth: float | None = None
    tail_before: float | None = None
    tail_after: float | None = None

    def as_json(self) -> dict[str, Any]:
        """For a program; ``log_z`` holds mean, standard deviation and largest absolute error."""
        return asdict(self)

    @property
    def record(self) -> ExactEffects | None:
        """What the bias file keeps: of the bias that is sent."""
        if not self.rows:
            return None
        sent = self.rows[-1]
        return ExactEffects(
            positions=self.positions,
            kl_nats_per_token=sent.kl.exact,
            kl_lost_nats_per_token=sent.lost.exact,
            kept_share=sent.kept.exact,
            log_normaliser_error=float(np.hypot(*sent.log_z[:2])),
        )


async def calibrated(trials: Trials, examples: Sequence[Example], training: Training, plan: FitPlan) -> Calibrated:
    """Ask at the reference positions that the plan wants, and give the training set their tail if that is the better one.

    Raises:
        ProviderError: the API failed, or an answer is no distribution; what was received is kept.
        InputError: nothing can be learned from the training set.
    """
    reference = await ask_reference(trials, examples, training, plan.full_vocab, plan.sweep.seed)
    trials.report.remark(reference.sentence)
    table, rollouts, base = training.next_token, training.rollouts, training.base
    found = None
    if reference.agrees:
        l2 = next((value for value in plan.sweep.l2 if not isinstance(value, str)), PILOT_L2)
        pilot = projection(rollouts, tau=min(plan.sweep.tau), l2=l2, weights=plan.sweep.weights, next_token=table)
        drawn = None if base is None else base[rollouts.rollout_of]
        found = calibrate(table, reference.positions, reference.exact, pilot.delta, reference.prompts, base=drawn)
        training = replace(training, next_token=found.of(table))
    result = Calibrated(training, reference, found)
    trials.report.remark(result.sentence)
    return result


def fidelity(found: Calibrated, chosen: Candidate, limits: CompileLimits) -> Fidelity:
    """The learned bias of ``chosen``, its compiles to several sizes within the other ``limits``, and what is sent."""
    reference, calibration = found.reference, found.calibration
    r, v = reference.exact.shape
    rows: tuple[Compared, ...] = ()
    if calibration is not None:
        table = _wide(found.training.next_token, chosen, v)
        labels, biases = _biases(table, chosen, limits, v)
        model = ListModel.of(table, reference.positions)
        rows = compare(reference.exact, model, calibration.held_out, calibration.which, biases, labels)
    return Fidelity(
        positions=r,
        vocabulary=v,
        agree=reference.agrees,
        disagreement=reference.disagreement,
        distance=reference.distance,
        unanswered=reference.unanswered,
        rows=rows,
        worth=None if calibration is None else calibration.worth,
        tail_before=None if calibration is None else calibration.before,
        tail_after=None if calibration is None else calibration.after,
    )


def _wide(table: NextToken, chosen: Candidate, size: int) -> NextToken:
    """The table on the support that ``chosen.learned`` is on: tied tokens are biased whether seen or not."""
    return table if len(chosen.learned) == len(table.token_ids) else table.with_tokens(np.arange(size))


def _biases(
    table: NextToken, chosen: Candidate, limits: CompileLimits, size: int
) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Labels and (b, v) nats."""
    learned = np.zeros(size)
    learned[table.token_ids] = chosen.learned
    rows: dict[str, Vector] = {LEARNED: learned}
    for entries in (*(each for each in STEPS if each < np.count_nonzero(chosen.learned)), None):
        sparse = replace(limits, entries=entries).compiled(table, chosen.learned)
        label = "compiled, all entries" if entries is None else f"compiled to {entries:,}"
        rows[label] = _full(sparse.token_ids, sparse.values, size)
        if np.array_equal(rows[label], learned):
            del rows[label]
    rows[CHOSEN] = _full(chosen.sparse.token_ids, chosen.sparse.values, size)
    return list(rows), np.stack(list(rows.values()))


def _full(token_ids: np.ndarray[Any, Any], values: Vector, size: int) -> Vector:
    out = np.zeros(size)
    out[token_ids] = values
    return out
