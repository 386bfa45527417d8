"""Checks that a bias steers: that it acts on the token that it names, over its whole range, whether
fractions count, and that as many entries as claimed are accepted and all act; where they are not,
how many are.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from blackbox_lb.errors import ConnectionFailed, RequestRejected, ServerFailed
from blackbox_lb.extras.doctor.checks.bias_range import Pair, Range, find_range
from blackbox_lb.extras.doctor.checks.listed_alternatives import hinted, most_accepted
from blackbox_lb.extras.doctor.exam import WORDS, Exam, NotChecked, first_token
from blackbox_lb.extras.doctor.findings import RowFinding, agreement, measured, unchecked
from blackbox_lb.types import Completion

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
UNTOLD = "neither the profile nor the server tells the highest id"
REFUSALS = (RequestRejected, ServerFailed, ConnectionFailed)


@dataclass(frozen=True, slots=True)
class Forced:
    """``token`` was raised by the largest bias; ``came`` first, a text where the answer names no
    tokens, None where it is empty.

    An empty answer proves nothing: the raised token may be one that ends it.
    """

    token: int
    came: int | str | None
    obeyed: bool


@dataclass(frozen=True, slots=True)
class Effect:
    """What the largest bias did. reach: how far its range was seen to act; None for not seen."""

    forced: Sequence[Forced]
    reach: Range | None

    @property
    def is_obeyed(self) -> bool:
        """Whether a raised token came first, and none but a raised one or nothing did; where none
        could be raised, whether two tokens followed their biases.
        """
        if not self.forced:
            return self.reach is not None
        came = [attempt for attempt in self.forced if attempt.came is not None]
        return bool(came) and all(attempt.obeyed for attempt in came)

    def names_other_ids(self, likeliest: set[int]) -> bool:
        """Whether raising one token always brought the same other one, which is unlikely by
        itself: the ids in answers are not those that a bias names.
        """
        first = self.forced[0].token
        came = {attempt.came for attempt in self.forced if attempt.token == first}
        return len(came) == 1 and all(
            isinstance(token, int) and token not in {first, *likeliest} for token in came
        )


async def ask_effect(exam: Exam) -> Effect:
    """The largest bias on unlikely tokens, and near the top of the range."""
    high = exam.profile.bias.high
    tokens = exam.biasable()
    raised = [token for token, value in tokens.items() if UNLIKELY > value > SURE - high]
    forces = high > SURE - UNLIKELY
    if forces and not raised:
        raised = exam.outside()
    if not exam.trusted:
        raise NotChecked("the ids are not those of the tokenizer")
    if len(tokens) < 2 or (forces and not raised):
        raise NotChecked("too few tokens are listed")
    forced = []
    if raised:
        in_turn = (raised[-1], raised[-1], raised[-2:][0])
        forced = [await _force(exam, token) for token in in_turn]
    reach = await find_range(exam) if exam.rules.bias else None
    effect = Effect(forced, reach)
    if reach is not None and reach.clipped:
        exam.works = True
        exam.clip = reach.highest
    elif effect.is_obeyed:
        exam.works = True
    elif forced:
        effect = Effect([*forced, await _force(exam, forced[0].token, temperature=0.0)], reach)
        if any(attempt.came is not None for attempt in effect.forced):
            exam.works = None if effect.names_other_ids(_likeliest(exam)) else False
    return effect


def _likeliest(exam: Exam) -> set[int]:
    """The tokens with which a plain greedy answer may begin."""
    return {token for row in exam.openings() for token in list(row)[:LIKELIEST]}


async def _force(exam: Exam, token: int, temperature: float = 1.0) -> Forced:
    where = exam.session.biased_endpoint
    bias = {token: exam.profile.bias.high}
    (completion,) = await exam.ask(WORDS, top=1, bias=bias, endpoint=where, temperature=temperature)
    came = first_token(completion)
    if came is not None:
        return Forced(token, came, came == token)
    if exam.profile.endpoint(where).ask_logprobs != "no":
        return Forced(token, None, False)
    answer = completion.text.strip()
    text = (await exam.text_of(token) or "").strip()
    return Forced(token, answer or None, bool(text) and answer == text)


def compare_effect(exam: Exam, effect: Effect) -> Iterator[RowFinding]:
    """The raised tokens must come first, up to the top of the range."""
    if effect.reach is not None and effect.reach.clipped:
        yield from _clipped(exam, effect.reach)
    elif effect.is_obeyed:
        yield from _obeyed(exam, effect)
    elif effect.forced:
        yield from _disobeyed(exam, effect)
    else:
        high = exam.profile.bias.high
        raise NotChecked(f"nothing of at most {high:+g} can be seen to act")


def _obeyed(exam: Exam, effect: Effect) -> Iterator[RowFinding]:
    evidence = []
    if effect.forced:
        tokens = exam.biasable()
        names = []
        for token in sorted({attempt.token for attempt in effect.forced if attempt.obeyed}):
            logprob = f"{tokens[token]:.1f} nat" if token in tokens else "not listed"
            names.append(f"{token} ({logprob})")
        answers = sum(attempt.obeyed for attempt in effect.forced)
        evidence.append(
            f"token {', '.join(names)} with {exam.profile.bias.high:+g} came first in {answers} of"
            f" {len(effect.forced)} answers"
        )
    if effect.reach is not None:
        evidence.append(effect.reach.evidence)
    yield agreement("bias", True, evidence[0])
    yield agreement("bias.high", True, evidence[-1])
    if exam.status("tokens.id") == "NOT CHECKED":
        same_id = f"the id that a bias names is the id that comes back: {evidence[0]}"
        yield agreement("tokens.id", True, same_id)


def _clipped(exam: Exam, reach: Range) -> Iterator[RowFinding]:
    """A bias acts, up to less than the profile says. Below 0 a clip at the same number looks like
    none, wherever a suppressed token would not come first anyway.
    """
    low = exam.profile.bias.low
    clip = float(reach.highest) if reach.highest > max(low, 0) else None
    yield agreement("bias", True, f"acts, up to a limit: {reach.evidence}")
    yield agreement("bias.high", False, reach.evidence, clip)
    if clip is None:
        yield unchecked("bias.low", "hardly any bias acts")
    else:
        evidence = f"not told apart from a clip at {-reach.highest}, which is right in any case"
        yield measured("bias.low", evidence, max(low, -clip))


def _disobeyed(exam: Exam, effect: Effect) -> Iterator[RowFinding]:
    """Say why other tokens than the raised ones came first. If the bias is ignored, they differ and
    a greedy answer begins with one of the likeliest. If the ids in answers are not those that a
    bias names, it is always the same unlikely token.
    """
    tokens = ", ".join(str(attempt.token) for attempt in effect.forced)
    came = ", ".join(
        "nothing" if attempt.came is None else repr(attempt.came) for attempt in effect.forced
    )
    evidence = f"token {tokens} with {exam.profile.bias.high:+g}: {came} came first"
    if all(attempt.came is None for attempt in effect.forced):
        raise NotChecked("the answers name no token")
    if effect.names_other_ids(_likeliest(exam)):
        yield agreement("tokens.id", False, evidence)
        raise NotChecked("the ids are not those that a bias names")
    for refusal in exam.profile.bias.refused:
        if refusal.ignored_before:
            evidence += f"; an older version does so where {refusal.why}: {refusal.remedy}"
    yield agreement("bias", False, f"ignored: {evidence}")
    raise NotChecked("the bias is ignored")


@dataclass(frozen=True, slots=True)
class Suppressed:
    """Greedy answers with the smallest bias on the likeliest tokens.

    texts: those of the tokens, stripped, where the answers name no token.
    """

    tokens: Sequence[int]
    completions: Sequence[Completion]
    texts: Sequence[str] = ()


async def ask_low(exam: Exam) -> Suppressed | None:
    """The smallest bias on the likeliest tokens, where it puts them behind another one."""
    if not exam.works or exam.clip is not None:
        return None
    low = exam.profile.bias.low
    tokens = exam.biasable()
    suppressed = list(tokens)[: min(LIKELIEST, len(tokens) - 1)]
    next_logprob = list(tokens.values())[len(suppressed)]
    if max(tokens.values()) + low > next_logprob - 1:
        raise NotChecked(f"{low:+g} puts no token that is known to be likely behind another")
    completions = await exam.repeat(
        2,
        WORDS,
        top=1,
        temperature=0.0,
        bias=dict.fromkeys(suppressed, low),
        endpoint=exam.session.biased_endpoint,
    )
    if any(first_token(completion) is not None for completion in completions):
        return Suppressed(suppressed, completions)
    texts = [(await exam.text_of(token) or "").strip() for token in suppressed]
    return Suppressed(suppressed, completions, texts)


def compare_low(exam: Exam, suppressed: Suppressed) -> Iterator[RowFinding]:
    """None of them must come first.

    Where answers name no tokens, a text that none of the suppressed tokens has is of another token.
    One that is theirs may be of another too, as a word with and without a space before it.
    """
    row = "bias.low"
    low = exam.profile.bias.low
    came = [token for token in map(first_token, suppressed.completions) if token is not None]
    if came:
        back = sum(token in suppressed.tokens for token in came)
        evidence = (
            f"the {len(suppressed.tokens)} likeliest with {low:+g}: one of them came first in"
            f" {back} of {len(came)} greedy answers"
        )
        yield agreement(row, back == 0, evidence)
        return
    texts = suppressed.texts
    words = [completion.text.strip() for completion in suppressed.completions]
    words = [word for word in words if word]
    if not words or not all(texts):
        raise NotChecked("the answer names no token")
    evidence = (
        f"the {len(texts)} likeliest, {texts}, with {low:+g}: {words} came first in greedy answers"
    )
    if any(word.startswith(text) for word in words for text in texts):
        raise NotChecked(f"{evidence}, which other tokens may print as")
    yield agreement(row, True, evidence)


def margin(gap: float) -> float:
    """Nats either side of the tie of a duel, as far as both sides still round alike: a gap is at
    most .25 off a half or whole number.
    """
    return ROOM - abs(gap - round(2 * gap) / 2)


def duel_bias(pair: Pair, base: float, side: int) -> dict[int, float]:
    """A lead of the gap plus ``side`` margins: both biases move inside one half of a unit, so that
    a server that makes whole numbers of them, by whatever rule, sees the same two numbers on either
    side.
    """
    middle = round(2 * pair.gap) / 2
    shift = pair.gap - middle + side * margin(pair.gap)
    low = 0.25 - shift / 2
    high = math.floor(middle) + 0.25 + (middle % 1) + shift / 2
    return {pair.ahead: round(base + low, 4), pair.behind: round(base + high, 4)}


def _duel(exam: Exam) -> Pair | None:
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
    return max(inside, key=lambda pair: margin(pair.gap), default=None)


def _base(exam: Exam) -> float:
    return min(BASE, float(math.floor(exam.high / 2)))


async def ask_fractions(exam: Exam) -> list[int] | RequestRejected:
    """A duel of two tokens, decided by less than half a nat either way, that whole numbers cannot
    tell: how often the token behind came first, on either side of the tie.
    """
    if not exam.works or not exam.rules.bias:
        raise NotChecked("no bias can be seen to act here")
    duel = _duel(exam)
    if duel is None:
        raise NotChecked("no two tokens that a bias may name are listed close enough to each other")
    wins = []
    try:
        for side in (-1, 1):
            bias = duel_bias(duel, _base(exam), side)
            completions = await exam.repeat(DUELS, WORDS, top=1, temperature=0.0, bias=bias)
            wins.append(list(map(first_token, completions)).count(duel.behind))
    except RequestRejected as refusal:
        return refusal
    return wins


def compare_fractions(exam: Exam, wins: list[int] | RequestRejected) -> Iterator[RowFinding]:
    """The token behind must lose below the tie, and win above it."""
    row = "bias.fractions"
    claimed = exam.profile.bias.fractions
    duel = _duel(exam)
    if isinstance(wins, RequestRejected) or duel is None:
        yield agreement(row, not claimed, f"refused ({wins})", False)
        return
    room = margin(duel.gap)
    evidence = (
        f"a token {duel.gap:.2f} nat behind won {wins[0]} of {DUELS} greedy answers with a lead"
        f" {room:.2f} below that, {wins[1]} of {DUELS} with one {room:.2f} above"
    )
    if wins == [0, DUELS] and claimed:
        yield agreement(row, True, evidence)
    elif wins == [0, DUELS]:
        words = "fractions count, the profile need not forbid them"
        yield measured(row, f"{words}: {evidence}", True)
    elif wins[0] == wins[1] and room > exam.step:
        yield agreement(row, not claimed, f"fractions do not count: {evidence}", False)
    else:
        yield unchecked(row, f"the noise decides, or the rounding of logprobs: {evidence}")


@dataclass(frozen=True, slots=True)
class Highest:
    """Whether a bias on one token was refused, and the lower id that was accepted then."""

    token: int
    refusal: RequestRejected | None = None
    accepted: int | None = None


async def ask_highest_id(exam: Exam) -> Highest:
    """The highest id that a bias may name, or that was listed; those above it are never tried."""
    if exam.works is False:
        raise NotChecked("no bias can be seen to act here")
    where = exam.session.biased_endpoint
    highest = exam.highest_id
    if highest is None:
        highest = max(exam.listed_ids(), default=-1)  # a bias must be able to name what is listed
    if highest < 0:
        raise NotChecked(UNTOLD)
    try:
        await exam.ask(WORDS, top=1, bias={highest: 1.0}, endpoint=where)
    except RequestRejected as refusal:
        for lower in [number for number in hinted(refusal) if BASE < number < highest][:1]:
            await exam.ask(WORDS, top=1, bias={lower: 1.0}, endpoint=where)
            return Highest(highest, refusal, lower)
        return Highest(highest, refusal)
    return Highest(highest)


def compare_highest_id(exam: Exam, answer: Highest) -> Iterator[RowFinding]:
    """It is accepted."""
    row = "bias.highest_id"
    if answer.refusal is not None:
        evidence = f"{answer.token:,} refused ({answer.refusal})"
        yield agreement(row, False, evidence, answer.accepted)
    elif exam.highest_id is None:
        reason = f"{UNTOLD}; the highest that was listed, {answer.token:,}, is accepted"
        yield unchecked(row, reason)
    else:
        yield agreement(row, True, f"id {answer.token:,} accepted")


@dataclass(frozen=True, slots=True)
class Entries:
    """A bias of ``size`` entries. accepted: most entries that were, where ``size`` were refused.
    turns: with the most on the first token and then on the last, the tokens that came first.
    """

    size: int
    refusal: Exception | None = None
    accepted: int = 0
    ends: tuple[int, int] | None = None
    turns: Sequence[int | None] = ()


async def ask_entries(exam: Exam) -> Entries:
    """A bias of exactly the claimed number of entries, never of more, or of ever more; a smaller
    limit is found by halving.
    """
    if exam.works is False or not exam.trusted:
        raise NotChecked("no bias can be seen to act here")
    claimed = exam.profile.bias.entries
    ids = claimed or LADDER[1]
    if exam.highest_id is not None:
        ids = exam.highest_id + 1
    ids = min(ids, MOST)
    sizes = sorted({min(size, ids) for size in (*LADDER, ids)})
    if claimed is not None:
        sizes = [min(claimed, ids)]

    async def refusal_of(size: int) -> Exception | None:
        bias = dict.fromkeys(range(size), FILLER)
        try:
            await exam.ask(WORDS, top=1, bias=bias, endpoint=exam.session.biased_endpoint)
        except REFUSALS as error:
            return error
        return None

    accepted = 1
    for size in sizes:
        refusal = await refusal_of(size)
        if isinstance(refusal, RequestRejected):
            hints = [entries for number in hinted(refusal) for entries in (number, number + 1)]
            accepted = await most_accepted(refusal_of, accepted, size, hints)
        if refusal is not None:
            return Entries(size, refusal, accepted)
        accepted = size
    ends = _ends(exam)
    if not exam.works or not exam.rules.bias or ends is None or accepted < 2:
        return Entries(accepted)
    fillers = [token for token in range(accepted) if token not in ends][: accepted - 2]
    behind = max(exam.high - LEAD, exam.profile.bias.low)
    turns = []
    for front, back in ((exam.high, behind), (behind, exam.high)):
        bias = {ends[0]: front, **dict.fromkeys(fillers, FILLER), ends[1]: back}
        turns.append(await exam.winner(bias))
    return Entries(accepted, ends=ends, turns=turns)


def _ends(exam: Exam) -> tuple[int, int] | None:
    """The smallest and the largest id that the largest bias lifts more than 1 nat above the
    likeliest.
    """
    tokens = exam.biasable()
    top = max(tokens.values(), default=0.0)
    liftable = [token for token, value in tokens.items() if value + exam.high - FILLER > top + 1]
    if len(liftable) < 2:
        return None
    return min(liftable), max(liftable)


def compare_entries(exam: Exam, entries: Entries) -> Iterator[RowFinding]:
    """All of them are accepted and act, the first and the last."""
    row = "bias.entries"
    claimed = exam.profile.bias.entries
    if entries.refusal is not None:
        evidence = f"{entries.size:,} refused ({entries.refusal}); {entries.accepted:,} accepted"
        yield agreement(row, False, evidence, entries.accepted)
        return
    evidence = f"{entries.size:,}"
    if claimed is not None and entries.size < claimed:
        evidence += f" of {claimed:,} that are claimed"
    evidence += " entries accepted"
    if entries.ends is None:
        yield agreement(row, True, evidence)
        return
    first, last = entries.ends
    evidence += (
        f"; with the most on token {first}, then {last}, tokens {entries.turns[0]},"
        f" {entries.turns[1]} came first"
    )
    yield agreement(row, [first, last] == list(entries.turns), evidence)
