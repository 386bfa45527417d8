"""A bias with phases over an API that continues a message: the parts are joined into one answer."""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import Any

import openai
import pytest

from blackbox_lb import apply, apply_batch
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.phases import Phases
from blackbox_lb.deploy import part_requests
from blackbox_lb.deploy.part_requests import PartRequest
from blackbox_lb.errors import BiasError, InputError
from tests.support.biases import phased_bias
from tests.support.errors import raises_naming
from tests.unit.bias.test_phases import MODEL, VECTORS, WORDS, bias_with_word, chances, fits
from tests.unit.deploy.part_host import (
    MESSAGES,
    PROMPT,
    Host,
    ask,
    clients,
    in_parts,
    joined,
    request,
    sender_of,
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits."""
    monkeypatch.setattr(part_requests, "PAUSES", (0.0, 0.0))


def host_of(fault: str = "", **options: Any) -> Host:
    """A host of the model whose distributions are known, with pieces that end anywhere."""
    return Host(MODEL, WORDS, fault=fault, cut=37, **options)


def bias_of(spec: str, provider: str = "vllm") -> Bias:
    """A bias file with phases; the last of the vectors is the rest's."""
    count = len(Phases.parse([spec]).names) + 1
    return phased_bias(spec, VECTORS[:count], provider=provider)


def forced(provider: str = "vllm") -> Bias:
    """A bias under which the first token is " b", and all others are " c"."""
    first = {token: 50.0 * (token == 1) for token in range(5)}
    rest = {token: 50.0 * (token == 2) for token in range(5)}
    return phased_bias("first", (first, rest), provider=provider)


def take(
    parts: PartRequest, message: dict[str, Any], finish: str, *, prompt: int, made: int
) -> dict[str, Any]:
    """Give a whole answer, of so many tokens behind so many, to a part; the part's request."""
    body: dict[str, Any] = json.loads(parts.body())
    usage = {"prompt_tokens": prompt, "completion_tokens": made}
    choice = {"finish_reason": finish, "message": {"role": "assistant", **message}}
    parts.take(json.dumps({"choices": [choice], "usage": usage}).encode())
    return body


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
    host = host_of()
    sender = sender_of(bias_with_word(spec, word))
    exact = {
        "".join(WORDS[token] for token in tokens) + "." * (tokens[-1] == 4): chance
        for tokens, chance in chances(Phases.parse([spec]), bool(word)).items()
    }
    drawn = Counter[str]()
    for _ in range(400):
        before = len(host.bodies)
        answer = joined(sender, host, request(max_tokens=MODEL.horizon, stream=stream))
        assert len(host.bodies) - before <= MODEL.horizon
        drawn[answer.text + "." * (answer.finish == "stop")] += 1
    assert sender.apart == 0
    assert fits(drawn, exact) > 1e-4


@pytest.mark.parametrize("place", range(2), ids=["sync", "async"])
def test_every_client_joins_the_parts(place: int) -> None:
    """Text, usage and finish reason are those of one answer; a refused part alone is asked for
    again; a limit, a seed and stop texts go on from part to part, and a group's name into none.
    """
    host = host_of()
    host.refusals = {1: 429}
    client = apply([*clients(host.handle)][place], forced())
    group = {"blb_group": "sales"}
    text, finish, usage = ask(client, max_tokens=3, temperature=0, extra_body=group)
    assert (text, finish) == (" b c c", "length")
    assert not any("blb_group" in body for body in host.bodies)
    prompt = 2 * len(PROMPT) + 1
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt, 3)
    assert usage.prompt_tokens_details.cached_tokens == 4
    assert [body.get("max_tokens") for body in host.bodies] == [1, None, 2]
    common: dict[str, Any] = {"max_tokens": 3, "temperature": 0, "stream": True}
    assert ask(client, **common) == (" b c c", "length", None)
    text, finish, usage = ask(
        client, **common, seed=5, stop="x", stream_options={"include_usage": True}
    )
    assert (text, finish, usage.completion_tokens) == (" b c c", "length", 3)
    sent = [(body["seed"], body["stop"]) for body in host.bodies[-2:]]
    assert sent == [(5, ["x"]), (6, ["x"])]
    assert ask(client, max_tokens=1, temperature=0)[:2] == (" b", "length")
    assert len(host.bodies) == 8
    # Where a seed has to stay: within 31 bits, beyond them where it is so, and below 0.
    for seed, following in ((2**31 - 1, 0), (2**40, 0), (2**40 - 1, 0), (-1, -1)):
        ask(client, max_tokens=3, temperature=0, seed=seed)
        assert [body["seed"] for body in host.bodies[-2:]] == [seed, following]


def test_a_part_is_asked_for_three_times() -> None:
    """And the SDK repeats the whole, which is a stream no more once it has begun; a first part is
    the SDK's alone to repeat.
    """
    host = host_of()
    host.refusals = {1: 503, 2: 429, 3: 500, 5: 503}
    client = apply(next(clients(host.handle)), forced())
    assert ask(client, max_tokens=3, temperature=0)[0] == " b c c"
    assert [body.get("max_tokens") for body in host.bodies] == [1, None, None, None, 1, None, 2]
    host.refusals = {8: 503, 9: 503, 10: 503}
    with raises_naming(openai.APIError, "not now"):
        ask(client, max_tokens=3, temperature=0, stream=True)
    host.refusals = {11: 400}
    with pytest.raises(openai.BadRequestError):
        ask(client, max_tokens=3, temperature=0)
    assert len(host.bodies) == 12


def test_an_answer_holds_what_was_asked_for() -> None:
    """Lists of logprobs and ids of all parts where they were asked for, and else neither."""
    answer = joined(sender_of(forced()), host_of(), request(max_tokens=3, temperature=0)).document
    assert answer["id"] == "id-1"
    assert sorted(answer) == ["choices", "created", "id", "model", "object", "usage"]
    assert sorted(answer["choices"][0]) == ["finish_reason", "index", "logprobs", "message"]
    assert answer["choices"][0]["logprobs"] is None
    more = {"return_token_ids": True, "logprobs": True}
    body = request(max_tokens=3, temperature=0, **more)
    [choice] = joined(sender_of(forced()), host_of(), body).document["choices"]
    assert choice["token_ids"] == [1, 2, 2]
    assert [row["token"] for row in choice["logprobs"]["content"]] == [" b", " c", " c"]


def test_completions_and_other_models() -> None:
    """The prompt of the completions endpoint is continued as a text; a request for another model
    is left alone.
    """
    host = host_of()
    client = apply(next(clients(host.handle)), forced())
    assert isinstance(client, openai.OpenAI)
    common: dict[str, Any] = {"model": "m", "prompt": "go", "max_tokens": 3}
    assert client.completions.create(**common).choices[0].text == " b c c"
    assert host.bodies[-1]["prompt"] == "go b"
    events = client.completions.create(**common, stream=True)
    assert "".join(event.choices[0].text for event in events) == " b c c"
    extra = {"logit_bias": {"0": 9}}
    client.chat.completions.create(model="other", messages=MESSAGES, extra_body=extra)
    assert host.bodies[-1]["logit_bias"] == {"0": 9}
    assert host.bodies[-1]["messages"] == MESSAGES


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("fault", "ids", "why"),
    [
        ("trims", True, "read the part before as other tokens"),
        ("anew", False, "the server counts 5 tokens before a part, and 4 were to be"),
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
    host = host_of(fault, ids=ids)
    sender = sender_of(forced())
    for _ in range(5):
        body = request(max_tokens=3, temperature=0, stream=stream, seed=5)
        answer = joined(sender, host, body)
        assert (answer.text, answer.finish) == (" c c c", "length")
        assert host.bodies[-1]["seed"] == 5
    tried = 1 if fault in ("uncounted", "thoughts") else 2
    assert len(host.bodies) == 3 * (tried + 1) + 2
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2
    assert why in warned[0]
    assert "all get the vector of the rest from now on" in warned[1]


def test_a_stream_that_does_not_fit_later_on_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Once answers have been joined, a stream is passed on at once; where its parts do not fit,
    that is said and counted.
    """
    host = host_of()
    sender = sender_of(forced())
    joined(sender, host, request(max_tokens=3, temperature=0))
    host.fault = "anew"
    answer = joined(sender, host, request(max_tokens=3, temperature=0, stream=True))
    assert answer.text == " b c c"
    assert (sender.joined, sender.apart, len(caplog.records)) == (1, 1, 1)


def test_a_server_that_repeats_what_it_continues(caplog: pytest.LogCaptureFixture) -> None:
    """Known from its profile, the text is taken off; unknown, a long text shows it; known and not
    so, that is said, too.
    """
    sender = sender_of(forced("llamacpp"))
    body = request(max_tokens=3, temperature=0)
    answer = joined(sender, host_of("repeats", ids=False), body)
    assert (answer.text, sender.apart) == (" b c c", 0)
    answer = joined(sender, host_of(ids=False), body)
    assert (answer.text, sender.apart) == (" c c c", 1)
    assert "did not repeat the part before" in caplog.text
    sender = sender_of(forced("llamacpp"))
    parts = in_parts(sender, body)
    take(parts, {"content": " b"}, "length", prompt=3, made=1)
    take(parts, {"content": ""}, "stop", prompt=4, made=1)
    assert sender.apart == 1
    long = in_parts(sender_of(bias_of("opening:8")), request(max_tokens=20))
    words = " one two three four five six seven eight"
    take(long, {"content": words}, "length", prompt=7, made=8)
    take(long, {"content": f"{words} nine"}, "length", prompt=15, made=1)
    assert "the server repeats the part before" in caplog.text


@pytest.mark.parametrize(
    ("more", "facts"),
    [
        ({"n": 2}, ("several",)),
        ({"stop": 5}, ("stop",)),
        ({"tools": [{}], "stream": True}, ("tools", "stream")),
        ({"tools": [{}], "tool_choice": "required"}, ("tool_choice",)),
        ({"response_format": {"type": "json_object"}}, ("form",)),
        ({"guided_json": {}, "structured_outputs": {"regex": "a"}}, ("form",)),
        ({"functions": [{"name": "f"}]}, ("functions",)),
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
        in_parts(sender_of(forced()), body)
    assert ";" in str(raised.value)
    in_parts(sender_of(forced()), request(n=1, tools=[], response_format={"type": "text"}))


TOOLS = [{"type": "function", "function": {"name": "weather"}}]
CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
WRITTEN = f"\n{CALL}\n</tool_call>"
READ = [
    {"type": "function", "id": name, "function": {"name": "weather", "arguments": "{}"}}
    for name in "cd"
]


@pytest.mark.parametrize(
    ("begin", "rest", "reason", "provider"),
    [
        ("<tool_call>", {"content": WRITTEN}, "stop", "vllm"),
        ("<tool_call>", {"content": WRITTEN}, "tool_calls", "vllm"),
        ("<tool_call>", {"content": "", "tool_calls": READ}, "tool_calls", "llamacpp"),
        ("Rain", {"content": " in Oslo."}, "stop", "vllm"),
        ("Rain", {"content": f"\n{CALL}"}, "stop", "vllm"),
        ("<tool_call>", {"content": '\n{"na'}, "stop", "vllm"),
    ],
    ids=["written", "known", "read by the server", "words", "json", "cut"],
)
def test_a_call_in_parts_is_put_together(
    begin: str, rest: dict[str, Any], reason: str, provider: str
) -> None:
    """The first token begins a call, which no part holds whole: the joined answer has it as any
    client expects it, also where the server has read it from all parts (llama.cpp, which then does
    not repeat the message that it continues). Words, JSON that any server would give as words, and
    a call that was cut stay an answer.
    """
    sender = sender_of(bias_of("first", provider))
    sent = in_parts(sender, request(max_tokens=30, tools=TOOLS))
    first = take(sent, {"content": begin}, "length", prompt=7, made=1)
    second = take(sent, rest, reason, prompt=8, made=9)
    assert (first["tools"], second["tools"], sent.more) == (TOOLS, TOOLS, False)
    choice = json.loads(sent.answer)["choices"][0]
    assert (sender.joined, sender.apart) == (1, 0)
    if "tool_calls" in rest:
        assert choice["message"]["tool_calls"] == READ
    elif rest["content"] == WRITTEN:
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
        assert call["id"]
    else:
        assert choice["message"]["content"] == begin + rest["content"]
        assert "tool_calls" not in choice["message"]
        return
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")


def test_servers_that_cannot_be_sent_phases(tmp_path: Any) -> None:
    """A text needs the reason of the end, and no tools, for a call may hold it; chat needs a message
    that is continued; batch files and one vector go nowhere.
    """
    with pytest.raises(InputError):
        in_parts(sender_of(bias_of("until:b")), request(tools=TOOLS))
    with raises_naming(InputError, "llamacpp", "until:b", "provider="):
        apply(openai.OpenAI(api_key="k"), bias_of("until:b", "llamacpp"))
    with raises_naming(InputError, "openai", "chat", "provider="):
        in_parts(sender_of(bias_of("first", "openai")), request())
    in_parts(sender_of(bias_of("first", "openai")), {"model": "m", "prompt": "go"})
    apply(openai.OpenAI(api_key="k"), bias_of("until:b", "llamacpp"), provider="vllm")
    (tmp_path / "batch.jsonl").write_text("")
    with raises_naming(BiasError, "first", "``phases``"):
        apply_batch(tmp_path / "batch.jsonl", tmp_path / "out.jsonl", forced())
