"""Sums: the potential of a fit as a sum over positions, with parts that may be computed anywhere.

Index letters: ``m`` positions, ``s`` the support. All values in nats.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector, vector

SPREAD = 700.0
"""Biases further below the largest one are raised to this distance: exp would underflow to an
impossible token.
"""


class WeightedPotential(Protocol):
    """The interface of a fit to logged positions. ``NextToken`` is one; several of them, wherever
    they are, can be another.

    To build one, add up the ``NextToken.sums`` of tables with one support and one unigram, in a
    fixed order.
    """

    @property
    def token_ids(self) -> Ids:
        """(s,) sorted."""

    @property
    def n_positions(self) -> int:
        """m."""

    def potential(self, delta: npt.ArrayLike, position_weights: Vector) -> tuple[float, Vector]:
        """``sum_m w_m log_normaliser_m(delta)`` and its gradient (s,) in delta."""


class LoggedPositions(WeightedPotential, Protocol):
    """The interface of learning to logged positions, beyond a fit: ``NextToken`` has all of it."""

    @property
    def sampled(self) -> npt.NDArray[np.integer]:
        """(m,) index into the support of the sampled token."""

    def named(self) -> LoggedPositions:
        """Given that the token has an id."""

    def align(self, token_ids: npt.ArrayLike, values: npt.ArrayLike) -> Vector:
        """(s,) a bias given by ids."""

    def sampled_counts(self, position_weights: npt.ArrayLike | None = None) -> Vector:
        """(s,) the weighted number of positions at which each token was sampled; weights may be
        negative.
        """

    def mean(self, values: Vector, delta: npt.ArrayLike) -> Vector:
        """(m,) ``sum_y pi_delta(y | m) values(y)``."""

    def log_normaliser(self, delta: npt.ArrayLike) -> Vector:
        """(m,)."""

    def expected(
        self, delta: npt.ArrayLike, position_weights: npt.ArrayLike | None = None
    ) -> Vector:
        """(s,) ``sum_m w_m pi_delta(y | m)``."""


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Sums over some positions: ``value``, ``sum_m w_m log_normaliser_m``; ``listed`` (s,), ``sum_m
    w_m (pi_0(y | m) - spread_m unigram(y)) / z_m`` where z is the normaliser over exp of the
    largest bias; ``tail``, ``sum_m w_m spread_m / z_m``.

    Those of tables with one support and one unigram can be added. A sum in a fixed order is the
    same to the last bit.
    """

    value: float
    listed: Vector
    tail: float

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.value + other.value, self.listed + other.listed, self.tail + other.tail)

    @classmethod
    def of(cls, parts: Iterable[Sums], size: int) -> Sums:
        """The sum of all ``parts``, in their order; 0 for none. size: s."""
        value = 0.0
        listed = np.zeros(size)
        tail = 0.0
        for part in parts:
            value += part.value
            listed += part.listed
            tail += part.tail
        return cls(value, listed, tail)

    def gradient(self, delta: npt.ArrayLike, unigram: Vector) -> Vector:
        """(s,) ``sum_m w_m pi_delta(y | m)``."""
        tilt, _ = tilted(delta, len(unigram))
        return np.maximum(tilt * (self.listed + unigram * self.tail), 0.0)


def aligned(support: Ids, token_ids: npt.ArrayLike, values: npt.ArrayLike) -> Vector:
    """(s,) a bias given by ids, on the sorted ``support``; other ids are left out. InputError: not
    of one shape (k,).
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    numbers = np.asarray(values, dtype=np.float64)
    if ids.shape != numbers.shape or ids.ndim != 1:
        raise InputError(
            f"token_ids {ids.shape} and values {numbers.shape} must have one shape (k,)"
        )
    where = np.searchsorted(support, ids)
    is_supported = support[np.minimum(where, len(support) - 1)] == ids
    full = np.zeros(len(support))
    full[where[is_supported]] = numbers[is_supported]
    return full


def tilted(delta: npt.ArrayLike, size: int) -> tuple[Vector, float]:
    """(s,) ``exp(delta - shift)`` and the shift, the largest bias or 0. InputError: not (size,)
    finite numbers.
    """
    values = vector("delta", delta, size)
    shift = max(float(values.max(initial=0.0)), 0.0)
    return np.exp(np.maximum(values - shift, -SPREAD)), shift
