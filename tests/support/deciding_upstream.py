"""An upstream that decides, with probabilities that follow from the text alone: at endpoints of the
three shapes, and by the first token of chat answers.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import socket
from typing import Any

from blackbox_lb.bias.decisions import MendedQuestion
from blackbox_lb.bias.records import softmax
from blackbox_lb.questions.fields import RequestFault
from blackbox_lb.questions.question import Json, Question, parse_questions
from blackbox_lb.questions.serving import (
    DecisionRequest,
    QuestionAnswer,
    answer_body,
    fault_body,
    parse_request,
    shape_of,
)
from tests.support.deciding import bare
from tests.support.exact.listener import Request
from tests.support.proxy_upstream import Answering, plain

MODEL = "m-1"
TEAM = parse_questions(
    {"team": {"type": "choice", "instructions": "Which team?", "criteria": {"repair": "lifts", "rent": None, "other": None}}},
    "team.json",
)[0]  # fmt: skip
NOW = parse_questions({"now": {"type": "noul", "instructions": "Danger?"}}, "team.json")[0]
TONE = parse_questions(
    {"tone": {"type": "score", "criteria": ["calm", "cross", "furious"]}}, "team.json"
)[0]


def mended(question: Question, reading: Any = "systemone", **fields: Any) -> MendedQuestion:
    """What was learned of a question: the last option gets 3 nats more."""
    size = len(question.options)
    learned = {
        "slope": 1.5,
        "center": (0.1,) * size,
        "offsets": (0.0,) * (size - 1) + (3.0,),
        "model": MODEL,
        "mending": "slope and offsets",
        "rows": 100,
    }
    return MendedQuestion(question=question, reading=reading, **{**learned, **fields})


def logit(*parts: Json) -> float:
    """A number from -2 to 2 that follows from the parts."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return digest[0] / 64 - 2


def raw(state: Json, question: Question) -> tuple[float, ...]:
    """The probabilities of the endpoints."""
    return softmax([logit(state, question.instructions, name) for name in question.names])


def endpoint_answer(request: DecisionRequest, **changed: Any) -> dict[str, Any]:
    """The answer of an endpoint, as other servers write it."""
    decided = {
        question.id: QuestionAnswer(raw(request.state, question)) for question in request.questions
    }
    return {**bare(answer_body(request, MODEL, decided, 42)), **changed}


def _labels(prompt: str) -> list[str]:
    """The labels of a question by words, which stand in its first line, or by letters."""
    if prompt.endswith("Answer:"):
        [named] = re.findall(r": (.*)[?.] Answer with", prompt)
        return re.split(r", | or ", named)
    lines = prompt.split("\n\n")[-1].splitlines()
    asked = [line for line in lines[:-1] if not line.startswith("Question: ")]
    return [re.split(r": | - ", line)[0] for line in asked]


def first_token(document: Any) -> dict[str, Any]:
    """A chat answer with the likeliest first tokens: all labels in a long list, all but the last in
    a short one.
    """
    prompt = document["messages"][-1]["content"]
    labels = _labels(prompt)
    if document["top_logprobs"] <= 20:
        labels = labels[:-1][:18]
    tokens = [*labels, "The", "I"]
    probabilities = softmax([logit(prompt, token) for token in tokens])
    listed = [
        {"token": token, "bytes": list(token.encode()), "logprob": math.log(0.9 * probability)}
        for token, probability in zip(tokens, probabilities, strict=True)
    ]
    listed.sort(key=lambda row: -row["logprob"])  # type: ignore[operator]
    content = [{**listed[0], "top_logprobs": listed}]
    choice = {
        "index": 0,
        "finish_reason": "length",
        "message": {"role": "assistant", "content": listed[0]["token"]},
        "logprobs": {"content": content},
    }
    return {"id": "c", "model": MODEL, "choices": [choice], "usage": {"prompt_tokens": 7}}


def deciding(arrived: Request, connection: socket.socket) -> None:
    """Answers every endpoint."""
    method, path, _ = arrived.line.split(" ")
    status, body = _answer(method, path.rpartition("/")[2], arrived)
    answer: Answering = plain(status, json.dumps(body).encode())
    answer(arrived, connection)


def _answer(method: str, name: str, arrived: Request) -> tuple[str, Any]:
    if method == "GET" and name == "models":
        return "200 OK", {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
    if name not in ("systemone", "decisions", "completions"):
        return "404 Not Found", {"error": {"message": f"no route {name}", "type": "not_found"}}
    document = json.loads(arrived.body)
    if document.get("model") == "missing":
        return "404 Not Found", {"error": {"message": "no such model", "type": "not_found_error"}}
    longest = {"short": 20, "shortest": 5}.get(document.get("model"), 1_000)
    if name == "completions" and document["top_logprobs"] > longest:
        return "400 Bad Request", {"error": {"message": f"at most {longest}", "type": "bad"}}
    if name == "completions":
        return "200 OK", first_token(document)
    try:
        return "200 OK", endpoint_answer(parse_request(document, name))
    except RequestFault as fault:
        status, body = fault_body(shape_of(document, name), fault)
        return f"{status} Refused", body


KEY = "made-up-key"


def deciding_with_key(arrived: Request, connection: socket.socket) -> None:
    """The same for callers with the key alone."""
    if arrived.headers.get("authorization") == f"Bearer {KEY}":
        deciding(arrived, connection)
        return
    error = {"message": "no such key", "type": "authentication_error"}
    plain("401 Unauthorized", json.dumps({"error": error}).encode())(arrived, connection)
