"""The effect of a change of one token's bias on the divergence, predicted from its usage, the
usage's variance and the curvature.

Along one coordinate ``sum_m w_m log(1 + p_m (e^x - 1))`` is approximated as if the token had its
probability at n like positions and none elsewhere: with ``p = sum w p_m^2 / sum w p_m`` and ``n =
sum w p_m / p`` that is exact to the second order in x, and holds for values of many nats too,
unlike a quadratic. The curvature predicts the response of the other listed values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.next_token.derivatives import squares
from blackbox_lb.estimate.next_token.next_token import NextToken

NEWTON_STEPS = 30


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """The policy at one bias. usage: (s,) ``sum_m w_m pi(y | m)``. share: (s,) the probability p of
    the module docstring.
    """

    usage: Vector
    share: Vector

    @classmethod
    def at(cls, next_token: NextToken, weights: Vector, values: Vector) -> Local:
        """The policy at ``values`` (s,) nats; weights: (m,)."""
        _, usage = next_token.potential(values, weights)
        squares = _squares(next_token, weights, values)
        share = np.divide(squares, usage, out=np.zeros_like(usage), where=usage > 0)
        return cls(usage, np.clip(share, 1e-12, 1 - 1e-9))

    def change(
        self, tokens: Ids, steps: Vector, linear: Vector, values: Vector, l2: float = 0.0
    ) -> Vector:
        """The effect of adding ``steps`` to the biases of ``tokens``, each alone, on ``W KL`` or
        the loss of a fit with ``l2``.
        """
        n = self.usage[tokens] / self.share[tokens]
        p = self.share[tokens]
        old = values[tokens]
        return (
            n * np.log1p(p * np.expm1(steps))
            - linear[tokens] * steps
            + l2 / 2 * steps * (steps + 2 * old)
        )

    def best_steps(
        self, tokens: Ids, linear: Vector, values: Vector, l2: float, low: float, high: float
    ) -> tuple[Vector, Vector]:
        """The step that lowers the loss most at each of ``tokens`` alone, and its effect, by
        Newton's method.
        """
        n = self.usage[tokens] / self.share[tokens]
        p = self.share[tokens]
        old = values[tokens]
        x = np.zeros(len(tokens))
        for _ in range(NEWTON_STEPS):
            q = p * np.exp(x) / (1 + p * np.expm1(x))
            slope = n * q - linear[tokens] + l2 * (old + x)
            bend = n * q * (1 - q) + l2
            x = np.clip(x - np.clip(slope / np.maximum(bend, 1e-12), -1, 1), low - old, high - old)
        return x, np.maximum(-self.change(tokens, x, linear, values, l2), 0.0)


def curvature(next_token: NextToken, weights: Vector, values: Vector, tokens: Ids) -> Vector:
    """(c, c) second derivatives of ``sum_m w_m log_normaliser_m`` in the biases of ``tokens``
    (c,).
    """
    inverse = np.exp(-next_token.log_normaliser(values))
    masses = next_token.by_token(tokens)
    tilt = np.exp(values[tokens])
    listed = masses.listed
    unigram = masses.unigram
    spread = masses.spread
    entries = listed.values if masses.scale is None else listed.values * masses.scale[listed.rows]
    table = sparse.csc_array(
        (entries, listed.rows, listed.starts), shape=(next_token.n_positions, len(tokens))
    )
    once = weights * inverse
    twice = weights * inverse**2
    cross = np.outer(table.T @ (twice * spread), unigram)
    both = (
        table.T
        @ sparse.csc_array((entries * twice[listed.rows], listed.rows, listed.starts), table.shape)
    ).toarray()
    products = both + cross + cross.T + float(twice @ spread**2) * np.outer(unigram, unigram)
    usage = tilt * (table.T @ once + unigram * float(once @ spread))
    return np.asarray(np.diag(usage) - products * np.outer(tilt, tilt))


def _squares(next_token: NextToken, weights: Vector, values: Vector) -> Vector:
    """(s,) ``sum_m w_m pi(y | m)^2``, part by part."""
    q = weights * np.exp(-2 * next_token.log_normaliser(values))
    listed, cross = squares(next_token, q)
    unigram = next_token.unigram
    total = listed + 2 * unigram * cross + unigram**2 * float(q @ next_token.spread**2)
    return np.exp(2 * values) * np.maximum(total, 0.0)
