"""Check of the number of entries: as many as claimed are accepted and all act; where they are not, how many are."""

from __future__ import annotations

from blackbox_lb.errors import ConnectionFailed, RequestRejected, ServerFailed
from blackbox_lb.jobs.doctor.asking.exam import WORDS, Exam
from blackbox_lb.jobs.doctor.asking.probe import ProbesSpent
from blackbox_lb.jobs.doctor.checks.listed_alternatives import hinted

LADDER = (300, 1_024, 8_192)
"""Tried where no limit is claimed: the limits that are known of hosted APIs and of engines, then everything."""
MOST = 65_536
"""Entries of one request at most: about a megabyte."""
FILLER = 1.0
"""Nats on every other token, which changes nothing between them; 0 might be dropped before it is counted."""
LEAD = 20.0
"""Nats between the two tokens that lead by turns: more than any two listed tokens differ by."""
REFUSALS = (RequestRejected, ServerFailed, ConnectionFailed)


async def check_entries(exam: Exam) -> None:
    """A bias of exactly the claimed number of entries, never of more; a smaller limit is bisected."""
    row, claimed = "bias.entries", exam.profile.bias.entries
    if exam.works is False or not exam.trusted:
        return exam.findings.skip([row], "no bias can be seen to act here")
    sizes = _sizes(exam, claimed)
    if not sizes:
        return exam.findings.skip([row], "the size of the vocabulary is not known")
    accepted, refusal = 1, None
    for size in sizes:
        refusal = await _refusal(exam, size)
        if refusal is not None:
            break
        accepted = size
    if refusal is not None:
        most = await _bisect(exam, accepted, size, refusal)
        return exam.findings.agree(row, False, f"{size:,} refused ({refusal}); {most:,} accepted", most)
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
        await exam.probe.ask(WORDS, top=1, bias=dict.fromkeys(range(size), FILLER), endpoint=exam.probe.session.biased_endpoint)
    except REFUSALS as error:
        return error
    return None


async def _bisect(exam: Exam, accepted: int, refused: int, refusal: Exception) -> int:
    """The largest number accepted, as far as the budget goes; the numbers in the refusal are tried first."""
    if not isinstance(refusal, RequestRejected):
        return accepted
    hints = [size for number in hinted(refusal) for size in (number, number + 1)]
    try:
        while refused - accepted > 1:
            size = next((hint for hint in hints if accepted < hint < refused), (accepted + refused) // 2)
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
    words = f"{size:,} of {claimed:,} that are claimed" if claimed is not None and size < claimed else f"{size:,}"
    tokens, high = sorted(exam.biasable()), exam.profile.bias.high
    if not exam.works or not exam.rules.bias or len(tokens) < 2 or size < 2:
        return exam.findings.agree(row, True, f"{words} entries accepted")
    first, last = tokens[0], tokens[-1]
    fillers = [token for token in range(size) if token not in (first, last)][: size - 2]
    came: list[int | None] = []
    behind = max(high - LEAD, exam.profile.bias.low)
    for front, back in ((high, behind), (behind, high)):
        bias = {first: front, **dict.fromkeys(fillers, FILLER), last: back}
        drawn = (await exam.probe.ask(WORDS, top=1, temperature=0.0, bias=bias))[0]
        came.append(int(drawn.token_ids[0]) if len(drawn.token_ids) else None)
    said = f"{words} entries accepted; with the most on token {first}, then {last}, tokens {came[0]}, {came[1]} came first"
    return exam.findings.agree(row, came == [first, last], said, None)
