"""Fidelity of a fit's lists and compiles, against whole next-token distributions at reference positions."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from blackbox_lb.bias.records import ExactEffects
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.next_token.full_vocabulary import Compared, ListModel, compare
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.jobs.compiling.compile import STEPS
from blackbox_lb.rollouts.reference import Reference

CHOSEN, LEARNED = "sent", "learned"


@dataclass(frozen=True, slots=True)
class Fidelity:
    """``rows``: the learned bias first, then its compiles, then the sent bias; none where the positions do not ``agree``.

    ``listed`` in a row: the same by the fit's own lists and tail at the very same positions.
    """

    positions: int
    vocabulary: int
    agree: bool
    disagreement: float
    distance: float
    unanswered: int
    rows: tuple[Compared, ...]

    def as_json(self) -> dict[str, Any]:
        """For a program; ``log_z`` holds mean, standard deviation and largest absolute error."""
        return asdict(self)

    @property
    def record(self) -> ExactEffects | None:
        """The record for the bias file, on the sent bias."""
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


def fidelity(reference: Reference, next_token: NextToken, chosen: Candidate, limits: CompileLimits) -> Fidelity:
    """Compare the learned bias of ``chosen``, its compiles to several sizes within the other ``limits``, and the sent bias.

    next_token: of the rollouts that hold the ``reference`` positions.
    """
    r, v = reference.exact.shape
    rows: tuple[Compared, ...] = ()
    if reference.agrees:
        table = next_token.with_tokens(chosen.token_ids)
        labels, biases = _biases(table, chosen, limits, v)
        unigram = _full(table.token_ids, table.unigram, v)
        rows = compare(reference.exact, ListModel.of(table, reference.positions), unigram, biases, labels)
    return Fidelity(
        positions=r,
        vocabulary=v,
        agree=reference.agrees,
        disagreement=reference.disagreement,
        distance=reference.distance,
        unanswered=reference.unanswered,
        rows=rows,
    )


def _biases(table: NextToken, chosen: Candidate, limits: CompileLimits, size: int) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Labels and biases (b, v), in nats."""
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
