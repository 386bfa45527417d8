"""Answers of the base and of the biased model to the same prompts, side by side, and the tokens of
an answer that a bias moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias
from blackbox_lb.jobs.evaluation.document import (
    MOST_SHOWN,
    Answer,
    MovedToken,
    ShownAnswers,
    ShownPrompt,
)
from blackbox_lb.jobs.fitting import scored_policies
from blackbox_lb.jobs.fitting.scored_policies import SettingTest
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import PolicyScores
from blackbox_lb.rollouts.reading import token_spans
from blackbox_lb.rollouts.stepped import check_parts, complete_in_parts
from blackbox_lb.types import Completion, Example, Prompt, Sampling

MOVED = 0.01
"""Nats below which a token counts as not moved."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Both answers to one prompt; ``moved``: the tokens of the biased one that the bias moves."""

    base: Completion
    biased: Completion
    moved: tuple[MovedToken, ...]


async def side_by_side(
    session: Session, bias: RequestBias, prompt: Prompt, sampling: Sampling
) -> SideBySide:
    """Ask twice, at the endpoint that takes a bias.

    Raises:
        ProviderError: the API failed.
    """
    endpoint = session.biased_endpoint
    base = (await session.complete_many(prompt, Draw(sampling, NO_BIAS, endpoint)))[0]
    draw = Draw(sampling, bias, endpoint)
    if bias.is_in_parts:
        check_parts(session, bias)
        biased = await complete_in_parts(session, prompt, draw)
    else:
        [biased] = await session.complete_many(prompt, draw)
    return SideBySide(base, biased, moved_tokens(biased, biased.token_bytes, bias, prompt))


def moved_tokens(
    completion: Completion, spelled: Mapping[int, bytes], bias: RequestBias, prompt: Prompt
) -> tuple[MovedToken, ...]:
    """The tokens of a completion whose bias is at least ``MOVED``, up or down, in their order.

    Args:
        spelled: token id -> bytes; see ``token_spans``.
        bias: it need not be the bias that the completion was drawn with.
    """
    ids = completion.token_ids.tolist()
    parts = [spelled.get(token, b"") for token in ids]
    spans = token_spans(completion, spelled)
    phases = list(bias.phases.along(parts))[: len(parts)]
    values = {phase: bias.at(prompt, phase) for phase in set(phases)}
    moved = []
    for token, (start, end), phase in zip(ids, spans, phases, strict=True):
        value = values[phase].get(token, 0.0)
        if abs(value) >= MOVED and start < end:
            moved.append(MovedToken(start=start, end=end, bias=value))
    return tuple(moved)


ARROW = "  ->  "
NOTHING = "(nothing)"
SHOWN_AS = {scored_policies.BASE: "without the bias", scored_policies.BIASED: "with the bias"}
"""The names of both models, for people."""


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """The answers of the base and of the biased model to one prompt at one setting."""

    setting: str
    example: Example
    base: Answer
    biased: Answer

    @property
    def changed(self) -> bool:
        """Whether the bias changed the text."""
        return self.base.text != self.biased.text

    @property
    def gain(self) -> float:
        """Reward of the biased answer less that of the base's; 0 where neither has one."""
        if self.biased.reward is None or self.base.reward is None:
            return 0.0
        return self.biased.reward - self.base.reward

    @property
    def status(self) -> str:
        """mended, broken or same, by the reward."""
        if self.gain > 0:
            return "mended"
        if self.gain < 0:
            return "broken"
        return "same"


def answer_pairs(
    trials: Trials, tests: Sequence[SettingTest], bias: RequestBias, samples: int | None = None
) -> tuple[AnswerPair, ...]:
    """The answers of both models to the test prompts of a fit. A completion that cannot be read,
    and its partner, are left out.

    bias: whose tokens are marked. samples: the first ones of each prompt, None for all.
    """
    pairs = []
    for test in tests:
        tables = []
        for name, shown in SHOWN_AS.items():
            policy = test.policies[name]
            rows = [row[:samples] for row in policy.completions]
            tables.append(scored_answers(trials, shown, test.examples, rows, policy.scores, bias))
        for example, base_row, biased_row in zip(test.examples, *tables, strict=True):
            for base, biased in zip(base_row, biased_row, strict=False):
                if base is not None and biased is not None:
                    pairs.append(AnswerPair(test.setting.name, example, base, biased))
    return tuple(pairs)


def scored_answers(
    trials: Trials,
    policy: str,
    examples: Sequence[Example],
    rows: Sequence[Sequence[Completion]],
    scores: PolicyScores,
    bias: RequestBias,
) -> list[list[Answer | None]]:
    """Completions that were scored, with the places where their reward is earned; None for those
    that cannot be read.

    Args:
        trials: that drew them.
        policy: its name for people.
        examples: (x,) the prompts.
        rows: (x,) the first completions of each, in the order of ``scores``.
        scores: of the policy.
        bias: whose tokens are marked.
    """
    reward = trials.reward
    spelled = trials.store.token_bytes(trials.tokenizer.fingerprint)
    table = []
    for place, (example, row) in enumerate(zip(examples, rows, strict=True)):
        answers: list[Answer | None] = []
        number = 0
        for completion in row:
            if not completion.readable:
                answers.append(None)
                continue
            value = None
            if not reward.of_shares:
                value = float(scores.reward[place][number])
            correct = None
            if scores.correct is not None:
                correct = bool(scores.correct[place][number])
            spans = None
            if reward.has_spans:
                spans = reward.score(example, completion).spans
            answers.append(
                Answer(
                    policy=policy,
                    text=completion.text,
                    tokens=completion.n_tokens,
                    correct=correct,
                    reward=value,
                    finish_reason=completion.finish_reason,
                    spans=spans or (),
                    moved=moved_tokens(completion, spelled, bias, example.prompt),
                )
            )
            number += 1
        table.append(answers)
    return table


def shown_answers(pairs: Sequence[AnswerPair]) -> ShownAnswers | None:
    """The answers at the greedy setting, else at the last one, for the result of a fit: those that
    tell most first, at most ``MOST_SHOWN`` prompts. None where nothing was judged.
    """
    if not pairs:
        return None
    settings = {pair.setting for pair in pairs}
    setting = "greedy"
    if "greedy" not in settings:
        setting = pairs[-1].setting
    chosen = [pair for pair in pairs if pair.setting == setting]
    prompts = len({pair.example.id for pair in chosen})
    shown_prompts = tuple(
        ShownPrompt(
            id=pair.example.id,
            prompt=pair.example.prompt.text,
            answers=pair.example.answers,
            completions=(pair.base, pair.biased),
        )
        for pair in telling(chosen, MOST_SHOWN)
    )
    return ShownAnswers(setting=setting, prompts=prompts, shown=shown_prompts)


def telling(pairs: Sequence[AnswerPair], count: int) -> tuple[AnswerPair, ...]:
    """``count`` pairs of different prompts that show what the bias did, greedy ones before sampled
    ones: the first that it broke, then those that it mended, then other changed ones, then same
    ones.
    """
    greedy = [pair for pair in pairs if pair.setting == "greedy"] or list(pairs)
    by_prompt = {pair.example.id: pair for pair in reversed(greedy)}
    candidates = [by_prompt[name] for name in dict.fromkeys(pair.example.id for pair in greedy)]
    broken = [pair for pair in candidates if pair.gain < 0]
    mended = [pair for pair in candidates if pair.gain > 0]
    changed = [pair for pair in candidates if pair.gain == 0 and pair.changed]
    same = [pair for pair in candidates if not pair.changed]
    if len(broken) > len(mended):
        ranked = [*mended[:1], *broken, *mended[1:]]
    else:
        ranked = [*mended[: count - 1], *broken[:1], *mended[count - 1 :], *broken[1:]]
    return tuple([*ranked, *changed, *same][:count])


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """One example of a conclusion: its subject, before and after."""

    subject: str
    before: str
    after: str

    @classmethod
    def of(cls, pair: AnswerPair) -> BeforeAfter:
        """The last message of the prompt with both answers."""
        prompt = pair.example.prompt.messages[-1].content
        return cls(prompt, pair.base.text, pair.biased.text)


def example_lines(examples: Sequence[BeforeAfter], width: int) -> list[str]:
    """Each example on one line of at most ``width`` characters.

    Answers get at most two thirds of the width, and the subject what they leave.
    """
    subjects = [one_line(example.subject) for example in examples]
    texts = [one_line(text) for example in examples for text in (example.before, example.after)]
    room = width - len(ARROW) - 2
    for_answers = min(2 * max(map(len, texts), default=0), 2 * room // 3)
    for_answers = max(for_answers, 2 * len(NOTHING))
    if max(map(len, subjects), default=0) > room - for_answers:
        subjects = _without_common_words(subjects)
    subject_width = min(max(map(len, subjects), default=0), room - for_answers)
    answer_width = (room - subject_width) // 2
    lines = []
    for subject, example in zip(subjects, examples, strict=True):
        before, after = _apart(one_line(example.before), one_line(example.after), answer_width)
        cell = cut_middle(subject, subject_width)
        lines.append(f"{cell:<{subject_width}}  {before}{ARROW}{after}")
    return lines


def _without_common_words(subjects: Sequence[str]) -> list[str]:
    """The texts with dots in place of the words that all begin with, and those that all end with:
    prompts of one template differ in the middle.
    """
    words = [subject.split() for subject in subjects]
    shortest = min(map(len, words))
    if len(set(subjects)) < 2:
        return list(subjects)
    start = 0
    while start < shortest and len({text[start] for text in words}) == 1:
        start += 1
    end = 0
    while end < shortest - start and len({text[-1 - end] for text in words}) == 1:
        end += 1
    before = "... " if start else ""
    after = " ..." if end else ""
    return [f"{before}{' '.join(text[start : len(text) - end])}{after}" for text in words]


def _apart(base: str, biased: str, width: int) -> tuple[str, str]:
    """Two answers cut to ``width`` where they can be told apart, if they differ."""
    start = 0
    if base != biased and base[: width - 3] == biased[: width - 3]:
        start = max(_common(base, biased) - width // 3, 0)
    dots = "..." if start else ""
    return (
        cut(f"{dots}{base[start:]}" or NOTHING, width),
        cut(f"{dots}{biased[start:]}" or NOTHING, width),
    )


def _common(first: str, second: str) -> int:
    """Characters that both texts begin with."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def one_line(text: str) -> str:
    """The text with every white space as one space."""
    return " ".join(text.split())


def cut(text: str, width: int) -> str:
    """The beginning of a text, with an ellipsis where it is cut."""
    if len(text) <= width:
        return text
    return f"{text[: max(width - 3, 0)]}..."


def cut_middle(text: str, width: int) -> str:
    """The beginning and the end of a text, with an ellipsis where it is cut."""
    if len(text) <= width:
        return text
    size = max(width - 3, 0)
    head = size // 2
    return f"{text[:head]}...{text[len(text) - (size - head) :]}"
