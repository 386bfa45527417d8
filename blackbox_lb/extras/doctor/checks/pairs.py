"""Pairs of tokens whose order a bias reverses: how they show a clipped bias, where a server makes a
smaller number of a large one without a word, and whether fractions count.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from blackbox_lb.errors import RequestRejected
from blackbox_lb.extras.doctor.exam import Exam, NotChecked, attempt, mean_logprobs
from blackbox_lb.extras.doctor.findings import RowFinding, agreement, measured, unchecked
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
BASE = 50.0
"""Nats on both tokens of a duel: they leave all others behind, and stay inside any range seen."""
ROOM = 0.45
"""Nats around the middle of a duel in which a lead can move without either bias leaving its half of
a unit. What is left of it as margin is mostly above .4, where equal requests were seen to differ by
up to .35."""
DUELS = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """``behind`` is less likely than ``ahead`` by ``gap`` nats, and wins once its bias leads by
    more than that.
    """

    ahead: int
    behind: int
    gap: float

    @property
    def margin(self) -> float:
        """Nats either side of the tie, as far as both sides still round alike: a gap is at most .25
        off a half or whole number.
        """
        return ROOM - abs(self.gap - round(2 * self.gap) / 2)

    def duel(self, side: int, base: float = BASE) -> dict[int, float]:
        """A bias with a lead of the gap plus ``side`` margins: both numbers move inside one half of
        a unit, so that a server that makes whole numbers of them, by whatever rule, sees the same
        two on either side.
        """
        middle = round(2 * self.gap) / 2
        shift = self.gap - middle + side * self.margin
        low = 0.25 - shift / 2
        high = math.floor(middle) + 0.25 + (middle % 1) + shift / 2
        return {self.ahead: round(base + low, 4), self.behind: round(base + high, 4)}


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
            if await exam.winners(bias) == [pair.behind]:
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


def _base(exam: Exam) -> float:
    return min(BASE, float(math.floor(exam.high / 2)))


def _duelists(exam: Exam) -> Pair | None:
    """The pair with the widest margin, whose biases stay inside the range and lift both tokens
    above all others.
    """
    tokens = exam.biasable()
    needed = max(tokens.values(), default=0.0) + 1 - _base(exam)
    pairs = [
        Pair(ahead, behind, tokens[ahead] - tokens[behind])
        for ahead, behind in combinations(tokens, 2)
        if tokens[ahead] > needed
    ]
    inside = [pair for pair in pairs if _base(exam) + pair.gap + 1 < exam.high]
    return max(inside, key=lambda pair: pair.margin, default=None)


async def ask_fractions(exam: Exam) -> tuple[Pair, list[int] | Exception]:
    """A duel of two tokens, decided by less than half a nat either way, that whole numbers cannot
    tell: how often the token behind came first, on either side of the tie.
    """
    if not exam.works or not exam.rules.bias:
        raise NotChecked("no bias can be seen to act here")
    pair = _duelists(exam)
    if pair is None:
        raise NotChecked("no two tokens that a bias may name are listed close enough to each other")
    wins = []
    for side in (-1, 1):
        came = await attempt(exam.winners(pair.duel(side, _base(exam)), DUELS), RequestRejected)
        if isinstance(came, Exception):
            return pair, came
        wins.append(came.count(pair.behind))
    return pair, wins


def compare_fractions(
    exam: Exam, answer: tuple[Pair, list[int] | Exception]
) -> Iterator[RowFinding]:
    """The token behind must lose below the tie, and win above it."""
    row = "bias.fractions"
    claimed = exam.profile.bias.fractions
    pair, wins = answer
    if isinstance(wins, Exception):
        yield agreement(row, not claimed, f"refused ({wins})", False)
        return
    evidence = (
        f"a token {pair.gap:.2f} nat behind won {wins[0]} of {DUELS} greedy answers with a lead"
        f" {pair.margin:.2f} below that, {wins[1]} of {DUELS} with one {pair.margin:.2f} above"
    )
    if wins == [0, DUELS] and claimed:
        yield agreement(row, True, evidence)
    elif wins == [0, DUELS]:
        words = "fractions count, the profile need not forbid them"
        yield measured(row, f"{words}: {evidence}", True)
    elif wins[0] == wins[1] and pair.margin > exam.step:
        yield agreement(row, not claimed, f"fractions do not count: {evidence}", False)
    else:
        yield unchecked(row, f"the noise decides, or the rounding of logprobs: {evidence}")
