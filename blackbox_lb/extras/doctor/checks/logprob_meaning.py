"""Checks of what logprobs are of: the model alone, or what bias and temperature made of it; and
whether the end token has one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from blackbox_lb.extras.doctor.asking.exam import STOP, WORDS, Exam, mean_logprobs, opening_lists
from blackbox_lb.types import UNNAMED, Completion

TILT = 2.0
"""Nats: moves listed probabilities by a factor of up to 7, far beyond the .35 nat that equal
requests were seen to differ by.
"""
COLD = 0.5
"""Temperature: doubles all gaps, and every API takes it; some refuse temperatures above 1."""
FINE = 0.05
"""Nats: mean deviation that rounding explains on the coarsest grid seen (1/16 nat)."""
CLEAR = 3.0
"""How many times worse the other explanation must fit."""
BIASED_DRAWS = 4
COLD_DRAWS = 2
STOPS = 3


@dataclass(frozen=True, slots=True)
class _Shift:
    """Mean absolute deviation in nats over ``tokens`` listed tokens, if nothing changed and if the
    change is exact.
    """

    unchanged: float
    changed: float
    tokens: int

    def reading(self, slack: float) -> bool | None:
        """Whether the list changed as predicted; None where neither explanation fits within
        ``slack`` nats.
        """
        near, far = sorted((self.unchanged, self.changed))
        if not self.tokens or near > max(FINE, slack) or far < CLEAR * near:
            return None
        return self.changed < self.unchanged

    def __str__(self) -> str:
        return (
            f"off by {self.unchanged:.2g} nat if before, {self.changed:.2g} if after ({self.tokens}"
            " tokens)"
        )


async def check_meaning(exam: Exam) -> None:
    """The same first position with a bias on some listed tokens, and at another temperature,
    against the plain one.
    """
    plain = exam.biasable()
    cold = _cold(exam, await exam.probe.repeat(COLD_DRAWS, WORDS, temperature=COLD))
    shifts = {f"temperature {COLD:g}": cold}
    if exam.works and exam.rules.bias and len(plain) > 1:
        shifts = {f"bias +{_tilt(exam):g}": await _biased(exam, plain), **shifts}
    evidence = "; ".join(f"{comparison}: {shift}" for comparison, shift in shifts.items())
    _conclude(exam, [shift.reading(exam.slack) for shift in shifts.values()], evidence)


def _conclude(exam: Exam, readings: list[bool | None], evidence: str) -> None:
    """``readings``: of each shift, whether the logprobs followed it; the temperature alone can only
    prove that they do.
    """
    row = "logprobs.meaning"
    claimed = exam.profile.logprobs.meaning
    if None in readings:
        return exam.findings.agree(row, False, f"neither before nor after: {evidence}")
    if len(readings) < 2 and not any(readings):
        return exam.findings.skip([row], f"no bias can be seen to act here; {evidence}")
    meaning = "before bias"
    if any(readings):
        meaning = "after bias"
    if claimed == "unknown":
        return exam.findings.add(row, "MEASURED", evidence, meaning)
    return exam.findings.agree(row, meaning == claimed, evidence, meaning)


def _tilt(exam: Exam) -> float:
    return min(TILT, exam.high)


def _cold(exam: Exam, completions: list[Completion]) -> _Shift:
    """Gaps to the likeliest, which a temperature divides; no need to know the unlisted mass."""
    now = mean_logprobs(opening_lists(completions))
    mean = mean_logprobs(exam.openings())
    common = set(now) & set(mean)
    before = {token: mean[token] for token in common}
    if len(common) < 2:
        return _Shift(0.0, 0.0, 0)
    top = max(before, key=lambda token: before[token])
    pairs = np.array(
        [(before[token] - before[top], now[token] - now[top]) for token in common if token != top]
    )
    plain, cold = pairs.T
    return _Shift(
        float(np.abs(cold - plain).mean()), float(np.abs(cold - plain / COLD).mean()), len(pairs)
    )


async def _biased(exam: Exam, plain: Mapping[int, float]) -> _Shift:
    """Against the tilt softmax(logits + bias), whose normaliser the listed mass of the biased
    tokens gives exactly.
    """
    tilt = _tilt(exam)
    raised = dict.fromkeys(list(plain)[1::2], tilt)
    mass = sum(np.exp(plain[token]) for token in raised)
    normaliser = float(np.log1p(np.expm1(tilt) * mass))
    expected = {
        token: value + raised.get(token, 0.0) - normaliser for token, value in plain.items()
    }
    completions = await exam.probe.repeat(BIASED_DRAWS, WORDS, bias=raised)
    now = mean_logprobs(opening_lists(completions))
    common = sorted(set(now) & set(plain))
    _propensity(exam, completions, expected)
    if not common:
        return _Shift(0.0, 0.0, 0)
    off = np.array(
        [(abs(now[token] - plain[token]), abs(now[token] - expected[token])) for token in common]
    )
    return _Shift(float(off[:, 0].mean()), float(off[:, 1].mean()), len(common))


def _propensity(exam: Exam, completions: list[Completion], expected: Mapping[int, float]) -> None:
    """The field with what a token was sampled from must hold the tilted logprob."""
    row = "logprobs.propensity"
    name = exam.profile.logprobs.propensity
    if name == "logprob":
        return None
    pairs = [
        (float(completion.propensities[0]), expected[int(completion.token_ids[0])])
        for completion in completions
        if completion.propensities is not None and int(completion.token_ids[0]) in expected
    ]
    if not pairs:
        return exam.findings.skip([row], "no listed token was sampled with a bias")
    off = float(np.mean([abs(returned - tilted) for returned, tilted in pairs]))
    evidence = (
        f"`{name}` of {len(pairs)} tokens sampled with a bias is {off:.2g} nat from the tilted"
        " distribution"
    )
    return exam.findings.agree(row, off <= max(FINE, exam.slack), evidence)


async def check_end(exam: Exam) -> None:
    """Completions that stop by themselves: does a token without text stand behind the last word?"""
    exam.end_listed = exam.profile.logprobs.end_token_listed
    await exam.probe.repeat(STOPS, STOP, max_tokens=24)
    await settle_end(exam)


async def settle_end(exam: Exam) -> None:
    """What all completions so far say of the end token; nothing more where it was settled
    before.
    """
    row = "logprobs.end_token_listed"
    claimed = exam.profile.logprobs.end_token_listed
    if exam.findings.settled(row):
        return None
    stopped = [
        completion for completion in exam.completions() if completion.finish_reason == "stop"
    ]
    verdicts = [
        verdict
        for verdict in [await _ends(exam, completion) for completion in stopped]
        if verdict is not None
    ]
    if not verdicts:
        return exam.findings.skip(
            [row], f"of {len(stopped)} completions that ended by themselves, none shows it"
        )
    yes = sum(verdicts)
    evidence = f"listed at the end of {yes} of {len(verdicts)} completions that ended by themselves"
    if 0 < yes < len(verdicts):
        return exam.findings.agree(row, False, evidence)
    exam.end_listed = yes > 0
    if claimed is None:
        return exam.findings.add(row, "MEASURED", evidence, exam.end_listed)
    return exam.findings.agree(row, exam.end_listed == claimed, evidence, exam.end_listed)


async def _ends(exam: Exam, completion: Completion) -> bool | None:
    """Whether the last listed token is the end token; None where its text does not tell."""
    if not len(completion.token_ids):
        if not completion.text:
            return False
        return None
    if _complete_without_last(exam, completion):
        return True
    text = await _last_text(exam, completion)
    if text is None or "\N{REPLACEMENT CHARACTER}" in text:
        return None
    if not text.strip():
        if text:
            return None
        return True
    return not completion.text.rstrip().endswith(text.rstrip())


def _complete_without_last(exam: Exam, completion: Completion) -> bool:
    """Whether the tokens before the last make up the whole text, under a vocabulary that is
    known.
    """
    vocabulary = exam.probe.session.vocabulary
    ids = completion.token_ids.tolist()
    if vocabulary is None or ids[-1] in vocabulary.ordinary or not completion.text.strip():
        return False
    joined = b"".join(vocabulary.ordinary.get(token, b"") for token in ids[:-1])
    return joined.strip() == completion.text.strip().encode()


async def _last_text(exam: Exam, completion: Completion) -> str | None:
    """What the last listed token prints as, asked for once; a token listed without bytes prints as
    nothing.
    """
    last = int(completion.token_ids[-1])
    exact = exam.profile.tokens.bytes_exact
    if last in completion.token_bytes:
        return completion.token_bytes[last].decode("utf-8", "replace")
    if exact and (last == UNNAMED or (completion.token_bytes and last in completion.top_ids[-1])):
        return ""
    return await exam.text_of(last)
