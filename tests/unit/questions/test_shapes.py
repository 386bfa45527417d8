"""Requests and answers in the three shapes: what is written is read back the same."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.errors import InputError
from blackbox_lb.questions.answers import read_answer
from blackbox_lb.questions.fields import RequestFault
from blackbox_lb.questions.layouts import laid_out
from blackbox_lb.questions.question import AnswerOption, Question, parse_questions
from blackbox_lb.questions.requests import Shape, adapted, request_body
from blackbox_lb.questions.serving import (
    QuestionAnswer,
    answer_body,
    confidence,
    fault_body,
    parse_request,
)
from tests.support.errors import raises_naming

RECORDED: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("recorded.json").read_text(encoding="utf-8")
)
"""Bodies that unmodified clients sent to a server of this machine, and its answers."""
SHAPES: tuple[Shape, ...] = get_args(Shape)

texts = st.text(min_size=1, max_size=8).filter(str.strip)


@st.composite
def questions(draw: st.DrawFn) -> tuple[Question, ...]:
    """Questions that every shape has a place for."""
    ids = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
    return tuple(draw(question(id)) for id in ids)


@st.composite
def question(draw: st.DrawFn, id: str) -> Question:
    """One question."""
    kind = draw(st.sampled_from(["choice", "noul", "score"]))
    instructions = draw(texts)
    if kind == "noul":
        options = [AnswerOption(name="true"), AnswerOption(name="false")]
    elif kind == "score":
        levels = draw(st.lists(texts, min_size=2, max_size=10))
        options = [AnswerOption(name=str(n), description=text) for n, text in enumerate(levels)]
    else:
        names = draw(st.lists(texts, min_size=2, max_size=6, unique=True))
        options = [AnswerOption(name=name, description=draw(st.none() | texts)) for name in names]
    return Question(id=id, kind=kind, instructions=instructions, options=tuple(options))


@given(questions(), st.sampled_from(SHAPES), st.sampled_from(["text", {"a": 1}, [1, "é"]]))
def test_a_request_is_read_as_it_was_written(
    asked: tuple[Question, ...], shape: Shape, state: Any
) -> None:
    """Shape, model, state and questions, through JSON."""
    body = json.loads(json.dumps(request_body(shape, "m", state, asked)))
    request = parse_request(body, "/v1/decisions")
    assert (request.shape, request.model, request.state) == (shape, "m", state)
    assert request.questions == asked
    fingerprints = [question.fingerprint for question in request.questions]
    assert fingerprints == [question.fingerprint for question in asked]


@given(questions(), st.sampled_from(SHAPES), st.data())
def test_an_answer_is_read_as_it_was_written(
    asked: tuple[Question, ...], shape: Shape, data: st.DataObject
) -> None:
    """The probabilities of every option come back, unrounded."""
    request = parse_request(request_body(shape, "m", "s", asked), "/v1/decisions")
    decided = {}
    for question in asked:
        size = len(question.options)
        weights = data.draw(st.lists(st.floats(0.01, 1), min_size=size, max_size=size))
        total = math.fsum(weights)
        decided[question.id] = QuestionAnswer(
            tuple(weight / total for weight in weights), label_mass=0.5, mended=True
        )
    body = json.loads(json.dumps(answer_body(request, "served", decided, 7)))
    answer = read_answer(body, asked, None)
    assert (answer.model, answer.input_tokens) == ("served", 7)
    for question in asked:
        scores = answer.scores[question.id]
        found = [math.exp(logprob) for logprob in scores.logprobs]
        assert found == pytest.approx(decided[question.id].probabilities, rel=1e-9)
        assert not any(scores.floored)
        assert scores.label_mass == 0.5


@pytest.mark.parametrize("row", RECORDED, ids=[row["client"] for row in RECORDED])
def test_recorded_bodies_are_read(row: dict[str, Any]) -> None:
    """Requests give questions, whose own bodies are the same again; answers are read."""
    request = parse_request(row["request"], row["path"])
    assert request.model == row["request"]["model"]
    assert len(request.questions) == len(row["request"]["questions"])
    if request.shape == "systemone":
        written = request_body("systemone", request.model, request.state, request.questions)
        assert written == row["request"]
    if row["response"] is not None:
        answer = read_answer(row["response"], request.questions, None)
        assert answer.scores.keys() == {question.id for question in request.questions}


def test_true_beside_texts_comes_back() -> None:
    """OpenAI's choices may be JSON's true and false; a question without a name has none in the
    answer.
    """
    (row,) = [row for row in RECORDED if row["client"] == "openai-3.57.0-01"]
    request = parse_request(row["request"], row["path"])
    decided = {
        question.id: QuestionAnswer(tuple(math.exp(logprob) for logprob in scores.logprobs))
        for question in request.questions
        for scores in [read_answer(row["response"], request.questions, 2).scores[question.id]]
    }
    answers = answer_body(request, "gpt-6-luna", decided, 42)["answers"]
    expected = row["response"]["answers"]
    assert [answer["name"] for answer in answers] == ["refund", "team", None]
    assert answers[1]["probabilities"][1]["value"] is True
    assert answers[2]["score"] == pytest.approx(expected[2]["score"])
    assert answers[0]["probability"] == pytest.approx(expected[0]["probability"])


@pytest.mark.parametrize(
    ("raw", "shape"),
    [
        ({"type": "noul", "instructions": "?", "criteria": {"true": "now"}}, "openai"),
        ({"type": "noul", "criteria": {"true": "now"}}, "sglang"),
        ({"type": "choice", "criteria": {"a": None, "b": None}}, "openai"),
        ({"type": "choice", "instructions": "?", "criteria": {"a": ["x"], "b": None}}, "openai"),
        ({"type": "choice", "instructions": {"ask": "?"}, "criteria": {"a": None, "b": None}}, "openai"),
        ({"type": "score", "instructions": "?", "criteria": [{"a": 1}, "b"]}, "openai"),
    ],
)  # fmt: skip
def test_a_shape_without_a_place_for_it_is_refused(raw: dict[str, Any], shape: Shape) -> None:
    """The question is named, before anything is sent."""
    with raises_naming(InputError, "'team'"):
        request_body(shape, "m", "s", parse_questions({"team": raw}, "team.json"))


NOUL = {"type": "noul", "instructions": "?"}
GOOD: dict[str, Any] = {"model": "m", "state": "s", "questions": {"q": NOUL}}
CHOICE = {"id": "q", "type": "choice", "question": "?", "options": [{"name": "a"}, {"name": "b"}]}
FULL = {"questions": {f"q{n}": NOUL for n in range(400)}}


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ([], ()),
        (GOOD | {"model": 3}, ("model",)),
        (GOOD | {"state": None}, ("state",)),
        ({"model": "m", "state": "s"}, ("questions",)),
        (GOOD | {"questions": {}}, ("questions",)),
        (GOOD | {"questions": "text"}, ("questions",)),
        (GOOD | {"questions": {"q": {"type": "box", "instructions": "?"}}}, ("questions", "q", "type")),
        (GOOD | {"questions": FULL["questions"] | {"more": NOUL}}, ("questions",)),
        (GOOD | {"questions": {"q": {"type": "score", "criteria": ["calm", None]}}}, ("questions", "q", "criteria", 1)),
    ],
)  # fmt: skip
def test_bad_requests_of_system_one_get_422(body: Any, loc: tuple[str | int, ...]) -> None:
    """The place of the fault stands in ``detail``, as FastAPI writes it. 400 questions are within
    the limit.
    """
    assert len(parse_request(GOOD | FULL, "/systemone").questions) == 400
    with pytest.raises(RequestFault) as caught:
        parse_request(body, "/v1/systemone")
    status, answer = fault_body("systemone", caught.value)
    [detail] = answer["detail"]
    assert status == 422
    assert tuple(detail["loc"]) == ("body", *loc)
    assert detail["msg"]
    assert detail["type"]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ([], "questions"),
        ([NOUL], "questions[0].type"),
        ([CHOICE | {"question": ""}], "questions[0].question"),
        ([CHOICE | {"question": None}], "questions[0].question"),
        ([CHOICE | {"levels": []}], "questions[0].levels"),
        ([CHOICE | {"options": [{"name": "a"}, {"name": "a"}]}], "questions[0].options"),
        ([CHOICE | {"options": [{"name": "a"}, "b"]}], "questions[0].options[1]"),
        ([CHOICE, CHOICE], "questions[1]"),
    ],
)
def test_bad_requests_of_lists_get_400(asked: list[Any], param: str) -> None:
    """In the form of OpenAI's errors."""
    with pytest.raises(RequestFault) as caught:
        parse_request({"model": "m", "input": "s", "questions": asked}, "/v1/decisions")
    status, answer = fault_body("openai", caught.value)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"].startswith(param)


@pytest.mark.parametrize(
    ("kind", "probabilities", "value"),
    [
        ("choice", (0.97, 0.03), 0.94),
        ("choice", (0.5, 0.5), 0.0),
        ("choice", (1.0,), 1.0),
        ("score", (0.15, 0.6, 0.25), 0.4),
        ("score", (0.25, 0.25, 0.25, 0.25), 0.0),
        ("score", (0.0, 0.0, 1.0), 1.0),
    ],
)
def test_confidence_is_the_published_formula(
    kind: Any, probabilities: tuple[float, ...], value: float
) -> None:
    """The pairs of TypeSafe's documentation, and the ends of the scale."""
    options = tuple(AnswerOption(name=str(n), description="x") for n in range(len(probabilities)))
    question = Question(id="q", kind=kind, options=options)
    assert confidence(question, probabilities) == pytest.approx(value)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_mended_answer_says_so(shape: Shape) -> None:
    """``choice`` is the likeliest mended option; the raw probabilities stand beside, and a refusal
    is one in OpenAI's shape and without preference in the others.
    """
    options = (AnswerOption(name="a"), AnswerOption(name="b"))
    question = Question(id="q", kind="choice", instructions="?", options=options)
    mended = {"q": QuestionAnswer((0.2, 0.8), raw=(0.9, 0.1), mended=True, abstains=True)}
    refused = {"q": QuestionAnswer((0.5, 0.5), refused=True, abstains=True)}
    request = parse_request(request_body(shape, "m", "s", [question]), "/v1/decisions")
    answers = answer_body(request, "m", mended, 1)["answers"]
    answer = answers[0] if shape == "openai" else answers["q"]
    assert answer["choice"] == "b"
    assert answer["x_raw_probabilities"] == {"a": 0.9, "b": 0.1}
    assert (answer["x_mended"], answer["x_abstain"]) == (True, True)
    scores = read_answer(answer_body(request, "m", refused, 1), [question], None).scores["q"]
    assert scores.refused
    assert scores.logprobs == ()


def test_a_question_is_adapted_only_where_it_must_be() -> None:
    """OpenAI's own forms stay, its parts, levels with descriptions and JSON's true among them."""
    raw: list[dict[str, Any]] = [
        {"type": "score", "name": "a", "instructions": [{"type": "input_text", "text": "?"}],
         "levels": [{"label": "calm"}, {"label": "cross", "description": "shouts"}]},
        {"type": "choice", "name": "b", "instructions": "?", "choices": [{"value": True}, {"value": "c"}]},
    ]  # fmt: skip
    questions = parse_questions(raw, "team.json")
    assert [adapted("openai", question) for question in questions] == list(questions)
    assert request_body("openai", "m", "s", questions)["questions"] == raw
    [noul] = parse_questions({"q": {"type": "noul", "criteria": {"false": "no one"}}}, "team.json")
    assert adapted("systemone", noul) == noul
    changed = adapted("openai", noul)
    assert changed.instructions == "Choose what fits.\nNo: no one"
    assert adapted("openai", changed) == changed


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "criteria", "instructions", "name", "value", "label", "question", "id", "true", "x", ""]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip
typed = st.fixed_dictionaries(
    {"type": st.sampled_from(["choice", "noul", "score", "predicate", "yes_no", "box"])},
    optional=dict.fromkeys(("criteria", "instructions", "choices", "levels", "options", "question", "id", "name"), values),
)  # fmt: skip


@given(
    st.lists(typed | values, max_size=3)
    | st.dictionaries(st.text(max_size=3), typed | values, max_size=3),
    values,
)
def test_whatever_is_asked_is_read_or_refused(asked: Any, state: Any) -> None:
    """Never another error; what is read can be written for every server, and has a fingerprint."""
    body = {"model": "m", "state": state, "input": state, "questions": asked}
    try:
        request = parse_request(body, "/v1/decisions")
    except RequestFault as fault:
        statuses = [fault_body(shape, fault)[0] for shape in SHAPES]
    else:
        statuses = []
        questions = request.questions
    if statuses:
        assert statuses == [422, 400, 400]
        return
    for question in questions:
        assert len(question.fingerprint) == 64
        assert laid_out("letters", request.state, question).spellings
        for shape in SHAPES:
            json.dumps(request_body(shape, "m", request.state, [adapted(shape, question)]))
