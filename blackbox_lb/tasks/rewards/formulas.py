"""The rewards that are formulas of correctness and length: what the paper learns from, and what its baseline is trained on.

``correct`` is 1{m_x(y) = m*}, whether the completion's answer is the accepted one; ``length`` its tokens, from 1; ``horizon`` the
token limit, which the paper calls T or L_max. Results are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


def accuracy(correct: bool, length: int, horizon: int) -> float:
    """1{correct} (the paper, section "Preliminaries", r_accuracy; its GRPO baseline's reward for accuracy)."""
    del length, horizon
    return float(correct)


def log_accuracy(correct: bool, length: int, horizon: int) -> float:
    """ln 1{correct}: 0 or -inf (the paper, section "Experimental setup", r_log-accuracy). The strength tau then has no effect."""
    del length, horizon
    return 0.0 if correct else -math.inf


def log_length(correct: bool, length: int, horizon: int) -> float:
    """ln(T/len) (the paper, section "Experimental setup", r_length; its reward for compression)."""
    del correct
    return math.log(horizon / length)


def accuracy_minus_length(correct: bool, length: int, horizon: int) -> float:
    """1{correct} - len/L_max, from -1 to 1 (the paper, "Reward normalization and the role of R": a range of 2 keeps the bound)."""
    return float(correct) - length / horizon


def correct_and_short(correct: bool, length: int, horizon: int) -> float:
    """ln(1{correct} T/len): the logarithm of ``accuracy_gated_length``, whose exponential at tau 1 is that reward."""
    return math.log(horizon / length) if correct else -math.inf


def accuracy_gated_length(correct: bool, length: int, horizon: int) -> float:
    """1{correct} T/len (the paper, section "Experimental setup", r_length of its GRPO baseline): from 0 to T."""
    return horizon / length if correct else 0.0


@dataclass(frozen=True, slots=True)
class Formula:
    """``label`` names what a user reads: exp of the value where ``scale`` is log. ``gated``: whether correctness enters."""

    label: str
    scale: Literal["linear", "log"]
    gated: bool
    value: Callable[[bool, int, int], float]


FORMULAS = {
    "accuracy": Formula("accuracy", "linear", True, accuracy),
    "log-accuracy": Formula("accuracy", "log", True, log_accuracy),
    "length": Formula("T/len", "log", False, log_length),
    "accuracy-minus-length": Formula("accuracy - len/T", "linear", True, accuracy_minus_length),
    "correct-and-short": Formula("correct x T/len", "log", True, correct_and_short),
    "accuracy-gated-length": Formula("correct x T/len", "linear", True, accuracy_gated_length),
}
"""Name -> formula."""
