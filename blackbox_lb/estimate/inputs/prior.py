"""Prior: what the penalty of a projection pulls the bias to, in place of 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids, Vector, positive

FARTHEST = 8.0
"""Nats from 0 to the mean of a token at most: three in ten thousand of its probability are left,
and data still find the way back."""

DEFAULT_STRENGTHS = (4.0, 1.0)
"""Of the penalty around a prior, in weighted tokens."""


def _no_ids() -> Ids:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """Means of a bias before any data: the penalty is ``l2/2 |delta - means|^2``.

    Attributes:
        name: of the knowledge behind it, for the settings of a bias.
        token_ids: (k,) sorted.
        means: (k,) nats; every other token has mean 0.
        lifted: (j,) ids whose common shift costs no penalty, such as the tokens of all labels.
        strengths: of the penalty, in weighted tokens, to try with it.
        standing: the one of them whose bias is kept unless another is shown to be better, None
            where none has such a claim.
    """

    name: str
    token_ids: Ids
    means: Vector
    lifted: Ids = field(default_factory=_no_ids)
    strengths: tuple[float, ...] = DEFAULT_STRENGTHS
    standing: float | None = None

    @classmethod
    def of(
        cls,
        name: str,
        means: Mapping[int, float],
        lifted: Ids | None = None,
        strengths: tuple[float, ...] = DEFAULT_STRENGTHS,
        standing: float | None = None,
    ) -> Prior:
        """From token id -> nats.

        Raises:
            InputError: a mean is not finite.
        """
        token_ids = np.array(sorted(means), np.int64)
        values = np.array([means[token] for token in token_ids.tolist()], np.float64)
        if not np.isfinite(values).all():
            raise InputError(f"the prior {name!r} has a mean that is not finite")
        shared = _no_ids() if lifted is None else np.unique(lifted).astype(np.int64)
        return cls(name, token_ids, values, shared, strengths, standing)

    def at(self, tau: float) -> Prior:
        """This prior in a fit at ``tau``; see ``TokenCosts.at``."""
        del tau
        return self

    @property
    def every_id(self) -> Ids:
        """Every token that the prior says something of, sorted."""
        return np.union1d(self.token_ids, self.lifted)


@dataclass(frozen=True, slots=True, eq=False)
class TokenCosts:
    """What each token earns by its own text, where a rule about the text is the reward.

    A token that earns c has the prior mean ``c / tau``: the value that the target ``exp(r / tau)``
    gives it if nothing else changes. It needs no completion, and holds for tokens never drawn. With
    it, 35 completions taught as much about stock words in stories as 700 without; so that bias
    stands unless another is shown to be better.

    Attributes:
        name: of the rule.
        token_ids: (k,) sorted.
        costs: (k,) in the unit of the reward, negative for what is to be avoided.
    """

    name: str
    token_ids: Ids
    costs: Vector

    def at(self, tau: float) -> Prior:
        """The prior of a fit at ``tau``, no mean farther than ``FARTHEST`` nats from 0."""
        means = np.clip(self.costs / positive("tau", tau), -FARTHEST, FARTHEST)
        return Prior(self.name, self.token_ids, means, standing=min(DEFAULT_STRENGTHS))

    @property
    def every_id(self) -> Ids:
        """(k,) the tokens that earn something."""
        return self.token_ids

    def only(self, kept: Ids) -> TokenCosts:
        """Those of the ``kept`` ids alone."""
        among = np.isin(self.token_ids, kept)
        return replace(self, token_ids=self.token_ids[among], costs=self.costs[among])
