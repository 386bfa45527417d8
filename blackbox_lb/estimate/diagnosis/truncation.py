"""Truncation: how many completions ended at the token limit, and a limit at which most do not."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.thresholds import MOST_CUT

WANTED = 0.8
"""Share of completions that end before the recommended limit."""
LEAST_ENDED = 5
"""Completions that ended by themselves from which on their lengths say how long others are."""
FACTORS = (2.0, 16.0)
"""Least and largest step from a limit to the recommended one."""
UNKNOWN_FACTOR = 4.0
"""The step where too few completions ended to tell."""
MULTIPLE = 16
"""A recommended limit is a multiple of so many tokens: it is no exact number."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """Completions at the token limit.

    completions: their number.
    cut: the number that ended at ``limit`` tokens.

    enough: a limit, in tokens, before which about ``WANTED`` of the completions should end.
    """

    completions: int
    cut: int
    limit: int
    enough: int

    @classmethod
    def of(cls, lengths: npt.ArrayLike, cut: npt.ArrayLike, limit: int) -> "Truncation":
        """Truncation of completions of ``lengths`` (n,) tokens, ``cut`` (n,) those that did not end
        by themselves.

        The logarithms of lengths are taken as normal, through the median of those that ended and
        the share of those that did not. InputError: no completion, or shapes that differ.
        """
        tokens = np.asarray(lengths, np.float64)
        is_cut = np.asarray(cut, np.bool_)
        if not tokens.size or tokens.shape != is_cut.shape:
            raise InputError(
                f"{tokens.shape} lengths and {is_cut.shape} ends of completions; give both of one"
                " completion or more"
            )
        ended = tokens[~is_cut]
        factor = UNKNOWN_FACTOR
        if len(ended) >= LEAST_ENDED:
            from scipy import special  # a quarter of a second, where a command starts

            share = len(ended) / len(tokens)
            before = special.ndtri(min(share, 1 - 1e-6))
            spread = math.log(limit / max(min(float(np.median(ended)), limit - 0.5), 0.5))
            sigma = spread / (before - special.ndtri(share / 2))
            factor = math.exp(sigma * float(special.ndtri(WANTED) - before))
        low, high = FACTORS
        enough = MULTIPLE * math.ceil(limit * min(max(factor, low), high) / MULTIPLE)
        return cls(len(tokens), int(is_cut.sum()), limit, enough)

    @property
    def hides_lengths(self) -> bool:
        """Whether most completions are as long as the limit allows, so that their lengths say
        nothing.
        """
        return self.cut > MOST_CUT * self.completions

    @property
    def sentence(self) -> str:
        return (
            f"{self.cut:,} of {self.completions:,} completions end at the limit of"
            f" {self.limit:,} tokens"
        )

    @property
    def warning(self) -> str:
        """What to say where lengths are hidden."""
        return f"{self.sentence}, and a reward by length cannot tell these apart: {self.remedy}"

    @property
    def remedy(self) -> str:
        """The next step where lengths are hidden."""
        return f"``max_tokens={self.enough}`` would let most of them end by themselves"
