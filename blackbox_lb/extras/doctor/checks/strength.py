"""The check that a bias acts as strongly as it was sent: tokens drawn under one, against the
model's own lists of them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from blackbox_lb.errors import RequestRejected
from blackbox_lb.extras.doctor.checks.neutral import draws_of
from blackbox_lb.extras.doctor.checks.uniformity import ScoreTest
from blackbox_lb.extras.doctor.exam import STORY, Exam, attempt
from blackbox_lb.extras.doctor.findings import RowFinding, agreement, measured, unchecked
from blackbox_lb.types import NO_TOKEN, Completion

STRENGTH = 3.0
RARE = 0.05
"""Nats on tokens that have this share of the listed probability together: then they are drawn half
of the time, and a strength that is a little off changes most. A whole number, which every API
takes."""
ENTRIES = 300
"""Most tokens that are biased, the likeliest of them."""
REQUESTS = 12
TOKENS = 64
MOST_TOKENS = REQUESTS * TOKENS
CONTRADICTS = 1e-4
"""p-value: an exact bias is accused once in 10,000 self-tests."""
SEEN = 5.5
"""Standard errors at which a deviation is found in 95 % of self-tests at that p-value."""


async def ask_strength(exam: Exam) -> Sequence[Completion] | None:
    """Completions under a bias; None where tokens are not shown to be drawn from their lists
    without one, or where the lists are not of the model alone: the score would tell of that. None
    where a bias of so many entries is refused, too: the check of entries finds their limit.
    """
    before_bias = exam.profile.logprobs.meaning == "before bias"
    testable = before_bias and exam.status("logprobs.meaning") == "CONFIRMED"
    if exam.status("neutral") not in ("CONFIRMED", "NOT CHECKED"):
        testable = False
    bias = _bias(exam)
    if not (testable and exam.works and exam.trusted and exam.rules.bias and bias):
        return None
    drawn = exam.repeat(REQUESTS, STORY, max_tokens=TOKENS, bias=bias)
    answer = await attempt(drawn, RequestRejected)
    return None if isinstance(answer, Exception) else answer


def compare_strength(exam: Exam, completions: Sequence[Completion]) -> Iterator[RowFinding]:
    """Given that a drawn token is listed, its list and the bias give its distribution exactly."""
    bias = _bias(exam)
    draws = []
    for completion in completions:
        for draw in draws_of(exam, completion):
            values = np.array([bias.get(token, 0.0) for token in draw.ids.tolist()])
            weights = draw.probabilities[:-1] * np.exp(values)
            if draw.cell < len(values):
                draws.append((weights / weights.sum(), values, draw.cell))
    score = ScoreTest.of(draws)
    if not np.isfinite(score.error):
        return
    acts = f"acts {score.strength:.2f} times as strongly as sent"
    evidence = (
        f"{len(draws)} tokens drawn under {max(bias.values()):+g} on {len(bias)} of them: it {acts}"
        f" (p = {score.p:.2g}); {SEEN * score.error:.2f} more or less would be found"
    )
    yield measured("bias.strength", evidence)
    if score.p < CONTRADICTS:
        yield agreement("bias", False, evidence)
        if exam.status("bias.fractions") == "CONTRADICTED":
            yield unchecked("bias.fractions", f"the bias {acts}, so that no lead is as sent")


def _bias(exam: Exam) -> dict[int, float]:
    """The bias to send: the same on each of the likeliest of the rare tokens."""
    mass: dict[int, float] = defaultdict(float)
    for completion in exam.completions():
        ids = completion.top_ids.ravel().tolist()
        probabilities = np.exp(completion.top_logprobs.astype(np.float64)).ravel().tolist()
        for token, probability in zip(ids, probabilities, strict=True):
            mass[token] += probability
    mass.pop(NO_TOKEN, None)
    order = sorted(filter(exam.may_name, mass), key=lambda token: mass[token])
    below = np.cumsum([mass[token] for token in order])
    rare = order[: int((below <= RARE * sum(mass.values())).sum())]
    return exam.even_bias(rare[: -ENTRIES - 1 : -1], STRENGTH)
