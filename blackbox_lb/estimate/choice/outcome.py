"""Results of a policy on a set of prompts, prompt by prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from blackbox_lb.estimate.inputs.checks import Vector


@dataclass(frozen=True, slots=True, eq=False)
class ByPrompt:
    """A mean over prompts that remembers its parts, so that the error of a difference is that of
    the paired difference.

    ``parts``: (x,) one number a prompt whose mean is the estimate: the mean of its completions, or
    a linearisation of a ratio. NaN where a prompt has no completion.
    """

    parts: Vector

    @property
    def value(self) -> float:
        """The mean of the parts; NaN where there is none."""
        known = self.parts[~np.isnan(self.parts)]
        return float(known.mean()) if known.size else math.nan

    @property
    def standard_error(self) -> float:
        """Standard error of the value, prompts being independent of each other; infinite with fewer
        than two.
        """
        known = self.parts[~np.isnan(self.parts)]
        return float(known.std(ddof=1) / math.sqrt(known.size)) if known.size > 1 else math.inf

    def minus(self, other: ByPrompt, times: float = 1.0) -> ByPrompt:
        """``self - times * other``, over the prompts that both have."""
        return ByPrompt(self.parts - times * other.parts)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Results of a policy on a set of prompts.

    reward: in the user's own unit. tokens: of a completion. accuracy: 0 to 1, None where no right
    answer is known. kl: KL(p_delta || p_0) in nats a completion, None where it is not known.
    """

    reward: ByPrompt
    tokens: ByPrompt
    accuracy: ByPrompt | None
    kl: ByPrompt | None
