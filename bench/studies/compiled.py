"""One learned bias under every limit: compiled, refitted under the limit, and cut to the largest
|delta| after mean-centring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.estimate.choice.candidates import CompileLimits, candidates
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import Fit, projection
from blackbox_lb.estimate.sparse.sparsify import Sparse, against, sparsify

__all__ = ["BASE", "COMPILED", "FULL", "KINDS", "NAIVE", "REFITTED", "Learning", "Row", "rows"]

BASE, FULL = "none", "full vector"
COMPILED, REFITTED, NAIVE = "compiled", "refitted", "mean-centred cut"
KINDS = (COMPILED, REFITTED, NAIVE)
LOW, HIGH = -100.0, 100.0
"""Nats: the range of OpenAI's ``logit_bias``."""


@dataclass(frozen=True, slots=True)
class Learning:
    """How the full vector is learned, and the limits under which it is sent."""

    tau: float
    l2: float
    entries: tuple[int, ...] = (10, 30, 100, 300, 1024)


@dataclass(frozen=True, slots=True)
class Row:
    """One bias to judge: token id -> nats. ``entries``: the limit, None without one.

    kl_lost: mean ``KL(pi_learned || pi_row)`` on the logged positions, nats a token. kept: ``1 -
    kl_lost / kl_lost(base)``.
    """

    kind: str
    entries: int | None
    integers: bool
    bias: dict[int, float]
    kept: float
    kl_lost: float

    @property
    def name(self) -> str:
        """What a table calls it."""
        limit = "" if self.entries is None else f" {self.entries}"
        return f"{self.kind}{limit}{', integers' if self.integers else ''}"


def rows(rollouts: Rollouts, table: NextToken, vocab_size: int, learning: Learning) -> list[Row]:
    """Base, full vector, and every kind under every limit, integers and not. ``table`` is of
    ``rollouts``.
    """
    fit = projection(rollouts, tau=learning.tau, l2=learning.l2, next_token=table)
    learned = table.align(fit.token_ids, fit.delta)
    found = [
        _row(table, learned, BASE, None, False, {}),
        _row(table, learned, FULL, None, False, _sent(fit)),
    ]
    for integers in (False, True):
        for entries in learning.entries:
            for kind, bias in _limited(
                rollouts, table, vocab_size, learning, fit, entries, integers
            ):
                found.append(_row(table, learned, kind, entries, integers, bias))
    return found


def _limited(
    rollouts: Rollouts,
    table: NextToken,
    vocab_size: int,
    learning: Learning,
    fit: Fit,
    entries: int,
    integers: bool,
) -> Iterator[tuple[str, dict[int, float]]]:
    learned = table.align(fit.token_ids, fit.delta)
    sparse = sparsify(table, learned, entries=entries, low=LOW, high=HIGH, integers=integers)
    yield COMPILED, _pairs(sparse.token_ids, sparse.values)
    sweep = Sweep(tau=(learning.tau,), l2=(learning.l2,))
    (candidate,) = candidates(rollouts, table, sweep, CompileLimits(entries, LOW, HIGH, integers))
    yield REFITTED, candidate.logit_bias
    yield NAIVE, largest(fit, vocab_size, entries, integers)


def largest(fit: Fit, vocab_size: int, entries: int, integers: bool) -> dict[int, float]:
    """The ``entries`` largest |delta| after subtracting the mean over the vocabulary, rounded where
    ``integers``, not refitted.
    """
    full = np.zeros(vocab_size)
    full[fit.token_ids] = fit.delta
    full -= full.mean()
    chosen = np.sort(np.argsort(-np.abs(full), kind="stable")[:entries])
    values = np.clip(full[chosen], LOW, HIGH)
    return _pairs(chosen, np.rint(values) if integers else values)


def _row(
    table: NextToken,
    learned: npt.NDArray[np.float64],
    kind: str,
    entries: int | None,
    integers: bool,
    bias: dict[int, float],
) -> Row:
    ids, values = (
        np.array(list(bias), dtype=np.int64),
        np.array(list(bias.values()), dtype=np.float64),
    )
    cost = against(table, learned, Sparse(ids, values, 0, 0.0, 0.0, 0, 0))
    return Row(kind, entries, integers, bias, cost.kept, cost.kl_lost)


def _sent(fit: Fit) -> dict[int, float]:
    return _pairs(fit.token_ids, fit.delta)


def _pairs(
    token_ids: Sequence[int] | npt.NDArray[np.int64], values: npt.NDArray[np.float64]
) -> dict[int, float]:
    """Token id -> nats; entries of 0 need not be sent."""
    return {
        int(token): float(value) for token, value in zip(token_ids, values, strict=True) if value
    }
