"""The answers of decision endpoints: the upstream is asked, at such an endpoint of its own or by
chat prompts of one token, and what was learned is applied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from aiohttp import web

from blackbox_lb.deploy.injection import to_json
from blackbox_lb.deploy.proxy.asking import (
    DECODED,
    Unusable,
    all_of,
    body_of,
    json_answer,
    whole_answer,
)
from blackbox_lb.deploy.proxy.bodies import LargeBodies, check_values
from blackbox_lb.deploy.proxy.compressed import decoded
from blackbox_lb.deploy.proxy.decisions import (
    OTHER_PROMPT,
    ServedQuestions,
    UpstreamScores,
    UpstreamWay,
    decided,
    mean_scores,
    patched,
)
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.deploy.proxy.metrics import Metrics
from blackbox_lb.deploy.proxy.prompting import Prompting
from blackbox_lb.deploy.proxy.upstream import Upstream
from blackbox_lb.errors import CorruptResponse
from blackbox_lb.questions.answers import OptionScores
from blackbox_lb.questions.fields import RequestFault
from blackbox_lb.questions.question import Question
from blackbox_lb.questions.requests import Shape, adapted, request_body
from blackbox_lb.questions.serving import (
    DecisionRequest,
    QuestionAnswer,
    answer_body,
    fault_body,
    parse_request,
    shape_of,
)
from blackbox_lb.safety.untrusted import parse_json, strict_json

_PASSED_TYPE = "box"
"""A question about a place in an image, which the upstream answers as it is."""


class DecisionService:
    """Answers requests of decision endpoints.

    Args:
        served: the mended questions.
        upstream: what is asked.
        metrics: count the answers.
        max_body: largest request body in bytes, decompressed.
        fields: of chat requests, see ``chat_fields``.
        large: reads the bodies of requests.
    """

    def __init__(
        self,
        served: ServedQuestions,
        upstream: Upstream,
        metrics: Metrics,
        max_body: int,
        fields: Mapping[str, Any],
        large: LargeBodies,
    ) -> None:
        self.served = served
        self._upstream = upstream
        self._metrics = metrics
        self._max_body = max_body
        self._prompting = Prompting(served, upstream, fields)
        self._large = large

    async def answer(self, request: web.BaseRequest, path: str, content: bytes) -> web.Response:
        """The answer to a request.

        Raises ErrorAnswer: the body cannot be decoded, or the upstream does not answer.
        """
        default = self.served.default
        if request.content_type.startswith("multipart/") and default.shape is not None:
            return await self._passed(request, content, frozenset())
        encoding = ",".join(request.headers.getall("Content-Encoding", ()))
        content = await self._large.read(len(content), decoded, content, encoding, self._max_body)
        document: Any = None
        try:
            document = await self._large.read(len(content), _parsed, content)
            boxes = self._boxes(document)
            if boxes and len(boxes) == len(document["questions"]):
                return await self._passed(request, content, DECODED)
            answerable = _without(document, boxes)
            parsed = await self._large.read(len(content), parse_request, answerable, path)
            return await self._decide(request, parsed, document, content, boxes)
        except RequestFault as fault:
            self._metrics.refused["bad_decisions"] += 1
            status, body = fault_body(shape_of(document, path), fault)
            return web.json_response(body, status=status)
        except Unusable as refusal:
            return _refused(refusal.answer, shape_of(document, path))
        except CorruptResponse as error:
            raise ErrorAnswer(502, str(error), code="upstream_no_decisions") from error

    def _boxes(self, document: Any) -> list[str]:
        """The ids of questions that the upstream answers as they are."""
        questions = document.get("questions") if isinstance(document, dict) else None
        if self.served.default.shape != "systemone" or not isinstance(questions, dict):
            return []
        return [
            id
            for id, fields in questions.items()
            if isinstance(fields, dict) and fields.get("type") == _PASSED_TYPE
        ]

    async def _decide(
        self,
        request: web.BaseRequest,
        parsed: DecisionRequest,
        document: Mapping[str, Any],
        content: bytes,
        boxes: Sequence[str],
    ) -> web.Response:
        """Ask the upstream in each of the ways that the questions need, and answer."""
        mends = not OTHER_PROMPT & document.keys()
        groups: dict[UpstreamWay, list[Question]] = {}
        for question in parsed.questions:
            groups.setdefault(self.served.way_of(question), []).append(question)
        if len(groups) == 1 and next(iter(groups)).shape == parsed.shape:
            return await self._as_it_came(request, parsed, next(iter(groups)), content, mends)
        if boxes:
            raise RequestFault(
                ("questions", boxes[0]),
                "a box beside a question that is asked in another way; send it in a request of its"
                " own",
            )
        system = document.get("instructions") if parsed.shape == "systemone" else None
        answers = await all_of(
            self._asked(request, parsed, way, questions, system)
            for way, questions in groups.items()
        )
        decisions = {}
        for (way, questions), answer in zip(groups.items(), answers, strict=True):
            for question in questions:
                mended = self.served.mended(question, answer.model) if mends else None
                scores = answer.scores[question.id]
                decisions[question.id] = decided(question, scores, mended, way)
        self._count(decisions, parsed)
        tokens = sum(answer.input_tokens for answer in answers)
        return web.json_response(answer_body(parsed, answers[0].model, decisions, tokens))

    async def _as_it_came(
        self,
        request: web.BaseRequest,
        parsed: DecisionRequest,
        way: UpstreamWay,
        content: bytes,
        mends: bool,
    ) -> web.Response:
        """The upstream's own answer to a request of its shape, with the mended answers in it."""
        headers, answer = await json_answer(self._upstream, request, way.target, content)
        decisions: dict[str, QuestionAnswer] = {}
        if not isinstance(answer, dict):
            return web.json_response(answer, headers=headers)
        learned = []
        if mends and isinstance(answer.get("model"), str):
            learned = self.served.learned(parsed.questions, answer["model"])
        if learned:
            read = way.read(answer, parsed.questions, [question for question, _ in learned])
            twice = [question for question, mended in learned if mended.both_orders]
            scores = await self._both(request, parsed, way, twice, read.scores)
            for question, mended in learned:
                decisions[question.id] = decided(question, scores[question.id], mended, way)
        self._count(decisions, parsed)
        return web.json_response(patched(answer, parsed, decisions), headers=headers)

    async def _asked(
        self,
        request: web.BaseRequest,
        parsed: DecisionRequest,
        way: UpstreamWay,
        questions: Sequence[Question],
        system: Any,
    ) -> UpstreamScores:
        """What the upstream answers to questions in one way."""
        if way.shape is None:
            return await self._prompting.read(request, parsed, way.layout, questions, system)
        answer = await self._at_endpoint(request, parsed, way.shape, way, questions)
        read = way.read(answer, questions, questions)
        twice = [question for question in questions if self.served.has_both_orders(question)]
        scores = await self._both(request, parsed, way, twice, read.scores)
        return UpstreamScores(read.model, scores, read.input_tokens)

    async def _at_endpoint(
        self,
        request: web.BaseRequest,
        parsed: DecisionRequest,
        shape: Shape,
        way: UpstreamWay,
        questions: Sequence[Question],
    ) -> Any:
        """The parsed answer of an endpoint to questions of a request."""
        fitting = [adapted(shape, question) for question in questions]
        body = request_body(shape, parsed.model, parsed.state, fitting)
        _, answer = await json_answer(self._upstream, request, way.target, to_json(body))
        return answer

    async def _both(
        self,
        request: web.BaseRequest,
        parsed: DecisionRequest,
        way: UpstreamWay,
        questions: Sequence[Question],
        scores: Mapping[str, OptionScores | None],
    ) -> Mapping[str, OptionScores | None]:
        """The scores, with the mean over both orders of the options for these questions."""
        if not questions or way.shape is None:
            return scores
        turned = [question.reversed() for question in questions]
        answer = await self._at_endpoint(request, parsed, way.shape, way, turned)
        read = way.read(answer, turned, turned)
        means = {
            question.id: mean_scores(
                scores[question.id],
                read.scores[question.id],
                is_turned=question.kind == "choice",
            )
            for question in questions
        }
        return {**scores, **means}

    async def _passed(
        self, request: web.BaseRequest, content: bytes, dropped: frozenset[str]
    ) -> web.Response:
        """The upstream's answer to a request in which nothing can be mended."""
        target = self.served.default.target
        self._metrics.other += 1
        return await whole_answer(self._upstream, request, target, content, dropped)

    def _count(self, decisions: Mapping[str, QuestionAnswer], parsed: DecisionRequest) -> None:
        mended = [decision for decision in decisions.values() if decision.mended]
        abstained = sum(decision.abstains for decision in mended)
        self._metrics.decisions["mended"] += len(mended) - abstained
        self._metrics.decisions["abstained"] += abstained
        self._metrics.decisions["passed"] += len(parsed.questions) - len(mended)


def _parsed(content: bytes) -> Any:
    """The JSON of a request.

    Raises RequestFault: it is none. ErrorAnswer (413): it has more values than are read.
    """
    check_values(content)
    try:
        return strict_json(content)
    except ValueError as error:
        raise RequestFault((), f"the body is no JSON: {error}", "json_invalid") from error


def _without(document: Any, ids: Sequence[str]) -> Any:
    """The request without these questions."""
    if not ids:
        return document
    questions = {id: raw for id, raw in document["questions"].items() if id not in ids}
    return {**document, "questions": questions}


def _refused(answer: web.Response, shape: Shape) -> web.Response:
    """The upstream's refusal; an error in OpenAI's form gets System One's beside it where the
    client speaks that.
    """
    document: Any = None
    with suppress(ValueError):
        document = parse_json(body_of(answer))
    error = document.get("error") if isinstance(document, dict) else None
    if shape == "systemone" and isinstance(error, dict) and "detail" not in document:
        kind = str(error.get("type") or error.get("code") or "upstream_error")
        detail = {"error_type": kind, "message": str(error.get("message", ""))}
        answer.body = json.dumps({**document, "detail": detail}).encode()
    return answer
