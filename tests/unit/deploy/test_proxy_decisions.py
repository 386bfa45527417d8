"""The proxy at decision endpoints: questions of a file are mended, all others are answered as the
upstream does, in each of the three shapes.
"""

from __future__ import annotations

import gzip
import json
import math
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox_lb.bias.decisions import MendedQuestion, PromisedError
from blackbox_lb.bias.records import softmax
from blackbox_lb.deploy.proxy.decisions import ServedQuestions, load_questions
from blackbox_lb.errors import InputError
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.questions.answers import read_answer
from blackbox_lb.questions.question import Question
from blackbox_lb.questions.requests import Shape, request_body
from tests.support.commands import blb, options
from tests.support.deciding_upstream import (
    MODEL,
    NOW,
    TEAM,
    TONE,
    deciding,
    mended,
    raw,
)
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.listener import Request
from tests.support.proxy_upstream import (
    Answering,
    Origin,
    exchange,
    plain,
    proxied,
    proxy_for,
    request,
    running,
)
from tests.support.questions import write_rows

SHAPES: tuple[Shape, ...] = ("systemone", "openai", "sglang")
ASKED = (TEAM, NOW.replacing(instructions="Danger?"), TONE.replacing(instructions="How?"))
"""Questions that every shape has a place for."""


@contextmanager
def serving(*rows: MendedQuestion, answer: Answering = deciding) -> Iterator[tuple[Origin, int]]:
    """A proxy with these questions before an upstream: (the upstream, the proxy's port)."""
    with proxied(answer, questions=ServedQuestions(rows)) as (origin, port, _):
        yield origin, port


def post(port: int, body: Any, path: str = "/v1/systemone", *fields: str) -> tuple[int, Any]:
    """Status and parsed body of the answer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = ("Content-Type: application/json", *fields)
    status, _, answer = exchange(port, request(path, content, *lines))
    return int(status.split()[1]), json.loads(answer)


def answers_of(body: Any, questions: tuple[Question, ...]) -> dict[str, Any]:
    """Question id -> answer, of a list or a map."""
    answers = body["answers"]
    if isinstance(answers, dict):
        return answers
    return {question.id: fields for question, fields in zip(questions, answers, strict=True)}


def expected(question: Question, row: MendedQuestion) -> tuple[float, ...]:
    """The mended probabilities of the upstream's endpoints."""
    return row.probabilities([math.log(value) for value in raw("s", question)])


@pytest.mark.parametrize("reading", SHAPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_question_of_a_file_is_mended(shape: Shape, reading: Shape) -> None:
    """Whatever the client and the upstream speak; the raw probabilities stand beside, and the
    questions without a file have the upstream's.
    """
    row = mended(ASKED[0], reading)
    with serving(row) as (origin, port):
        status, body = post(port, request_body(shape, "any", "s", ASKED), "/v1/decisions")
    assert status == 200
    assert len(origin.arrived) == 1
    answers = answers_of(body, ASKED)
    team = answers["team"]
    assert team["x_mended"]
    assert not team["x_abstain"]
    assert team["x_raw_probabilities"] == pytest.approx(
        dict(zip(TEAM.names, raw("s", ASKED[0]), strict=True))
    )
    assert [answers[id]["x_mended"] for id in ("now", "tone")] == [False, False]
    read = read_answer(body, ASKED, None)
    assert read.model == MODEL
    assert read.input_tokens == 42
    for question in ASKED:
        wanted = expected(question, row) if question.id == "team" else raw("s", question)
        found = [math.exp(logprob) for logprob in read.scores[question.id].logprobs]
        assert found == pytest.approx(wanted)
    largest = TEAM.names[max(range(3), key=expected(ASKED[0], row).__getitem__)]
    assert team["choice"] == largest


@pytest.mark.parametrize("layout", ["letters", "words"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_chat_server_is_asked_a_token_a_question(shape: Shape, layout: Any) -> None:
    """The file's question in its layout, the others by letters; each tells its label mass."""
    row = mended(ASKED[0], layout)
    with serving(row) as (origin, port):
        status, body = post(port, request_body(shape, "any", "s", ASKED), "/decisions")
    assert status == 200
    assert len(origin.arrived) == 4
    sent = [arrived.json for arrived in origin.arrived]
    assert all(arrived.line.startswith("POST /v1/chat/completions") for arrived in origin.arrived)
    assert all(
        (one["max_tokens"], one["temperature"], one["logprobs"]) == (1, 1, True) for one in sent
    )
    assert sorted(one["top_logprobs"] for one in sent) == [20, 20, 20, 1_000]
    texts = "\n".join(one["messages"][0]["content"] for one in sent)
    assert ("\nrepair: lifts\n" in texts) == (layout == "words")
    answers = answers_of(body, ASKED)
    read = read_answer(body, ASKED, None)
    assert read.input_tokens == 28
    for question in ASKED:
        fields = answers[question.id]
        assert fields["x_mended"] == (question.id == "team")
        mass = read.scores[question.id].label_mass
        assert mass is not None
        assert 0 < mass < 0.9
    unmended = list(answers["team"]["x_raw_probabilities"].values())
    wanted = softmax(
        [
            1.5 * (math.log(value) + 0.1) + offset
            for value, offset in zip(unmended, (0, 0, 3), strict=True)
        ]
    )
    assert [math.exp(value) for value in read.scores["team"].logprobs] == pytest.approx(wanted)


@pytest.mark.parametrize("reading", ["systemone", "letters"])
def test_both_orders_are_asked_where_they_were_learned(reading: Any) -> None:
    """A second request has the options reversed, and the mean of the log-probabilities counts."""
    row = mended(TEAM, reading, both_orders=True)
    with serving(row) as (origin, port):
        _, body = post(port, request_body("systemone", "any", "s", [TEAM]))
    assert len(origin.arrived) == (2 if reading == "systemone" else 4)
    assert body["answers"]["team"]["x_mended"]
    if reading == "systemone":
        # This upstream's probabilities do not depend on the order.
        wanted = row.probabilities([math.log(value) for value in raw("s", TEAM)])
        assert list(body["answers"]["team"]["probabilities"].values()) == pytest.approx(wanted)
        assert list(origin.arrived[1].json["questions"]["team"]["criteria"]) == [
            "other",
            "rent",
            "repair",
        ]


@pytest.mark.parametrize("reading", ["systemone", "letters"])
@pytest.mark.parametrize(
    ("learned", "changed"),
    [
        ({"model": "m-0"}, {}),
        ({}, {"instructions": "Be strict."}),
        ({}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({}, {"questions": {"team": {**TEAM.as_json(), "instructions": "Which team"}}}),
    ],
    ids=["model", "instructions", "template", "text"],
)
def test_what_was_learned_elsewhere_mends_nothing(
    learned: dict[str, Any], changed: dict[str, Any], reading: Any
) -> None:
    """From another model or another text, or where fields make some server's prompt another one."""
    with serving(mended(TEAM, reading, **learned)) as (origin, port):
        status, body = post(port, {**request_body("systemone", "any", "s", [TEAM]), **changed})
    assert status == 200
    assert body["answers"]["team"]["x_mended"] is False
    if reading == "letters" and "instructions" in changed:
        system = {"role": "system", "content": "Be strict."}
        assert origin.arrived[0].json["messages"][0] == system


@pytest.mark.parametrize("reading", ["systemone", "letters"])
def test_what_does_not_concern_a_question_changes_nothing(reading: Any) -> None:
    """Other questions, their order and the ids."""
    others = [TONE, TEAM.replacing(id="x"), NOW]
    with serving(mended(TEAM, reading)) as (_, port):
        alone = post(port, request_body("systemone", "any", "s", [TEAM]))[1]
        among = post(port, request_body("systemone", "any", "s", others))[1]
    assert among["answers"]["x"] == alone["answers"]["team"]


def test_a_promise_is_kept_by_abstaining() -> None:
    """Below the cut ``x_abstain`` is true; the counts say how many."""
    promise = PromisedError(error=0.05, cut=0.9999, answered=60, wrong=0, rows=100, bound=0.05)
    with serving(mended(TEAM, promise=promise), mended(NOW)) as (_, port):
        body = post(port, request_body("systemone", "any", "s", [TEAM, NOW, TONE]))[1]
        health = json.loads(exchange(port, request("/healthz", None, method="GET"))[2])
        metrics = exchange(port, request("/metrics", None, method="GET"))[2].decode()
    assert [body["answers"][id]["x_abstain"] for id in ("team", "now")] == [True, False]
    assert health["decisions"] == {"mended": 1, "abstained": 1, "passed": 1}
    assert [row["id"] for row in health["questions"]] == ["team", "now"]
    assert health["questions"][0]["promise"] == promise.sentence
    assert 'blb_proxy_decisions_total{outcome="abstained"} 1' in metrics


def test_an_endpoint_gets_the_request_as_it_came() -> None:
    """In its own shape with all fields, and its answer comes back with all fields that are not of
    a mended question, a box's too.
    """
    sent = {
        **request_body("systemone", "any", "s", [TEAM]),
        "safety_identifier": "u",
    }
    sent["questions"]["where"] = {"type": "box", "instructions": "Where?"}
    box = {"type": "box", "box": {"top": 0}, "confidence": 0.5}
    upstream = {
        "model": MODEL,
        "id": "x",
        "answers": {
            "team": {"type": "choice", "choice": "rent", "confidence": 1, "probabilities": {"rent": 1, "repair": 0, "other": 0}, "x_own": 1},
            "where": box,
        },
        "usage": {"input_tokens": 3, "output_tokens": 2, "cost": 0.1},
    }  # fmt: skip
    body = json.dumps(sent, indent=1).encode()
    with serving(
        mended(TEAM, decimals=2), answer=plain("200 OK", json.dumps(upstream).encode())
    ) as (origin, port):
        _, answer = post(port, body)
    assert origin.arrived[0].body == body
    assert origin.arrived[0].line.startswith("POST /v1/systemone ")
    assert answer["answers"]["where"] == {**box, "x_mended": False}
    assert {name: answer[name] for name in ("model", "id", "usage")} == {
        name: upstream[name] for name in ("model", "id", "usage")
    }
    team = answer["answers"]["team"]
    assert team["x_own"] == 1
    assert team["x_raw_probabilities"] == {"repair": 0, "rent": 1, "other": 0}
    assert team["probabilities"]["other"] > 0.001


def test_a_question_without_an_answer_abstains() -> None:
    """OpenAI's refusal stays one; in another shape no option is preferred, nor where no option is
    among the listed tokens.
    """
    upstream = {"model": MODEL, "answers": [{"type": "refusal", "name": "team"}]}
    refusal = plain("200 OK", json.dumps(upstream).encode())
    with serving(mended(TEAM, "openai"), answer=refusal) as (_, port):
        openai = post(port, request_body("openai", "any", "s", [TEAM]), "/v1/decisions")[1]
        system_one = post(port, request_body("systemone", "any", "s", [TEAM]))[1]
    assert openai["answers"][0]["type"] == "refusal"
    team = system_one["answers"]["team"]
    assert (team["x_refused"], team["x_abstain"], team["confidence"]) == (True, True, 0.0)
    token = {"token": "The", "bytes": list(b"The"), "logprob": -0.1, "top_logprobs": []}
    choice = {"finish_reason": "length", "logprobs": {"content": [token]}}
    chat = plain("200 OK", json.dumps({"model": MODEL, "choices": [choice]}).encode())
    with serving(mended(TEAM, "letters"), answer=chat) as (_, port):
        team = post(port, request_body("systemone", "any", "s", [TEAM]))[1]["answers"]["team"]
    assert (team["x_abstain"], team["x_mended"], team["x_label_mass"]) == (True, False, 0.0)


NOUL = {"type": "noul", "instructions": "?"}


@pytest.mark.parametrize("reading", ["systemone", "letters"])
@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b'{"model": "m", "model": "m"}',
        b"[" * 300,
        {"model": "m", "questions": {"q": NOUL}},
        {"model": "m", "state": "s", "questions": {}},
        {"model": "m", "state": "s", "questions": {"q": {"type": "boolean"}}},
    ],
    ids=range(6),
)
def test_a_bad_request_gets_422_and_is_not_sent(reading: Any, body: Any) -> None:
    """With the place in ``detail``; at OpenAI's path a 400 with ``error``."""
    with serving(mended(TEAM, reading)) as (origin, port):
        status, answer = post(port, body)
        assert status == 422
        (detail,) = answer["detail"]
        assert detail["loc"][0] == "body"
        assert detail["msg"]
        status, answer = post(port, b"{", "/v1/decisions")
        assert status == 400
        assert answer["error"]["message"]
    assert not origin.arrived


@pytest.mark.parametrize(
    ("reading", "texts"),
    [
        ("openai", ["?\nYes: now", "Choose what fits.", '{"ask": "é"}']),
        ("sglang", ["?", "Choose what fits.", {"ask": "é"}]),
    ],
)
def test_what_a_shape_has_no_place_for_is_written_into_its_texts(
    reading: Any, texts: list[Any]
) -> None:
    """Such a question is of no file."""
    questions = {
        "q": {"type": "noul", "instructions": "?", "criteria": {"true": "now"}},
        "bare": {"type": "choice", "criteria": {"a": ["x"], "b": None}},
        "score": {"type": "score", "instructions": {"ask": "é"}, "criteria": [{"a": 1}, "b"]},
    }
    with serving(mended(ASKED[0], reading)) as (origin, port):
        _, answer = post(port, {"model": "m", "state": "s", "questions": questions})
    assert answer["answers"]["score"]["legend"] == {"0": {"a": 1}, "1": "b"}
    sent = origin.arrived[0].json["questions"]
    assert [fields.get("question", fields.get("instructions")) for fields in sent] == texts
    assert reading == "openai" or sent[0]["yes"] == "now"


@pytest.mark.parametrize("reading", ["systemone", "letters"])
def test_the_upstream_s_refusal_is_the_client_s(reading: Any) -> None:
    """With its status, and System One's form beside OpenAI's."""
    with serving(mended(TEAM, reading)) as (_, port):
        status, answer = post(port, {"model": "missing", "state": "s", "questions": {"q": NOUL}})
    assert status == 404
    assert answer["error"]["message"] == "no such model"
    assert answer["detail"] == {"error_type": "not_found_error", "message": "no such model"}


@pytest.mark.parametrize(
    ("reading", "body"),
    [
        ("systemone", b"text"),
        ("systemone", b'{"model": "m-1", "answers": {}}'),
        ("systemone", b'{"model": "m-1", "answers": {"team": {"type": "choice", "probabilities": {"a": 1}}}}'),
        ("letters", b'{"choices": [{"message": {"content": "A"}}]}'),
        ("letters", b"[]"),
        ("letters", b'{"choices": [{"logprobs": {"content": [{"token": "A", "logprob": 1.5, "top_logprobs": []}]}}]}'),
    ],
)  # fmt: skip
def test_an_answer_without_decisions_is_the_upstream_s_fault(reading: Any, body: bytes) -> None:
    """A 502 says what is wrong with it."""
    with serving(mended(TEAM, reading), answer=plain("200 OK", body)) as (_, port):
        status, answer = post(port, request_body("systemone", "any", "s", [TEAM]))
    assert status == 502
    assert answer["error"]["code"] == "upstream_no_decisions"


@pytest.mark.parametrize(
    ("model", "lists"),
    [("any", [20, 1_000] * 2), ("short", [20, 1_000, 20]), ("shortest", [20, 5, 1_000, 5])],
)
def test_lists_are_as_long_as_the_host_gives(model: str, lists: list[int]) -> None:
    """A longer one is asked for where an option of a file is missing, as a fit does; what a host
    refuses is not asked again.
    """
    with serving(mended(TEAM, "letters")) as (origin, port):
        body = request_body("systemone", model, "s", [TEAM])
        answers = [post(port, body)[1]["answers"]["team"] for _ in range(2)]
    assert [arrived.json["top_logprobs"] for arrived in origin.arrived] == lists
    assert answers[0] == answers[1]
    assert answers[0]["x_mended"]


@pytest.mark.parametrize(
    ("provider", "fields"),
    [
        ("openai", {"max_completion_tokens": 1}),
        ("byteplus", {"max_tokens": 1, "thinking": {"type": "disabled"}}),
    ],
)
def test_a_profile_s_fields_are_sent(provider: str, fields: dict[str, Any]) -> None:
    """As a fit with this profile sends them."""
    served = ServedQuestions([mended(TEAM, "letters")])
    with proxied(deciding, questions=served, profile=load_profile(provider)) as (origin, port, _):
        post(port, request_body("systemone", "any", "s", [TEAM]))
    sent = origin.arrived[0].json
    names = ("max_completion_tokens", "max_tokens", "thinking")
    assert {name: sent[name] for name in names if name in sent} == fields


def packed(content: bytes, coding: str) -> bytes:
    """A body in a coding."""
    if coding == "zstd":
        return bytes(pytest.importorskip("backports.zstd").compress(content))
    return zlib.compress(content) if coding == "deflate" else gzip.compress(content)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "GZIP"])
def test_compressed_bodies_are_read(coding: str) -> None:
    """The upstream gets them uncompressed. Beyond the limit nothing more is decompressed; a body
    that is not whole, not in its coding or in an unknown one is refused.
    """
    body = json.dumps(request_body("systemone", "any", "s", [TEAM])).encode()
    whole = packed(body, coding)
    bomb = packed(b"\0" * 2**24, coding)
    sent = (
        *((whole, coding, 200), (bomb, coding, 413), (bomb[:-20], coding, 413)),
        *((whole[:-2], coding, 400), (b"text", coding, 400), (whole, "br", 415)),
        (whole, f"{coding}, {coding}", 415),
    )
    with proxied(deciding, questions=ServedQuestions([mended(TEAM)]), max_body=2**20) as (
        origin,
        port,
        _,
    ):
        for content, encoding, status in sent:
            field = f"Content-Encoding: {encoding}"
            assert (post(port, content, "/v1/systemone", field)[0], encoding) == (status, encoding)
    (arrived,) = origin.arrived
    assert arrived.body == body
    assert "content-encoding" not in arrived.headers


@pytest.mark.parametrize(
    "second", [mended(TEAM.replacing(id="other")), mended(TEAM, "letters", model="n")]
)
def test_a_question_twice_is_refused_at_start(second: MendedQuestion) -> None:
    """Two files of one question and one model, or in two ways; of two models both are served."""
    with raises_naming(InputError, "``decide``"):
        ServedQuestions([mended(TEAM), second])
    assert len(list(ServedQuestions([mended(TEAM), mended(TEAM, model="n")]))) == 2


def test_the_alias_of_system_one_is_the_only_model() -> None:
    """Clients of TypeSafe ask for jev-latest wherever they are pointed."""
    with serving(mended(TEAM, "letters")) as (origin, port):
        post(port, request_body("systemone", "jev-latest", "s", [TEAM]))
        post(port, request_body("systemone", "m", "s", [TEAM]))
    assert [arrived.json["model"] for arrived in origin.arrived] == [MODEL] * 2 + ["m"] * 2


def test_without_files_the_endpoints_are_passed_on() -> None:
    """A proxy of biases alone changes nothing there."""
    with proxied(deciding) as (origin, port, _):
        _, body = post(port, request_body("systemone", "any", "s", [TEAM]))
    assert "x_mended" not in body["answers"]["team"]
    assert len(origin.arrived) == 1


FIELDS = "model answers team now type probabilities repair rent other noul usage input_tokens choices logprobs content top_logprobs logprob token bytes label_mass diagnostics name value probability finish_reason prompt_tokens"
ANSWERS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.floats(allow_nan=False)
    | st.sampled_from(["choice", "noul", "predicate", "yes_no", "refusal", "A", "m"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELDS.split()), inner, max_size=5)
    ),
    max_leaves=20,
)


def test_whatever_the_upstream_answers_is_mended_or_its_fault() -> None:
    """200 or 502, never another error, at an endpoint and in a list of tokens."""
    document: Any = None

    def answer(arrived: Request, connection: socket.socket) -> None:
        plain("200 OK", json.dumps(document).encode())(arrived, connection)

    with serving(mended(TEAM), mended(NOW, "letters"), answer=answer) as (_, port):

        def ask(question: Question, told: Any) -> None:
            nonlocal document
            document = told
            status, body = post(port, request_body("systemone", "m", "s", [question]))
            assert status == 200 or body["error"]["code"] == "upstream_no_decisions"

        @settings(max_examples=40)
        @given(ANSWERS)
        def tell(part: Any) -> None:
            ask(TEAM, part)
            ask(TEAM, {"model": MODEL, "answers": part})
            ask(TEAM, {"model": MODEL, "answers": {"team": part}})
            token = {"token": "A", "logprob": -0.1, "top_logprobs": part}
            lists = ([{**token, "top_logprobs": [part]}], [{**token, "logprob": part}])
            for content in (part, [token], *lists):
                choice = {"logprobs": {"content": content}}
                ask(NOW, {"model": part, "choices": [choice]})

        tell()


def test_the_proxy_asks_what_the_fit_asked(tmp_path: Path) -> None:
    """A run's question is put to the same server with the same text and settings, and its answer
    is mended by the run's file.
    """
    names = ("a", "b", "c")
    raw_question = {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(names)}
    (tmp_path / "q.json").write_text(json.dumps({"q": raw_question}))
    rows = [{"prompt": f"s {place}", "answer": names[place % 3]} for place in range(60)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    run = tmp_path / "run"
    with ExactServer(ExactModel(12, 1, prompts=400, seed=3)) as server:
        given = options(
            provider="llamacpp",
            base_url=server.base_url,
            model="exact",
            data=data,
            question=tmp_path / "q.json",
            reward="accuracy",
            layout="words",
            objective="log-loss",
            out=run,
        )
        assert blb("fit", *given, "--quiet").exit_code == 0
        fitted = [
            body
            for body in server.requests
            if "s 5\n" in str(body.get("messages", [{}])[0].get("content"))
        ]
        number = len(server.requests)
        questions = load_questions([run])
        with running(proxy_for(server.base_url, questions=questions)) as port:
            body = {"model": "exact", "state": "s 5", "questions": {"q": raw_question}}
            answer = post(port, body)[1]["answers"]["q"]
        (asked,) = server.requests[number:]
    for name in ("messages", "max_tokens", "temperature", "logprobs"):
        assert asked[name] == fitted[0][name]
    (row,) = questions
    raw = [math.log(value) for value in answer["x_raw_probabilities"].values()]
    logprobs = [value + math.log(answer["x_label_mass"]) for value in raw]
    assert list(answer["probabilities"].values()) == pytest.approx(row.probabilities(logprobs))
    assert answer["x_mended"]
