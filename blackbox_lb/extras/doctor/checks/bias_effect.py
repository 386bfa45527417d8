"""Checks that a bias steers: that it acts on the token that it names, over its whole range, whether
fractions count, and that as many entries as claimed are accepted and all act; where they are not,
how many are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from blackbox_lb.errors import ConnectionFailed, RequestRejected, ServerFailed
from blackbox_lb.extras.doctor.asking.exam import WORDS, Exam
from blackbox_lb.extras.doctor.asking.probe import ProbesSpent
from blackbox_lb.extras.doctor.checks.bias_range import RangeFinding, find_range
from blackbox_lb.extras.doctor.checks.listed_alternatives import hinted

SURE = 10.0
"""Nats by which a raised token must lead all others: it is then sampled with probability above
.9999.
"""
UNLIKELY = -2.0
"""Nats: a token at most this likely comes first twice in a row in less than 2 % of plain answers.
"""
BASE = 50.0
"""Nats on both tokens of a duel: they leave all others behind, and stay inside any range seen."""
ROOM = 0.45
"""Nats around the middle of a duel in which a lead can move without either bias leaving its half of
a unit. What is left of it as margin is mostly above .4, where equal requests were seen to differ by
up to .35."""
DUELS = 3
LIKELIEST = 3
"""Tokens that are all suppressed: a server that ignores it still answers one of them when it is
greedy, noise or not.
"""
LADDER = (300, 1_024, 8_192)
"""Tried where no limit is claimed: the limits that are known of hosted APIs and of engines, then
everything.
"""
MOST = 65_536
"""Entries of one request at most: about a megabyte."""
FILLER = 1.0
"""Nats on every other token, which changes nothing between them; 0 might be dropped before it is
counted.
"""
LEAD = 20.0
"""Nats between the two tokens that lead by turns: more than any two listed tokens differ by."""
REFUSALS = (RequestRejected, ServerFailed, ConnectionFailed)


@dataclass(frozen=True, slots=True)
class _Forced:
    """``token`` was raised by the largest bias; ``came`` first, a text where the answer names no
    tokens, None where it is empty.

    An empty answer proves nothing: the raised token may be one that ends it.
    """

    token: int
    came: int | str | None
    obeyed: bool


async def check_effect(exam: Exam) -> None:
    """The largest bias on unlikely tokens, which must come first, and the smallest on the
    likeliest, which must not.
    """
    rows = ("bias", "bias.high", "bias.low")
    high = exam.profile.bias.high
    tokens = exam.biasable()
    raised = [token for token, value in tokens.items() if UNLIKELY > value > SURE - high]
    forces = high > SURE - UNLIKELY
    if forces and not raised:
        raised = exam.outside()
    if not exam.trusted:
        return exam.findings.skip(rows, "the ids are not those of the tokenizer")
    if len(tokens) < 2 or (forces and not raised):
        return exam.findings.skip(rows, "too few tokens are listed")

    forced: list[_Forced] = []
    if raised:
        in_turn = (raised[-1], raised[-1], raised[-2:][0])
        forced = [await _force(exam, token, high) for token in in_turn]
    range_finding = await find_range(exam) if exam.rules.bias else None
    if range_finding is not None and range_finding.clipped:
        return await _clipped(exam, range_finding)
    if forced and not _is_obeyed(forced):
        return await _disobeyed(exam, forced, high)
    if not forced and range_finding is None:
        return exam.findings.skip(rows, f"nothing of at most {high:+g} can be seen to act")

    exam.works = True
    evidence = []
    if forced:
        evidence.append(_obeyed_evidence(forced, tokens, high))
    if range_finding is not None:
        evidence.append(range_finding.evidence)
    exam.findings.agree("bias", True, evidence[0])
    exam.findings.agree("bias.high", True, evidence[-1])
    same_id = f"the id that a bias names is the id that comes back: {evidence[0]}"
    exam.findings.add("tokens.id", "CONFIRMED", same_id)
    return await _suppress_likeliest(exam, tokens)


def _is_obeyed(forced: Sequence[_Forced]) -> bool:
    """Whether a raised token came first, and none but a raised one or nothing did."""
    came = [answer for answer in forced if answer.obeyed]
    return bool(came) and all(answer.obeyed or answer.came is None for answer in forced)


def _obeyed_evidence(forced: Sequence[_Forced], tokens: Mapping[int, float], high: float) -> str:
    obeyed = sorted({answer.token for answer in forced if answer.obeyed})
    answers = sum(answer.obeyed for answer in forced)
    nats = [f"{tokens[token]:.1f} nat" if token in tokens else "not listed" for token in obeyed]
    names = ", ".join(f"{token} ({logprob})" for token, logprob in zip(obeyed, nats, strict=True))
    return f"token {names} with {high:+g} came first in {answers} of {len(forced)} answers"


async def _suppress_likeliest(exam: Exam, tokens: Mapping[int, float]) -> None:
    """The smallest bias on the likeliest tokens, where it puts them behind another one."""
    low = exam.profile.bias.low
    ordered = list(tokens)
    suppressed = ordered[: min(LIKELIEST, len(ordered) - 1)]
    next_logprob = tokens[ordered[len(suppressed)]]
    if tokens[ordered[0]] + low > next_logprob - 1:
        why = f"{low:+g} puts no token that is known to be likely behind another"
        return exam.findings.skip(["bias.low"], why)
    return await _suppress(exam, suppressed, low)


async def _clipped(exam: Exam, range_finding: RangeFinding) -> None:
    """A bias acts, up to less than the profile says. Below 0 a clip at the same number looks like
    none, wherever a suppressed token would not come first anyway.
    """
    highest = range_finding.highest
    low = exam.profile.bias.low
    exam.works = True
    exam.clip = highest
    exam.findings.agree("bias", True, f"acts, up to a limit: {range_finding.evidence}")
    clip = float(highest) if highest > max(low, 0) else None
    exam.findings.agree("bias.high", False, range_finding.evidence, clip)
    if clip is None:
        return exam.findings.skip(["bias.low"], "hardly any bias acts")
    evidence = f"not told apart from a clip at {-highest}, which is right in any case"
    return exam.findings.add("bias.low", "MEASURED", evidence, max(low, -clip))


async def _force(exam: Exam, token: int, high: float, temperature: float = 1.0) -> _Forced:
    where = exam.probe.session.biased_endpoint
    bias = {token: high}
    completion = (
        await exam.probe.ask(WORDS, top=1, bias=bias, endpoint=where, temperature=temperature)
    )[0]
    if len(completion.token_ids):
        came = int(completion.token_ids[0])
        return _Forced(token, came, came == token)
    if exam.profile.endpoint(where).ask_logprobs != "no":
        return _Forced(token, None, False)
    answer = completion.text.strip()
    text = (await exam.text_of(token) or "").strip()
    return _Forced(token, answer or None, bool(text) and answer == text)


async def _disobeyed(exam: Exam, forced: list[_Forced], high: float) -> None:
    """Say why other tokens than the raised ones came first. If the bias is ignored, they differ and
    a greedy answer begins with one of the likeliest. If the ids in answers are not those that a
    bias names, it is always the same unlikely token.
    """
    rows = ("bias", "bias.high", "bias.low")
    forced = [*forced, await _force(exam, forced[0].token, high, temperature=0.0)]
    evidence = f"token {', '.join(str(attempt.token) for attempt in forced)} with {high:+g}: "
    evidence += (
        ", ".join("nothing" if attempt.came is None else repr(attempt.came) for attempt in forced)
        + " came first"
    )
    same = {
        attempt.came if isinstance(attempt.came, int) else None
        for attempt in forced
        if attempt.token == forced[0].token
    }
    likeliest = {token for row in exam.openings() for token in list(row)[:LIKELIEST]}
    if all(attempt.came is None for attempt in forced):
        return exam.findings.skip(rows, "the answers name no token")
    if len(same) == 1 and not same & {None, forced[0].token, *likeliest}:
        exam.trusted = False
        exam.findings.agree("tokens.id", False, evidence)
        return exam.findings.skip(rows, "the ids are not those that a bias names")
    exam.works = False
    for refusal in exam.profile.bias.refused:
        if refusal.ignored_before:
            evidence += f"; an older version does so where {refusal.why}: {refusal.remedy}"
    exam.findings.agree("bias", False, f"ignored: {evidence}")
    return exam.findings.skip(rows[1:], "the bias is ignored")


async def _suppress(exam: Exam, tokens: list[int], low: float) -> None:
    where = exam.probe.session.biased_endpoint
    bias = dict.fromkeys(tokens, low)
    completions = await exam.probe.repeat(
        2, WORDS, top=1, temperature=0.0, bias=bias, endpoint=where
    )
    came = [int(completion.token_ids[0]) for completion in completions if len(completion.token_ids)]
    if not came:
        return await _unsaid(
            exam,
            tokens,
            low,
            [answer for completion in completions if (answer := completion.text.strip())],
        )
    back = sum(token in bias for token in came)
    evidence = (
        f"the {len(tokens)} likeliest with {low:+g}: one of them came first in {back} of"
        f" {len(came)} greedy answers"
    )
    return exam.findings.agree("bias.low", back == 0, evidence)


async def _unsaid(exam: Exam, tokens: list[int], low: float, came: list[str]) -> None:
    """By their texts, where answers name no tokens: a text that none of ``tokens`` has is of
    another token. One that is theirs may be of another too, as a word with and without a space
    before it.
    """
    row = "bias.low"
    texts = [(await exam.text_of(token) or "").strip() for token in tokens]
    if not came or not all(texts):
        return exam.findings.skip([row], "the answer names no token")
    evidence = (
        f"the {len(tokens)} likeliest, {texts}, with {low:+g}: {came} came first in greedy answers"
    )
    if any(word.startswith(text) for word in came for text in texts):
        return exam.findings.skip([row], f"{evidence}, which other tokens may print as")
    return exam.findings.agree(row, True, evidence)


@dataclass(frozen=True, slots=True)
class _Duel:
    """``behind`` is less likely than ``ahead`` by ``gap`` nats, and wins once its bias leads by
    more than that.
    """

    ahead: int
    behind: int
    gap: float
    base: float = BASE

    @property
    def margin(self) -> float:
        """Nats either side of the tie, as far as both sides still round alike: a gap is at most .25
        off a half or whole number.
        """
        return ROOM - abs(self.gap - round(2 * self.gap) / 2)

    def bias(self, side: int) -> dict[int, float]:
        """A lead of the gap plus ``side`` margins: both biases move inside one half of a unit, so
        that a server that makes whole numbers of them, by whatever rule, sees the same two numbers
        on either side.
        """
        middle = round(2 * self.gap) / 2
        shift = self.gap - middle + side * self.margin
        low = 0.25 - shift / 2
        high = math.floor(middle) + 0.25 + (middle % 1) + shift / 2
        return {self.ahead: round(self.base + low, 4), self.behind: round(self.base + high, 4)}


async def check_fractions(exam: Exam) -> None:
    """A duel of two tokens, decided by less than half a nat either way, that whole numbers cannot
    tell.
    """
    row = "bias.fractions"
    claimed = exam.profile.bias.fractions
    if not exam.works or not exam.rules.bias:
        return exam.findings.skip([row], "no bias can be seen to act here")
    duel = _duel(exam.biasable(), exam.high)
    if duel is None:
        return exam.findings.skip(
            [row], "no two tokens that a bias may name are listed close enough to each other"
        )
    wins = []
    try:
        for side in (-1, 1):
            completions = await exam.probe.repeat(
                DUELS, WORDS, top=1, temperature=0.0, bias=duel.bias(side)
            )
            wins.append(
                sum(
                    len(completion.token_ids) > 0 and int(completion.token_ids[0]) == duel.behind
                    for completion in completions
                )
            )
    except RequestRejected as refusal:
        return exam.findings.agree(row, not claimed, f"refused ({refusal})", False)
    evidence = (
        f"a token {duel.gap:.2f} nat behind won {wins[0]} of {DUELS} greedy answers with a lead"
        f" {duel.margin:.2f} below that, {wins[1]} of {DUELS} with one {duel.margin:.2f} above"
    )
    return _fractions(exam, row, wins, evidence, sure=duel.margin > exam.step)


def _fractions(exam: Exam, row: str, wins: list[int], text: str, *, sure: bool) -> None:
    """``sure``: the gap is known more closely than the leads differ from it."""
    if wins == [0, DUELS]:
        if exam.profile.bias.fractions:
            return exam.findings.agree(row, True, text)
        return exam.findings.add(
            row, "MEASURED", f"fractions count, the profile need not forbid them: {text}", True
        )
    if wins[0] == wins[1] and sure:
        return exam.findings.agree(
            row, not exam.profile.bias.fractions, f"fractions do not count: {text}", False
        )
    return exam.findings.skip([row], f"the noise decides, or the rounding of logprobs: {text}")


def _duel(tokens: Mapping[int, float], high: float) -> _Duel | None:
    """The pair with the widest margin, whose biases stay below ``high`` and lift both tokens above
    all others.
    """
    base = min(BASE, float(math.floor(high / 2)))
    needed = max(tokens.values(), default=0.0) + 1 - base
    inside = []
    for ahead, behind in combinations(tokens, 2):
        duel = _Duel(ahead, behind, tokens[ahead] - tokens[behind], base)
        if base + duel.gap + 1 < high and tokens[ahead] > needed:
            inside.append(duel)
    return max(inside, key=lambda duel: duel.margin, default=None)


async def check_highest_id(exam: Exam) -> None:
    """The highest id that a bias may name is accepted; those above it are never tried."""
    row = "bias.highest_id"
    claimed_id = exam.highest_id
    untold = "neither the profile nor the server tells the highest id"
    if exam.works is False:
        return exam.findings.skip([row], "no bias can be seen to act here")
    where = exam.probe.session.biased_endpoint
    listed = (
        token for completion in exam.completions() for token in completion.top_ids.ravel().tolist()
    )
    highest = claimed_id
    if highest is None:
        highest = max(listed, default=-1)  # a bias must be able to name what is listed
    if highest < 0:
        return exam.findings.skip([row], untold)
    try:
        await exam.probe.ask(WORDS, top=1, bias={highest: 1.0}, endpoint=where)
    except RequestRejected as refusal:
        accepted = None
        for lower in [number for number in hinted(refusal) if BASE < number < highest][:1]:
            await exam.probe.ask(WORDS, top=1, bias={lower: 1.0}, endpoint=where)
            accepted = lower
        return exam.findings.agree(row, False, f"{highest:,} refused ({refusal})", accepted)
    if claimed_id is None:
        return exam.findings.skip(
            [row], f"{untold}; the highest that was listed, {highest:,}, is accepted"
        )
    return exam.findings.agree(row, True, f"id {highest:,} accepted")


async def check_entries(exam: Exam) -> None:
    """A bias of exactly the claimed number of entries, never of more; a smaller limit is
    bisected.
    """
    row = "bias.entries"
    claimed = exam.profile.bias.entries
    if exam.works is False or not exam.trusted:
        return exam.findings.skip([row], "no bias can be seen to act here")
    sizes = _sizes(exam, claimed)
    if not sizes:
        return exam.findings.skip([row], "the size of the vocabulary is not known")
    accepted = 1
    refusal = None
    for size in sizes:
        refusal = await _refusal(exam, size)
        if refusal is not None:
            break
        accepted = size
    if refusal is not None:
        most = await _bisect(exam, accepted, size, refusal)
        return exam.findings.agree(
            row, False, f"{size:,} refused ({refusal}); {most:,} accepted", most
        )
    return await _acting(exam, row, sizes[-1], claimed)


def _sizes(exam: Exam, claimed: int | None) -> list[int]:
    """The numbers to try, in order; no more than there are ids."""
    ids = None if exam.highest_id is None else exam.highest_id + 1
    if claimed is not None:
        return [min(claimed, ids or claimed, MOST)]
    most = min(ids or LADDER[1], MOST)
    return sorted({min(step, most) for step in (*LADDER, most)})


async def _refusal(exam: Exam, size: int) -> Exception | None:
    """Why a bias of ``size`` entries is refused; None where it is accepted."""
    try:
        await exam.probe.ask(
            WORDS,
            top=1,
            bias=dict.fromkeys(range(size), FILLER),
            endpoint=exam.probe.session.biased_endpoint,
        )
    except REFUSALS as error:
        return error
    return None


async def _bisect(exam: Exam, accepted: int, refused: int, refusal: Exception) -> int:
    """The largest number accepted, as far as the budget goes; the numbers in the refusal are tried
    first.
    """
    if not isinstance(refusal, RequestRejected):
        return accepted
    hints = [size for number in hinted(refusal) for size in (number, number + 1)]
    try:
        while refused - accepted > 1:
            size = next(
                (hint for hint in hints if accepted < hint < refused), (accepted + refused) // 2
            )
            error = await _refusal(exam, size)
            if error is None:
                accepted = size
            else:
                refused = size
    except ProbesSpent:
        return accepted
    return accepted


async def _acting(exam: Exam, row: str, size: int, claimed: int | None) -> None:
    """All of ``size`` entries act, the first and the last: two tokens lead by turns."""
    words = f"{size:,}"
    if claimed is not None and size < claimed:
        words = f"{words} of {claimed:,} that are claimed"
    high = exam.high
    tokens = sorted(_liftable(exam.biasable(), high - FILLER))
    if not exam.works or not exam.rules.bias or len(tokens) < 2 or size < 2:
        return exam.findings.agree(row, True, f"{words} entries accepted")
    first = tokens[0]
    last = tokens[-1]
    fillers = [token for token in range(size) if token not in (first, last)][: size - 2]
    came: list[int | None] = []
    behind = max(high - LEAD, exam.profile.bias.low)
    for front, back in ((high, behind), (behind, high)):
        bias = {first: front, **dict.fromkeys(fillers, FILLER), last: back}
        completion = (await exam.probe.ask(WORDS, top=1, temperature=0.0, bias=bias))[0]
        came.append(int(completion.token_ids[0]) if len(completion.token_ids) else None)
    evidence = (
        f"{words} entries accepted; with the most on token {first}, then {last}, tokens {came[0]},"
        f" {came[1]} came first"
    )
    return exam.findings.agree(row, came == [first, last], evidence, None)


def _liftable(tokens: Mapping[int, float], nats: float) -> list[int]:
    """The tokens that ``nats`` lift more than 1 nat above the likeliest."""
    top = max(tokens.values(), default=0.0)
    return [token for token, logprob in tokens.items() if logprob + nats > top + 1]
