"""Exactness: the error of the lists' predictions for a bias, where the whole next-token distribution is known.

Index letters: ``r`` reference positions, ``v`` the vocabulary, ``b`` biases. All values in nats, KLs a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.next_token.sparse_table import Table

Matrix = npt.NDArray[np.float64]

BLOCK = 32
"""Distributions held in memory at a time in float64."""


@dataclass(frozen=True, slots=True, eq=False)
class ListModel:
    """The lists at r positions: ``ids[i]`` are listed with probabilities ``masses[i]``, and ``left`` (r,) is the rest."""

    ids: tuple[Ids, ...]
    masses: tuple[Vector, ...]
    left: Vector

    @classmethod
    def of(cls, next_token: NextToken, positions: Ids) -> ListModel:
        """The lists at the ``positions`` (r,) of ``next_token``. InputError: one has no list, or lists tokens without an id."""
        table = next_token.take(positions)
        if table.unnamed.any() or (table.tail_mass >= 1).any():
            raise InputError(
                f"{int((table.unnamed > 0).sum())} of {len(positions)} reference positions list tokens without an id, and "
                f"{int((table.tail_mass >= 1).sum())} have no list; exactness needs lists of ids: use --top-logprobs from 1"
            )
        found: dict[int, tuple[Ids, Vector]] = {}
        for part in table.lists.parts:
            where = np.arange(table.n_positions)[part.where]
            rows = np.arange(len(where)) if part.rows is None else part.rows
            for position, row in zip(where.tolist(), rows.tolist(), strict=True):
                found[position] = _listed(table, part.table, position, row)
        ordered = [found[position] for position in range(table.n_positions)]
        return cls(tuple(ids for ids, _ in ordered), tuple(masses for _, masses in ordered), table.tail_mass)

    def row(self, index: int, unigram: Vector) -> Vector:
        """(v,) the distribution at one position, with the unlisted mass shared in proportion to ``unigram`` (v,).

        It sums to less than 1 where no unlisted token has a share.
        """
        out = unigram.copy()
        out[self.ids[index]] = 0.0
        total = float(out.sum())
        out *= self.left[index] / total if total > 0 else 0.0
        out[self.ids[index]] = self.masses[index]
        return out

    def distance(self, exact: npt.NDArray[np.floating]) -> Vector:
        """(r,) total variation between the lists and the ``exact`` logprobs (r, v), over the listed tokens: 0 to 1."""
        pairs = zip(self.ids, self.masses, exact, strict=True)
        return np.array([np.abs(np.exp(row[ids].astype(np.float64)) - mass).sum() / 2 for ids, mass, row in pairs])


def _listed(table: NextToken, lists: Table, position: int, row: int) -> tuple[Ids, Vector]:
    """Ids and probabilities of the tokens listed at one position."""
    part = slice(int(lists.indptr[row]), int(lists.indptr[row + 1]))
    columns = lists.indices[part] if table.columns is None else table.columns[lists.indices[part]]
    scale = 1.0 if table.scale is None else float(table.scale[position])
    listed = np.asarray(lists.data[part], dtype=np.float64) * scale
    masses: Vector = np.maximum(listed + table.spread[position] * table.unigram[columns], 0.0)
    return table.token_ids[columns], masses


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Moments of r distributions under b biases, each (r, b): ``log_z``, the log normalisers; ``kl``, ``KL(pi_b || pi_0)``;
    ``lost``, ``KL(pi_first || pi_b)`` from the policy of the first bias."""

    log_z: Matrix
    kl: Matrix
    lost: Matrix


def moments(rows: Iterator[Vector], biases: Matrix) -> Moments:
    """``log sum_y pi_0(y) exp(b(y))`` and the two divergences for every distribution of ``rows`` (v,) and bias (b, v).

    Mass missing from a row has bias 0.
    """
    shift = np.maximum(biases.max(axis=1), 0.0)
    tilt = np.exp(biases - shift[:, None])
    own, first = tilt * biases, tilt[0] * biases
    out: list[tuple[Matrix, Matrix, Matrix]] = []
    for block in _blocks(rows):
        scaled = block @ tilt.T + np.maximum(1 - block.sum(axis=1), 0.0)[:, None] * np.exp(-shift)
        log_z = shift + np.log(scaled)
        of_first = block @ first.T / scaled[:, :1]
        lost = of_first[:, :1] - of_first - log_z[:, :1] + log_z
        out.append((log_z, block @ own.T / scaled - log_z, lost))
    log_z, kl, lost = (np.concatenate(each) for each in zip(*out, strict=True))
    return Moments(log_z, np.maximum(kl, 0.0), np.maximum(lost, 0.0))


def _blocks(rows: Iterator[Vector]) -> Iterator[Matrix]:
    block: list[Vector] = []
    for row in rows:
        block.append(row)
        if len(block) == BLOCK:
            yield np.stack(block)
            block = []
    if block:
        yield np.stack(block)


def probabilities(logprobs: npt.NDArray[np.floating]) -> Iterator[Vector]:
    """Each row of ``logprobs`` (r, v) as probabilities that sum to 1 in float64."""
    for row in logprobs:
        values = np.exp(row.astype(np.float64))
        yield values / values.sum()


def rows_of(model: ListModel, unigram: Vector) -> Iterator[Vector]:
    """Every distribution of ``model``, its tail shared by ``unigram`` (v,)."""
    return (model.row(index, unigram) for index in range(len(model.left)))


@dataclass(frozen=True, slots=True)
class Agreed:
    """A mean over the positions: the exact one, and that of the lists."""

    exact: float
    listed: float


@dataclass(frozen=True, slots=True)
class Compared:
    """One bias. kl: ``KL(pi || pi_0)``; lost: ``KL(pi_learned || pi)``; kept: ``1 - lost`` as a share of the learned bias's kl.

    log_z: mean, standard deviation and largest absolute value of the error of the log normaliser, lists less exact.
    """

    label: str
    entries: int
    kl: Agreed
    lost: Agreed
    kept: Agreed
    log_z: tuple[float, float, float]


def compare(
    exact: npt.NDArray[np.floating], model: ListModel, unigram: Vector, biases: Matrix, labels: Sequence[str]
) -> tuple[Compared, ...]:
    """Compare each of the ``biases`` (b, v), the learned one first, by the ``exact`` logprobs (r, v) and by the lists."""
    true, said = moments(probabilities(exact), biases), moments(rows_of(model, unigram), biases)
    learned = Agreed(float(true.kl[:, 0].mean()), float(said.kl[:, 0].mean()))
    rows = []
    for b, label in enumerate(labels):
        lost = Agreed(float(true.lost[:, b].mean()), float(said.lost[:, b].mean()))
        error = said.log_z[:, b] - true.log_z[:, b]
        rows.append(
            Compared(
                label=label,
                entries=int(np.count_nonzero(biases[b])),
                kl=Agreed(float(true.kl[:, b].mean()), float(said.kl[:, b].mean())),
                lost=lost,
                kept=Agreed(_kept(lost.exact, learned.exact), _kept(lost.listed, learned.listed)),
                log_z=(float(error.mean()), float(error.std()), float(np.abs(error).max())),
            )
        )
    return tuple(rows)


def _kept(lost: float, learned: float) -> float:
    return 1.0 - lost / learned if learned > 0 else 1.0
