"""Checks of the lists of alternatives: how many, how steady, in which steps, and what became of a
sampled token outside them.
"""

import re
from contextlib import suppress

import numpy as np

from blackbox_lb.errors import CorruptResponse, ProviderError, RequestRejected, ServerFailed
from blackbox_lb.extras.doctor.asking.exam import WORDS, Exam, count_listed, gaps, mean_logprobs
from blackbox_lb.extras.doctor.asking.probe import ProbesSpent, Withheld
from blackbox_lb.providers.schema import EndpointRules

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


async def check_lists(exam: Exam) -> None:
    """The first plain requests: as many alternatives as claimed, then the same request again and
    again.

    Raises ProviderError: not even one alternative is to be had, so that nothing can be checked.
    """
    endpoint = exam.probe.session.endpoint
    has_own_limit = exam.rules.top_logprobs is not None
    row = "logprobs.limit"
    if has_own_limit:
        row = f"endpoints.{endpoint}.top_logprobs"
    claimed = exam.profile.most_logprobs(endpoint)
    count = min(
        USUAL if claimed is None else claimed,
        exam.vocabulary_size or USUAL if claimed is None else claimed,
    )
    refused = await _first(exam, count)
    exam.probe.top = min(exam.alternatives, USUAL)
    with suppress(Withheld):  # one list is enough to go on with
        await exam.probe.repeat(REPEATS - (refused is None), WORDS)
    most_listed = max(count_listed(completion) for completion in exam.completions())
    sure = _sure(exam.rules, exam.alternatives, exam.vocabulary_size)
    if refused is not None:
        exam.findings.agree(
            row,
            False,
            f"{count} refused ({refused}); {exam.alternatives} accepted",
            exam.alternatives,
        )
    elif most_listed < FEWER * sure:
        exam.findings.agree(
            row, False, f"{exam.alternatives} asked for, {most_listed} listed", most_listed
        )
    elif claimed is None:
        try:
            await _no_limit(exam, row)
        except Withheld as reason:
            exam.findings.skip([row], str(reason))
    else:
        exam.findings.agree(row, True, f"{exam.alternatives} asked for and listed")
    _steadiness(exam)


def _sure(rules: EndpointRules, width: int, vocabulary: int | None) -> int:
    """How many of the listed alternatives are sure to be the likeliest."""
    sure = width
    if rules.sampled_in_list == "replaces the last":
        sure -= 1
    if vocabulary:
        return min(sure, vocabulary)
    return sure


async def _first(exam: Exam, width: int) -> RequestRejected | None:
    """Settle ``exam.alternatives``; returns why ``width`` alternatives were refused, None if they
    were not.
    """
    try:
        exam.alternatives = width
        exam.probe.top = width
        await exam.probe.ask(WORDS)
    except RequestRejected as refusal:
        if width <= 1 or type(refusal) is not RequestRejected:
            raise
        exam.alternatives = await _most(exam, width)
        return refusal
    return None


async def _most(exam: Exam, refused: int) -> int:
    """The largest accepted number below ``refused``. Raises RequestRejected where not even 1 is
    accepted.
    """
    await exam.probe.ask(WORDS, top=1)
    accepted = 1
    while refused - accepted > 1:
        middle = (accepted + refused) // 2
        try:
            await exam.probe.ask(WORDS, top=middle)
            accepted = middle
        except RequestRejected:
            refused = middle
        except (ProbesSpent, Withheld):
            break
    return accepted


async def _no_limit(exam: Exam, row: str) -> None:
    """One wide list, where the profile knows no limit."""
    wide = min(exam.vocabulary_size or WIDE_UNKNOWN, WIDEST)
    try:
        completion = (await exam.probe.ask(WORDS, top=wide))[0]
        if not len(completion.token_ids):  # it ended at once, with a token that is not listed
            completion = (await exam.probe.ask(WORDS, top=wide))[0]
    except (RequestRejected, ServerFailed) as refusal:
        hint = [number for number in hinted(refusal) if exam.alternatives <= number < wide]
        return exam.findings.agree(
            row, False, f"{wide} refused ({refusal})", hint[0] if hint else exam.alternatives
        )
    listed = count_listed(completion)
    if not listed:
        return exam.findings.skip([row], "the answers end at once")
    short = listed < FEWER * _sure(exam.rules, wide, exam.vocabulary_size)
    return exam.findings.agree(row, not short, f"{wide:,} asked for, {listed:,} listed", listed)


def hinted(refusal: ProviderError) -> list[int]:
    """The numbers in a refusal, one of which may be the limit."""
    return [int(number.replace(",", "")) for number in re.findall(r"\d+(?:,\d{3})*", str(refusal))]


def _steadiness(exam: Exam) -> None:
    rows = exam.openings()
    common = mean_logprobs(rows)
    values = np.array([[row[token] for token in common] for row in rows])
    exam.noise = 0.0
    if values.size:
        exam.noise = float(np.ptp(values, axis=0).max())
    exam.findings.add(
        "logprobs.noise",
        "MEASURED",
        f"{len(rows)} equal requests: at most {exam.noise:.2g} nat apart over {len(common)} tokens",
    )
    below = gaps(rows)
    fit = (
        step
        for step in STEPS
        if below.any() and np.all(np.abs(below / step - np.rint(below / step)) * step < EXACT)
    )
    exam.step = next(fit, 0.0)
    evidence = f"no common step down to 1/{1 / STEPS[-1]:g} nat"
    if exam.step:
        evidence = f"a multiple of 1/{1 / exam.step:g} nat"
    exam.findings.add(
        "logprobs.step", "MEASURED", f"{len(below)} gaps to the likeliest: {evidence}"
    )


async def check_outside(exam: Exam) -> None:
    """A token that a bias forces though it is not among the likeliest: is it listed, and is its
    logprob given?
    """
    name = exam.probe.session.endpoint
    row = f"endpoints.{name}.sampled_in_list"
    high = exam.high
    tokens = list(exam.biasable())
    if not exam.works or not exam.rules.bias:
        return exam.findings.skip(
            [row, "logprobs.censored"], "no token can be forced there by a bias"
        )
    if len(tokens) < 4 or exam.alternatives < 2:
        return exam.findings.skip([row, "logprobs.censored"], "fewer than 4 tokens are listed")
    await _where(exam, row, tokens[-1], high)
    return await _censored(exam, high)


async def _where(exam: Exam, row: str, token: int, high: float) -> None:
    completion = await exam.probe.uncut(WORDS, top=2, bias={token: high})
    listed = dict(
        zip(completion.top_ids[0].tolist(), completion.top_logprobs[0].tolist(), strict=True)
    )
    if completion.token_ids[0] != token or listed.get(token, -np.inf) > SETTLED:
        return exam.findings.skip(
            [row], "a bias makes the forced token the likeliest, so that it is always listed"
        )
    evidence = f"2 alternatives asked for, {len(listed)} listed, the sampled token"
    if token not in listed:
        kind = "no"
        evidence += " not among them"
    else:
        kind = "replaces the last"
        if len(listed) > 2:
            kind = "added"
        evidence += " among them"
    claimed = exam.rules.sampled_in_list
    if kind == claimed:
        return exam.findings.agree(row, True, evidence)
    if kind == "replaces the last":
        return exam.findings.agree(row, False, evidence, kind)
    return exam.findings.add(
        row, "MEASURED", f"{evidence}: {kind!r}, which is read right too", kind
    )


async def _censored(exam: Exam, high: float) -> None:
    """The logprob of a sampled token outside the longest list."""
    row = "logprobs.censored"
    openings = exam.openings()
    outside = exam.outside()
    if not outside:
        return exam.findings.skip([row], "no token outside the list is known")
    try:
        completion = (await exam.probe.ask(WORDS, bias={outside[0]: high}))[0]
    except CorruptResponse as error:
        return exam.findings.agree(row, False, str(error))
    if (
        not len(completion.token_ids)
        or completion.token_ids[0] != outside[0]
        or completion.logprobs[0] > SETTLED
    ):
        return exam.findings.skip([row], "no token outside the list could be forced")
    place = f"a sampled token outside the {len(openings[0])} listed"
    if completion.bounded is not None and completion.bounded[0]:
        return exam.findings.agree(
            row, True, f"{place} came with {exam.profile.logprobs.censored:g}"
        )
    evidence = f"{place} came with its logprob, {completion.logprobs[0]:.2f}"
    if exam.profile.logprobs.censored is None:
        return exam.findings.agree(row, True, evidence)
    return exam.findings.skip([row], evidence)
