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


def test_a_map_of_questions_is_read() -> None:
    """Each has its kind, its instructions and its options in order."""
    team, urgent, mood = parse_questions(FILE, "team.json")
    assert (team.id, team.kind, team.names) == ("team", "choice", ("repair", "rent"))
    assert team.options == (
        AnswerOption(name="repair", description="lifts"),
        AnswerOption(name="rent"),
    )
    assert urgent.options == (
        AnswerOption(name="true", description="today"),
        AnswerOption(name="false"),
    )
    assert mood.names == ("0", "1", "2")
    assert [question.as_json() for question in (team, urgent, mood)] == list(FILE.values())


@pytest.mark.parametrize(
    "raw",
    [FILE, {"questions": FILE}, {"model": "m", "state": "s", "questions": FILE}],
    ids=["map", "under questions", "request"],
)
def test_the_forms_of_a_file_are_one(tmp_path: Path, raw: object) -> None:
    """A map, an object that holds it, and a whole request give the same questions."""
    path = tmp_path / "team.json"
    path.write_text(json.dumps(raw))
    assert read_questions(path) == parse_questions(FILE, "team.json")


def test_a_single_question_has_an_id() -> None:
    """A question object alone is named "answer", in OpenAI's form too; a map may have that id."""
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
    """The id is not in it; the text, the order of options and true beside "true" are."""
    team = of_json({"a": TEAM})
    assert team.fingerprint == of_json({"b": TEAM}).fingerprint
    different = [
        TEAM | {"instructions": "Which team"},
        TEAM | {"criteria": {"rent": None, "repair": "lifts"}},
        TEAM | {"criteria": {"repair": "lift", "rent": None}},
    ]
    fingerprints = {of_json(raw).fingerprint for raw in different} | {team.fingerprint}
    assert len(fingerprints) == 4
    literal = AnswerOption(name="true", is_boolean=True)
    options = (AnswerOption(name="true"), AnswerOption(name="b"))
    text = Question(id="q", kind="choice", options=options)
    assert text.fingerprint != text.replacing(options=(literal, options[1])).fingerprint
    assert len(team.fingerprint) == 64


def test_structured_texts_are_kept() -> None:
    """Instructions and descriptions may be objects and lists; their order of keys is part of the
    question.
    """
    raw = {"type": "noul", "instructions": {"b": 1, "a": ["é"]}, "criteria": {"false": [1.5]}}
    question = of_json(raw)
    assert question.as_json() == raw
    swapped = raw | {"instructions": {"a": ["é"], "b": 1}}
    assert of_json(swapped).fingerprint != question.fingerprint


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
    ],
)
def test_an_answer_names_an_option(raw: dict[str, Any], answer: str, place: int) -> None:
    """By its name or its level's text, whatever the case; levels that are numbers go by text."""
    assert of_json(raw).place_of(answer) == place


@pytest.mark.parametrize(
    ("raw", "answer"),
    [
        (TEAM, "sales"),
        (URGENT, "maybe"),
        (MOOD, "3"),
        (MOOD | {"criteria": ["1", "2"]}, "0"),
        (TEAM, ""),
    ],
)
def test_an_answer_that_names_none_is_refused(raw: dict[str, Any], answer: str) -> None:
    """The sentence lists the options."""
    question = of_json(raw)
    with pytest.raises(InputError) as caught:
        question.place_of(answer)
    assert "answer" in str(caught.value)
    listed = question.names
    if question.kind == "score":
        listed = tuple(option.level_text for option in question.options)
    assert all(repr(name) in str(caught.value) for name in listed)


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ({}, ""),
        ([], ""),
        ("text", ""),
        (None, ""),
        ({"team": []}, "team"),
        ({"team": {"criteria": {"a": None}}}, "team.type"),
        ({"team": TEAM | {"type": "box"}}, "team.type"),
        ({"team": TEAM | {"type": 3}}, "team.type"),
        ({"team": TEAM | {"weight": 3}}, "team.weight"),
        ({"team": {"type": "choice"}}, "team.criteria"),
        ({"team": TEAM | {"criteria": {}}}, "team.criteria"),
        ({"team": TEAM | {"criteria": ["a", "b"]}}, "team.criteria"),
        ({"team": TEAM | {"criteria": {"a": None}}}, "team"),
        ({"team": TEAM | {"criteria": {"a": None, "A ": None}}}, "team"),
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
        ([{"type": "predicate", "instructions": ""}], "[0].instructions"),
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


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"a": NaN}',
        b'{"a": 1, "a": 2}',
        b'{"type": "choice", "criteria": {"a": 1e999}}',
    ],
)
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    """NaN, a number beyond a double and a key that stands twice are no JSON here."""
    path = tmp_path / "team.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_questions(path)
    assert str(path) in str(caught.value)
    with pytest.raises(InputError):
        read_questions(tmp_path / "missing.json")


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
