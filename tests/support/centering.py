"""The paper's bias over the whole vocabulary, unsampled tokens included: that of ``TokenIPS.delta``
less a constant.
"""

from __future__ import annotations

import math

import numpy as np

from blackbox_lb.estimate.counting.statistics import TokenIPS
from blackbox_lb.estimate.inputs.checks import Vector


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
