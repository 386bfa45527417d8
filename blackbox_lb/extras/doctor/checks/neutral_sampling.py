"""The check that matters most: sampled tokens are draws from the distributions that come with
them.
"""

from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from blackbox_lb.extras.doctor.asking.exam import STORY, WORDS, Exam, mean_logprobs
from blackbox_lb.extras.doctor.checks.logprob_meaning import settle_end
from blackbox_lb.extras.doctor.checks.uniformity import (
    COARSE,
    EXPECTED,
    CellDraw,
    UniformityVerdict,
    alike,
    expected_beyond,
    judge,
    temperature_of,
)
from blackbox_lb.types import NO_TOKEN, UNNAMED, Completion

CONTRADICTS = 1e-3
"""A neutral server is accused once in 1,000 self-tests, so that a temperature of 1.1 is found in 95
% of them. A thorough test looks several times and shares this out among its looks.
"""
REQUESTS = 26
TOKENS = 48
DOUBT = 0.15
MORE = 24
LONG = 64
"""p-value of the temperature below which ``MORE`` requests of ``LONG`` tokens follow: one neutral
server in seven is asked them. A temperature of 1.1 passes it in 1 % of self-tests."""
ROUNDS = 6
SETTLED = 0.5
"""Most rounds of ``MORE`` requests of a thorough self-test, which makes the first two in any case,
and the p-value of the temperature from which on it makes no other: a server at 1.05 or .95 whose
draws look that neutral after so many is not found by more of them."""
AT_ONCE = 4
BATCH = 8
BATCHES = 2
"""Completions a request where a provider gives several, requests of a batch, and how many batches
there may be.
"""
MOST_TOKENS = TOKENS * max(REQUESTS, AT_ONCE * BATCH * BATCHES) + MORE * LONG
WIDE = 100
"""Alternatives asked for where the provider lists so many: a truncation shows only where the list
reaches the mass that is cut.
"""
LOST = 0.01
"""Share of draws whose missing end tokens go unnoticed in every test."""


@dataclass(slots=True)
class _NeutralDraws:
    """The tokens of all neutral completions as draws; a completion is read once."""

    exam: Exam
    draws: list[CellDraw] = field(default_factory=list)
    completions: int = 0

    def so_far(self) -> list[CellDraw]:
        """Those of every completion that came until now."""
        for completion in islice(self.exam.completions(), self.completions, None):
            self.draws += draws_of(self.exam, completion)
            self.completions += 1
        return self.draws


async def check_neutral(exam: Exam) -> None:
    """Some hundreds of tokens at two prompts, and all that was drawn neutrally before.

    Where several completions come at a time, more are drawn while too few draws are due in what a
    truncation would cut; and some longer ones anywhere, where the temperature is in doubt. A
    thorough test goes on with those until the temperature is settled.
    """
    exam.probe.top = _alternatives(exam)
    several = exam.n >= AT_ONCE
    batch = REQUESTS
    n = 1
    if several:
        batch = BATCH
        n = AT_ONCE
    await exam.probe.repeat(batch // 2, WORDS, max_tokens=TOKENS, n=n)
    await exam.probe.repeat(batch // 2, STORY, max_tokens=TOKENS, n=n)
    await settle_end(exam)
    neutral = _NeutralDraws(exam)
    for _ in range(BATCHES - 1 if several else 0):
        if expected_beyond(neutral.so_far(), exam.step) >= EXPECTED:
            break
        await exam.probe.repeat(batch, STORY, max_tokens=TOKENS, n=n)
    draws = neutral.so_far()
    verdict = judge(draws, step=exam.step) if draws else None
    rounds = 0
    while verdict is not None and _is_open(exam, verdict, rounds):
        await exam.probe.repeat(MORE // 2, WORDS, max_tokens=LONG)
        await exam.probe.repeat(MORE // 2, STORY, max_tokens=LONG)
        draws = neutral.so_far()
        verdict = judge(draws, step=exam.step)
        rounds += 1
    completions = list(exam.completions())
    lost = sum(completion.finish_reason == "stop" for completion in completions)
    if not exam.end_listed and not exam.knows_texts and lost > LOST * len(draws):
        why = (
            f"{lost} of {len(completions)} completions ended by themselves, with a token that is"
            " not listed"
        )
        return exam.findings.skip(["neutral"], f"{why}, and its id is not known")
    return _conclude(exam, completions, draws, verdict)


def _is_open(exam: Exam, verdict: UniformityVerdict, rounds: int) -> bool:
    """Whether another round of longer completions may settle the temperature."""
    if not exam.thorough:
        return rounds == 0 and verdict.heat < DOUBT
    if rounds < 2:
        return True
    return rounds < ROUNDS and _threshold(exam) <= verdict.p and verdict.heat < SETTLED


def _threshold(exam: Exam) -> float:
    """The p-value below which sampling is contradicted."""
    if exam.thorough:
        return CONTRADICTS / (ROUNDS - 1)
    return CONTRADICTS


def _alternatives(exam: Exam) -> int:
    """As many as are known to be listed, up to ``WIDE``."""
    claimed = exam.profile.most_logprobs(exam.probe.session.endpoint)
    if (
        claimed is None
        and exam.vocabulary_size is not None
        and exam.findings.confirmed("logprobs.limit")
    ):
        return min(WIDE, exam.vocabulary_size)
    return min(WIDE, exam.alternatives)


def _conclude(
    exam: Exam,
    completions: list[Completion],
    draws: list[CellDraw],
    verdict: UniformityVerdict | None,
) -> None:
    if verdict is None:
        return exam.findings.skip(["neutral"], "no token was listed")
    evidence = (
        f"{verdict.draws} tokens: chi-square p = {verdict.chi_square:.2g}, {verdict.beyond} outside"
        f" the top 90 % of the mass ({verdict.expected:.1f} expected){_first(exam)}"
    )
    if verdict.p < _threshold(exam):
        different = len(
            {completion.text for completion in completions if len(completion.token_ids) > 1}
        )
        why = (
            f"p = {verdict.p:.1g}, {verdict.reason}; likeliest temperature"
            f" {temperature_of(draws):.2f}"
        )
        return exam.findings.agree(
            "neutral", False, f"{why}; {different} different texts; {evidence}"
        )
    if exam.step >= COARSE:
        return exam.findings.skip(
            ["neutral"],
            f"not tested: logprobs are rounded to steps of {exam.step:g} nat; {evidence}",
        )
    if verdict.expected < EXPECTED:
        return exam.findings.skip(
            ["neutral"], f"too little variety to see a truncation; {evidence}"
        )
    return exam.findings.agree(
        "neutral", True, f"{evidence}; smallest p of all tests {verdict.p:.2g}"
    )


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
            ends = np.array(
                [_may_end(exam, completion, listed_token) for listed_token in ids.tolist()],
                dtype=bool,
            )
            if _may_end(exam, completion, token) and token in ids:
                continue
            values = values - np.log1p(-min(float(np.exp(values[ends & visible]).sum()), 0.999))
            visible &= ~ends
        positions = np.flatnonzero(visible & (ids == token))
        if token == UNNAMED:  # several may be listed: it is the one with its logprob
            positions = positions[np.argsort(np.abs(values[positions] - logprob))][:1]
        listed = np.flatnonzero(visible)
        cell = len(listed)
        if len(positions):
            cell = int(np.flatnonzero(listed == positions[0])[0])
        before = set(tokens[:t]) - {NO_TOKEN, UNNAMED}
        again = np.array([candidate in before for candidate in ids[listed].tolist()], np.bool_)
        draws.append(CellDraw.of(np.exp(values[listed]), cell, again))
    return draws


def _may_end(exam: Exam, completion: Completion, token: int) -> bool:
    """Whether a listed token may be the hidden end token: it has no text."""
    if token in (NO_TOKEN, UNNAMED) or not exam.knows_texts:
        return token == UNNAMED
    vocabulary = exam.probe.session.vocabulary
    return token not in (completion.token_bytes if vocabulary is None else vocabulary.ordinary)


def _first(exam: Exam) -> str:
    """The classic test, of first tokens at one prompt: less sharp, and on its own misled by noise
    between requests.
    """
    firsts = [
        int(completion.token_ids[0])
        for prompt, completion in exam.probe.draws
        if prompt is WORDS and len(completion.token_ids)
    ]
    means = dict(sorted(mean_logprobs(exam.openings()).items()))
    shares = np.exp(list(means.values()))
    counts = np.array([firsts.count(token) for token in means])
    p = alike(
        np.append(shares, max(1 - shares.sum(), 0.0)),
        np.append(counts, len(firsts) - counts.sum()).astype(np.int64),
    )
    if p is None:
        return ""
    return f"; {len(firsts)} first tokens: p = {p:.2g}"
