"""Phrases that are kept out of answers: what is drawn, what a client gets and when, and what is
left alone.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from blackbox_lb import apply
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.deploy.part_sender import PartSender
from blackbox_lb.errors import InputError
from tests.support.biases import FIELDS
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.unit.bias.test_phases import fits
from tests.unit.deploy.test_phase_requests import ask, clients, sender_of
from tests.unit.deploy.test_phase_requests import request as asked

WORDS = (" red", " fish", " blue", " sky", "")
END = len(WORDS) - 1
MODEL = ExactModel(len(WORDS), 4, seed=3, end=True, unigram=(0.0, 1.0, 0.0, 0.0, -2.0))
PHRASES = ("red fish", "blue sky", "fish blue fish")
PROMPT = [90, 91, 92]
Answer = tuple[int, ...]


def text_of(tokens: Sequence[int]) -> str:
    """The text of an answer."""
    return "".join(WORDS[token] for token in tokens)


class Host:
    """An exact model behind an API that continues messages and streams its tokens with their ids.

    together: tokens of one event. lists: whether ids stand in lists of logprobs, as llama.cpp has
    them, and not beside the text, as vLLM has them. prompt: the ids of a prompt, where they are
    told. read: how many events of each answer were read.
    """

    def __init__(
        self,
        *,
        together: int = 1,
        lists: bool = False,
        seed: int = 4,
        prompt: Sequence[int] = (),
    ) -> None:
        self.together = together
        self.prompt = list(prompt)
        self.lists = lists
        self.bodies = list[dict[str, Any]]()
        self.read = list[int]()
        self.opening: dict[str, Any] = {}
        self._rng = np.random.default_rng(seed)

    def drawn(self, body: dict[str, Any]) -> list[int]:
        """The tokens of an answer to a body, the end among them."""
        begun = ""
        if "prompt" in body:
            begun = body["prompt"].removeprefix("go")
        elif body["messages"][-1]["role"] == "assistant":
            begun = body["messages"][-1]["content"]
        before = [WORDS.index(f" {word}") for word in begun.split()]
        bias = np.zeros(len(WORDS))
        for token, value in dict(body.get("logit_bias") or {}).items():
            bias[int(token)] += value
        tokens = list[int]()
        while len(before) + len(tokens) < MODEL.horizon:
            if len(tokens) == body.get("max_tokens") or END in tokens:
                break
            logits = MODEL.logprobs([*before, *tokens]) + bias
            if body.get("temperature") != 0:
                logits = logits + self._rng.gumbel(size=len(WORDS))
            tokens.append(int(logits.argmax()))
        body["before"] = len(before)
        return tokens

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """An answer as a stream."""
        self.bodies.append(body)
        tokens = self.drawn(body)
        ended = "stop" if END in tokens else "length"
        chat = "messages" in body
        named = {"id": f"id-{len(self.bodies)}", "created": 1, "model": "m", "object": "chunk"}
        if chat:
            delta = {"role": "assistant", "content": "", **self.opening}
            yield {**named, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for start in range(0, len(tokens), self.together):
            some = tokens[start : start + self.together]
            text = text_of(some)
            choice: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
            if self.lists and text:
                rows = [
                    {"id": token, "token": WORDS[token], "bytes": list(WORDS[token].encode())}
                    for token in some
                    if token != END
                ]
                choice["logprobs"] = {"content": [{**row, "logprob": -1.0} for row in rows]}
            elif not self.lists:
                choice["token_ids"] = some
            if self.prompt and not start:
                choice["prompt_token_ids"] = self.prompt
            yield {**named, "choices": [{"index": 0, **choice, "finish_reason": None}]}
        empty: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        yield {**named, "choices": [{"index": 0, **empty, "finish_reason": ended}]}
        prompt = len(PROMPT) + body["before"]
        usage = {"prompt_tokens": prompt, "completion_tokens": len(tokens)}
        yield {**named, "choices": [], "usage": usage}

    def pieces(self, body: dict[str, Any]) -> Iterator[bytes]:
        """The bytes of a stream, an event each; counts how many are read."""
        self.read.append(0)
        for event in self.events(body):
            self.read[-1] += 1
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    def handle(self, request: Any) -> Any:
        """Behind an HTTP client."""
        body = json.loads(request.content)
        assert body["stream"]
        kind = {"content-type": "text/event-stream"}
        return httpx2.Response(200, content=b"".join(self.pieces(body)), headers=kind)


def bias_of(phrases: Sequence[str] = PHRASES, provider: str = "vllm", **entries: float) -> Bias:
    """A bias file with phrases, and entries by words."""
    ids = [Entry(id=WORDS.index(f" {word}"), bias=value) for word, value in entries.items()]
    fields = {**FIELDS, "provider": provider}
    return Bias(**fields, entries=tuple(ids), phrases=tuple(phrases))


def stream(sender: PartSender, host: Host, body: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """The events that a client gets after each piece of the upstream's."""
    parts = sender.request(body)
    assert parts is not None
    while parts.more:
        for piece in host.pieces(json.loads(parts.body())):
            yield _events(parts.feed(piece))
            if parts.is_cut:
                break
        yield _events(parts.end())


def _events(raw: bytes) -> list[dict[str, Any]]:
    lines = raw.decode().split("\n\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def whole(sender: PartSender, host: Host, body: dict[str, Any]) -> dict[str, Any]:
    """The answer that is no stream."""
    parts = sender.request(body)
    assert parts is not None
    while parts.more:
        for piece in host.pieces(json.loads(parts.body())):
            parts.feed(piece)
            if parts.is_cut:
                break
        parts.end()
    answer: dict[str, Any] = json.loads(parts.answer)
    return answer


def said(steps: Iterator[list[dict[str, Any]]]) -> tuple[str, str | None]:
    """The text and the finish reason of a stream."""
    choices = [choice for events in steps for event in events for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, choices[-1]["finish_reason"]


@cache
def chances_after(tokens: Answer) -> tuple[float, ...]:
    """The base's probabilities of the next token."""
    return tuple(np.exp(MODEL.logprobs(tokens)).tolist())


@cache
def begins_of(tokens: Answer) -> int | None:
    """The place of the first phrase that is complete, None where there is none."""
    for end in range(len(tokens) + 1):
        for start in range(end):
            if text_of(tokens[start:end]).strip() in PHRASES:
                return start
    return None


@cache
def law(tokens: Answer = (), bans: frozenset[tuple[int, int]] = frozenset()) -> dict[Answer, float]:
    """The distribution of answers by the rule of docs/phrases.md, worked out by going through all
    draws: where a phrase is complete its first token is banned at its place, bans of later places
    are forgotten, and what follows is drawn afresh.
    """
    place = len(tokens)
    if place == MODEL.horizon or END in tokens:
        return {tokens: 1.0}
    chances = np.array(chances_after(tokens))
    chances[[token for at, token in bans if at == place]] = 0.0
    chances /= chances.sum()
    total = Counter[Answer]()
    for token, chance in enumerate(chances.tolist()):
        if not chance:
            continue
        longer = (*tokens, token)
        start = begins_of(longer)
        rest = law(longer, bans)
        if start is not None:
            kept = {(at, banned) for at, banned in bans if at <= start}
            rest = law(longer[:start], frozenset({*kept, (start, longer[start])}))
        for answer, share in rest.items():
            total[answer] += chance * share
    return dict(total)


@cache
def conditional() -> dict[Answer, float]:
    """The base's distribution among the answers without a phrase."""
    chances: dict[Answer, float] = {(): 1.0}
    for _ in range(MODEL.horizon):
        longer = dict[Answer, float]()
        for tokens, chance in chances.items():
            if END in tokens:
                longer[tokens] = chance
                continue
            for token, share in enumerate(chances_after(tokens)):
                longer[(*tokens, token)] = chance * share
        chances = longer
    kept = {tokens: chance for tokens, chance in chances.items() if begins_of(tokens) is None}
    total = sum(kept.values())
    return {tokens: chance / total for tokens, chance in kept.items()}


def by_text(exact: dict[Answer, float]) -> Counter[str]:
    """The distribution of texts."""
    rows = Counter[str]()
    for tokens, chance in exact.items():
        rows[text_of(tokens)] += chance  # type: ignore[assignment]
    return rows


@pytest.mark.parametrize(
    ("together", "lists"), [(1, False), (1, True), (3, True)], ids=["ids", "lists", "several"]
)
def test_answers_have_the_distribution_that_the_page_says(together: int, lists: bool) -> None:
    """Whichever way a server tells its tokens, and not the one of drawing whole answers again."""
    host = Host(together=together, lists=lists)
    sender = sender_of(bias_of(provider="llamacpp" if lists else "vllm"))
    found = Counter[str]()
    for _ in range(1_500):
        answer = whole(sender, host, asked(max_tokens=MODEL.horizon))
        found[answer["choices"][0]["message"]["content"]] += 1
    assert fits(found, by_text(law())) > 1e-4
    assert fits(found, by_text(conditional())) < 1e-9
    assert sender.counts.steps > 100
    assert sender.counts.let_through == 0


def test_how_far_stepping_back_is_from_drawing_again() -> None:
    """The total variation distance that docs/phrases.md names for this model."""
    answers = law().keys() | conditional().keys()
    distances = [abs(law().get(row, 0.0) - conditional().get(row, 0.0)) for row in answers]
    assert sum(distances) / 2 == pytest.approx(0.078, abs=1e-3)


def test_a_token_that_led_to_a_phrase_is_banned_with_its_harmless_continuations() -> None:
    """The example of docs/phrases.md, with "red" for "testament" and "sky" for "song"."""
    chances = {("red", "fish"): 0.2, ("red", "red"): 0.2, ("sky", "red"): 0.6}
    first = Counter[str]()
    for words, chance in chances.items():
        host = scripted([*words, ""], ["sky"], [""])
        answer = whole(sender_of(bias_of()), host, asked())
        text = answer["choices"][0]["message"]["content"]
        first[text.split()[0]] += chance  # type: ignore[assignment]
    assert first == {"red": pytest.approx(0.2), "sky": pytest.approx(0.8)}


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_nothing_that_a_client_got_is_taken_back(temperature: float) -> None:
    """A stream is the same text as the answer as a whole, and at no time holds a phrase."""
    for seed in range(40):
        body = asked(max_tokens=MODEL.horizon, temperature=temperature)
        answer = whole(sender_of(bias_of()), Host(seed=seed), body)
        text = ""
        for events in stream(sender_of(bias_of()), Host(seed=seed), {**body, "stream": True}):
            for event in events:
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
            assert not any(phrase in f"{text} " for phrase in PHRASES)
        assert text == answer["choices"][0]["message"]["content"]


def scripted(*parts: Sequence[str], **options: Any) -> Host:
    """A host whose answers are these words, one list for each request, and then nothing."""
    host = Host(**options)
    rows = iter(parts)

    def drawn(body: dict[str, Any]) -> list[int]:
        messages = body.get("messages") or [{}]
        begun = messages[-1]["content"] if messages[-1].get("role") == "assistant" else ""
        body["before"] = len(begun.split())
        tokens = [WORDS.index(f" {word}" if word else "") for word in next(rows)]
        return tokens[: body.get("max_tokens")]

    host.drawn = drawn  # type: ignore[method-assign]
    return host


def test_a_step_back_takes_one_token_and_the_rest() -> None:
    """Where a phrase is complete nothing more is read; its first token is banned for one token; all
    that was thrown away is told beside the usage of the answer.
    """
    host = scripted(
        ["sky", "red", "fish", "blue", "sky"], ["blue", "red"], ["fish", ""], ["red"], ["fish", ""]
    )
    answer = whole(sender_of(bias_of(sky=1.5)), host, asked(max_tokens=9, seed=5))
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": " sky blue fish"}
    assert (choice["finish_reason"], choice["index"]) == ("stop", 0)
    assert host.read == [5, 4, 5]  # role, three tokens and the one that tells that "fish" has ended
    assert [body["logit_bias"] for body in host.bodies] == [
        {"3": 1.5},
        {"3": 1.5, "0": -100},
        {"3": 1.5},
    ]
    assert [(body["max_tokens"], body["seed"]) for body in host.bodies] == [(9, 5), (1, 6), (7, 7)]
    begun = [body["messages"][1:] for body in host.bodies]
    assert begun == [
        [],
        [{"role": "assistant", "content": " sky"}],
        [{"role": "assistant", "content": " sky blue"}],
    ]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,  # the end is one
        "total_tokens": 7,
        "x_phrases": {
            "steps_back": 1,
            "let_through": 0,
            "discarded_tokens": 3,
            "requests": 3,
            "prompt_tokens_of_all_requests": 3 + 4 + 5,
        },
    }


def test_a_server_that_drops_parts_of_characters_is_asked_for_a_few_more() -> None:
    """So that a redrawn character comes whole; what was drawn behind it, with the ban, is left."""
    host = scripted(["sky", "red", "fish", "sky"], ["blue", "fish", "sky"], ["red", ""], lists=True)
    answer = whole(sender_of(bias_of(provider="llamacpp")), host, asked(max_tokens=9))
    assert answer["choices"][0]["message"]["content"] == " sky blue red"
    assert [body["max_tokens"] for body in host.bodies] == [9, 4, 7]
    assert host.read[1] == 2  # the role and one token


def test_another_phrase_may_begin_before_the_cut() -> None:
    """ "blue" alone is no begin of a phrase before "red"; after the cut it may be one of "blue
    sky", so it is held back until it is not.
    """
    host = scripted(["blue", "red", "fish", "red"], ["sky"], ["red"], ["fish"], ["fish", ""])
    texts = []
    for events in stream(sender_of(bias_of()), host, asked(max_tokens=4, stream=True)):
        choices = [choice for event in events for choice in event["choices"]]
        texts.append("".join(choice["delta"].get("content") or "" for choice in choices))
    assert "".join(texts) == " fish fish"
    assert [body.get("logit_bias") for body in host.bodies] == [
        None,
        {"0": -100},
        None,
        {"2": -100},
        None,
    ]


def test_a_phrase_at_the_end_is_kept_out_too() -> None:
    """Where the answer ends, at its own end or at its limit, no more letters can follow."""
    for end in ([""], []):
        host = scripted(["sky", "red", "fish", *end], ["blue"], [""])
        answer = whole(sender_of(bias_of()), host, asked(max_tokens=3))
        assert answer["choices"][0]["message"]["content"] == " sky blue"


def test_after_so_many_steps_a_phrase_is_let_through() -> None:
    """A server that keeps no ban costs one step at each place."""
    host = scripted(["red", "fish", "sky"], ["red"], ["fish", "sky", ""])
    sender = sender_of(bias_of())
    answer = whole(sender, host, asked())
    assert answer["choices"][0]["message"]["content"] == " red fish sky"
    assert answer["usage"]["x_phrases"]["let_through"] == 1
    assert (sender.counts.steps, sender.counts.let_through, sender.counts.answers) == (1, 1, 1)


def test_a_stop_text_is_found_across_a_cut() -> None:
    """The server sees only what it draws itself."""
    host = scripted(["sky", "red", "fish", "sky"], ["blue"], ["fish", "red"])
    body = asked(stop=["sky blue"], max_tokens=9)
    answer = whole(sender_of(bias_of()), host, body)
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (" ", "stop")
    streamed = scripted(["sky", "red", "fish", "sky"], ["blue"], ["fish", "red"])
    assert said(stream(sender_of(bias_of()), streamed, {**body, "stream": True})) == (" ", "stop")


def test_several_choices_are_drawn_one_after_the_other() -> None:
    """Each is free of phrases, and the usage is that of all."""
    parts = (["sky", "red", "fish", "sky"], ["blue"], [""], ["fish", ""])
    answer = whole(sender_of(bias_of()), scripted(*parts), asked(n=2))
    texts = {choice["index"]: choice["message"]["content"] for choice in answer["choices"]}
    assert texts == {0: " sky blue", 1: " fish"}
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 5)
    events = [
        choice
        for step in stream(sender_of(bias_of()), scripted(*parts), asked(n=2, stream=True))
        for event in step
        for choice in event["choices"]
    ]
    of_second = "".join(row["delta"].get("content") or "" for row in events if row["index"])
    assert of_second == " fish"
    assert [row["finish_reason"] for row in events if row["finish_reason"]] == ["stop", "stop"]


def test_steps_of_all_choices_are_counted() -> None:
    """A step in each of two choices makes two, in the usage and in the sender's counts."""
    parts = (["sky", "red", "fish", "sky"], ["blue"], [""])
    sender = sender_of(bias_of())
    spent = whole(sender, scripted(*parts, *parts), asked(n=2))["usage"]["x_phrases"]
    assert (spent["steps_back"], spent["discarded_tokens"], sender.counts.steps) == (2, 6, 2)


def test_lists_are_those_of_the_delivered_tokens() -> None:
    """Where the client asked for them; else they are not told."""
    parts = (["sky", "red", "fish", "sky"], ["blue"], ["fish", ""])
    sender = sender_of(bias_of(provider="llamacpp"))
    plain = whole(sender, scripted(*parts, lists=True), asked())
    assert plain["choices"][0]["logprobs"] is None
    host = scripted(*parts, lists=True, together=2)
    answer = whole(sender, host, asked(logprobs=True, top_logprobs=3))
    rows = answer["choices"][0]["logprobs"]["content"]
    assert [row["token"] for row in rows] == [" sky", " blue", " fish"]
    assert {body["top_logprobs"] for body in host.bodies} == {3}


@pytest.mark.parametrize(
    ("provider", "options", "prompts"),
    [
        ("fireworks", {"lists": True}, ["go", "go sky", "go sky blue"]),
        ("llamacpp", {"lists": True}, ["go", ["go", 3], ["go", 3, 2]]),
        ("vllm", {"prompt": PROMPT}, ["go", [*PROMPT, 3], [*PROMPT, 3, 2]]),
    ],
)
def test_the_completions_endpoint_goes_on_from_the_prompt(
    provider: str, options: dict[str, Any], prompts: list[Any]
) -> None:
    """By ids where the server takes them beside a text, or has told those of the prompt."""
    host = scripted(["sky", "red", "fish", "sky"], ["blue"], ["fish", ""], **options)
    answer = whole(sender_of(bias_of(provider=provider)), host, {"model": "m", "prompt": "go"})
    assert [body["prompt"] for body in host.bodies] == prompts
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == " sky blue fish"


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_object"}},
        {"functions": [{"name": "f"}]},
        {"tools": [{"type": "function"}], "tool_choice": "required"},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"guided_json": {}, "structured_outputs": {"regex": "a"}},
    ],
    ids=["json", "functions", "forced", "begun", "guided"],
)
def test_answers_of_a_fixed_form_are_left_alone(
    more: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """They are sent at once, with the vector, which is logged once."""
    sender = sender_of(bias_of())
    assert sender.request(asked(**more)) is None
    assert sender.request(asked(**more)) is None
    assert len(caplog.records) == 1
    assert sender.request(asked(response_format={"type": "text"}, n=1, stop=[])) is not None


def test_calls_and_thoughts_are_left_alone() -> None:
    """What comes with them goes out as it is, and a phrase behind them is let through."""
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    host = scripted(["red", "fish", ""])
    host.opening = {"tool_calls": [call]}
    body = asked(tools=[{"type": "function"}])
    message = whole(sender_of(bias_of()), host, body)["choices"][0]["message"]
    assert message["tool_calls"] == [{key: value for key, value in call.items() if key != "index"}]
    host = scripted(["red", "fish", ""])
    host.opening = {"reasoning_content": "hm"}
    answer = whole(sender_of(bias_of()), host, asked())
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (" red fish", "hm")
    assert answer["usage"]["x_phrases"]["let_through"] == 1


def test_a_server_that_cannot_go_on_is_refused_by_name() -> None:
    """Before a request, with those that can: one that continues nothing, and an endpoint."""
    with raises_naming(InputError, "openai", "llamacpp", "vllm"):
        sender_of(bias_of(provider="openai"))
    sender = sender_of(bias_of(provider="fireworks"))
    with raises_naming(InputError, "fireworks", "chat", "completions", "llamacpp"):
        sender.request(asked())
    assert sender.request({"model": "m", "prompt": "go"}) is not None


@pytest.mark.parametrize("place", range(2), ids=["sync", "async"])
def test_every_client_keeps_phrases_out(place: int) -> None:
    """Whole and streamed; an answer of a fixed form gets the vector alone."""
    rows = (["sky", "red", "fish", "sky"], ["blue"], ["fish", ""])
    host = scripted(*rows, *rows)
    client = apply([*clients(host.handle)][place], bias_of(sky=1.5))
    text, finish, usage, _ = asyncio.run(ask(client, max_tokens=9))
    assert (text, finish, usage.completion_tokens) == (" sky blue fish", "stop", 4)
    assert usage.x_phrases["discarded_tokens"] == 3
    options = {"stream": True, "stream_options": {"include_usage": True}}
    text, finish, usage, _ = asyncio.run(ask(client, max_tokens=9, **options))
    assert (text, finish, usage.x_phrases["steps_back"]) == (" sky blue fish", "stop", 1)


def test_a_client_sends_the_vector_alone_where_an_answer_is_left_alone() -> None:
    """And nothing at all where there is no vector."""
    bodies = list[dict[str, Any]]()

    def handle(request: Any) -> Any:
        bodies.append(json.loads(request.content))
        message = {"role": "assistant", "content": "{}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx2.Response(200, json={"choices": [choice], "usage": None})

    for bias in (bias_of(sky=1.5), bias_of()):
        http = httpx2.Client(transport=httpx2.MockTransport(handle))
        client = apply(openai.OpenAI(base_url="http://h/v1", api_key="k", http_client=http), bias)
        asyncio.run(ask(client, response_format={"type": "json_object"}))
    assert [body.get("logit_bias") for body in bodies] == [{"3": 1.5}, None]
    assert not any(body.get("stream") for body in bodies)


def test_an_error_within_a_stream_is_an_error() -> None:
    """Of a stream it is an event, else an answer with status 502, which the SDK raises."""

    def handle(request: Any) -> Any:
        content = b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, content=content, headers=headers)

    http = httpx2.Client(transport=httpx2.MockTransport(handle))
    common: dict[str, Any] = {"base_url": "http://h/v1", "api_key": "k", "max_retries": 0}
    client = apply(openai.OpenAI(http_client=http, **common), bias_of())
    for more in ({}, {"stream": True}):
        with raises_naming(openai.APIError, "out of memory"):
            asyncio.run(ask(client, **more))


def test_a_stream_that_ends_early_is_no_whole_answer() -> None:
    """A server that breaks off without a reason gives an error, and no end of a stream."""
    sender = sender_of(bias_of())
    parts = sender.request(asked(stream=True))
    assert parts is not None
    pieces = list(Host().pieces(json.loads(parts.body())))
    out = parts.feed(pieces[0]) + parts.end()
    assert b"error" in out
    assert b"[DONE]" not in out
    assert not parts.more
