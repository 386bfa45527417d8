"""Calibration: the tail of every list, shared out as whole next-token distributions say instead of by samples alone.

A token's share of a tail that it may be part of is a rate: what it has of the unlisted mass. Samples estimate it by how often they
left the lists for that token; a reference position tells its part of one tail without any noise. Both are counts over exposures,
so they add: ``(n + w c) / (E + w e)``, where n samples left the lists for the token out of E of tail mass that missed it, and
the reference positions put c on it out of e. What w is, held-out reference positions say.

Index letters: ``m`` positions, ``r`` reference positions, ``v`` the vocabulary, ``s`` the support.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.next_token.full_vocabulary import ListModel, moments, probabilities, rows_of
from blackbox_lb.estimate.next_token.next_token import NextToken

__all__ = ["Calibration", "calibrate"]

WORTHS = (1.0, 10.0, 100.0, 1000.0)
"""How many sampled tokens a reference position may count as: one, up to so many that samples hardly count."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """worth: what a reference position counts as, in samples; 0: the tail stays as samples have it, which no other beat.

    before, after: root mean square of the error of the log normaliser in nats, before and with ``worth``, at reference positions
    that had no part in the tail they are judged by; bias_before, bias_after: its mean. unigram: (v,) rates, of all reference
    positions. held_out: (2, v), of each half of them; which: (r,) the row of it that saw no position of the same prompt.
    """

    worth: float
    before: float
    after: float
    bias_before: float
    bias_after: float
    unigram: Vector
    held_out: npt.NDArray[np.float64]
    which: Ids

    def of(self, next_token: NextToken) -> NextToken:
        """``next_token`` with this tail, its support the whole vocabulary; as it is where the samples' tail was not beaten."""
        if self.worth == 0:
            return next_token
        return next_token.with_tokens(np.arange(len(self.unigram))).with_unigram(self.unigram)


@dataclass(frozen=True, slots=True, eq=False)
class _Rate:
    """What a token had of the tails that missed it: ``mass`` (v,) out of ``exposure`` (v,)."""

    mass: Vector
    exposure: Vector

    def plus(self, other: _Rate, worth: float) -> Vector:
        """(v,) the rate by both, ``other`` counted ``worth`` times; 0 for a token that no tail missed."""
        mass, exposure = self.mass + worth * other.mass, self.exposure + worth * other.exposure
        return np.divide(mass, np.maximum(exposure, mass), out=np.zeros_like(mass), where=mass > 0)


def calibrate(
    next_token: NextToken,
    positions: Ids,
    exact: npt.NDArray[np.floating],
    delta: Vector,
    prompts: Ids,
    base: npt.NDArray[np.bool_] | None = None,
) -> Calibration:
    """Share the tails of ``next_token`` by the ``exact`` logprobs (r, v) of its ``positions`` (r,), which answer ``prompts`` (r,).

    delta: (s,) nats, a bias of about the kind that is learned: its log normaliser is what the tail must get right. base: (m,) the
    positions that the base model drew, None for all. Two halves of the prompts (of the positions, if there is one prompt) judge
    each other. InputError: fewer than two positions, a token id beyond v, or a position whose list cannot be compared.
    """
    size = exact.shape[1]
    if len(positions) < 2 or int(next_token.token_ids[-1]) >= size:
        raise InputError(
            f"{len(positions)} reference positions over {size} tokens, the highest id learned from is {next_token.token_ids[-1]}; "
            "calibration needs two positions, and every id within their vocabulary"
        )
    model = ListModel.of(next_token, positions)
    sampled, total = _samples(next_token if base is None else next_token.take(base), size)
    which = _halves(prompts)
    halves = [_reference(model, exact, which != half) for half in (0, 1)]
    bias = _scattered(next_token, delta, size)[None]
    true = moments(probabilities(exact), bias).log_z[:, 0]
    own = np.repeat(_scattered(next_token, next_token.unigram, size)[None], 2, axis=0)
    tried = {0.0: own} | {worth: np.stack([sampled.plus(half, worth) for half in halves]) for worth in WORTHS}
    errors = {worth: moments(rows_of(model, rates, which), bias).log_z[:, 0] - true for worth, rates in tried.items()}
    worth = min(errors, key=lambda each: _rms(errors[each]))
    everything = _Rate(halves[0].mass + halves[1].mass, halves[0].exposure + halves[1].exposure)
    return Calibration(
        worth=worth,
        before=_rms(errors[0.0]),
        after=_rms(errors[worth]),
        bias_before=float(errors[0.0].mean()),
        bias_after=float(errors[worth].mean()),
        unigram=own[0] if worth == 0 else total * sampled.plus(everything, worth),
        held_out=tried[worth],
        which=which,
    )


def _samples(table: NextToken, size: int) -> tuple[_Rate, float]:
    """How often samples left the lists for each token, out of the tails that missed it; and the mass of all tails."""
    left = np.where(table.tail_mass < 1, table.tail_mass, 0.0)
    outside = table.sampled_outside & (left > 0)
    held = np.zeros(len(table.token_ids))
    for part in table.lists.parts:
        mass = left[part.where]
        if part.rows is not None:
            mass = np.bincount(part.rows, mass, part.table.shape[0])
        columns = part.table.indices if table.columns is None else table.columns[part.table.indices]
        held += np.bincount(columns, np.repeat(mass, np.diff(part.table.indptr)), len(held))
    counts = table.sampled_counts(outside) if outside.any() else np.zeros_like(held)
    exposure = np.full(size, left.sum())
    exposure[table.token_ids] -= held
    return _Rate(_scattered(table, counts, size), np.maximum(exposure, 0.0)), float(left.sum())


def _reference(model: ListModel, exact: npt.NDArray[np.floating], chosen: npt.NDArray[np.bool_]) -> _Rate:
    """What the chosen positions (r,) put on each token that their list misses, out of all that they leave over there."""
    mass, held, total = np.zeros(exact.shape[1]), np.zeros(exact.shape[1]), 0.0
    for index in np.flatnonzero(chosen).tolist():
        (row,) = probabilities(exact[index : index + 1])
        row[model.ids[index]] = 0.0
        left = float(row.sum())
        mass += row
        held[model.ids[index]] += left
        total += left
    return _Rate(mass, np.maximum(total - held, 0.0))


def _halves(prompts: Ids) -> Ids:
    """(r,) 0 or 1, whole prompts together where there are several."""
    names, place = np.unique(prompts, return_inverse=True)
    return (place if len(names) > 1 else np.arange(len(prompts))).astype(np.int64) % 2


def _scattered(table: NextToken, values: Vector, size: int) -> Vector:
    """(v,) values on the support (s,), 0 elsewhere."""
    out = np.zeros(size)
    out[table.token_ids] = values
    return out


def _rms(values: Vector) -> float:
    return float(np.sqrt(np.mean(values**2)))
