"""Questions that are put to a chat server, each as a prompt whose answer is one token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from blackbox_lb.deploy.injection import to_json
from blackbox_lb.deploy.proxy.asking import Unusable, all_of, json_answer
from blackbox_lb.deploy.proxy.decisions import ServedQuestions, UpstreamScores, mean_scores
from blackbox_lb.deploy.proxy.limits import PREFIX
from blackbox_lb.deploy.proxy.upstream import Upstream
from blackbox_lb.errors import CorruptResponse
from blackbox_lb.providers.profile import Profile
from blackbox_lb.questions.answers import OptionScores
from blackbox_lb.questions.first_token import option_scores
from blackbox_lb.questions.layouts import LaidOut, Layout, laid_out
from blackbox_lb.questions.question import Question
from blackbox_lb.questions.serving import DecisionRequest
from blackbox_lb.types import POSITIVE_TOLERANCE

CHAT = f"{PREFIX}/chat/completions"
IN_FLIGHT = 16
"""Chat prompts of one request that are under way at a time."""
LISTED = (20, 5)
"""Likeliest first tokens that are asked for; the fewer where a host refuses the more."""
LONG_LIST = 1_000
"""Those that are asked for once more where the list lacks an option of a mended question, as a fit
asks for them."""
_REFUSED = (400, 422)
_LEAST_LOGPROB = -9000.0
"""Logprobs below this stand for tokens that cannot be: vLLM and others print -9999."""


def chat_fields(profile: Profile | None) -> dict[str, Any]:
    """The fields of a request for the first token's logprobs, as a fit with this profile has them.

    The temperature is 1, at which every host's logprobs are those of the model.
    """
    max_tokens = "max_tokens"
    fields: dict[str, Any] = {}
    if profile is not None:
        fields = {**profile.neutral, **profile.request}
        if "chat" in profile.endpoints:
            max_tokens = profile.endpoints["chat"].max_tokens
    return {**fields, max_tokens: 1, "temperature": 1, "logprobs": True}


class Prompting:
    """Reads questions from first tokens.

    Args:
        served: the mended questions.
        upstream: what is asked.
        fields: of each request, see ``chat_fields``.
    """

    def __init__(
        self, served: ServedQuestions, upstream: Upstream, fields: Mapping[str, Any]
    ) -> None:
        self._served = served
        self._upstream = upstream
        self._fields = fields
        self._listed = LISTED[0]
        self._has_long_lists = True

    async def read(
        self,
        request: web.BaseRequest,
        parsed: DecisionRequest,
        layout: Layout,
        questions: Sequence[Question],
        system: Any,
    ) -> UpstreamScores:
        """What the upstream answers to questions of a request.

        Args:
            request: the client's, whose headers are sent.
            parsed: the same.
            layout: of the prompts.
            questions: those of the request that are put in it.
            system: a system message before each prompt; that of the file where it is no text, or
                empty.

        Raises:
            Unusable: the upstream refuses one. ErrorAnswer: it does not answer. CorruptResponse: it
                lists no tokens.
        """
        places = asyncio.Semaphore(IN_FLIGHT)
        model = self._served.model_of(parsed.model)

        async def ask(out: LaidOut, learned_with: str, *, is_known: bool) -> UpstreamScores:
            messages = [message.as_json for message in out.prompt.messages]
            before = system if isinstance(system, str) and system else learned_with
            if before:
                messages.insert(0, {"role": "system", "content": before})
            body = {"model": model, "messages": messages, **self._fields}
            async with places:
                return await self._first_token(request, body, out, wants_all=is_known)

        async def ask_orders(question: Question) -> list[UpstreamScores]:
            is_known = self._served.has(question)
            orders = [laid_out(layout, parsed.state, question)]
            if self._served.has_both_orders(question):
                orders.append(laid_out(layout, parsed.state, question, is_reversed=True))
            learned_with = self._served.system_of(question)
            return await all_of(ask(out, learned_with, is_known=is_known) for out in orders)

        answers = await all_of(ask_orders(question) for question in questions)
        scores = {}
        for question, orders in zip(questions, answers, strict=True):
            scores[question.id] = orders[0].scores[""]
            if len(orders) > 1:
                scores[question.id] = mean_scores(orders[0].scores[""], orders[1].scores[""])
        tokens = sum(order.input_tokens for orders in answers for order in orders)
        return UpstreamScores(answers[0][0].model, scores, tokens)

    async def _first_token(
        self, request: web.BaseRequest, body: Mapping[str, Any], out: LaidOut, *, wants_all: bool
    ) -> UpstreamScores:
        """What the first token says of a prompt's options; ``wants_all``: with a longer list where
        a short one lacks an option.
        """
        answer = await self._listing(request, body)
        short = read_first_token(answer, out, str(body["model"]))
        scores = short.scores[""]
        is_whole = scores is not None and not any(scores.floored)
        if is_whole or not wants_all or not self._has_long_lists:
            return short
        long_body = to_json({**body, "top_logprobs": LONG_LIST})
        try:
            _, answer = await json_answer(self._upstream, request, CHAT, long_body)
        except Unusable as refusal:
            if refusal.answer.status in _REFUSED:
                self._has_long_lists = False
                return short
            raise
        long = read_first_token(answer, out, str(body["model"]))
        return replace(long, input_tokens=short.input_tokens + long.input_tokens)

    async def _listing(self, request: web.BaseRequest, body: Mapping[str, Any]) -> Any:
        """The answer with a list as long as the host gives."""
        for listed in LISTED:
            if listed > self._listed:
                continue
            content = to_json({**body, "top_logprobs": listed})
            try:
                _, answer = await json_answer(self._upstream, request, CHAT, content)
            except Unusable as refusal:
                if listed == LISTED[-1] or refusal.answer.status not in _REFUSED:
                    raise
                continue
            self._listed = listed
            return answer
        raise AssertionError("the shortest list is always tried")


def read_first_token(answer: Any, out: LaidOut, model: str) -> UpstreamScores:
    """What a chat answer's list of first tokens says of the options, under the id "".

    Args:
        answer: the parsed body of a chat completion.
        out: the prompt that it answers.
        model: the name of the model where the answer has none.

    Raises:
        CorruptResponse: it lists no tokens.
    """
    try:
        choice = answer["choices"][0]
        served = str(answer.get("model") or model)
        usage = answer.get("usage") or {}
        tokens = int(usage.get("prompt_tokens") or 0)
        if choice.get("finish_reason") == "content_filter":
            return UpstreamScores(served, {"": OptionScores((), (), refused=True)}, tokens)
        first = choice["logprobs"]["content"][0]
        listed = {_bytes_of(item): _logprob_of(item) for item in first["top_logprobs"] or [first]}
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptResponse(
            "the answer lists no first tokens with logprobs, by which questions are read; ask a"
            " server and a model that take ``logprobs`` with ``top_logprobs``"
        ) from error
    likely = [(token, logprob) for token, logprob in listed.items() if logprob > _LEAST_LOGPROB]
    scores = option_scores(likely, out.spellings) if likely else None
    return UpstreamScores(served, {"": scores}, tokens)


def _logprob_of(item: Mapping[str, Any]) -> float:
    """In nats; raises ValueError above 0 by more than rounding."""
    logprob = float(item["logprob"])
    if not logprob <= POSITIVE_TOLERANCE:
        raise ValueError(f"a logprob of {logprob}")
    return min(logprob, 0.0)


def _bytes_of(item: Mapping[str, Any]) -> bytes:
    if item.get("bytes") is not None:
        return bytes(item["bytes"])
    return str(item["token"]).encode()
