"""Formulas of correctness and length, of the paper or its baseline, in nats.

``correct`` is 1{m_x(y) = m*}, whether the completion's answer is the accepted one; ``length`` its
tokens, from 1; ``horizon`` the token limit, which the paper calls T or L_max.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from blackbox_lb.errors import InputError
from blackbox_lb.tasks.rewards.reward import Credit, Form, Reward, Score
from blackbox_lb.types import Completion, Example, Span

TOKEN_COST = 0.01
"""Nats that a token costs in ``tokens``."""
LENGTH = "T/len"
TOKENS = "-len/100"
"""The displayed names of what nothing but the length decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula(Reward):
    """A value of correctness and length.

    Attributes:
        value: the nats, of ``correct``, ``length`` and ``horizon``.
        shown: the displayed name, of exp of the value where ``is_log``.
        is_log: whether the exponential is displayed.
        is_gated: whether correctness enters.
        every_token_costs: whether it is ``TOKEN_COST`` a token and nothing else.
    """

    value: Callable[[bool, int, int], float] = field(repr=False, compare=False)
    shown: str
    is_log: bool = False
    is_gated: bool = True
    by_length: bool = field(default=True)
    every_token_costs: bool = False

    @property
    def label(self) -> str:
        """See ``Reward``."""
        if self.thinking is None or self.thinking.count == "all":
            return self.shown
        return f"{self.shown} (len: {self.thinking.count})"

    @property
    def needs_answer(self) -> bool:
        """See ``Reward``."""
        return self.is_gated and self.right.needs_answer

    @property
    def credit(self) -> Credit:
        """See ``Reward``."""
        counts_all = self.thinking is None or self.thinking.count == "all"
        if self.every_token_costs and counts_all:
            return "tokens"
        return "whole"

    def score(self, example: Example, completion: Completion) -> Score:
        """See ``Reward``."""
        correct = self.is_gated and self.right(example, completion.text)
        length = completion.n_tokens
        if self.thinking is not None:
            length = self.thinking.counted(completion)
        value = self.value(correct, max(length, 1), self.max_tokens)
        if self.credit == "whole":
            return Score(value)
        return Score(value, (Span(0, len(completion.text), value),))

    def displayed(self, value: float) -> float:
        """See ``Reward``: exp(value) on the log scale (0 for -inf), itself on the linear one."""
        if not self.is_log:
            return value
        try:
            return math.exp(value)
        except OverflowError as error:
            raise InputError(
                f"reward {value} nats of {self.name} has no finite exponential; it must be"
                " below 709"
            ) from error


def _form(name: str, meaning: str, formula: Formula) -> Form:
    return Form(
        name,
        meaning,
        lambda argument: formula,
        judges=lambda argument: formula.is_gated,
        shown=formula.shown,
    )


FORMS = (
    # 1{correct} (the paper, section "Preliminaries", r_accuracy; its GRPO baseline's reward for
    # accuracy).
    _form(
        "accuracy",
        "1 if correct, else 0",
        Formula(
            shown="accuracy",
            value=lambda correct, length, horizon: float(correct),
            by_length=False,
        ),
    ),
    # ln 1{correct}: 0 or -inf (the paper, section "Experimental setup", r_log-accuracy). The
    # strength tau then has no effect.
    _form(
        "log-accuracy",
        "0 if correct, else minus infinity: imitate correct completions only",
        Formula(
            shown="accuracy",
            value=lambda correct, length, horizon: 0.0 if correct else -math.inf,
            is_log=True,
            by_length=False,
        ),
    ),
    # ln(T/len) (the paper, section "Experimental setup", r_length; its reward for compression).
    _form(
        "length",
        "ln(T/len): shorter is better",
        Formula(
            shown=LENGTH,
            value=lambda correct, length, horizon: math.log(horizon / length),
            is_log=True,
            is_gated=False,
        ),
    ),
    _form(
        "tokens",
        "-len/100: every token costs the same",
        Formula(
            shown=TOKENS,
            value=lambda correct, length, horizon: -length * TOKEN_COST,
            is_gated=False,
            every_token_costs=True,
        ),
    ),
    # 1{correct} - len/L_max, from -1 to 1 (the paper, "Reward normalization and the role of R": a
    # range of 2 keeps the bound).
    _form(
        "accuracy-minus-length",
        "1{correct} - len/T",
        Formula(
            shown="accuracy - len/T",
            value=lambda correct, length, horizon: float(correct) - length / horizon,
        ),
    ),
    # ln(1{correct} T/len): the logarithm of the next, whose exponential at tau 1 is that reward.
    _form(
        "correct-and-short",
        "ln(1{correct} T/len): the shorter among the correct, minus infinity if wrong",
        Formula(
            shown="correct x T/len",
            value=lambda correct, length, horizon: (
                math.log(horizon / length) if correct else -math.inf
            ),
            is_log=True,
        ),
    ),
    # 1{correct} T/len (the paper, section "Experimental setup", r_length of its GRPO baseline):
    # from 0 to T.
    _form(
        "accuracy-gated-length",
        "1{correct} T/len: correct-and-short without the logarithm",
        Formula(
            shown="correct x T/len",
            value=lambda correct, length, horizon: horizon / length if correct else 0.0,
        ),
    ),
)
