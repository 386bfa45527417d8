"""Questions are read from System One's and OpenAI's forms, and faults name their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.questions.question import (
    AnswerOption,
    Question,
    parse_questions,
    question_of_labels,
    read_questions,
)
from tests.support.errors import raises_naming

TEAM = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"repair": "lifts", "rent": None},
}
URGENT = {"type": "noul", "criteria": {"true": "today"}}
MOOD = {"type": "score", "instructions": "How annoyed?", "criteria": ["calm", "cross", "furious"]}
FILE = {"team": TEAM, "urgent": URGENT, "mood": MOOD}


def of_json(raw: object) -> Question:
    """The only question of a document."""
    (question,) = parse_questions(raw, "team.json")
    return question


def test_a_map_of_questions_is_read(tmp_path: Path) -> None:
    """Each has its kind, its instructions and its options in order. An object that holds the map,
    and a whole request, give the same questions; one alone is called "answer".
    """
    questions = parse_questions(FILE, "team.json")
    team, urgent, mood = questions
    assert (team.id, team.kind, team.names) == ("team", "choice", ("repair", "rent"))
    lifts, rent = AnswerOption(name="repair", description="lifts"), AnswerOption(name="rent")
    assert team.options == (lifts, rent)
    now, later = AnswerOption(name="true", description="today"), AnswerOption(name="false")
    assert urgent.options == (now, later)
    assert mood.names == ("0", "1", "2")
    assert [question.as_json() for question in questions] == list(FILE.values())
    path = tmp_path / "team.json"
    for raw in (FILE, {"questions": FILE}, {"model": "m", "state": "s", "questions": FILE}):
        path.write_text(json.dumps(raw))
        assert read_questions(path) == questions
    assert of_json(TEAM).id == "answer"
    assert of_json([{"type": "predicate", "instructions": "Refund?"}]).id == "answer"
    assert of_json({"questions": TEAM}).id == "questions"


def test_openai_s_form_is_read() -> None:
    """Choices keep whether their value is JSON's true; a level's description stands beside it."""
    predicate, choice, score = parse_questions(
        [
            {"type": "predicate", "name": "refund", "instructions": "Refund asked?"},
            {"type": "choice", "instructions": "Team?", "choices": [{"value": "billing"}, {"value": True}]},
            {"type": "score", "name": "mood", "instructions": [{"type": "input_text", "text": "?"}],
             "levels": [{"label": "calm"}, {"label": "angry", "description": "shouts"}]},
        ],
        "team.json",
    )  # fmt: skip
    assert (predicate.id, predicate.names) == ("refund", ("true", "false"))
    assert (choice.id, choice.names) == ("question 2", ("billing", "true"))
    assert [option.is_boolean for option in choice.options] == [False, True]
    assert score.place_of("angry") == 1


def test_the_fingerprint_is_of_what_the_model_reads() -> None:
    """The id is not in it; the text, the order of options and of keys in a structured text, and
    true beside "true" are.
    """
    assert of_json({"a": TEAM}).fingerprint == of_json({"b": TEAM}).fingerprint
    structured = {
        "type": "noul",
        "instructions": {"b": 1, "a": ["é"]},
        "criteria": {"false": [1.5]},
    }
    assert of_json(structured).as_json() == structured
    different = [
        TEAM,
        TEAM | {"instructions": "Which team"},
        TEAM | {"criteria": {"rent": None, "repair": "lifts"}},
        TEAM | {"criteria": {"repair": "lift", "rent": None}},
        structured,
        structured | {"instructions": {"a": ["é"], "b": 1}},
        [{"type": "choice", "instructions": "?", "choices": [{"value": "true"}, {"value": "b"}]}],
        [{"type": "choice", "instructions": "?", "choices": [{"value": True}, {"value": "b"}]}],
    ]
    fingerprints = {of_json(raw).fingerprint for raw in different}
    assert len(fingerprints) == len(different)
    assert {len(fingerprint) for fingerprint in fingerprints} == {64}


@pytest.mark.parametrize(
    ("raw", "answer", "place"),
    [
        (TEAM, "rent", 1),
        (TEAM, " Repair\n", 0),
        (URGENT, "true", 0),
        (URGENT, "No", 1),
        (URGENT, "1", 0),
        (MOOD, "2", 2),
        (MOOD, "Cross", 1),
        (MOOD | {"criteria": ["1", "2", "3"]}, "2", 1),
        ({"type": "choice", "criteria": {"A": None, "B": None}}, "b", 1),
        (TEAM, "sales", "'repair'"),
        (TEAM, "", "'rent'"),
        (URGENT, "maybe", "'true'"),
        (MOOD, "3", "'furious'"),
        (MOOD | {"criteria": ["1", "2"]}, "0", "'1'"),
    ],
)
def test_an_answer_names_an_option(raw: dict[str, Any], answer: str, place: int | str) -> None:
    """By its name or its level's text, whatever the case; levels that are numbers go by text. One
    that names none is refused with the options.
    """
    question = of_json(raw)
    if isinstance(place, int):
        assert question.place_of(answer) == place
        return
    with raises_naming(InputError, "answer", place):
        question.place_of(answer)


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ({}, ""),
        ([], ""),
        ({"team": []}, "team"),
        ({"team": {"criteria": {"a": None}}}, "team.type"),
        ({"team": TEAM | {"type": "box"}}, "team.type"),
        ({"team": TEAM | {"weight": 3}}, "team.weight"),
        ({"team": {"type": "choice"}}, "team.criteria"),
        ({"team": TEAM | {"criteria": {}}}, "team.criteria"),
        ({"team": TEAM | {"criteria": ["a", "b"]}}, "team.criteria"),
        ({"team": TEAM | {"criteria": {"a": None}}}, "team"),
        ({"team": TEAM | {"criteria": {"a": 1, "b": 2}}}, "team.criteria.a"),
        ({"team": TEAM | {"criteria": {"": None, "b": None}}}, "team.criteria"),
        ({"team": TEAM | {"instructions": True}}, "team.instructions"),
        ({"team": TEAM | {"criteria": dict.fromkeys(map(str, range(256)))}}, "team.criteria"),
        ({"urgent": {"type": "noul", "criteria": {"yes": "now"}}}, "urgent.criteria.yes"),
        ({"urgent": {"type": "noul", "criteria": "now"}}, "urgent.criteria"),
        ({"mood": MOOD | {"criteria": {"0": "calm"}}}, "mood.criteria"),
        ({"mood": MOOD | {"criteria": ["calm"]}}, "mood"),
        ({"mood": MOOD | {"criteria": ["calm", "Calm"]}}, "mood"),
        ({"mood": MOOD | {"criteria": list("abcdefghijk")}}, "mood.criteria"),
        ({"": TEAM}, ""),
        ({"questions": FILE, "temperature": 1}, ""),
        ([{"type": "predicate"}], "[0].instructions"),
        ([{"type": "noul", "instructions": "?"}], "[0].type"),
        ([{"type": "choice", "instructions": "?", "choices": []}], "[0].choices"),
        ([{"type": "choice", "instructions": "?", "choices": [{"value": 3}, {"value": "a"}]}], "[0].choices[0].value"),
        ([{"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": "a"}]}], "[0].choices"),
        ([{"type": "predicate", "name": "a", "instructions": "?"}] * 2, "[1]"),
        ([{"type": "score", "instructions": "?", "levels": [{"label": "a"}, {"text": "b"}]}], "[0].levels[1].text"),
    ],
)  # fmt: skip
def test_bad_questions_are_refused(raw: object, place: str) -> None:
    """One sentence names the file and the place."""
    with pytest.raises(InputError) as caught:
        parse_questions(raw, "team.json")
    message = str(caught.value)
    assert message.startswith(f"team.json: {place}")
    assert "\n" not in message


@pytest.mark.parametrize("content", ["", '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": 1e999}', None])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, content: str | None) -> None:
    """NaN, a number beyond a double and a key that stands twice are no JSON here."""
    path = tmp_path / "team.json"
    if content is not None:
        path.write_text(content)
    with raises_naming(InputError, path):
        read_questions(path)


def test_labels_make_a_choice() -> None:
    """Their order is that of the options."""
    question = question_of_labels(["rent", "repair"], "Which team?")
    assert question.names == ("rent", "repair")
    assert question.id == "answer"
    for labels in (["rent"], [], ["rent", "rent"], ["rent", "Rent"], [""]):
        with pytest.raises(InputError):
            question_of_labels(labels, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "noul", "options": (AnswerOption(name="yes"), AnswerOption(name="no"))},
        {"kind": "score", "options": (AnswerOption(name="1"), AnswerOption(name="2"))},
        {"kind": "choice", "options": (AnswerOption(name="a"), AnswerOption(name="a"))},
        {"kind": "choice", "options": ()},
        {"kind": "choice", "options": (AnswerOption(name="a", description=float("nan")),)},
    ],
)
def test_a_question_checks_its_options(fields: dict[str, Any]) -> None:
    """Of a stored question, too."""
    with pytest.raises(ValueError, match=r"option|JSON|number"):
        Question(id="q", **fields)
