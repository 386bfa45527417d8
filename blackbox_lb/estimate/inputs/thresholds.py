"""Thresholds: every limit that turns a number into a word, each with the sentence that justifies
it.

A number that was not computed is NOT CHECKED, and one that is not finite is FAIL: neither is ever
fine.
"""

import math
from dataclasses import dataclass

from blackbox_lb.records import Word


@dataclass(frozen=True, slots=True)
class Threshold:
    """PASS from ``good`` on, FAIL beyond ``bad``, INCONCLUSIVE between them. rising: more is
    better; otherwise less is.
    """

    good: float
    bad: float
    rising: bool = True

    def judge(self, value: float | None) -> Word:
        """The word for ``value``: None is NOT CHECKED, one that is not finite FAIL."""
        if value is None:
            return "NOT CHECKED"
        sign = 1 if self.rising else -1
        if not math.isfinite(value) or sign * value < sign * self.bad:
            return "FAIL"
        if sign * value >= sign * self.good:
            return "PASS"
        return "INCONCLUSIVE"


CONFIDENCE = 0.95
"""The level of every interval: the paper's, and the field's habit."""

POWER = 0.8
"""The chance to see a true effect when sample sizes are recommended: Cohen, Statistical Power
Analysis (1988), section 2.4.
"""

LEAST_PROMPTS = 30
"""Prompts from which "no prompt differs" has a meaning: zero of 30 leaves at most 10 % at 95 % (the
rule of three, Hanley and Lippman-Hand, JAMA 249, 1983), and from which the t quantile is within 5 %
of the normal one."""

NEGLIGIBLE_GAIN = 0.02
"""Standard deviations of the reward. To see a gain of .02 with power .8 takes 2 (2.8 / .02)^2 =
39,000 completions of each policy, more than anybody spends on judging a bias: a user does not miss
a gain that no test shows."""

SMALL_GAIN = 0.2
"""Standard deviations of the reward: a small effect of Cohen (1988, section 2.2.3). It takes 2 (2.8
/ .2)^2 = 392 completions of each policy to see it, about those of a test of 65 prompts with 6
completions each."""

SMALL_KL = SMALL_GAIN**2 / 2
"""Nats a completion. To first order a policy at KL k from the base moves a mean by at most ``sqrt(2
k)`` standard deviations (the variational bound of Donsker and Varadhan), so .02 nats cannot move
the reward by more than SMALL_GAIN."""

RARE = 0.1
MOST_EXCEPTIONS = 5
"""Share and number of completions with another reward than nearly all, up to which these few are
the reason: a share seen 5 times has an error of nearly half of itself (1 / sqrt(5)), so that what
distinguishes the 5 is mostly chance."""

MOST_CUT = 0.5
"""Share of completions that end at the token limit. Above it the median length is the limit itself,
whatever the policy does, and a reward by length compares only the few that ended."""

RELIABILITY = Threshold(0.8, 0.5)
"""At .8 the noise of a bias is a quarter of what it learned, the usual demand on a measurement that
is to be used (Nunnally and Bernstein, Psychometric Theory, 1994); below .5 it holds more noise than
signal.
"""

EFFECTIVE_SAMPLE = Threshold(100.0, 50.0)
"""A mean over 100 effective completions has an error of a tenth of their standard deviation, the
least that Vehtari et al. (Bayesian Analysis 16, 2021) accept of a chain; below 50 it rests on a few
completions, and its own standard error misses what was not drawn.
"""

CENSORED = Threshold(0.02, 0.1, rising=False)
"""Share of sampled tokens with a bound for their logprob, for estimators that divide by it;
measured on three 400-token models with a rare good token, 1,000 completions: inverse propensities
lose 7 to 41 % of their gain at .08, 17 to 72 % at .16 and 61 to 97 % at .33.
"""

TAIL_MASS = Threshold(0.6, 1.0, rising=False)
"""Mean unlisted probability, for estimators that read the lists and not the sampled logprob;
measured on 400-token models where the projection gains .35 to .7, its E[r] - tau KL falls by at
most .014 up to .63 (one listed token) and by up to .13 at 1 (none).
"""

UNATTRIBUTED = Threshold(0.02, 0.1, rising=False)
"""Unlisted mass that no token takes stays at bias 0, which lets the bias of rare tokens grow as if
nothing competed with them; up to 2 % is what a float32 list of a whole vocabulary or an end token
without an id leaves.
"""

TOUCHED = Threshold(0.1, 0.01)
"""Biased tokens expected in one completion, with or without the bias: at .1 one completion in ten
differs, below .01 fewer than one in a hundred does, and the mean cannot show it.
"""
