"""The check that a bias acts as strongly as it was sent: tokens drawn under one, against the
model's own lists of them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy.special import ndtr

from blackbox_lb.extras.doctor.exam import STORY, Exam
from blackbox_lb.extras.doctor.findings import RowFinding, agreement, measured, unchecked
from blackbox_lb.types import NO_TOKEN, Completion

STRENGTH = 3.0
RARE = 0.05
"""Nats on tokens that have this share of the listed probability together: then they are drawn half
of the time, and a strength that is a little off changes most. A whole number, which every API
takes."""
ENTRIES = 300
"""Tokens that are biased, the likeliest of them: every API takes so many."""
REQUESTS = 12
TOKENS = 64
MOST_TOKENS = REQUESTS * TOKENS
CONTRADICTS = 1e-4
"""p-value: an exact bias is accused once in 10,000 self-tests."""
SEEN = 5.5
"""Standard errors at which a deviation is found in 95 % of self-tests at that p-value."""


async def ask_strength(exam: Exam) -> Sequence[Completion] | None:
    """Completions under a bias; None where tokens are not shown to be drawn from their lists
    without one, or where the lists are not of the model alone: the score would tell of that.
    """
    before_bias = exam.profile.logprobs.meaning == "before bias"
    testable = before_bias and exam.status("logprobs.meaning") == "CONFIRMED"
    if exam.status("neutral") not in ("CONFIRMED", "NOT CHECKED"):
        testable = False
    bias = _bias(exam)
    if not (testable and exam.works and exam.trusted and exam.rules.bias and bias):
        return None
    return await exam.repeat(REQUESTS, STORY, max_tokens=TOKENS, bias=bias)


def compare_strength(exam: Exam, completions: Sequence[Completion]) -> Iterator[RowFinding]:
    """The score test of a strength of 1 for draws from ``p exp(strength * bias)``.

    Given that a drawn token is listed, its list and the bias give its distribution exactly. The sum
    of each one's bias less its expectation, over the sum of the variances, tells how far the
    strength is from 1.
    """
    bias = _bias(exam)
    sums = [_score(exam, completion, bias) for completion in completions]
    score, variance, draws = np.sum(sums, axis=0)
    if variance <= 0:
        return
    p = 2 * float(ndtr(-abs(score) / np.sqrt(variance)))
    strength = 1 + score / variance
    acts = f"acts {strength:.2f} times as strongly as sent"
    evidence = (
        f"{draws:.0f} tokens drawn under {max(bias.values()):+g} on {len(bias)} of them: it {acts}"
        f" (p = {p:.2g}); {SEEN / np.sqrt(variance):.2f} more or less would be found"
    )
    yield measured("bias.strength", evidence)
    if p < CONTRADICTS:
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
    return dict.fromkeys(rare[-ENTRIES:], min(STRENGTH, exam.high))


def _score(
    exam: Exam, completion: Completion, bias: Mapping[int, float]
) -> tuple[float, float, int]:
    """The sum of the drawn tokens' bias less its expectation, its variance, and the number of draws
    with their token listed.
    """
    score = 0.0
    variance = 0.0
    draws = 0
    for token, ids, logprobs in zip(
        completion.token_ids.tolist(), completion.top_ids, completion.top_logprobs, strict=True
    ):
        visible = (ids != NO_TOKEN) & np.array(
            [bool(exam.end_listed) or exam.has_text(listed_token) for listed_token in ids.tolist()]
        )
        if token not in ids[visible]:
            continue
        values = np.array([bias.get(listed_token, 0.0) for listed_token in ids[visible].tolist()])
        weights = np.exp(logprobs[visible].astype(np.float64) + values)
        weights /= weights.sum()
        mean = float(weights @ values)
        score += bias.get(token, 0.0) - mean
        variance += float(weights @ (values - mean) ** 2)
        draws += 1
    return score, variance, draws
