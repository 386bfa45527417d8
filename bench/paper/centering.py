"""The paper's bias over the whole vocabulary, unsampled tokens included: that of ``TokenIPS.delta``
less a constant.
"""

from __future__ import annotations

import math

import numpy as np

from bench.arrays import Vector
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.statistics import Statistics, TokenIPS


def fits(statistics: Statistics, vocab_size: int) -> None:
    """Raise InputError if a sampled token id is not below ``vocab_size``."""
    if len(statistics.counts) > vocab_size:
        raise InputError(
            f"token id {len(statistics.counts) - 1} was sampled, but the vocabulary has"
            f" {vocab_size} entries; give the size of the model's output layer"
        )


def center(ips: TokenIPS, tau: float, alpha: float, vocab_size: int) -> float:
    """The paper's c: the mean of ``log(alpha + Zhat(y))`` over the whole vocabulary.

    The paper's bias is ``delta + log(alpha) - c`` on sampled tokens and ``log(alpha) - c`` on all
    others.
    """
    return math.log(alpha) + float(ips.delta(tau, alpha).sum()) / vocab_size


def centered(ips: TokenIPS, tau: float, alpha: float, vocab_size: int) -> Vector:
    """(vocab_size,) the paper's bias ``log(alpha + Zhat(y)) - c`` in nats; its mean is 0."""
    full: Vector = np.zeros(vocab_size)
    full[ips.token_ids] = ips.delta(tau, alpha)
    return full - float(full.mean())
