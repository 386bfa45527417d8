"""The rewards that are formulas of correctness and length: those of the paper, and those of its baseline.

``correct`` is 1{m_x(y) = m*}, whether the completion's answer is the accepted one; ``length`` its tokens, from 1; ``horizon`` the
token limit, which the paper calls T or L_max. Results are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Formula:
    """``label``: the displayed name, of exp of the value where ``scale`` is log. ``gated``: whether correctness enters."""

    label: str
    scale: Literal["linear", "log"]
    gated: bool
    value: Callable[[bool, int, int], float]


FORMULAS = {
    # 1{correct} (the paper, section "Preliminaries", r_accuracy; its GRPO baseline's reward for accuracy).
    "accuracy": Formula("accuracy", "linear", True, lambda correct, length, horizon: float(correct)),
    # ln 1{correct}: 0 or -inf (the paper, section "Experimental setup", r_log-accuracy). The strength tau then has no effect.
    "log-accuracy": Formula("accuracy", "log", True, lambda correct, length, horizon: 0.0 if correct else -math.inf),
    # ln(T/len) (the paper, section "Experimental setup", r_length; its reward for compression).
    "length": Formula("T/len", "log", False, lambda correct, length, horizon: math.log(horizon / length)),
    # 1{correct} - len/L_max, from -1 to 1 (the paper, "Reward normalization and the role of R": a range of 2 keeps the bound).
    "accuracy-minus-length": Formula(
        "accuracy - len/T", "linear", True, lambda correct, length, horizon: float(correct) - length / horizon
    ),
    # ln(1{correct} T/len): the logarithm of the next, whose exponential at tau 1 is that reward.
    "correct-and-short": Formula(
        "correct x T/len", "log", True, lambda correct, length, horizon: math.log(horizon / length) if correct else -math.inf
    ),
    # 1{correct} T/len (the paper, section "Experimental setup", r_length of its GRPO baseline): from 0 to T.
    "accuracy-gated-length": Formula(
        "correct x T/len", "linear", True, lambda correct, length, horizon: horizon / length if correct else 0.0
    ),
}
"""Name -> formula."""
