"""The check that a bias acts as strongly as it was sent: tokens drawn under one, against the
model's own lists of them.
"""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from scipy.special import ndtr

from blackbox_lb.extras.doctor.asking.exam import STORY, Exam
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
CONTRADICTS = 1e-4
"""p-value: an exact bias is accused once in 10,000 self-tests."""
SEEN = 5.5
"""Standard errors at which a deviation is found in 95 % of self-tests at that p-value."""


async def check_strength(exam: Exam) -> None:
    """The score test of a strength of 1 for draws from ``p exp(strength * bias)``, where the lists
    are of the model alone.

    Given that a drawn token is listed, its list and the bias give its distribution exactly. The sum
    of each one's bias less its expectation, over the sum of the variances, tells how far the
    strength is from 1. Where tokens are not drawn from their lists without a bias either, it would
    tell of that.
    """
    testable = exam.profile.logprobs.meaning == "before bias" and exam.findings.confirmed(
        "logprobs.meaning"
    )
    testable = testable and (
        exam.findings.confirmed("neutral") or not exam.findings.settled("neutral")
    )
    strength_sent = min(STRENGTH, exam.high)
    bias = dict.fromkeys(_rare(exam), strength_sent)
    if not (testable and exam.works and exam.trusted and exam.rules.bias and bias):
        return
    completions = await exam.probe.repeat(REQUESTS, STORY, max_tokens=TOKENS, bias=bias)
    score, variance, draws = np.sum(
        [_score(exam, completion, bias) for completion in completions], axis=0
    )
    if variance <= 0:
        return
    p = 2 * float(ndtr(-abs(score) / np.sqrt(variance)))
    strength = 1 + score / variance
    evidence = (
        f"{draws:.0f} tokens drawn under {strength_sent:+g} on {len(bias)} of them: it acts"
        f" {strength:.2f} times as strongly as sent (p = {p:.2g}); {SEEN / np.sqrt(variance):.2f}"
        " more or less would be found"
    )
    exam.findings.add("bias.strength", "MEASURED", evidence)
    if p < CONTRADICTS:
        exam.findings.agree("bias", False, evidence)
        why = f"the bias acts {strength:.2f} times as strongly as sent, so that no lead is as sent"
        exam.findings.withdraw("bias.fractions", why)


def _rare(exam: Exam) -> list[int]:
    """The tokens to bias."""
    mass: dict[int, float] = defaultdict(float)
    for completion in exam.completions():
        for token, logprob in zip(
            completion.top_ids.ravel().tolist(),
            completion.top_logprobs.ravel().tolist(),
            strict=True,
        ):
            if token != NO_TOKEN:
                mass[token] += float(np.exp(logprob))
    order = sorted(filter(exam.may_name, mass), key=lambda token: mass[token])
    below = np.cumsum([mass[token] for token in order])
    return order[: int((below <= RARE * sum(mass.values())).sum())][-ENTRIES:]


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
