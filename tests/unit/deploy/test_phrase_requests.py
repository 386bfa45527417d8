"""Phrases that are kept out of answers: what is drawn, what a client gets and when, and what is
left alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from blackbox_lb import apply
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.deploy.injection import Injection
from blackbox_lb.deploy.part_sender import PartSender
from blackbox_lb.errors import InputError
from tests.support.biases import FIELDS, phased_bias
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.unit.bias.test_phases import fits
from tests.unit.deploy.part_host import (
    PROMPT,
    Host,
    ask,
    clients,
    in_parts,
    joined,
    request,
    sender_of,
    steps,
    text_in,
)

WORDS = (" red", " fish", " blue", " sky", "")
END = len(WORDS) - 1
MODEL = ExactModel(len(WORDS), 4, seed=3, end=True, unigram=(0.0, 1.0, 0.0, 0.0, -2.0))
PHRASES = ("red fish", "blue sky", "fish blue fish")
Answer = tuple[int, ...]


def text_of(tokens: Sequence[int]) -> str:
    """The text of an answer."""
    return "".join(WORDS[token] for token in tokens)


def bias_of(phrases: Sequence[str] = PHRASES, provider: str = "vllm", **entries: float) -> Bias:
    """A bias file with phrases, and entries by words."""
    ids = [Entry(id=WORDS.index(f" {word}"), bias=value) for word, value in entries.items()]
    fields = {**FIELDS, "provider": provider}
    return Bias(**fields, entries=tuple(ids), phrases=tuple(phrases))


def host_of(**options: Any) -> Host:
    """A host of the model whose distribution is known."""
    return Host(MODEL, WORDS, **options)


def scripted(*parts: str, **options: Any) -> Host:
    """A host whose answers are these words, one text for each request; "." is the end."""
    script = [[f" {word}" if word != "." else "" for word in part.split()] for part in parts]
    return Host(MODEL, WORDS, script, **options)


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
    host = host_of(together=together, lists=lists)
    sender = sender_of(bias_of(provider="llamacpp" if lists else "vllm"))
    drawn = Counter[str]()
    for _ in range(1_500):
        drawn[joined(sender, host, request(max_tokens=MODEL.horizon)).text] += 1
    assert fits(drawn, by_text(law())) > 1e-4
    assert fits(drawn, by_text(conditional())) < 1e-9
    assert sender.counts.steps > 100
    assert sender.counts.let_through == 0


def test_how_far_stepping_back_is_from_drawing_again() -> None:
    """The total variation distance that docs/phrases.md names for this model."""
    answers = law().keys() | conditional().keys()
    distances = [abs(law().get(row, 0.0) - conditional().get(row, 0.0)) for row in answers]
    assert sum(distances) / 2 == pytest.approx(0.078, abs=1e-3)


def test_a_token_that_led_to_a_phrase_is_banned_with_its_harmless_continuations() -> None:
    """The example of docs/phrases.md, with "red" for "testament" and "sky" for "song"."""
    chances = {"red fish .": 0.2, "red red .": 0.2, "sky red .": 0.6}
    first = Counter[str]()
    for words, chance in chances.items():
        text = joined(sender_of(bias_of()), scripted(words, "sky", "."), request()).text
        first[text.split()[0]] += chance  # type: ignore[assignment]
    assert first == {"red": pytest.approx(0.2), "sky": pytest.approx(0.8)}


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_nothing_that_a_client_got_is_taken_back(temperature: float) -> None:
    """A stream is the same text as the answer as a whole, and at no time holds a phrase."""
    for seed in range(40):
        body = request(max_tokens=MODEL.horizon, temperature=temperature)
        whole = joined(sender_of(bias_of()), host_of(seed=seed), body)
        streamed = in_parts(sender_of(bias_of()), {**body, "stream": True})
        text = ""
        for events in steps(streamed, host_of(seed=seed, cut=seed * 37)):
            text += text_in(events)
            assert not any(phrase in f"{text} " for phrase in PHRASES)
        assert text == whole.text


STEP = ("sky red fish sky", "blue", "fish .")
"""Answers with one step back, of which " sky blue fish" is left."""


@pytest.mark.parametrize("cut", [0, 10_000], ids=["events", "at once"])
def test_a_step_back_takes_one_token_and_the_rest(cut: int) -> None:
    """Where a phrase is complete nothing more is read; its first token is banned for one token; all
    that was thrown away is told beside the usage of the answer.
    """
    host = scripted("sky red fish blue sky", "blue red", "fish .", cut=cut)
    answer = joined(sender_of(bias_of(sky=1.5)), host, request(max_tokens=9, seed=5))
    [choice] = answer.document["choices"]
    assert choice["message"] == {"role": "assistant", "content": " sky blue fish"}
    assert (choice["finish_reason"], choice["index"]) == ("stop", 0)
    if not cut:  # role, three tokens and the one that tells that "fish" has ended
        assert host.read == [5, 3, 4]
    assert [body["logit_bias"] for body in host.bodies] == [
        {"3": 1.5},
        {"3": 1.5, "0": -100},
        {"3": 1.5},
    ]
    assert [(body["max_tokens"], body["seed"]) for body in host.bodies] == [(9, 5), (1, 6), (7, 7)]
    assert [body["messages"][1:] for body in host.bodies] == [
        [],
        [{"role": "assistant", "content": " sky"}],
        [{"role": "assistant", "content": " sky blue"}],
    ]
    assert answer.usage == {
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


@pytest.mark.parametrize(
    ("rule", "kept"), [("ours", {"3": 1.5}), ("theirs", {"0": 5}), ("add", {"3": 1.5, "0": 5})]
)
def test_a_ban_holds_whatever_the_request_asks_for(rule: Any, kept: dict[str, float]) -> None:
    """Its own bias follows the rule for conflicts, but for the banned token."""
    bias = bias_of(sky=1.5)
    sender = PartSender.of(bias, Injection.of(bias, rule), None)
    assert sender is not None
    host = scripted(*STEP)
    joined(sender, host, request(logit_bias={"0": 5}))
    sent = [body["logit_bias"] for body in host.bodies]
    assert sent == [kept, {**kept, "0": -100}, kept]


def test_a_server_that_drops_parts_of_characters_is_asked_for_a_few_more() -> None:
    """So that a redrawn character comes whole; what was drawn behind it, with the ban, is left."""
    host = scripted("sky red fish sky", "blue fish sky", "red .", lists=True)
    answer = joined(sender_of(bias_of(provider="llamacpp")), host, request(max_tokens=9))
    assert answer.text == " sky blue red"
    assert [body["max_tokens"] for body in host.bodies] == [9, 4, 7]
    assert host.read[1] == 2  # the role and one token


def test_another_phrase_may_begin_before_the_cut() -> None:
    """ "blue" alone is no begin of a phrase before "red"; after the cut it may be one of "blue
    sky", so it is held back until it is not.
    """
    host = scripted("blue red fish red", "sky", "red", "fish", "fish .")
    streamed = in_parts(sender_of(bias_of()), request(max_tokens=4, stream=True))
    assert "".join(text_in(events) for events in steps(streamed, host)) == " fish fish"
    assert [body.get("logit_bias") for body in host.bodies] == [
        None,
        {"0": -100},
        None,
        {"2": -100},
        None,
    ]


@pytest.mark.parametrize("end", [" .", ""], ids=["its own", "limit"])
@pytest.mark.parametrize("together", [1, 4])
def test_a_phrase_at_the_end_is_kept_out_too(end: str, together: int) -> None:
    """No more letters can follow; the reason of the end may come with the phrase or behind it."""
    host = scripted(f"sky red fish{end}", "blue", ".", together=together)
    answer = joined(sender_of(bias_of()), host, request(max_tokens=3, logprobs=True))
    assert answer.text == " sky blue"


def test_after_so_many_steps_a_phrase_is_let_through() -> None:
    """A server that keeps no ban costs one step at each place."""
    host = scripted("red fish sky", "red", "fish sky .")
    sender = sender_of(bias_of())
    answer = joined(sender, host, request())
    assert answer.text == " red fish sky"
    assert answer.usage["x_phrases"]["let_through"] == 1
    assert (sender.counts.steps, sender.counts.let_through, sender.counts.answers) == (1, 1, 1)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_stop_text_is_found_across_a_cut(stream: bool) -> None:
    """The server sees only what it draws itself."""
    host = scripted("sky red fish sky", "blue", "fish red")
    body = request(stop=["sky blue"], max_tokens=9, stream=stream)
    answer = joined(sender_of(bias_of()), host, body)
    assert (answer.text, answer.finish) == (" ", "stop")


def test_several_choices_are_drawn_one_after_the_other() -> None:
    """Each is free of phrases, and the usage is that of all; so are the steps."""
    parts = ("sky red fish sky", "blue", ".")
    sender = sender_of(bias_of())
    answer = joined(sender, scripted(*parts, *parts), request(n=2))
    choices = answer.document["choices"]
    texts = {choice["index"]: choice["message"]["content"] for choice in choices}
    assert texts == {0: " sky blue", 1: " sky blue"}
    assert (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]) == (3, 6)
    spent = answer.usage["x_phrases"]
    assert (spent["steps_back"], spent["discarded_tokens"], sender.counts.steps) == (2, 6, 2)
    streamed = in_parts(sender_of(bias_of()), request(n=2, stream=True))
    events = [event for step in steps(streamed, scripted(*parts, "fish .")) for event in step]
    rows = [choice for event in events for choice in event["choices"]]
    assert text_in([{"choices": [row for row in rows if row["index"]]}]) == " fish"
    assert [row["finish_reason"] for row in rows if row["finish_reason"]] == ["stop", "stop"]


def test_lists_are_those_of_the_delivered_tokens() -> None:
    """Where the client asked for them; else they are not told."""
    sender = sender_of(bias_of(provider="llamacpp"))
    [choice] = joined(sender, scripted(*STEP, lists=True), request()).document["choices"]
    assert choice["logprobs"] is None
    host = scripted(*STEP, lists=True, together=2)
    answer = joined(sender, host, request(logprobs=True, top_logprobs=3))
    rows = answer.document["choices"][0]["logprobs"]["content"]
    assert [row["token"] for row in rows] == [" sky", " blue", " fish"]
    assert {body["top_logprobs"] for body in host.bodies} == {3}


@pytest.mark.parametrize(
    ("provider", "lists", "prompts"),
    [
        ("fireworks", True, ["go", "go sky", "go sky blue"]),
        ("llamacpp", True, ["go", ["go", 3], ["go", 3, 2]]),
        ("vllm", False, ["go", [*PROMPT, 3], [*PROMPT, 3, 2]]),
    ],
)
def test_the_completions_endpoint_goes_on_from_the_prompt(
    provider: str, lists: bool, prompts: list[Any]
) -> None:
    """By ids where the server takes them beside a text, or has told those of the prompt."""
    host = scripted(*STEP, lists=lists)
    body = {"model": "m", "prompt": "go"}
    answer = joined(sender_of(bias_of(provider=provider)), host, body)
    assert [body["prompt"] for body in host.bodies] == prompts
    assert answer.document["object"] == "text_completion"
    assert answer.text == " sky blue fish"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_phases_and_phrases_go_together(stream: bool) -> None:
    """A part ends where a phase does, too, and each has the vector of its phase."""
    vectors = [dict.fromkeys(range(4), value) for value in (1.0, 2.0)]
    bias = phased_bias("first", vectors, phrases=PHRASES)
    host = scripted("sky", "red fish sky", "blue", "fish .")
    answer = joined(sender_of(bias), host, request(max_tokens=9, stream=stream))
    assert answer.text == " sky blue fish"
    values = [list(body["logit_bias"].values()) for body in host.bodies]
    assert values == [[1] * 4, [2] * 4, [2, 2, 2, -100], [2] * 4]
    assert [body["max_tokens"] for body in host.bodies] == [1, 8, 1, 7]


@pytest.mark.parametrize("sky", [1.5, None])
def test_answers_of_a_fixed_form_are_left_alone(
    sky: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    """They are sent at once, with the vector, and nothing at all where there is none; which is
    logged once.
    """
    host = scripted("sky .", "sky .")
    bias = bias_of() if sky is None else bias_of(sky=sky)
    client = apply(next(clients(host.handle)), bias)
    for _ in range(2):
        ask(client, response_format={"type": "json_object"})
    sent = [(body.get("logit_bias"), body.get("stream")) for body in host.bodies]
    assert sent == [(None if sky is None else {"3": sky}, None)] * 2
    assert len(caplog.records) == 1
    wrong: list[dict[str, Any]] = [{"stop": 5}, {"stop": [5]}, {"stream_options": "x"}]
    for fields in (*wrong, {"min_tokens": "x"}, {"messages": 5}):  # the server judges it
        assert sender_of(bias_of()).request(request() | fields) is None
    in_parts(sender_of(bias_of()), request(response_format={"type": "text"}, n=1, stop=[]))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_calls_and_thoughts_are_left_alone(stream: bool) -> None:
    """What comes with them goes out as it is, and a phrase behind them is let through."""
    sender = sender_of(bias_of())
    host = scripted("red fish .")
    host.beside = [
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]},
        {"tool_calls": [{"index": 1, "id": "d", "function": {"name": "g", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
    ]
    answer = joined(sender, host, request(tools=[{"type": "function"}], stream=stream))
    assert answer.text == " red fish"
    if not stream:
        assert answer.document["choices"][0]["message"]["tool_calls"] == [
            {"id": "c", "function": {"name": "f", "arguments": "{}"}},
            {"id": "d", "function": {"name": "g", "arguments": "{}"}},
        ]
    answer = joined(sender, scripted("red fish .", fault="thoughts"), request(stream=stream))
    assert answer.text == " red fish"
    if not stream:
        assert answer.document["choices"][0]["message"]["reasoning_content"] == "hm"
    assert sender.counts.let_through == 2


def test_a_server_that_cannot_go_on_is_refused_by_name() -> None:
    """Before a request, with those that can: one that continues nothing, and an endpoint."""
    with raises_naming(InputError, "openai", "llamacpp", "vllm"):
        sender_of(bias_of(provider="openai"))
    sender = sender_of(bias_of(provider="fireworks"))
    with raises_naming(InputError, "fireworks", "chat", "completions", "llamacpp"):
        sender.request(request())
    in_parts(sender, {"model": "m", "prompt": "go"})


@pytest.mark.parametrize("place", range(2), ids=["sync", "async"])
def test_every_client_keeps_phrases_out(place: int) -> None:
    """Whole and streamed."""
    host = scripted(*STEP, *STEP)
    client = apply([*clients(host.handle)][place], bias_of(sky=1.5))
    text, finish, usage = ask(client, max_tokens=9)
    assert (text, finish, usage.completion_tokens) == (" sky blue fish", "stop", 4)
    assert usage.x_phrases["discarded_tokens"] == 3
    text, finish, usage = ask(
        client, max_tokens=9, stream=True, stream_options={"include_usage": True}
    )
    assert (text, finish, usage.x_phrases["steps_back"]) == (" sky blue fish", "stop", 1)


def phased() -> Bias:
    """A bias with a phase, under which no part fails."""
    return phased_bias("first", ({0: 1.0}, {0: 2.0}))


@pytest.mark.parametrize("is_phased", [False, True], ids=["phrases", "phases"])
def test_an_error_within_a_stream_is_an_error(is_phased: bool) -> None:
    """Of a stream it is an event, else an answer with status 502, which the SDK raises."""

    def handle(_: Any) -> Any:
        content = b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, content=content, headers=headers)

    client = apply(next(clients(handle)), phased() if is_phased else bias_of())
    for stream in (True,) if is_phased else (False, True):
        with raises_naming(openai.APIError, "out of memory"):
            ask(client.with_options(max_retries=0), stream=stream)


@pytest.mark.parametrize("is_phased", [False, True], ids=["phrases", "phases"])
def test_a_stream_that_ends_early_is_no_whole_answer(is_phased: bool) -> None:
    """A server that breaks off without a reason gives an error, and no end of a stream."""
    parts = in_parts(sender_of(phased() if is_phased else bias_of()), request(stream=True))
    pieces = list(host_of().pieces(json.loads(parts.body())))
    out = parts.feed(pieces[0]) + parts.end()
    assert b"error" in out
    assert b"[DONE]" not in out
    assert not parts.more
