"""A question as a chat prompt whose answer is one token: by letters, or by the options' words.

``letters`` is the layout of ``/v1/systemone`` of vLLM 0.32 and 0.33, to the byte
(``vllm/entrypoints/openai/decisions/question_types.py``), so that an answer read from the first
token's logprobs is the one that this server would give.
"""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from blackbox_lb.questions.question import AnswerOption, Json, Question
from blackbox_lb.types import Prompt

Layout: TypeAlias = Literal["letters", "words"]

YES_NO = ("yes", "no")


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A question as a prompt.

    prompt: one user message. spellings: for each option, in the question's order, the texts whose
    first token counts for it.
    """

    prompt: Prompt
    spellings: tuple[tuple[str, ...], ...]


def laid_out(
    layout: Layout, state: Json, question: Question, *, is_reversed: bool = False
) -> LaidOut:
    """The question about a state, as a prompt.

    A choice of more than 26 options has labels of two letters, AA to ZZ, as SGLang has them.

    Args:
        layout: "letters", or "words" for the names of a choice and the texts of levels as labels.
        state: what the question is about.
        question: its options are listed in their order.
        is_reversed: whether they are listed from the last to the first; letters go by the place in
            the prompt, the numbers of levels stay.
    """
    options = list(enumerate(question.options))
    if is_reversed:
        options.reverse()
    labels = _labels(layout, question, [place for place, _ in options])
    spellings = tuple(
        _spellings(layout, question, labels[place]) for place in range(len(question.options))
    )
    if layout == "words":
        named = [(labels[place], option) for place, option in options]
        return LaidOut(Prompt.user(_in_words(state, question, named)), spellings)
    lines = [_line(question, labels[place], option) for place, option in options]
    heading = _text(question.instructions)
    if heading:
        lines.insert(0, f"Question: {heading}")
    lines.append(_closing(question))
    text = "\n".join([state_text(state), "", *lines])
    return LaidOut(Prompt.user(text), spellings)


def _in_words(state: Json, question: Question, named: Sequence[tuple[str, AnswerOption]]) -> str:
    """The question with its options as a sentence, then what they mean, then the state: small
    models read it better than a list behind the state, and servers keep what comes before the
    state of a question that is asked of many rows.
    """
    names = [name for name, _ in named]
    heading = _text(question.instructions) or "Which of these fits"
    mark = "?" if heading.endswith("?") else "."
    choice = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
    noun = "one of these" if any(" " in name for name in names) else "one word"
    lines = [f"{heading.rstrip('?.: ')}: {choice}{mark} Answer with {noun}."]
    described = [
        f"{name}: {_text(option.description)}"
        for name, option in named
        if option.description is not None and question.kind != "score"
    ]
    if described:
        lines += ["", *described]
    return "\n".join([*lines, "", f"Text: {state_text(state)}", "", "Answer:"])


def state_text(state: Json) -> str:
    """A state as it stands in a prompt: a text as it is, other JSON with its letters kept."""
    if isinstance(state, str):
        return state
    return json.dumps(state, ensure_ascii=False)


def _text(value: Json) -> str:
    """Instructions or a description in a prompt; vLLM writes lists and objects as Python does."""
    return "" if value is None else str(value)


def _labels(layout: Layout, question: Question, places: Sequence[int]) -> dict[int, str]:
    """Place of an option -> its label; ``places``: in the order of the prompt."""
    if question.kind == "noul":
        return dict(enumerate(YES_NO))
    if layout == "words":
        texts = [
            option.level_text if question.kind == "score" else option.name
            for option in question.options
        ]
        return dict(enumerate(texts))
    if question.kind == "score":
        return dict(enumerate(question.names))
    letters = string.ascii_uppercase
    if len(places) > len(letters):
        names = [first + second for first in letters for second in letters]
    else:
        names = list(letters)
    return dict(zip(places, names, strict=False))


def _line(question: Question, label: str, option: AnswerOption) -> str:
    description = _text(option.description)
    if question.kind == "noul":
        return f"{label}: {description}" if description else label
    if question.kind == "score":
        return f"{label}: {description or option.name}"
    if description:
        return f"{label}: {option.name} - {description}"
    return f"{label}: {option.name}"


def _closing(question: Question) -> str:
    if question.kind == "noul":
        return "Answer with yes or no only."
    if question.kind == "score":
        return "Answer with the number of one level only."
    return "Answer with the letter of one option only."


def _spellings(layout: Layout, question: Question, label: str) -> tuple[str, ...]:
    """The label with and without a blank before it, and of a word its form with a capital."""
    forms = [label]
    if layout == "words":
        capital = label[:1].upper() + label[1:]
        if capital not in (label, *question.names):
            forms.append(capital)
    return tuple(spelling for form in forms for spelling in (form, f" {form}"))
