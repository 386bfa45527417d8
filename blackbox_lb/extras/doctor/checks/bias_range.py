"""The search for a clipped bias: a server that makes a smaller number of a large one, without a
word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from blackbox_lb.extras.doctor.asking.exam import WORDS, Exam, mean_logprobs

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
class RangeFinding:
    """highest: the largest bias, in whole nats, that was seen to act in full. clipped: whether the
    profile's range goes further.
    """

    highest: int
    clipped: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class _Pair:
    """``behind`` is less likely than ``ahead`` by ``gap`` nats; ``lowest``: the least whole bias
    of ``ahead`` that lifts it above all other tokens.
    """

    ahead: int
    behind: int
    gap: float
    lowest: int

    @property
    def sure_lead(self) -> int:
        """Whole nats of lead under which the token behind comes first, noise or not."""
        return math.floor(self.gap) + SURE_LEAD


async def find_range(exam: Exam) -> RangeFinding | None:
    """Two tokens with biases near the top of the range, the less likely one leading: it comes first
    unless the server makes the same number of both, and then it does again further down.

    With bias t on the likelier token and t + k on the other, k the next whole number above their
    gap, the other comes first if and only if biases act up to more than t + gap; t is found by
    halving. Whole numbers alone are sent, so that a server that rounds does not look like one that
    clips.

    Returns:
        None where no two tokens follow their biases at either end, so that something else than a
        clip is wrong (a bias that acts half as strongly fails at both), or where none serve.
    """
    for pair in _pairs(exam):
        top = math.floor(exam.profile.bias.high) - pair.sure_lead
        if top <= pair.lowest:
            return None
        if await _leads(exam, pair, top):
            high = top + pair.sure_lead
            evidence = f"token {pair.behind} with {high:+d} came before {pair.ahead} with {top:+d}"
            return RangeFinding(high, False, evidence)
        if await _leads(exam, pair, pair.lowest):
            return await _halved(exam, pair, top)
    return None


def _pairs(exam: Exam) -> list[_Pair]:
    """The likeliest token that a bias may name, with the one behind it whose gap serves best, and
    with the nearest, which leads even under a clip below the other's gap.
    """
    tokens = exam.biasable()
    if not tokens:
        return []
    ahead = next(iter(tokens))
    least = max(LEAST_GAP, exam.noise + exam.step)
    gaps: dict[int, float] = {}
    for token, logprob in tokens.items():
        gap = tokens[ahead] - logprob
        if gap >= least:
            gaps[token] = gap
    if not gaps:
        return []
    best = min(gaps, key=lambda token: abs(gaps[token] % 1 - LEVEL) + gaps[token] / 10)
    nearest = min(gaps, key=lambda token: gaps[token])
    likeliest = max(mean_logprobs(exam.openings()).values())
    lowest = math.ceil(likeliest - tokens[ahead])
    return [_Pair(ahead, token, gaps[token], lowest) for token in dict.fromkeys((best, nearest))]


async def _leads(exam: Exam, pair: _Pair, level: int) -> bool:
    """Whether the token behind comes first by a sure lead, once in two greedy answers at least."""
    for _ in range(REPEATS):
        if await _comes_first(exam, pair, level, pair.sure_lead):
            return True
    return False


async def _comes_first(exam: Exam, pair: _Pair, level: int, lead: int) -> bool:
    bias = {pair.ahead: float(level), pair.behind: float(level + lead)}
    (completion,) = await exam.probe.ask(WORDS, top=1, temperature=0.0, bias=bias)
    return len(completion.token_ids) > 0 and int(completion.token_ids[0]) == pair.behind


async def _halved(exam: Exam, pair: _Pair, top: int) -> RangeFinding:
    """The clip, between the bottom of the range, where biases act, and its top, where they do
    not.
    """
    lead = math.floor(pair.gap) + 1
    acting = pair.lowest - 1
    clipped = top
    while clipped - acting > 1:
        level = (acting + clipped) // 2
        if await _comes_first(exam, pair, level, lead):
            acting = level
        else:
            clipped = level
    highest = acting + lead
    evidence = (
        f"clipped at about {highest:+d}: token {pair.behind}, {pair.gap:.2f} nat behind"
        f" {pair.ahead}, came before it with {acting + lead:+d} against {acting:+d}, and not with"
        f" {clipped + lead:+d} against {clipped:+d}"
    )
    return RangeFinding(highest, True, evidence)
