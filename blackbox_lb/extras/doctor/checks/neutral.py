"""The check that matters most: sampled tokens are draws from the distributions that come with
them.
"""

from collections.abc import Iterator

import numpy as np

from blackbox_lb.extras.doctor.checks.logprobs import END, compare_end, ended
from blackbox_lb.extras.doctor.checks.uniformity import (
    COARSE,
    EXPECTED,
    CellDraw,
    UniformityVerdict,
    judge,
    temperature_of,
)
from blackbox_lb.extras.doctor.exam import STORY, WORDS, Exam, NotChecked
from blackbox_lb.extras.doctor.findings import RowFinding, agreement
from blackbox_lb.types import NO_TOKEN, UNNAMED, Completion

CONTRADICTS = 1e-3
"""A neutral server is accused once in 1,000 self-tests, so that a temperature of 1.1 is found in 95
% of them.
"""
REQUESTS = 26
TOKENS = 48
DOUBT = 0.15
MORE = 24
LONG = 64
"""p-value of the temperature below which ``MORE`` requests of ``LONG`` tokens follow: one neutral
server in seven is asked them. A temperature of 1.1 passes it in 1 % of self-tests."""
AT_ONCE = 4
BATCH = 8
"""Completions a request where a provider gives several, and requests of a batch, of which there may
be two.
"""
AGAIN = 10
"""Requests for the texts of end tokens, and for answers that came without a list."""
MOST_REQUESTS = REQUESTS + MORE + AGAIN
MOST_TOKENS = TOKENS * max(REQUESTS, AT_ONCE * BATCH * 2) + MORE * LONG
WIDE = 100
"""Alternatives asked for where the provider lists so many: a truncation shows only where the list
reaches the mass that is cut.
"""
LOST = 0.01
"""Share of draws whose missing end tokens go unnoticed in every test."""


async def ask_neutral(exam: Exam) -> tuple[list[CellDraw], UniformityVerdict]:
    """Some hundreds of tokens at two prompts, and all that was drawn neutrally before, as draws
    with their verdict.

    Where several completions come at a time, more are drawn if too few draws are due in what a
    truncation would cut; and some longer ones anywhere, where the temperature is in doubt.
    """
    exam.top = _alternatives(exam)
    several = exam.status("sampling.n") == "CONFIRMED" and exam.profile.sampling.n >= AT_ONCE
    if several:
        await _draw(exam, BATCH // 2, TOKENS, n=AT_ONCE)
    else:
        await _draw(exam, REQUESTS // 2, TOKENS)
    if exam.status(END) == "NOT CHECKED":
        for finding in compare_end(exam, await ended(exam)):
            exam.add(finding)
    draws, verdict = _judged(exam)
    if several and verdict.expected < EXPECTED:
        await exam.repeat(BATCH, STORY, max_tokens=TOKENS, n=AT_ONCE)
        draws, verdict = _judged(exam)
    if verdict.heat < DOUBT:
        await _draw(exam, MORE // 2, LONG)
        draws, verdict = _judged(exam)
    return draws, verdict


async def _draw(exam: Exam, requests: int, tokens: int, n: int = 1) -> None:
    """``requests`` for completions of each of the two prompts."""
    for prompt in (WORDS, STORY):
        await exam.repeat(requests, prompt, max_tokens=tokens, n=n)


def _judged(exam: Exam) -> tuple[list[CellDraw], UniformityVerdict]:
    """Every token that was drawn neutrally, and the verdict. Raises NotChecked: there is none."""
    draws = [draw for completion in exam.completions() for draw in draws_of(exam, completion)]
    if not draws:
        raise NotChecked("no token was listed")
    return draws, judge(draws, exam.step)


def _alternatives(exam: Exam) -> int:
    """As many as are known to be listed, up to ``WIDE``."""
    claimed = exam.profile.most_logprobs(exam.session.endpoint)
    unlimited = claimed is None and exam.status("logprobs.limit") == "CONFIRMED"
    if unlimited and exam.vocabulary_size is not None:
        return min(WIDE, exam.vocabulary_size)
    return min(WIDE, exam.alternatives)


def compare_neutral(
    exam: Exam, answer: tuple[list[CellDraw], UniformityVerdict]
) -> Iterator[RowFinding]:
    """No test tells the draws from those of a neutral server."""
    draws, verdict = answer
    completions = list(exam.completions())
    lost = sum(completion.finish_reason == "stop" for completion in completions)
    if not exam.end_listed and not exam.with_text and lost > LOST * len(draws):
        raise NotChecked(
            f"{lost} of {len(completions)} completions ended by themselves, with a token that is"
            " not listed, and its id is not known"
        )
    evidence = (
        f"{verdict.draws} tokens: chi-square p = {verdict.chi_square:.2g}, {verdict.beyond} outside"
        f" the top 90 % of the mass ({verdict.expected:.1f} expected)"
    )
    if verdict.p < CONTRADICTS:
        texts = {completion.text for completion in completions if len(completion.token_ids) > 1}
        why = (
            f"p = {verdict.p:.1g}, {verdict.reason}; likeliest temperature"
            f" {temperature_of(draws):.2f}"
        )
        yield agreement("neutral", False, f"{why}; {len(texts)} different texts; {evidence}")
    elif exam.step >= COARSE:
        steps = f"logprobs are rounded to steps of {exam.step:g} nat"
        raise NotChecked(f"not tested: {steps}; {evidence}")
    elif verdict.expected < EXPECTED:
        raise NotChecked(f"too little variety to see a truncation; {evidence}")
    else:
        evidence += f"; smallest p of all tests {verdict.p:.2g}"
        yield agreement("neutral", True, evidence)


def draws_of(exam: Exam, completion: Completion) -> list[CellDraw]:
    """Every token of ``completion`` as a draw from its list.

    Where the end token is not listed, a draw is one from the tokens that do not end the completion:
    those without text are taken out of the list, because they could not have been seen.
    """
    draws = []
    tokens = completion.token_ids.tolist()
    for t, (token, logprob) in enumerate(zip(tokens, completion.logprobs.tolist(), strict=True)):
        ids = completion.top_ids[t]
        values = completion.top_logprobs[t].astype(np.float64)
        visible = ids != NO_TOKEN
        if not exam.end_listed:
            ends = [_may_end(exam, listed_token) for listed_token in ids.tolist()]
            may_end = np.array(ends, np.bool_)
            if token in ids and _may_end(exam, token):
                continue
            hidden = float(np.exp(values[may_end & visible]).sum())
            values = values - np.log1p(-min(hidden, 0.999))
            visible &= ~may_end
        listed_ids = ids[visible]
        values = values[visible]
        places = np.flatnonzero(listed_ids == token)
        cell = len(listed_ids)
        if len(places):  # of tokens without an id several may be listed
            cell = int(places[np.argmin(np.abs(values[places] - logprob))])
        before = set(tokens[:t]) - {UNNAMED}
        draws.append(CellDraw.of(listed_ids, np.exp(values), cell, before))
    return draws


def _may_end(exam: Exam, token: int) -> bool:
    """Whether a listed token may be the hidden end token: it has no text."""
    if token == UNNAMED:
        return True
    return token != NO_TOKEN and not exam.has_text(token)
