"""An exact model behind an API that continues the beginning of an answer, and what a client gets of
the parts that it answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import httpx2
import numpy as np
import openai

from blackbox_lb.bias.document import Bias
from blackbox_lb.deploy.injection import Injection
from blackbox_lb.deploy.part_requests import PartRequest
from blackbox_lb.deploy.part_sender import PartSender
from tests.support.exact import ExactModel

PROMPT = [90, 91, 92]
"""The token ids of every prompt."""
MESSAGES: list[Any] = [{"role": "user", "content": "go"}]


class Drawn(NamedTuple):
    """An answer: how many tokens the request begins it with, and what is drawn behind them.

    stop: the stop text that ended it, None for none.
    """

    before: list[int]
    tokens: list[int]
    text: str
    finish: str
    stop: str | None


class Host:
    """Answers at once and as a stream, as vLLM does; with one fault.

    model, words: the model, and the texts of its tokens, of which the last ends an answer.
    script: the words of each answer in the place of the model's, one after the other.
    ids: whether it tells token ids beside the text where it is asked to.
    lists: whether it tells them in its lists of logprobs, as llama.cpp does, in each stream.
    together: tokens of an event. cut: bytes of a piece of a stream; 0: an event a piece.
    fault: "repeats" the message in its answers; "trims" its beginning, and so reads other tokens;
    "anew": begins another message; "uncounted": no usage; "thoughts": lists thoughts apart.
    refusals: statuses of requests by their number. beside: deltas of a stream before its text.
    bodies: that arrived. read: how many events of each stream were read.
    """

    def __init__(
        self,
        model: ExactModel,
        words: Sequence[str],
        script: Sequence[Sequence[str]] | None = None,
        *,
        ids: bool = True,
        lists: bool = False,
        together: int = 1,
        cut: int = 0,
        seed: int = 4,
        fault: str = "",
    ) -> None:
        self.model = model
        self.words = words
        self.script = None if script is None else iter(script)
        self.ids = ids and not lists
        self.lists = lists
        self.together = together
        self.cut = cut
        self.fault = fault
        self.refusals: dict[int, int] = {}
        self.beside: list[dict[str, Any]] = []
        self.bodies: list[dict[str, Any]] = []
        self.read: list[int] = []
        self._rng = np.random.default_rng(seed)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """A whole answer."""
        drawn = self._drawn(body)
        text = drawn.text
        if self.fault == "repeats":
            text = "".join(self.words[token] for token in drawn.before) + text
        choice: dict[str, Any] = {"text": text}
        if "messages" in body:
            message = {"role": "assistant", "content": text}
            if self._thoughts:
                message["reasoning_content"] = self._thoughts
            choice = {"message": message}
        choice |= {"index": 0, "finish_reason": drawn.finish, "stop_reason": drawn.stop}
        choice["logprobs"] = self._listed(drawn.tokens) if body.get("logprobs") else None
        document = {**self._named(body), "choices": [choice]}
        if self._tells_ids(body):
            choice["token_ids"] = drawn.tokens
            document["prompt_token_ids"] = self._prompt(drawn)
        if self.fault != "uncounted":
            document["usage"] = self._usage(drawn)
        return document

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The same as a stream: the reason of its end comes with the last tokens where these are
        told beside the text, else in an event of its own.
        """
        drawn = self._drawn(body)
        named = self._named(body)
        ends = {"finish_reason": drawn.finish, "stop_reason": drawn.stop}
        is_chat = "messages" in body

        def said(text: str) -> dict[str, Any]:
            return {"delta": {"content": text}} if is_chat else {"text": text}

        deltas = [{"role": "assistant", "content": ""}, *self.beside]
        deltas += [{"reasoning_content": letter} for letter in self._thoughts]
        for delta in deltas if is_chat else ():
            yield {**named, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        place = 0
        for start in range(0, len(drawn.tokens), self.together):
            tokens = drawn.tokens[start : start + self.together]
            size = sum(len(self.words[token]) for token in tokens)
            choice = {"index": 0, **said(drawn.text[place : place + size]), "finish_reason": None}
            place += size
            if self._tells_ids(body):
                choice["token_ids"] = tokens
                if not start:
                    choice["prompt_token_ids"] = self._prompt(drawn)
            if self.lists or body.get("logprobs"):
                choice["logprobs"] = self._listed(tokens)
            if self.ids and start + self.together >= len(drawn.tokens):
                choice |= ends
            yield {**named, "choices": [choice]}
        if not self.ids or not drawn.tokens:
            yield {**named, "choices": [{"index": 0, **said(""), **ends}]}
        asks_usage = (body.get("stream_options") or {}).get("include_usage")
        if asks_usage and self.fault != "uncounted":
            yield {**named, "choices": [], "usage": self._usage(drawn)}

    def pieces(self, body: dict[str, Any]) -> Iterator[bytes]:
        """The bytes of a stream."""
        self.read.append(0)
        events = (
            b"data: " + json.dumps(event).encode() + b"\r\n\r\n" for event in self.events(body)
        )
        if self.cut:
            whole = b": hello\n\n" + b"".join(events) + b"data: [DONE]\n\n"
            yield from (whole[at : at + self.cut] for at in range(0, len(whole), self.cut))
            return
        for event in events:
            self.read[-1] += 1
            yield event
        yield b"data: [DONE]\n\n"

    def handle(self, request: Any) -> Any:
        """Behind an HTTP client."""
        status = self.refusals.pop(len(self.bodies), None)
        if status is not None:
            self.bodies.append({})
            error = {"error": {"message": "not now", "code": "busy"}}
            return httpx2.Response(status, json=error, headers={"retry-after-ms": "1"})
        body = json.loads(request.content)
        if not body.get("stream"):
            return httpx2.Response(200, json=self.answer(body))
        kind = {"content-type": "text/event-stream"}
        return httpx2.Response(200, content=b"".join(self.pieces(body)), headers=kind)

    @property
    def _thoughts(self) -> str:
        return "hm" if self.fault == "thoughts" else ""

    def _drawn(self, body: dict[str, Any]) -> Drawn:
        self.bodies.append(body)
        before = self._before(body)
        end = len(self.words) - 1
        most = body.get("max_tokens", 9)
        tokens: list[int] = []
        stop = None
        if self.script is not None:
            tokens = [self.words.index(word) for word in next(self.script)][:most]
        else:
            most = min(most, self.model.horizon - len(before))
            while len(tokens) < most and tokens[-1:] != [end] and stop is None:
                tokens.append(self._next([*before, *tokens], body))
                text = "".join(self.words[token] for token in tokens)
                stop = next((stop for stop in body.get("stop", ()) if stop in text), None)
        text = "".join(self.words[token] for token in tokens)
        if stop:
            text = text.partition(stop)[0]
        ended = stop is not None or tokens[-1:] == [end]
        return Drawn(before, tokens, text, "stop" if ended else "length", stop)

    def _before(self, body: dict[str, Any]) -> list[int]:
        """The tokens of the answer that the request begins with, as this host reads them."""
        if "prompt" in body:
            prompt = body["prompt"]
            if not isinstance(prompt, str):
                return [token for token in prompt if token not in PROMPT and token != "go"]
            begun = prompt.removeprefix("go")
        elif body["messages"][-1]["role"] == "assistant":
            assert (body["add_generation_prompt"], body["continue_final_message"]) == (False, True)
            begun = body["messages"][-1]["content"]
        else:
            begun = ""
        tokens = [self.words.index(f" {word}") for word in begun.split()]
        if self.fault == "trims" and tokens:
            tokens[0] = 0
        return tokens

    def _next(self, before: Sequence[int], body: Mapping[str, Any]) -> int:
        logits = np.array(self.model.logprobs(before))
        for token, value in dict(body.get("logit_bias") or {}).items():
            logits[int(token)] += value
        if body.get("temperature") != 0:
            logits = logits + self._rng.gumbel(size=len(self.words))
        return int(logits.argmax())

    def _prompt(self, drawn: Drawn) -> list[int]:
        begun_anew = [0] if self.fault == "anew" and drawn.before else []
        return [*PROMPT, *drawn.before, *begun_anew]

    def _tells_ids(self, body: Mapping[str, Any]) -> bool:
        return self.ids and bool(body.get("return_token_ids"))

    def _listed(self, tokens: Sequence[int]) -> dict[str, Any]:
        words = [(token, self.words[token]) for token in tokens if self.words[token]]
        rows = [
            {"id": token, "token": word, "bytes": list(word.encode()), "logprob": -1.0}
            for token, word in words
        ]
        return {"content": [{**row, "top_logprobs": []} for row in rows]}

    def _named(self, body: Mapping[str, Any]) -> dict[str, Any]:
        kind = "chat.completion" if "messages" in body else "text_completion"
        number = len(self.bodies)
        return {"id": f"id-{number}", "object": kind, "created": 1, "model": body["model"]}

    def _usage(self, drawn: Drawn) -> dict[str, Any]:
        prompt = len(self._prompt(drawn))
        made = len(drawn.tokens)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": 2},
        }


def request(**more: Any) -> dict[str, Any]:
    """A body."""
    return {"model": "m", "messages": MESSAGES, **more}


def sender_of(bias: Bias) -> PartSender:
    """Of a bias file."""
    sender = PartSender.of(bias, Injection.of(bias), None)
    assert sender is not None
    return sender


def in_parts(sender: PartSender, body: Mapping[str, Any]) -> PartRequest:
    """A request whose answer is drawn in parts."""
    parts = sender.request(body)
    assert parts is not None
    return parts


def steps(parts: PartRequest, host: Host) -> Iterator[list[dict[str, Any]]]:
    """Answer all parts; the events that the client gets after each piece of a stream."""
    while parts.more:
        body = json.loads(parts.body())
        if not parts.reads_streams:
            parts.take(json.dumps(host.answer(body)).encode())
            continue
        for piece in host.pieces(body):
            yield events_in(parts.feed(piece))
            if parts.is_cut:
                break
        yield events_in(parts.end())


def events_in(raw: bytes) -> list[dict[str, Any]]:
    """The events of a part of a stream, but its mark of the end."""
    lines = raw.decode().split("\n\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def text_in(events: Sequence[Mapping[str, Any]]) -> str:
    """The text of events of a chat."""
    choices = [choice for event in events for choice in event.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


class Joined(NamedTuple):
    """What a client gets: the text of the first choice and the reason of its end; the usage; and
    the document, empty of a stream.
    """

    text: str
    finish: str | None
    usage: Any
    document: dict[str, Any]


def joined(sender: PartSender, host: Host, body: Mapping[str, Any]) -> Joined:
    """The answer to one request."""
    parts = in_parts(sender, body)
    events = [event for step in steps(parts, host) for event in step]
    if not parts.streams:
        document = json.loads(parts.answer)
        choice = document["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return Joined(text, choice["finish_reason"], document.get("usage"), document)
    choices = [choice for event in events for choice in event["choices"]]
    assert len([choice for choice in choices if "role" in choice["delta"]]) == 1
    assert {choice["finish_reason"] for choice in choices[:-1]} <= {None}
    finish = choices[-1]["finish_reason"]
    return Joined(text_in(events), finish, events[-1].get("usage"), {})


def clients(handle: Callable[[Any], Any]) -> Iterator[openai.OpenAI | openai.AsyncOpenAI]:
    """One of each kind, whose requests a host handles."""
    common: dict[str, Any] = {"base_url": "http://h/v1", "api_key": "k", "max_retries": 2}
    yield openai.OpenAI(http_client=httpx2.Client(transport=httpx2.MockTransport(handle)), **common)
    yield openai.AsyncOpenAI(
        http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(handle)), **common
    )


def ask(client: Any, **more: Any) -> tuple[str | None, str | None, Any]:
    """Text, finish reason and usage of one answer through an SDK client."""

    async def go() -> tuple[str | None, str | None, Any]:
        answer = client.chat.completions.create(**{"model": "m", "messages": MESSAGES, **more})
        if asyncio.iscoroutine(answer):
            answer = await answer
        if not more.get("stream"):
            choice = answer.choices[0]
            return choice.message.content, choice.finish_reason, answer.usage
        if isinstance(client, openai.AsyncOpenAI):
            events = [event async for event in answer]
        else:
            events = list(answer)
        assert len({event.id for event in events}) == 1
        choices = [event.choices[0] for event in events if event.choices]
        text = "".join(choice.delta.content or "" for choice in choices)
        usage = next((event.usage for event in events if event.usage), None)
        return text, choices[-1].finish_reason, usage

    return asyncio.run(go())
