"""Questions as chat prompts: by letters to the byte as vLLM writes them, and by words."""

from __future__ import annotations

from typing import Any

import pytest

from blackbox_lb.questions.layouts import Layout, laid_out
from blackbox_lb.questions.question import Question, parse_questions


def of(raw: dict[str, Any]) -> Question:
    """The question of a document."""
    (question,) = parse_questions({"q": raw}, "team.json")
    return question


TEAM = of(
    {"type": "choice", "instructions": "Which team?", "criteria": {"repair": "lifts", "rent": None}}
)
BARE = of({"type": "choice", "criteria": {"repair": None, "rent": None}})
NOUL = of({"type": "noul", "instructions": "Danger?", "criteria": {"true": "someone is inside"}})
MOOD = of(
    {"type": "score", "instructions": "How annoyed?", "criteria": ["calm", "cross", "furious"]}
)
STRUCTURED = of({"type": "noul", "instructions": {"ask": "é?"}, "criteria": {"false": ["no", 1]}})


@pytest.mark.parametrize(
    ("layout", "question", "state", "text", "spellings"),
    [
        ("letters", TEAM, "The lift is stuck", "The lift is stuck\n\nQuestion: Which team?\nA: repair - lifts\nB: rent\nAnswer with the letter of one option only.", (("A", " A"), ("B", " B"))),
        ("letters", BARE, {"text": "Störung", "n": [1, 2]}, '{"text": "Störung", "n": [1, 2]}\n\nA: repair\nB: rent\nAnswer with the letter of one option only.', (("A", " A"), ("B", " B"))),
        ("letters", NOUL, "s", "s\n\nQuestion: Danger?\nyes: someone is inside\nno\nAnswer with yes or no only.", (("yes", " yes"), ("no", " no"))),
        ("letters", STRUCTURED, "s", "s\n\nQuestion: {'ask': 'é?'}\nyes\nno: ['no', 1]\nAnswer with yes or no only.", (("yes", " yes"), ("no", " no"))),
        ("letters", MOOD, "s", "s\n\nQuestion: How annoyed?\n0: calm\n1: cross\n2: furious\nAnswer with the number of one level only.", (("0", " 0"), ("1", " 1"), ("2", " 2"))),
        ("words", TEAM, "s", "Which team: repair or rent? Answer with one word.\n\nrepair: lifts\n\nText: s\n\nAnswer:", (("repair", " repair", "Repair", " Repair"), ("rent", " rent", "Rent", " Rent"))),
        ("words", NOUL, "s", "Danger: yes or no? Answer with one word.\n\nyes: someone is inside\n\nText: s\n\nAnswer:", (("yes", " yes", "Yes", " Yes"), ("no", " no", "No", " No"))),
        ("words", MOOD, "s", "How annoyed: calm, cross or furious? Answer with one word.\n\nText: s\n\nAnswer:", None),
    ],
)  # fmt: skip
def test_the_text_of_a_question(
    layout: Layout, question: Question, state: Any, text: str, spellings: Any
) -> None:
    """One user message, to the byte; options are spelled with and without a blank before them."""
    out = laid_out(layout, state, question)
    [message] = out.prompt.messages
    assert (message.role, message.content) == ("user", text)
    assert spellings is None or out.spellings == spellings


def test_reversed_options_keep_the_question_s_order_of_spellings() -> None:
    """The last option is A; levels keep their numbers."""
    out = laid_out("letters", "s", TEAM, is_reversed=True)
    assert "\nA: rent\nB: repair - lifts\n" in out.prompt.text
    assert out.spellings == (("B", " B"), ("A", " A"))
    out = laid_out("letters", "s", MOOD, is_reversed=True)
    assert "\n2: furious\n1: cross\n0: calm\n" in out.prompt.text
    assert out.spellings == (("0", " 0"), ("1", " 1"), ("2", " 2"))
    out = laid_out("words", "s", TEAM, is_reversed=True)
    assert out.prompt.text.startswith("Which team: rent or repair? Answer")
    assert out.spellings[0][0] == "repair"


def test_many_options_have_two_letters() -> None:
    """26 have one; 255 begin with AA, each another."""
    names = [f"queue {number}" for number in range(255)]
    few = of({"type": "choice", "criteria": dict.fromkeys(names[:26])})
    many = of({"type": "choice", "criteria": dict.fromkeys(names)})
    assert laid_out("letters", "s", few).spellings[25] == ("Z", " Z")
    out = laid_out("letters", "s", many)
    assert "\nAA: queue 0\nAB: queue 1\n" in out.prompt.text
    assert len(set(out.spellings)) == 255
