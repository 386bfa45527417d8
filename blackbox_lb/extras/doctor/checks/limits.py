"""Checks of limits of a bias: the highest id that it may name, and how many entries are accepted
and act.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from blackbox_lb.errors import ConnectionFailed, RequestRejected, ServerFailed
from blackbox_lb.extras.doctor.exam import BudgetSpent, Exam, NotChecked, Withheld, attempt
from blackbox_lb.extras.doctor.findings import RowFinding, agreement, unchecked

LEAST_HINT = 50
"""Numbers in a refusal above this one may be a limit of ids, and not one of the range."""
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


def hinted(refusal: Exception) -> list[int]:
    """The numbers in a refusal, one of which may be the limit."""
    return [int(number.replace(",", "")) for number in re.findall(r"\d+(?:,\d{3})*", str(refusal))]


async def most_accepted(
    ask: Callable[[int], Awaitable[object]], accepted: int, refused: int, hints: Sequence[int] = ()
) -> int:
    """The largest number to which ``ask`` gives no error, by halving, as far as the budget goes;
    ``hints`` are tried first.
    """
    with suppress(BudgetSpent, Withheld):
        while refused - accepted > 1:
            inside = [hint for hint in hints if accepted < hint < refused]
            number = [*inside, (accepted + refused) // 2][0]
            if isinstance(await ask(number), Exception):
                refused = number
            else:
                accepted = number
    return accepted


async def ask_highest_id(exam: Exam) -> list[tuple[int, object]]:
    """A bias on the highest id that may be named, or that was listed, and its answer or refusal;
    then one on a lower id that the refusal names. Those above are never tried.
    """
    if exam.works is False:
        raise NotChecked("no bias can be seen to act here")
    highest = exam.highest_id
    if highest is None:
        highest = max(exam.listed_ids(), default=-1)  # a bias must be able to name what is listed
    if highest < 0:
        raise NotChecked(UNTOLD)
    answer = await _answer(exam, {highest: 1.0}, RequestRejected)
    if isinstance(answer, Exception):
        for lower in hinted(answer):
            if LEAST_HINT < lower < highest:
                second = await _answer(exam, {lower: 1.0}, RequestRejected)
                return [(highest, answer), (lower, second)]
    return [(highest, answer)]


async def _answer(exam: Exam, bias: Mapping[int, float], *faults: type[Exception]) -> object:
    """What comes of a bias, or in its place the error where it is one of ``faults``."""
    where = exam.session.biased_endpoint
    return await attempt(exam.winners(bias, temperature=1.0, endpoint=where), *faults)


def compare_highest_id(exam: Exam, answers: Sequence[tuple[int, object]]) -> Iterator[RowFinding]:
    """It is accepted."""
    row = "bias.highest_id"
    token, answer = answers[0]
    if isinstance(answer, Exception):
        accepted = [lower for lower, answer in answers if not isinstance(answer, Exception)]
        evidence = f"{token:,} refused ({answer})"
        yield agreement(row, False, evidence, next(iter(accepted), None))
    elif exam.highest_id is None:
        yield unchecked(row, f"{UNTOLD}; the highest that was listed, {token:,}, is accepted")
    else:
        yield agreement(row, True, f"id {token:,} accepted")


@dataclass(frozen=True, slots=True)
class Entries:
    """A bias of many entries.

    size: entries that were sent.
    refusal: of so many.
    accepted: most entries that were.
    turns: the tokens that came first with the most on the first of ``_ends`` and then on the last.
    """

    size: int
    refusal: Exception | None
    accepted: int
    turns: Sequence[int | str | None] = ()


async def ask_entries(exam: Exam) -> Entries:
    """A bias of exactly the claimed number of entries, never of more, or of ever more; a smaller
    limit is found by halving. Where all are accepted, two tokens lead by turns.
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

    async def answer(size: int) -> object:
        return await _answer(exam, dict.fromkeys(range(size), FILLER), *REFUSALS)

    accepted = 1
    for size in sizes:
        refusal = await answer(size)
        if isinstance(refusal, RequestRejected):
            hints = [entries for number in hinted(refusal) for entries in (number, number + 1)]
            accepted = await most_accepted(answer, accepted, size, hints)
        if isinstance(refusal, Exception):
            return Entries(size, refusal, accepted)
        accepted = size
    ends = _ends(exam)
    if not exam.works or not exam.rules.bias or len(ends) < 2 or accepted < 2:
        return Entries(accepted, None, accepted)
    fillers = [token for token in range(accepted) if token not in ends][: accepted - 2]
    low = max(exam.high - LEAD, exam.profile.bias.low)
    turns = []
    for front, back in ((exam.high, low), (low, exam.high)):
        bias = {ends[0]: front, **dict.fromkeys(fillers, FILLER), ends[1]: back}
        turns += await exam.winners(bias)
    return Entries(accepted, None, accepted, turns)


def _ends(exam: Exam) -> list[int]:
    """The smallest and the largest id that the largest bias lifts more than 1 nat above the
    likeliest; at most one where it lifts no two.
    """
    tokens = exam.biasable()
    needed = max(tokens.values(), default=0.0) + 1 + FILLER - exam.high
    liftable = sorted(token for token, value in tokens.items() if value > needed)
    return [*liftable[:1], *liftable[1:][-1:]]


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
    ends = _ends(exam)
    if entries.turns:
        evidence += (
            f"; with the most on token {ends[0]}, then {ends[1]}, tokens {entries.turns[0]},"
            f" {entries.turns[1]} came first"
        )
    all_act = not entries.turns or list(entries.turns) == ends
    yield agreement(row, all_act, evidence)
