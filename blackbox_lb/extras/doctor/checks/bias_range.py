"""The search for a clipped bias: a server that makes a smaller number of a large one, without a
word; and the pairs of tokens that a bias reverses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from blackbox_lb.extras.doctor.exam import Exam, mean_logprobs
from blackbox_lb.types import NO_TOKEN

REQUESTS = 15
"""Two at the top of the range and two at its bottom for each of two pairs, and seven that halve a
range of 100 nats.
"""
REPEATS = 2
SURE_LEAD = 2
"""Whole nats above the gap of two tokens, less what the gap has over a whole number: a lead of more
than 1 nat, far beyond the .35 nat by which equal requests were seen to differ.
"""
LEAST_GAP = 0.4
"""Nats between two tokens, and more where equal requests differ by more: then the less likely one
comes first because of its bias alone.
"""
LEVEL = 0.65
"""The gap's part beyond a whole number that serves best: the last lead that wins is then well above
the tie, and the clip at most .35 nat below the number that is told."""


@dataclass(frozen=True, slots=True)
class Pair:
    """``behind`` is less likely than ``ahead`` by ``gap`` nats, and wins once its bias leads by
    more than that.
    """

    ahead: int
    behind: int
    gap: float


@dataclass(frozen=True, slots=True)
class Range:
    """highest: the largest bias, in whole nats, that was seen to act in full. clipped: whether the
    profile's range goes further.
    """

    highest: int
    clipped: bool
    evidence: str


async def find_range(exam: Exam) -> Range | None:
    """Two tokens with biases near the top of the range, the less likely one leading: it comes first
    unless the server makes the same number of both, and then it does again further down.

    With bias t on the likelier token and t + k on the other, k the next whole number above their
    gap, the other comes first if and only if biases act up to more than t + gap; t is found by
    halving, between the bottom, which lifts the likelier token above all others, and the top. Whole
    numbers alone are sent, so that a server that rounds does not look like one that clips.

    Returns:
        None where no two tokens follow their biases at either end, so that something else than a
        clip is wrong (a bias that acts half as strongly fails at both), or where none serve.
    """

    async def leads(pair: Pair, level: int, lead: int, tries: int = REPEATS) -> bool:
        bias = {pair.ahead: float(level), pair.behind: float(level + lead)}
        for _ in range(tries):
            if await exam.winner(bias) == pair.behind:
                return True
        return False

    for pair in _pairs(exam):
        sure_lead = math.floor(pair.gap) + SURE_LEAD
        likeliest = max(mean_logprobs(exam.openings()).values())
        bottom = math.ceil(likeliest - exam.biasable()[pair.ahead])
        top = math.floor(exam.profile.bias.high) - sure_lead
        if top <= bottom:
            return None
        if await leads(pair, top, sure_lead):
            high = top + sure_lead
            evidence = f"token {pair.behind} with {high:+d} came before {pair.ahead} with {top:+d}"
            return Range(high, False, evidence)
        if not await leads(pair, bottom, sure_lead):
            continue
        lead = math.floor(pair.gap) + 1
        acting = bottom - 1
        while top - acting > 1:
            level = (acting + top) // 2
            if await leads(pair, level, lead, tries=1):
                acting = level
            else:
                top = level
        evidence = (
            f"clipped at about {acting + lead:+d}: token {pair.behind}, {pair.gap:.2f} nat behind"
            f" {pair.ahead}, came before it with {acting + lead:+d} against {acting:+d}, and not"
            f" with {top + lead:+d} against {top:+d}"
        )
        return Range(acting + lead, True, evidence)
    return None


def _pairs(exam: Exam) -> list[Pair]:
    """The likeliest token that a bias may name, with the one behind it whose gap serves best, and
    with the nearest, which leads even under a clip below the other's gap.
    """
    tokens = exam.biasable()
    ahead = next(iter(tokens), NO_TOKEN)
    pairs = [Pair(ahead, token, tokens[ahead] - tokens[token]) for token in tokens]
    least = max(LEAST_GAP, exam.noise + exam.step)
    wide = [pair for pair in pairs if pair.gap >= least]
    if not wide:
        return []
    best = min(wide, key=lambda pair: abs(pair.gap % 1 - LEVEL) + pair.gap / 10)
    nearest = min(wide, key=lambda pair: pair.gap)
    return list(dict.fromkeys((best, nearest)))
