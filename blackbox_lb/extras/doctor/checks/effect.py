"""Checks that a bias steers: the largest one forces unlikely tokens, up to the top of its range,
and the smallest one keeps the likeliest from coming first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from blackbox_lb.extras.doctor.checks.pairs import Range, find_range
from blackbox_lb.extras.doctor.exam import Exam, NotChecked, mean_logprobs
from blackbox_lb.extras.doctor.findings import RowFinding, agreement, measured, unchecked

SURE = 10.0
"""Nats by which a raised token must lead all others: it is then sampled with probability above
.9999.
"""
UNLIKELY = -2.0
"""Nats: a token at most this likely comes first twice in a row in less than 2 % of plain answers.
"""
LIKELIEST = 3
"""Tokens that are all suppressed: a server that ignores it still answers one of them when it is
greedy, noise or not.
"""


class Forced(NamedTuple):
    """``token`` was raised by the largest bias; what ``came`` first, as in ``Exam.winners``, and
    whether that was it. Nothing proves nothing: the raised token may be one that ends the answer.
    """

    token: int
    came: int | str | None
    obeyed: bool


@dataclass(frozen=True, slots=True)
class ForcedTokens:
    """What the largest bias did. reach: how far its range was seen to act; None for not seen."""

    forced: Sequence[Forced]
    reach: Range | None

    @property
    def is_obeyed(self) -> bool:
        """Whether a raised token came first, and none but a raised one or nothing did; where none
        could be raised, whether two tokens followed their biases.
        """
        if not self.forced:
            return self.reach is not None
        came = [attempt.obeyed for attempt in self.forced if attempt.came is not None]
        return bool(came) and all(came)

    def names_other_ids(self, exam: Exam) -> bool:
        """Whether raising one token always brought the same other one, which is unlikely by
        itself: the ids in answers are not those that a bias names.
        """
        likeliest = {token for row in exam.openings() for token in list(row)[:LIKELIEST]}
        first = self.forced[0].token
        came = {attempt.came for attempt in self.forced if attempt.token == first}
        return len(came) == 1 and all(
            isinstance(token, int) and token not in {first, *likeliest} for token in came
        )


async def ask_effect(exam: Exam) -> ForcedTokens:
    """The largest bias on unlikely tokens, and near the top of the range."""
    high = exam.profile.bias.high
    tokens = exam.biasable()
    unlikely = [token for token, value in tokens.items() if UNLIKELY > value > SURE - high]
    forces = high > SURE - UNLIKELY
    if forces and not unlikely:
        unlikely = exam.outside()
    if not exam.trusted:
        raise NotChecked("the ids are not those of the tokenizer")
    if len(tokens) < 2 or (forces and not unlikely):
        raise NotChecked("too few tokens are listed")

    async def force(token: int, temperature: float) -> Forced:
        where = exam.session.biased_endpoint
        [came] = await exam.winners({token: high}, temperature=temperature, endpoint=where)
        if isinstance(came, str):
            return Forced(token, came, came == (await exam.text_of(token) or "").strip())
        return Forced(token, came, came == token)

    forced = []
    if unlikely:
        in_turn = (unlikely[-1], unlikely[-1], unlikely[-2:][0])
        forced = [await force(token, temperature=1.0) for token in in_turn]
    reach = await find_range(exam) if exam.rules.bias else None
    effect = ForcedTokens(forced, reach)
    if reach is not None and reach.clipped:
        exam.works = True
        exam.clip = reach.highest
    elif effect.is_obeyed:
        exam.works = True
    elif forced:
        effect = ForcedTokens([*forced, await force(forced[0].token, temperature=0.0)], reach)
        answered = any(attempt.came is not None for attempt in effect.forced)
        if answered and not effect.names_other_ids(exam):
            exam.works = False
    return effect


def compare_effect(exam: Exam, effect: ForcedTokens) -> Iterator[RowFinding]:
    """The raised tokens must come first, up to the top of the range.

    Where others did, a server that ignores the bias answers now this, now that, and one of the
    likeliest when it is greedy. If the ids in answers are not those that a bias names, it is always
    the same unlikely token.
    """
    high = exam.profile.bias.high
    if effect.reach is not None and effect.reach.clipped:
        yield from _clipped(exam, effect.reach)
        return
    if effect.is_obeyed:
        yield from _obeyed(exam, effect)
        return
    if not effect.forced:
        raise NotChecked(f"nothing of at most {high:+g} can be seen to act")
    tokens = ", ".join(str(attempt.token) for attempt in effect.forced)
    came = [attempt.came for attempt in effect.forced]
    words = ", ".join("nothing" if token is None else repr(token) for token in came)
    evidence = f"token {tokens} with {high:+g}: {words} came first"
    if all(token is None for token in came):
        raise NotChecked("the answers name no token")
    if effect.names_other_ids(exam):
        yield agreement("tokens.id", False, evidence)
        raise NotChecked("the ids are not those that a bias names")
    for refusal in exam.profile.bias.refused:
        if refusal.ignored_before:
            evidence += f"; an older version does so where {refusal.why}: {refusal.remedy}"
    yield agreement("bias", False, f"ignored: {evidence}")
    raise NotChecked("the bias is ignored")


def _obeyed(exam: Exam, effect: ForcedTokens) -> Iterator[RowFinding]:
    evidence = []
    if effect.forced:
        tokens = exam.biasable()
        obeyed = [attempt.token for attempt in effect.forced if attempt.obeyed]
        names = []
        for token in sorted(set(obeyed)):
            logprob = f"{tokens[token]:.1f} nat" if token in tokens else "not listed"
            names.append(f"{token} ({logprob})")
        evidence.append(
            f"token {', '.join(names)} with {exam.profile.bias.high:+g} came first in"
            f" {len(obeyed)} of {len(effect.forced)} answers"
        )
    if effect.reach is not None:
        evidence.append(effect.reach.evidence)
    yield agreement("bias", True, evidence[0])
    yield agreement("bias.high", True, evidence[-1])
    if exam.status("tokens.id") == "NOT CHECKED":
        same_id = f"the id that a bias names is the id that comes back: {evidence[0]}"
        yield agreement("tokens.id", True, same_id)


def _clipped(exam: Exam, reach: Range) -> Iterator[RowFinding]:
    """A bias acts, up to less than the profile says. Below 0 a clip at the same number looks like
    none, wherever a suppressed token would not come first anyway.
    """
    low = exam.profile.bias.low
    clip = float(reach.highest) if reach.highest > max(low, 0) else None
    yield agreement("bias", True, f"acts, up to a limit: {reach.evidence}")
    yield agreement("bias.high", False, reach.evidence, clip)
    if clip is None:
        yield unchecked("bias.low", "hardly any bias acts")
    else:
        evidence = f"not told apart from a clip at {-reach.highest}, which is right in any case"
        yield measured("bias.low", evidence, max(low, -clip))


async def ask_low(exam: Exam) -> list[int | str] | None:
    """What comes first in greedy answers with the smallest bias on the likeliest tokens, where it
    puts them behind another one. Where a token that may not be named, as an end token, comes first
    with or without a bias, that shows nothing.
    """
    if not exam.works or exam.clip is not None:
        return None
    low = exam.profile.bias.low
    tokens = exam.biasable()
    suppressed = _suppressed(exam)
    next_logprob = list(tokens.values())[len(suppressed)]
    if max(tokens.values()) + low > next_logprob - 1:
        raise NotChecked(f"{low:+g} puts no token that is known to be likely behind another")
    logprobs = mean_logprobs(exam.openings())
    likeliest = max(logprobs, key=logprobs.__getitem__)
    if likeliest not in suppressed:
        raise NotChecked(f"the likeliest token, {likeliest}, is one that no bias may name")
    where = exam.session.biased_endpoint
    bias = dict.fromkeys(suppressed, low)
    answers = await exam.winners(bias, times=2, endpoint=where)
    came = [answer for answer in answers if answer is not None]
    if any(isinstance(answer, str) for answer in came):
        for token in suppressed:
            await exam.text_of(token)
    return came


def _suppressed(exam: Exam) -> list[int]:
    tokens = list(exam.biasable())
    return tokens[: min(LIKELIEST, len(tokens) - 1)]


def compare_low(exam: Exam, came: Sequence[int | str]) -> Iterator[RowFinding]:
    """None of them must come first.

    Where answers name no tokens, a text that none of the suppressed tokens has is of another token.
    One that is theirs may be of another too, as a word with and without a space before it.
    """
    low = exam.profile.bias.low
    tokens = _suppressed(exam)
    texts = [(exam.texts.get(token) or "").strip() for token in tokens]
    words = [answer for answer in came if isinstance(answer, str)]
    if not came or (words and not all(texts)):
        raise NotChecked("the answer names no token")
    back = sum(answer in tokens for answer in came)
    evidence = (
        f"the {len(tokens)} likeliest with {low:+g}: one of them came first in {back} of"
        f" {len(came)} greedy answers"
    )
    if words:
        evidence = (
            f"the {len(tokens)} likeliest, {texts}, with {low:+g}: {words} came first in greedy"
            " answers"
        )
    if any(word.startswith(text) for word in words for text in texts):
        raise NotChecked(f"{evidence}, which other tokens may print as")
    yield agreement("bias.low", back == 0, evidence)
