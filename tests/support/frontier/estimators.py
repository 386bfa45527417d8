"""Two estimators with every setting of their own, behind one call: rollouts in, biases out.

Each traces a frontier of its own: the strength tau and one more setting (l2, alpha) are swept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blackbox_lb import Rollouts

# The estimators themselves are compared, without a fit around them.
from blackbox_lb.estimate.counting.statistics import TokenIPS
from blackbox_lb.estimate.next_token.next_token import NextToken
from tests.support.fits import projection
from tests.support.statistics import statistics_of

__all__ = ["ESTIMATORS", "Fitted", "shortened"]

L2 = (80.0, 20.0, 5.0, 1.0)
RELATIVE = (0.03, 0.1, 0.3)
"""Multiples of the mean weight around the paper's values."""
PAPER = (0.007, 0.052, 0.11, 0.465, 0.738)
"""The absolute alphas that the paper reports."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A bias of ``values`` (s,) nats on ``token_ids`` (s,), 0 elsewhere, and the settings that it
    came from.
    """

    tau: float
    setting: str
    token_ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]

    def dense(self, vocab_size: int) -> npt.NDArray[np.float64]:
        """(vocab_size,) nats."""
        full = np.zeros(vocab_size)
        full[self.token_ids] = self.values
        return full


Estimator: TypeAlias = Callable[[Rollouts, tuple[float, ...]], Iterator[Fitted]]


def shortened(rollouts: Rollouts, k: int | None) -> Rollouts:
    """The same rollouts, listing only the ``k`` likeliest tokens at each position (None: as they
    are).
    """
    return replace(
        rollouts, top_ids=rollouts.top_ids[:, :k], top_logprobs=rollouts.top_logprobs[:, :k]
    )


def _projection(k: int) -> Estimator:
    def fits(rollouts: Rollouts, taus: tuple[float, ...]) -> Iterator[Fitted]:
        short = shortened(rollouts, k)
        table, start = NextToken.of(short), None
        for tau in sorted(taus, reverse=True):
            for l2 in L2:
                start = projection(short, tau=tau, l2=l2, next_token=table, start=start)
                yield Fitted(tau, f"l2 {l2:g}", start.token_ids, start.delta)

    return fits


def _ips(rollouts: Rollouts, taus: tuple[float, ...]) -> Iterator[Fitted]:
    ips = TokenIPS(statistics_of(rollouts, taus))
    grid = [(alpha, True) for alpha in RELATIVE] + [(alpha, False) for alpha in PAPER]
    for tau, (alpha, is_relative) in itertools.product(taus, grid):
        setting = f"alpha {alpha:g} {'x mean weight' if is_relative else 'absolute'}"
        yield Fitted(tau, setting, ips.token_ids, ips.delta(tau, alpha, relative=is_relative))


ESTIMATORS: dict[str, Estimator] = {"projection, top-5": _projection(5), "ips": _ips}
