"""Answers of servers are read in any shape, with bounds for zeros, and refused where they break
their contract.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from blackbox_lb.errors import CorruptResponse
from blackbox_lb.questions.answers import OptionScores, read_answer
from blackbox_lb.questions.question import Question, parse_questions

TEAM, NOW, TONE = parse_questions(
    {
        "team": {"type": "choice", "criteria": {"repair": "lifts", "rent": None}},
        "now": {"type": "noul", "instructions": "Danger?"},
        "tone": {"type": "score", "criteria": ["calm", "cross", "furious"]},
    },
    "team.json",
)
ANSWERS: dict[str, Any] = {
    "team": {"type": "choice", "choice": "repair", "confidence": 0.94, "probabilities": {"rent": 0.03, "repair": 0.97}},
    "now": {"type": "noul", "noul": 0.38},
    "tone": {"type": "score", "score": 1.1, "confidence": 0.4, "legend": {}, "probabilities": {"0": 0.15, "1": 0.6, "2": 0.25}},
}  # fmt: skip


def scores_of(fields: Any, question: Question = TEAM, decimals: int | None = 2) -> OptionScores:
    """The scores of an answer with one question."""
    body = {"model": "jev-1.14.0", "answers": {question.id: fields}}
    return read_answer(body, [question], decimals).scores[question.id]


def probabilities_of(scores: OptionScores) -> list[float]:
    """Its probabilities."""
    return [math.exp(logprob) for logprob in scores.logprobs]


def test_system_one_s_answers_are_read_in_the_question_s_order() -> None:
    """Whatever the order of their keys, SGLang's yes and no too; the alias is resolved in ``model``.
    1 - 0.97 is 0.03, and not a little more.
    """
    usage = {"input_tokens": 412, "output_tokens": 3}
    body = {"model": "jev-1.14.0", "answers": ANSWERS, "usage": usage}
    answer = read_answer(body, [TEAM, NOW, TONE], 2)
    assert (answer.model, answer.input_tokens) == ("jev-1.14.0", 412)
    assert probabilities_of(answer.scores["team"]) == pytest.approx([0.97, 0.03])
    assert probabilities_of(answer.scores["now"]) == pytest.approx([0.38, 0.62])
    assert probabilities_of(answer.scores["tone"]) == pytest.approx([0.15, 0.6, 0.25])
    fields = {"type": "yes_no", "probabilities": {"no": 0.25, "yes": 0.75}, "label_mass": 0.5}
    assert probabilities_of(scores_of(fields, NOW)) == pytest.approx([0.75, 0.25])
    assert scores_of({"type": "noul", "noul": 0.97}, NOW).logprobs[1] == math.log(0.03)


@pytest.mark.parametrize(("decimals", "bound"), [(2, 0.005), (3, 0.0005), (None, 0.005)])
def test_a_printed_zero_stands_at_its_bound(decimals: int | None, bound: float) -> None:
    """Half of the last decimal, of an integer 0 too; it is marked, also where a noul is 1. A sum
    may miss 1 by as much an option.
    """
    choice = {"type": "choice", "confidence": 1, "probabilities": {"repair": 1, "rent": 0}}
    noul = {"type": "noul", "noul": 1}
    for scores in (scores_of(choice, decimals=decimals), scores_of(noul, NOW, decimals)):
        assert probabilities_of(scores) == pytest.approx([1, bound])
        assert scores.floored == (False, True)
    scores_of({"type": "choice", "probabilities": {"repair": 0.98, "rent": 0.03}}, decimals=2)


@pytest.mark.parametrize(
    "body",
    [
        {"answers": {"team": {**ANSWERS["team"], "x_label_mass": 0.9}}},
        {"answers": {"team": {**ANSWERS["team"], "label_mass": 0.9}}},
        {"answers": ANSWERS, "diagnostics": {"team": {"label_mass": 0.9, "argmax_is_label": True}}},
    ],
    ids=["SGLang's systemone", "SGLang's decisions", "vLLM"],
)
def test_label_mass_is_kept(body: dict[str, Any]) -> None:
    """Wherever a server writes it."""
    answer = read_answer({"model": "m", **body}, [TEAM], None)
    assert answer.scores["team"].label_mass == 0.9
    assert scores_of(ANSWERS["team"]).label_mass is None


def test_a_refusal_has_no_probabilities() -> None:
    """OpenAI refuses a question, not a request."""
    body = {
        "model": "gpt-6-luna",
        "answers": [{"type": "refusal", "name": "now"}, {"type": "predicate", "probability": 0.5}],
    }
    (other,) = parse_questions({"other": {"type": "noul", "instructions": "?"}}, "team.json")
    answer = read_answer(body, [NOW, other], 2)
    assert answer.scores["now"] == OptionScores((), (), None, True)
    assert not answer.scores["other"].refused


def of_team(**probabilities: Any) -> dict[str, Any]:
    """An answer about the team."""
    return {"answers": {"team": {"type": "choice", "probabilities": probabilities}}}


@pytest.mark.parametrize(
    "body",
    [
        "text",
        [],
        {},
        {"answers": None},
        {"answers": ANSWERS, "model": None},
        {"answers": {}},
        {"answers": {"team": None}},
        {"answers": {"team": {"type": "noul", "noul": 0.5}}},
        {"answers": {"team": {"type": "choice"}}},
        {"answers": {"team": {"type": "choice", "probabilities": [0.5, 0.5]}}},
        {"answers": []},
        {"answers": [{"type": "choice", "name": "tone", "probabilities": [{"value": "repair", "probability": 0.5}, {"value": "rent", "probability": 0.5}]}]},
        {"answers": [{"type": "choice", "name": "team", "probabilities": {"repair": 1}}]},
        {"answers": [{"type": "choice", "name": "team", "probabilities": [{"value": "repair", "probability": 1}]}]},
        {"answers": ANSWERS, "usage": {"input_tokens": -1}},
        {"answers": ANSWERS, "usage": {"input_tokens": "many"}},
        of_team(repair=1.0),
        of_team(repair=0.5, rent=0.25, sales=0.25),
        of_team(repair="0.5", rent=0.5),
        of_team(repair=math.nan, rent=0.5),
        of_team(repair=-0.1, rent=1.1),
        of_team(repair=0.9, rent=0.05),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused(body: Any) -> None:
    """One sentence says what is wrong."""
    if isinstance(body, dict):
        body = {"model": "m", **body}
    with pytest.raises(CorruptResponse) as caught:
        read_answer(body, [TEAM], 2)
    assert "\n" not in str(caught.value)
