"""Checks of what logprobs are of: the model alone, or what bias and temperature made of it; and
whether the end token has one.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from blackbox_lb.extras.doctor.exam import (
    WORDS,
    Exam,
    first_token,
    mean_logprobs,
    opening_lists,
)
from blackbox_lb.extras.doctor.findings import RowFinding, agreement, measured, unchecked
from blackbox_lb.types import NO_TOKEN, UNNAMED, Completion, Prompt

STOP = Prompt.user("Reply with the single word yes.")
"""Ends by itself after a token or two."""
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
END = "logprobs.end_token_listed"


async def ask_meaning(exam: Exam) -> tuple[Sequence[Completion], Sequence[Completion]]:
    """The same first position at another temperature, and with a bias on every other token; none
    with a bias where none acts.
    """
    cold = await exam.repeat(COLD_DRAWS, WORDS, temperature=COLD)
    if not (exam.works and exam.rules.bias and _tilt(exam)):
        return cold, ()
    return cold, await exam.repeat(BIASED_DRAWS, WORDS, bias=_tilt(exam))


def _tilt(exam: Exam) -> dict[int, float]:
    """A bias on every other token."""
    return exam.even_bias(list(exam.biasable())[1::2], TILT)


def compare_meaning(
    exam: Exam, answer: tuple[Sequence[Completion], Sequence[Completion]]
) -> Iterator[RowFinding]:
    """Against the plain position: the logprobs followed bias and temperature, or they did not. The
    temperature alone can only prove that they did.
    """
    row = "logprobs.meaning"
    cold, biased = answer
    shifts = {f"temperature {COLD:g}": _cold_shift(exam, cold)}
    if biased:
        bias = _tilt(exam)
        expected = _expected(exam, bias)
        shift = _shift(mean_logprobs(opening_lists(biased)), exam.biasable(), expected)
        shifts = {f"bias +{max(bias.values()):g}": shift, **shifts}
        if exam.profile.logprobs.propensity != "logprob":
            yield _propensity(exam, biased, expected)
    evidence = "; ".join(
        f"{comparison}: off by {before:.2g} nat if before, {after:.2g} if after ({tokens} tokens)"
        for comparison, (before, after, tokens) in shifts.items()
    )
    readings = [_reading(*shift, exam.slack) for shift in shifts.values()]
    meaning = "before bias"
    if any(readings):
        meaning = "after bias"
    if None in readings:
        yield agreement(row, False, f"neither before nor after: {evidence}")
    elif not biased and not any(readings):
        yield unchecked(row, f"no bias can be seen to act here; {evidence}")
    elif exam.profile.logprobs.meaning == "unknown":
        yield measured(row, evidence, meaning)
    else:
        yield agreement(row, meaning == exam.profile.logprobs.meaning, evidence, meaning)


def _reading(unchanged: float, changed: float, tokens: int, slack: float) -> bool | None:
    """Whether a list changed as predicted; None where neither explanation fits within ``slack``
    nats.
    """
    near, far = sorted((unchanged, changed))
    if not tokens or near > max(FINE, slack) or far < CLEAR * near:
        return None
    return changed < unchanged


def _shift(
    now: Mapping[int, float], unchanged: Mapping[int, float], changed: Mapping[int, float]
) -> tuple[float, float, int]:
    """Mean absolute deviation in nats of a list from two predictions, all id -> logprob, and over
    how many tokens.
    """
    common = sorted(now.keys() & unchanged.keys())
    if not common:
        return 0.0, 0.0, 0
    off = [
        (abs(now[token] - unchanged[token]), abs(now[token] - changed[token])) for token in common
    ]
    before, after = np.mean(off, axis=0).tolist()
    return before, after, len(common)


def _cold_shift(exam: Exam, completions: Sequence[Completion]) -> tuple[float, float, int]:
    """Gaps to the likeliest, which a temperature divides; no need to know the unlisted mass."""
    now = mean_logprobs(opening_lists(completions))
    plain = mean_logprobs(exam.openings())
    common = now.keys() & plain.keys()
    top = max(common, key=lambda token: plain[token], default=NO_TOKEN)
    gaps = {token: plain[token] - plain[top] for token in common if token != top}
    return _shift(
        {token: now[token] - now[top] for token in gaps},
        gaps,
        {token: gap / COLD for token, gap in gaps.items()},
    )


def _expected(exam: Exam, bias: Mapping[int, float]) -> dict[int, float]:
    """Logprobs of softmax(logits + bias), whose normaliser the listed mass of the biased tokens
    gives exactly.
    """
    plain = exam.biasable()
    gained = sum(np.expm1(nats) * np.exp(plain[token]) for token, nats in bias.items())
    normaliser = float(np.log1p(gained))
    return {token: value + bias.get(token, 0.0) - normaliser for token, value in plain.items()}


def _propensity(
    exam: Exam, completions: Sequence[Completion], expected: Mapping[int, float]
) -> RowFinding:
    """The field with what a token was sampled from must hold the tilted logprob."""
    row = "logprobs.propensity"
    off = [
        abs(float(completion.propensities[0]) - expected[int(completion.token_ids[0])])
        for completion in completions
        if completion.propensities is not None and first_token(completion) in expected
    ]
    if not off:
        return unchecked(row, "no listed token was sampled with a bias")
    evidence = (
        f"`{exam.profile.logprobs.propensity}` of {len(off)} tokens sampled with a bias is"
        f" {np.mean(off):.2g} nat from the tilted distribution"
    )
    return agreement(row, bool(np.mean(off) <= max(FINE, exam.slack)), evidence)


Ended = Sequence[tuple[Completion, str | None]]
"""Completions that ended by themselves, with the text of the last token that they list; None where
it is not known, or not needed.
"""


async def ask_end(exam: Exam) -> Ended:
    """Completions that stop by themselves."""
    await exam.repeat(STOPS, STOP, max_tokens=24)
    return await ended(exam)


async def ended(exam: Exam) -> Ended:
    """All neutral completions so far that ended by themselves."""
    stopped = [
        completion for completion in exam.completions() if completion.finish_reason == "stop"
    ]
    return [(completion, await _last_text(exam, completion)) for completion in stopped]


def compare_end(exam: Exam, completions: Ended) -> Iterator[RowFinding]:
    """Does a token without text stand behind the last word?"""
    claimed = exam.profile.logprobs.end_token_listed
    readings = [_ends_with_end(exam, completion, text) for completion, text in completions]
    verdicts = [reading for reading in readings if reading is not None]
    yes = sum(verdicts)
    evidence = f"listed at the end of {yes} of {len(verdicts)} completions that ended by themselves"
    if not verdicts:
        reason = f"of {len(readings)} completions that ended by themselves, none shows it"
        yield unchecked(END, reason)
    elif 0 < yes < len(verdicts):
        yield agreement(END, False, evidence)
    elif claimed is None:
        yield measured(END, evidence, yes > 0)
    else:
        yield agreement(END, (yes > 0) == claimed, evidence, yes > 0)


def _ends_with_end(exam: Exam, completion: Completion, text: str | None) -> bool | None:
    """Whether the last listed token is the end token; None where its text does not tell."""
    if not len(completion.token_ids):
        return None if completion.text else False
    if _complete_without_last(exam, completion):
        return True
    if text is None or "\N{REPLACEMENT CHARACTER}" in text:
        return None
    if not text.strip():
        return None if text else True
    return not completion.text.rstrip().endswith(text.rstrip())


def _complete_without_last(exam: Exam, completion: Completion) -> bool:
    """Whether the tokens before the last make up the whole text, under a vocabulary that is
    known.
    """
    vocabulary = exam.session.vocabulary
    ids = completion.token_ids.tolist()
    if vocabulary is None or ids[-1] in vocabulary.ordinary or not completion.text.strip():
        return False
    joined = b"".join(vocabulary.ordinary.get(token, b"") for token in ids[:-1])
    return joined.strip() == completion.text.strip().encode()


async def _last_text(exam: Exam, completion: Completion) -> str | None:
    """What the last listed token prints as, asked for once; a token listed without bytes prints as
    nothing.
    """
    if not len(completion.token_ids) or _complete_without_last(exam, completion):
        return None
    last = int(completion.token_ids[-1])
    if last in completion.token_bytes:
        return completion.token_bytes[last].decode("utf-8", "replace")
    lists_bytes = completion.token_bytes and last in completion.top_ids[-1]
    if exam.profile.tokens.bytes_exact and (last == UNNAMED or lists_bytes):
        return ""
    return await exam.text_of(last)
