"""Checks of the lists of alternatives: how many, how steady, in which steps, and what became of a
sampled token outside them.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import CorruptResponse, RequestRejected, ServerFailed
from blackbox_lb.extras.doctor.checks.limits import hinted, most_accepted
from blackbox_lb.extras.doctor.exam import (
    WORDS,
    Exam,
    NotChecked,
    Withheld,
    attempt,
    first_token,
    mean_logprobs,
)
from blackbox_lb.extras.doctor.findings import RowFinding, agreement, measured, unchecked
from blackbox_lb.types import NO_TOKEN, Completion

USUAL = 20
"""Alternatives asked for where no limit is claimed: what most providers list, and what a fit asks
for.
"""
WIDE_UNKNOWN = 1_000
WIDEST = 65_536
"""Alternatives asked for to see that there is no limit: fewer than any real vocabulary has, and no
more than a few megabytes.
"""
REPEATS = 4
STEPS = (0.5, 0.25, 0.2, 0.125, 0.1, 1 / 16, 1 / 32, 1 / 64)
FEWER = 0.75
"""Of the alternatives asked for: a list may lack a few whose bytes are no text, or that print like
another.
"""
EXACT = 2e-4
"""Nats: float32 rounding of a logprob."""
SETTLED = -0.1
"""A forced token above this logprob, in nats, shows that the list is of the biased distribution."""


@dataclass(frozen=True, slots=True)
class Lists:
    """The first plain requests.

    count: alternatives asked for first.
    refusal: of so many; None where they were accepted.
    wide: a longer list, its refusal, or why there is none; None where a limit is claimed or seen.
    """

    count: int
    refusal: RequestRejected | None
    wide: list[Completion] | Exception | None


async def ask_lists(exam: Exam) -> Lists:
    """As many alternatives as claimed, then the same request again and again, and one wide list
    where the profile knows no limit.

    Raises ProviderError: not even one alternative is to be had, so that nothing can be checked.
    """
    claimed = exam.profile.most_logprobs(exam.session.endpoint)
    count = claimed
    if count is None:
        count = min(USUAL, exam.vocabulary_size or USUAL)
    refusal = await _first(exam, count)
    exam.top = min(exam.alternatives, USUAL)
    with suppress(Withheld):  # one list is enough to go on with
        await exam.repeat(REPEATS - (refusal is None), WORDS)
    wide = None
    if refusal is None and claimed is None and not _is_short(exam, _most(exam), count):
        wide = await _wide(exam)
    exam.noise = _noise(exam)
    gaps = _gaps(exam)
    exam.step = 0.0
    for step in reversed(STEPS):
        if gaps.any() and np.all(np.abs(gaps / step - np.rint(gaps / step)) * step < EXACT):
            exam.step = step
    return Lists(count, refusal, wide)


async def _first(exam: Exam, count: int) -> RequestRejected | None:
    """Settle ``exam.alternatives``; returns why ``count`` alternatives were refused, None if they
    were not.
    """
    exam.alternatives = count
    exam.top = count
    refusal = await attempt(exam.ask(WORDS), RequestRejected)
    if not isinstance(refusal, Exception):
        return None
    if count <= 1 or type(refusal) is not RequestRejected:
        raise refusal
    await exam.ask(WORDS, top=1)
    exam.alternatives = await most_accepted(
        lambda top: attempt(exam.ask(WORDS, top=top), RequestRejected), 1, count
    )
    return refusal


async def _wide(exam: Exam) -> list[Completion] | Exception:
    """One wide list; asked for again where the answer ends at once, with a token that is not
    listed.
    """
    wide: list[Completion] | Exception = []
    for _ in range(2):
        wide = await attempt(
            exam.ask(WORDS, top=_wide_count(exam)), RequestRejected, ServerFailed, Withheld
        )
        if isinstance(wide, Exception) or first_token(wide[0]) is not None:
            break
    return wide


def _wide_count(exam: Exam) -> int:
    return min(exam.vocabulary_size or WIDE_UNKNOWN, WIDEST)


def compare_lists(exam: Exam, lists: Lists) -> Iterator[RowFinding]:
    """The limit, the noise between equal requests, and the step of the logprobs."""
    row = "logprobs.limit"
    if exam.rules.top_logprobs is not None:
        row = f"endpoints.{exam.session.endpoint}.top_logprobs"
    accepted = exam.alternatives
    if lists.refusal is not None:
        evidence = f"{lists.count} refused ({lists.refusal}); {accepted} accepted"
        yield agreement(row, False, evidence, accepted)
    elif _is_short(exam, _most(exam), accepted):
        evidence = f"{accepted} asked for, {_most(exam)} listed"
        yield agreement(row, False, evidence, _most(exam))
    elif lists.wide is None:
        yield agreement(row, True, f"{accepted} asked for and listed")
    else:
        yield _no_limit(exam, row, lists.wide)
    rows = exam.openings()
    yield measured(
        "logprobs.noise",
        f"{len(rows)} equal requests: at most {exam.noise:.2g} nat apart over"
        f" {len(mean_logprobs(rows))} tokens",
    )
    evidence = f"no common step down to 1/{1 / STEPS[-1]:g} nat"
    if exam.step:
        evidence = f"a multiple of 1/{1 / exam.step:g} nat"
    yield measured("logprobs.step", f"{len(_gaps(exam))} gaps to the likeliest: {evidence}")


def _no_limit(exam: Exam, row: str, wide: list[Completion] | Exception) -> RowFinding:
    """Whether a wide list came in full."""
    count = _wide_count(exam)
    if isinstance(wide, NotChecked):
        return unchecked(row, str(wide))
    if isinstance(wide, Exception):
        hints = [number for number in hinted(wide) if exam.alternatives <= number < count]
        limit = [*hints, exam.alternatives][0]
        return agreement(row, False, f"{count} refused ({wide})", limit)
    size = _longest(wide)
    if not size:
        return unchecked(row, "the answers end at once")
    evidence = f"{count:,} asked for, {size:,} listed"
    return agreement(row, not _is_short(exam, size, count), evidence, size)


def _is_short(exam: Exam, size: int, count: int) -> bool:
    """Whether a list of ``size`` tokens lacks some of ``count`` that were asked for."""
    sure = count
    if exam.rules.sampled_in_list == "replaces the last":
        sure -= 1
    if exam.vocabulary_size:
        sure = min(sure, exam.vocabulary_size)
    return size < FEWER * sure


def _most(exam: Exam) -> int:
    """The longest list so far."""
    return _longest(list(exam.completions()))


def _longest(completions: Sequence[Completion]) -> int:
    """The longest list of alternatives, tokens without an id included."""
    sizes = [(completion.top_ids != NO_TOKEN).sum(axis=1) for completion in completions]
    return max((int(size.max()) for size in sizes if size.size), default=0)


def _noise(exam: Exam) -> float:
    """Largest difference between logprobs of equal requests, in nats."""
    rows = exam.openings()
    values = np.array([[row[token] for token in mean_logprobs(rows)] for row in rows])
    if values.size:
        return float(np.ptp(values, axis=0).max())
    return 0.0


def _gaps(exam: Exam) -> npt.NDArray[np.float64]:
    """How far each listed token is below the likeliest of its opening, in nats, the likeliest left
    out.
    """
    distances = [
        np.sort(max(row.values()) - np.array(list(row.values())))[1:] for row in exam.openings()
    ]
    return np.concatenate([*distances, np.zeros(0)])


Outside: TypeAlias = list[Completion] | Exception
"""A token forced outside every list, or why there is none."""


async def ask_outside(exam: Exam) -> tuple[Completion, Outside]:
    """A token that a bias forces though it is not among the likeliest: in the list of the model,
    but not among the two alternatives asked for, and outside every list.
    """
    if not exam.works or not exam.rules.bias:
        raise NotChecked("no token can be forced there by a bias")
    tokens = list(exam.biasable())
    if len(tokens) < 4 or exam.alternatives < 2:
        raise NotChecked("fewer than 4 tokens are listed")
    (inside,) = await exam.ask(WORDS, top=2, bias={tokens[-1]: exam.high}, as_sent=True)
    if not exam.outside():
        return inside, NotChecked("no token outside the list is known")
    forced = exam.ask(WORDS, bias={exam.outside()[0]: exam.high})
    return inside, await attempt(forced, CorruptResponse, NotChecked)


def compare_outside(exam: Exam, answer: tuple[Completion, Outside]) -> Iterator[RowFinding]:
    """Is it listed, and is its logprob given?"""
    inside, outside = answer
    yield _where(exam, list(exam.biasable())[-1], inside)
    yield _censored(exam, outside)


def _where(exam: Exam, token: int, completion: Completion) -> RowFinding:
    row = f"endpoints.{exam.session.endpoint}.sampled_in_list"
    pairs = zip(completion.top_ids[0].tolist(), completion.top_logprobs[0].tolist(), strict=True)
    listed = dict(pairs)
    if first_token(completion) != token or listed.get(token, -np.inf) > SETTLED:
        reason = "a bias makes the forced token the likeliest, so that it is always listed"
        return unchecked(row, reason)
    evidence = f"2 alternatives asked for, {len(listed)} listed, the sampled token"
    if token not in listed:
        kind = "no"
        evidence += " not among them"
    else:
        kind = "replaces the last"
        if len(listed) > 2:
            kind = "added"
        evidence += " among them"
    if kind == exam.rules.sampled_in_list:
        return agreement(row, True, evidence)
    if kind == "replaces the last":
        return agreement(row, False, evidence, kind)
    return measured(row, f"{evidence}: {kind!r}, which is read right too", kind)


def _censored(exam: Exam, answer: Outside) -> RowFinding:
    """The logprob of a sampled token outside the longest list."""
    row = "logprobs.censored"
    if isinstance(answer, NotChecked):
        return unchecked(row, str(answer))
    if isinstance(answer, Exception):
        return agreement(row, False, str(answer))
    (completion,) = answer
    if first_token(completion) != exam.outside()[0] or completion.logprobs[0] > SETTLED:
        return unchecked(row, "no token outside the list could be forced")
    place = f"a sampled token outside the {len(exam.openings()[0])} listed"
    if completion.bounded is not None and completion.bounded[0]:
        evidence = f"{place} came with {exam.profile.logprobs.censored:g}"
        return agreement(row, True, evidence)
    evidence = f"{place} came with its logprob, {completion.logprobs[0]:.2f}"
    if exam.profile.logprobs.censored is None:
        return agreement(row, True, evidence)
    return unchecked(row, evidence)
