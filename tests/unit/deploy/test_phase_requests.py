"""A bias with phases over an API that continues a message: clients join the parts into one
answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from blackbox_lb import apply, apply_batch
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.features import FeatureVector, Words, bucket_of
from blackbox_lb.bias.phases import Phases
from blackbox_lb.deploy import part_requests
from blackbox_lb.deploy.injection import Injection
from blackbox_lb.deploy.part_sender import GIVEN_UP, PartSender
from blackbox_lb.deploy.phase_requests import PhasedRequest
from blackbox_lb.errors import BiasError, InputError
from tests.support.biases import phased_bias
from tests.support.errors import raises_naming
from tests.unit.bias.test_phases import MODEL, VECTORS, WORDS, bias_with_word, chances, fits

PROMPT_TOKENS = 7


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits."""
    monkeypatch.setattr(part_requests, "PAUSES", (0.0, 0.0))


class Host:
    """An exact model behind an API that continues messages, as vLLM does; with one fault.

    fault: "repeats" the message in its answers; "trims" its beginning, and so reads other tokens;
    "anew": begins another message; "uncounted": no usage; "thoughts": lists thoughts apart.
    refusals: statuses of requests by their number.
    """

    def __init__(
        self, fault: str = "", *, ids: bool = True, refusals: dict[int, int] | None = None
    ) -> None:
        self.fault, self.ids, self.refusals = fault, ids, dict(refusals or {})
        self.rng, self.bodies = np.random.default_rng(4), list[dict[str, Any]]()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """A whole answer."""
        self.bodies.append(body)
        chat = "messages" in body
        begun = "" if chat else body["prompt"].removeprefix("go")
        if chat and body["messages"][-1]["role"] == "assistant":
            assert (body["add_generation_prompt"], body["continue_final_message"]) == (False, True)
            begun = body["messages"][-1]["content"]
        before, tokens, text, ended, reason = self._read(begun), list[int](), "", "length", None
        prompt = (
            [90 + n for n in range(PROMPT_TOKENS)]
            + before
            + ([0] if self.fault == "anew" and begun else [])
        )
        bias = np.array([body["logit_bias"].get(str(token), 0.0) for token in range(5)])
        while (
            len(tokens) < body.get("max_tokens", 9)
            and len(before) + len(tokens) < MODEL.horizon
            and ended == "length"
        ):
            logits = MODEL.logprobs([*before, *tokens]) + bias
            tokens.append(
                int(
                    (
                        logits if body.get("temperature") == 0 else logits + self.rng.gumbel(size=5)
                    ).argmax()
                )
            )
            text += WORDS[tokens[-1]]
            reason = next((each for each in body.get("stop", ()) if each in text), None)
            ended = "stop" if tokens[-1] == 4 or reason else "length"
        text = text.partition(reason)[0] if reason else text
        text = begun + text if self.fault == "repeats" else text
        message = {"role": "assistant", "content": text} | (
            {"reasoning_content": "hm"} if self.fault == "thoughts" else {}
        )
        listed: dict[str, Any] = {
            "content": [
                {"token": WORDS[token], "logprob": -1.0, "bytes": None, "top_logprobs": []}
                for token in tokens
            ]
        }
        choice = {
            "index": 0,
            **({"message": message} if chat else {"text": text}),
            "finish_reason": ended,
            "stop_reason": reason,
        }
        choice |= {"logprobs": listed if body.get("logprobs") else None}
        usage: dict[str, Any] = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(tokens),
            "total_tokens": len(prompt) + len(tokens),
        }
        known = {"prompt_token_ids": prompt} if self.ids and body.get("return_token_ids") else {}
        choice |= {"token_ids": tokens} if known else {}
        usage = (
            {}
            if self.fault == "uncounted"
            else {"usage": usage | {"prompt_tokens_details": {"cached_tokens": 2}}}
        )
        named = {
            "id": f"id-{len(self.bodies)}",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
        }
        return {**named, **known, "choices": [choice], **usage}

    def _read(self, text: str) -> list[int]:
        """The tokens of a text, as this host reads it back."""
        letters = text.replace(" ", "")
        return [
            0 if self.fault == "trims" and not place else " abcd".index(letter) - 1
            for place, letter in enumerate(letters)
        ]

    def pieces(self, body: dict[str, Any]) -> Iterator[bytes]:
        """The same as a stream, cut at odd places: a token an event, the reason of the end with the
        last one, then the usage.
        """
        whole = self.answer(body)
        (choice,), named = (
            whole.pop("choices"),
            {name: value for name, value in whole.items() if name != "usage"},
        )
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        parts = [" " + each for each in text.split(" ")[1:]] or [""]
        events = (
            [{**named, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
            if "message" in choice
            else []
        )
        for place, part in enumerate(parts):
            last = place == len(parts) - 1
            said = (
                {"delta": {**choice["message"], "content": part}}
                if "message" in choice
                else {"text": part}
            )
            ended = {
                name: choice[name] if last else None for name in ("finish_reason", "stop_reason")
            }
            ids = (
                {"token_ids": choice["token_ids"] if last else []} if "token_ids" in choice else {}
            )
            events.append({**named, "choices": [{"index": 0, **said, **ended, **ids}]})
        if "usage" in whole and (body.get("stream_options") or {}).get("include_usage"):
            events.append({**named, "choices": [], "usage": whole["usage"]})
        data = (
            b": hello\n\n"
            + b"".join(b"data: " + json.dumps(event).encode() + b"\r\n\r\n" for event in events)
            + b"data: [DONE]\n\n"
        )
        yield from (data[start : start + 37] for start in range(0, len(data), 37))

    def handle(self, request: Any) -> Any:
        """Behind an HTTP client."""
        status = self.refusals.pop(len(self.bodies), None)
        if status is not None:
            self.bodies.append({})
            return httpx2.Response(
                status,
                json={"error": {"message": "not now", "code": "busy"}},
                headers={"retry-after-ms": "1"},
            )
        body = json.loads(request.content)
        if body.get("stream"):
            return httpx2.Response(
                200,
                content=b"".join(self.pieces(body)),
                headers={"content-type": "text/event-stream"},
            )
        return httpx2.Response(200, json=self.answer(body))


def bias_of(
    spec: str, vectors: tuple[dict[int, float], ...] = VECTORS, provider: str = "vllm"
) -> Bias:
    """A bias file with phases; the last of so many vectors is the rest's."""
    named = len(Phases.parse([spec]).names)
    return phased_bias(spec, vectors[: named + 1], provider=provider)


def request(**more: Any) -> dict[str, Any]:
    """A body."""
    return {"model": "m", "messages": [{"role": "user", "content": "go"}], **more}


def answered(sender: PartSender, host: Host, body: dict[str, Any]) -> dict[str, Any]:
    """The joined answer to one request; of a stream the text and the finish reason of its
    events.
    """
    parts, sent = PhasedRequest(sender, body), b""
    while parts.more:
        if parts.streams:
            sent += (
                b"".join(parts.feed(piece) for piece in host.pieces(json.loads(parts.body())))
                + parts.end()
            )
        else:
            parts.take(json.dumps(host.answer(json.loads(parts.body()))).encode())
    if not parts.streams:
        found: dict[str, Any] = json.loads(parts.answer)
        return found
    assert sent.endswith(b"\n\ndata: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in sent.split(b"\n\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    usage = events[-1].get("usage")
    return {
        "choices": [{"message": {"content": text}, "finish_reason": choices[-1]["finish_reason"]}],
        "usage": usage,
    }


def sender_of(bias: Bias) -> PartSender:
    """Of a bias file."""
    sender = PartSender.of(bias, Injection.of(bias), None)
    assert sender is not None
    return sender


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("first", ""),
        ("opening:2", ""),
        ("until:b", ""),
        ("first,inside: a..c", ""),
        ("first,after:d", ""),
        ("opening:2,until:b", ""),
        ("only-first", ""),
        ("only-opening:2", "go"),
        ("first", "go"),
        ("opening:2,until:b", "go"),
    ],
)
def test_the_parts_are_drawn_like_one_answer(spec: str, word: str, stream: bool) -> None:
    """By chi-square over whole completions, against the bias that changes inside the model, with a
    word of the prompt beside the phases, too; at most one more request a phase.
    """
    phases, draws, host = Phases.parse([spec]), 400, Host()
    sender = sender_of(bias_with_word(spec, word))
    exact = {
        "".join(WORDS[token] for token in tokens) + "." * (tokens[-1] == 4): p
        for tokens, p in chances(phases, bool(word)).items()
    }
    found = Counter[str]()
    for _ in range(draws):
        before = len(host.bodies)
        answer = answered(sender, host, request(max_tokens=MODEL.horizon, stream=stream))
        assert len(host.bodies) - before <= MODEL.horizon
        (choice,) = answer["choices"]
        found[choice["message"]["content"] + "." * (choice["finish_reason"] == "stop")] += 1
    assert sender.apart == 0
    assert fits(found, exact) > 1e-4


FORCED = ({1: 50.0}, {2: 50.0})
"""The first token is " b", all others " c"."""


def forced(provider: str = "vllm") -> Bias:
    """A bias under which only one answer is possible."""
    vectors = tuple({token: row.get(token, 0.0) for token in range(5)} for row in FORCED)
    return bias_of("first", vectors, provider)


def forced_by_prompt() -> Bias:
    """The first token is " b"; all others are " c", and " d" where the prompt says other."""
    vector = FeatureVector(
        name="other", bucket=bucket_of("other"), values=(0.0, 0.0, 0.0, 100.0, 0.0)
    )
    wholes = tuple({token: row.get(token, 0.0) for token in range(5)} for row in FORCED_MORE)
    return phased_bias("first", wholes, features=(Words(vectors=(vector,)),))


FORCED_MORE = ({1: 200.0}, {2: 50.0})


def clients(handle: Callable[[Any], Any]) -> Iterator[openai.OpenAI | openai.AsyncOpenAI]:
    """One of each kind, whose requests a host handles."""
    common: dict[str, Any] = {"base_url": "http://h/v1", "api_key": "k", "max_retries": 2}
    yield openai.OpenAI(http_client=httpx2.Client(transport=httpx2.MockTransport(handle)), **common)
    yield openai.AsyncOpenAI(
        http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(handle)), **common
    )


async def ask(client: Any, **more: Any) -> tuple[str | None, str | None, Any, int]:
    """Text, finish reason, usage and number of listed logprobs of one answer through an SDK
    client.
    """
    messages = more.pop("messages", [{"role": "user", "content": "go"}])
    found = client.chat.completions.create(model="m", messages=messages, **more)
    found = await found if asyncio.iscoroutine(found) else found
    if not more.get("stream"):
        choice = found.choices[0]
        return (
            choice.message.content,
            choice.finish_reason,
            found.usage,
            len(choice.logprobs.content) if choice.logprobs else 0,
        )
    events = (
        [event async for event in found] if isinstance(client, openai.AsyncOpenAI) else list(found)
    )
    choices = [event.choices[0] for event in events if event.choices]
    usage = [event.usage for event in events if event.usage]
    assert len({event.id for event in events}) == 1
    return (
        "".join(each.delta.content or "" for each in choices),
        choices[-1].finish_reason,
        usage[0] if usage else None,
        0,
    )


@pytest.mark.parametrize("place", range(2), ids=["sync", "async"])
def test_every_client_joins_the_parts(place: int) -> None:
    """Text, logprobs, usage and finish reason are those of one answer; retries go on."""
    host = Host(refusals={1: 429})
    client = apply([*clients(host.handle)][place], forced())
    text, ended, usage, listed = asyncio.run(
        ask(client, max_tokens=3, logprobs=True, temperature=0)
    )
    assert (text, ended, listed) == (" b c c", "length", 3)
    assert (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens_details.cached_tokens,
    ) == (
        2 * PROMPT_TOKENS + 1,
        3,
        4,
    )
    assert [body.get("max_tokens") for body in host.bodies] == [
        1,
        None,
        2,
    ]  # the refused second part alone is asked for again
    for options in ({}, {"stream_options": {"include_usage": True}}):
        text, ended, usage, _ = asyncio.run(
            ask(client, max_tokens=3, temperature=0, stream=True, seed=5, stop="x", **options)
        )
        assert (text, ended, usage and usage.completion_tokens) == (
            " b c c",
            "length",
            3 if options else None,
        )
        assert [(body["seed"], body["stop"]) for body in host.bodies[-2:]] == [
            (5, ["x"]),
            (6, ["x"]),
        ]
    assert asyncio.run(ask(client, max_tokens=1, temperature=0))[:2] == (" b", "length")
    assert len(host.bodies) == 8


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("place", range(2), ids=["sync", "async"])
def test_a_client_sends_what_depends_on_prompt_and_phase(place: int, stream: bool) -> None:
    """The prompt is read once, and its bias goes into every part; its field of the group into
    none.
    """
    host = Host()
    client = apply([*clients(host.handle)][place], forced_by_prompt())
    told = asyncio.run(ask(client, max_tokens=3, temperature=0, stream=stream))
    assert told[0] == " b c c"
    told = asyncio.run(
        ask(
            client,
            max_tokens=3,
            temperature=0,
            stream=stream,
            messages=[{"role": "user", "content": "other"}],
            extra_body={"blb_group": "sales"},
        )
    )
    assert told[0] == " b d d"
    assert not any("blb_group" in body for body in host.bodies)


def test_a_part_is_asked_for_three_times() -> None:
    """And the SDK repeats the whole, which is a stream no more once it has begun; a first part is
    the SDK's alone to repeat.
    """
    host = Host(refusals={1: 503, 2: 429, 3: 500, 5: 503})
    client = apply(next(clients(host.handle)), forced())
    assert asyncio.run(ask(client, max_tokens=3, temperature=0))[0] == " b c c"
    assert [body.get("max_tokens") for body in host.bodies] == [1, None, None, None, 1, None, 2]
    host.refusals = {8: 503, 9: 503, 10: 503}
    with raises_naming(openai.APIError, "not now"):
        asyncio.run(ask(client, max_tokens=3, temperature=0, stream=True))
    host.refusals = {11: 400}
    with pytest.raises(openai.BadRequestError):
        asyncio.run(ask(client, max_tokens=3, temperature=0))
    assert len(host.bodies) == 12


def test_a_raw_answer_and_completions() -> None:
    """The answer holds nothing that was not asked for; the prompt of the other endpoint is
    continued as a text.
    """
    host = Host()
    client = apply(next(clients(host.handle)), forced())
    assert isinstance(client, openai.OpenAI)
    raw = client.chat.completions.with_raw_response.create(
        model="m",
        messages=[{"role": "user", "content": "go"}],
        max_tokens=2,
        extra_body={"logit_bias": {}},
    )
    document = json.loads(raw.text)
    assert (document["id"], sorted(document)) == (
        "id-1",
        ["choices", "created", "id", "model", "object", "usage"],
    )
    assert sorted(document["choices"][0]) == ["finish_reason", "index", "logprobs", "message"]
    told = client.chat.completions.with_raw_response.create(
        model="m",
        messages=[{"role": "user", "content": "go"}],
        max_tokens=2,
        extra_body={"return_token_ids": True},
    )
    assert json.loads(told.text)["choices"][0]["token_ids"] == [1, 2]
    assert (
        client.completions.create(model="m", prompt="go", max_tokens=3).choices[0].text == " b c c"
    )
    assert host.bodies[-1]["prompt"] == "go b"
    streamed = client.completions.create(model="m", prompt="go", max_tokens=3, stream=True)
    assert "".join(event.choices[0].text for event in streamed) == " b c c"
    other = client.chat.completions.create(
        model="other",
        messages=[{"role": "user", "content": "go"}],
        extra_body={"logit_bias": {"0": 9}},
    )
    assert (other.model, len(host.bodies[-1]["messages"]), host.bodies[-1]["logit_bias"]) == (
        "other",
        1,
        {"0": 9},
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("fault", "ids", "why"),
    [
        ("trims", True, "read the part before as other tokens"),
        ("anew", False, "the server counts 9 tokens before a part, and 8 were to be"),
        ("uncounted", True, "counts no tokens"),
        ("thoughts", True, "lists thoughts apart"),
    ],
)
def test_parts_that_do_not_fit_are_replaced(
    fault: str, ids: bool, why: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """By an answer with the vector of the rest, which is said once; nothing of the first parts is
    seen. Later it is given up.
    """
    host, sender = Host(fault, ids=ids), sender_of(forced())
    for _ in range(GIVEN_UP + 2):
        answer = answered(sender, host, request(max_tokens=3, temperature=0, stream=stream))
        assert (
            answer["choices"][0]["message"]["content"],
            answer["choices"][0]["finish_reason"],
        ) == (" c c c", "length")
    tried = 1 if fault in ("uncounted", "thoughts") else 2
    assert len(host.bodies) == GIVEN_UP * (tried + 1) + 2
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2
    assert why in warned[0]
    assert "all get the vector of the rest from now on" in warned[1]


def test_a_stream_that_does_not_fit_later_on_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Once answers have been joined, a stream is passed on at once; where its parts do not fit,
    that is said and counted.
    """
    host, sender = Host(), sender_of(forced())
    answered(sender, host, request(max_tokens=3, temperature=0))
    host.fault = "anew"
    answer = answered(sender, host, request(max_tokens=3, temperature=0, stream=True))
    assert answer["choices"][0]["message"]["content"] == " b c c"
    assert (sender.joined, sender.apart, len(caplog.records)) == (1, 1, 1)


def test_a_server_that_repeats_what_it_continues(caplog: pytest.LogCaptureFixture) -> None:
    """Known from its profile, the text is taken off; unknown, a long text shows it; known and not
    so, that is said, too.
    """
    bias = forced("llamacpp")
    sender, host = sender_of(bias), Host("repeats", ids=False)
    answer = answered(sender, host, request(max_tokens=3, temperature=0))
    assert (answer["choices"][0]["message"]["content"], sender.apart) == (" b c c", 0)
    answer = answered(sender, Host(ids=False), request(max_tokens=3, temperature=0))
    assert (answer["choices"][0]["message"]["content"], sender.apart) == (" c c c", 1)
    assert "did not repeat the part before" in caplog.text
    long = PhasedRequest(sender_of(bias_of("opening:8")), request(max_tokens=20))
    words = " one two three four five six seven eight"
    for text, prompt, made in ((words, 7, 8), (words + " nine", 15, 1)):
        long.body()
        usage = {"prompt_tokens": prompt, "completion_tokens": made}
        choice = {"message": {"content": text}, "finish_reason": "length"}
        long.take(json.dumps({"choices": [choice], "usage": usage}).encode())
    assert "the server repeats the part before" in caplog.text


@pytest.mark.parametrize(
    ("more", "facts"),
    [
        ({"n": 2}, ("several",)),
        ({"tools": [{}], "stream": True}, ("tools", "stream")),
        ({"tools": [{}], "tool_choice": "required"}, ("tool_choice",)),
        ({"response_format": {"type": "json_object"}}, ("form",)),
        ({"messages": [{"role": "assistant", "content": "x"}]}, ("message",)),
        ({"messages": None, "prompt": [1, 2]}, ("prompt", "text")),
    ],
)
def test_requests_that_cannot_be_sent_in_parts(
    more: dict[str, Any], facts: tuple[str, ...]
) -> None:
    """Each is refused with the reason, before anything is sent; plain values of the same fields are
    not.
    """
    body = {name: value for name, value in request(**more).items() if value is not None}
    with raises_naming(InputError, "phases", *facts) as raised:
        PhasedRequest(sender_of(forced()), body)
    assert ";" in str(raised.value)
    PhasedRequest(sender_of(forced()), request(n=1, tools=[], response_format={"type": "text"}))


TOOLS = [{"type": "function", "function": {"name": "weather"}}]
CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'


def in_parts(*parts: dict[str, Any], provider: str = "vllm") -> tuple[PartSender, Any]:
    """The sender, and the joined answer of a request with tools under a bias of the first token;
    each part is the message of a server with the reason of its end, the first of one token.
    """
    sender = sender_of(bias_of("first", provider=provider))
    sent = PhasedRequest(sender, request(max_tokens=30, tools=TOOLS))
    for number, part in enumerate(parts):
        body = json.loads(sent.body())
        assert body["tools"] == TOOLS
        made = 9 if number else 1
        usage = {"prompt_tokens": PROMPT_TOKENS + number, "completion_tokens": made}
        choice = {"index": 0, "finish_reason": part.pop("ended"), "message": part}
        sent.take(json.dumps({"choices": [choice], "usage": usage}).encode())
    assert not sent.more
    return sender, json.loads(sent.answer)["choices"][0]


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
def test_a_call_in_parts_is_put_together(reason: str) -> None:
    """The first token begins a call, which no part holds whole: the joined answer has it as any
    client expects it.
    """
    first = {"role": "assistant", "content": "<tool_call>", "ended": "length"}
    rest = {"role": "assistant", "content": f"\n{CALL}\n</tool_call>", "ended": reason}
    sender, choice = in_parts(first, rest)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert call["id"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    assert (sender.joined, sender.apart) == (1, 0)


def test_a_call_that_the_server_reads_from_all_parts_is_kept() -> None:
    """llama.cpp reads the message that it continues, too: its call is whole and its content empty,
    where it otherwise repeats that message.
    """
    function = {"name": "weather", "arguments": "{}"}
    whole = {"type": "function", "id": "c", "function": function}
    first = {"role": "assistant", "content": "<tool_call>", "ended": "length"}
    rest = {"role": "assistant", "content": "", "tool_calls": [whole], "ended": "tool_calls"}
    sender, choice = in_parts(first, rest, provider="llamacpp")
    assert choice["message"]["tool_calls"] == [whole]
    assert choice["message"]["content"] is None
    assert (sender.joined, sender.apart) == (1, 0)


def test_an_answer_in_parts_beside_tools_stays_an_answer() -> None:
    """Words, JSON that a client would get from any server as words, and a call that was cut."""
    for text, ended in ((" in Oslo.", "stop"), (f"\n{CALL}", "stop")):
        first = {"role": "assistant", "content": "Rain", "ended": "length"}
        _, choice = in_parts(first, {"role": "assistant", "content": text, "ended": ended})
        assert choice["message"]["content"] == f"Rain{text}"
        assert "tool_calls" not in choice["message"]
    first = {"role": "assistant", "content": "<tool_call>", "ended": "length"}
    _, choice = in_parts(first, {"role": "assistant", "content": '\n{"na', "ended": "stop"})
    assert choice["message"]["content"] == '<tool_call>\n{"na'


def test_servers_that_cannot_be_sent_phases(tmp_path: Any) -> None:
    """A text needs the reason of the end, and no tools, for a call may hold it; chat needs a message
    that is continued; batch files and one vector go nowhere.
    """
    with pytest.raises(InputError):
        PhasedRequest(sender_of(bias_of("until:b")), request(tools=TOOLS))
    with raises_naming(InputError, "llamacpp", "until:b", "provider="):
        apply(openai.OpenAI(api_key="k"), bias_of("until:b", provider="llamacpp"))
    with raises_naming(InputError, "openai", "chat", "provider="):
        PhasedRequest(sender_of(bias_of("first", provider="openai")), request())
    PhasedRequest(sender_of(bias_of("first", provider="openai")), {"model": "m", "prompt": "go"})
    apply(openai.OpenAI(api_key="k"), bias_of("until:b", provider="llamacpp"), provider="vllm")
    (tmp_path / "batch.jsonl").write_text("")
    with raises_naming(BiasError, "first", "``phases``"):
        apply_batch(tmp_path / "batch.jsonl", tmp_path / "out.jsonl", forced())
