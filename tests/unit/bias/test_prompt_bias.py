"""A bias that depends on the prompt: its features, its file, and every way in which it is sent."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from blackbox_lb import Bias, apply, apply_batch, logit_bias
from blackbox_lb.bias.features import (
    FeatureVector,
    PromptText,
    bucket_of,
    parse_feature,
)
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.deploy.injection import Injection
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.types import Prompt
from blackbox_lb.vocabulary.embedding import PROBE
from tests.support.biases import feature, prompt_bias
from tests.support.errors import raises_naming
from tests.support.questions import write_rows

ROUTE = "route:code=def |class ,sum=\\d+ [+-] \\d+"


WORDS = prompt_bias(
    "words",
    [
        FeatureVector(name="refund", bucket=bucket_of("refund"), weight=2.0, values=(3.0, 0.0)),
        FeatureVector(name="hello", bucket=bucket_of("hello"), weight=1.0, values=(0.0, 4.0)),
    ],
)
ROUTES = prompt_bias(
    ROUTE,
    [FeatureVector(name="code", values=(2.0, 0.5)), FeatureVector(name="sum", values=(-1.0, 0.25))],
)


GROUPS = prompt_bias(
    "groups:desk",
    [FeatureVector(name="sales", values=(2.0, 0.0)), FeatureVector(name="help", values=(0.0, 3.0))],
)
WHOLE = prompt_bias(
    "words",
    [FeatureVector(name="refund", bucket=bucket_of("refund"), values=(0.4, 1.7))],
    integers=True,
)


def of(bias: Bias, text: str, system: str = "") -> dict[int, float]:
    """The bias of a prompt."""
    return to_request_bias(bias).of_text(PromptText(text, system))


def test_words_and_pairs_are_counted_and_have_length_one() -> None:
    """A prompt's features are those that the file knows, weighed and of length 1; a prompt of other
    words has the common vector.
    """
    assert of(WORDS, "I want a refund") == {5: 4.0, 9: -2.0}
    both = of(WORDS, "hello, a refund")
    length = np.sqrt(5.0)
    assert both == {
        5: pytest.approx(1 + 3 * 2 / length, abs=1e-4),
        9: pytest.approx(-2 + 4 / length, abs=1e-4),
    }
    assert of(WORDS, "nothing of it") == {5: 1.0, 9: -2.0}
    pair = FeatureVector(name="two words", bucket=bucket_of("two words"), values=(3.0, 0.0))
    assert of(prompt_bias("words", [pair]), "Two  WORDS, two") == {5: 4.0, 9: -2.0}


def test_routes_take_the_first_match_and_system_prompts_are_whole() -> None:
    """A regular expression may hold a comma; a long system prompt is known by its beginning and its
    hash.
    """
    assert of(ROUTES, "class A: 1 + 1") == {5: 3.0, 9: -1.5}
    assert of(ROUTES, "what is 1 + 1?") == {9: -1.75}
    assert of(ROUTES, "what?") == {5: 1.0, 9: -2.0}
    long = "You answer in one word. " * 40
    (key,) = feature("system-prompt").counted(PromptText("x", long))
    assert isinstance(key, str)
    assert len(key) <= 200
    assert key not in feature("system-prompt").counted(PromptText("x", long + "!"))
    bias = prompt_bias("system-prompt", [FeatureVector(name=key, values=(1.0, 1.0))])
    assert of(bias, "x", long) == {5: 2.0, 9: -1.0}
    assert of(bias, "x", "another") == {5: 1.0, 9: -2.0}


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ("route:", ("NAME=REGEX", "''")),
        ("route:a=(", ("'('",)),
        ("route:a=x,a=y", ("``depends_on='route:a=x,a=y'``", "twice")),
        ("groups:", ("``depends_on='groups:'``", "groups:COLUMN")),
        (
            "length",
            ("words", "system-prompt", "groups:COLUMN", "embedding:MODEL", "route:NAME=REGEX"),
        ),
    ],
)
def test_what_no_feature_is_called_is_refused(given: str, facts: tuple[str, ...]) -> None:
    """With the remedy; an unknown one with all that there are."""
    with raises_naming(InputError, *facts):
        parse_feature(given)


def test_the_file_holds_it_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    """Read back the same, and refused where its features were changed."""
    path = tmp_path / "bias.json"
    WORDS.save(path)
    document = json.loads(path.read_text())
    assert document["version"] == 4
    assert Bias.load(path) == WORDS
    vector = document["features"][0]["vectors"][0]
    vector["values"][0] = 9.0
    path.write_text(json.dumps(document))
    with raises_naming(BiasError, "fingerprint"):
        Bias.load(path)
    vector["values"] = [9.0]
    document["fingerprint"] = ""
    path.write_text(json.dumps(document))
    with raises_naming(BiasError, "2 entries"):
        Bias.load(path)
    plain = WORDS.replacing(features=(), sent=None)
    plain.save(path)
    assert {"features", "sent", "fingerprint"}.isdisjoint(json.loads(path.read_text()))
    with raises_naming(BiasError, "features", "``sent``"):
        plain.replacing(features=WORDS.features)


def test_every_reader_of_a_body_finds_the_same_text() -> None:
    """Chat messages, their text parts, a completions prompt; none where there is nothing to
    read.
    """
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "text", "text": "b"},
    ]
    system = {"role": "system", "content": "s"}
    assert PromptText.of_request(
        {"messages": [system, {"role": "user", "content": parts}]}
    ) == PromptText("a\nb", "s")
    assert (
        PromptText.of_request({"prompt": "p"})
        == PromptText.of_request({"prompt": ["p"]})
        == PromptText("p")
    )
    assert PromptText.of([("user", "a"), ("assistant", "b"), ("user", "c")]).user == "c"
    for body in (
        {},
        {"prompt": [1, 2]},
        {"prompt": ["a", "b"]},
        {"messages": [{"role": "user", "content": parts[1:2]}]},
        {"messages": [3]},
    ):
        assert PromptText.of_request(body) is None


def answering(sent: list[bytes], failures: int = 0) -> httpx2.MockTransport:
    """A transport whose bodies go into ``sent``; the first requests fail, and the others get an
    empty answer.
    """

    def answer(request: httpx2.Request) -> httpx2.Response:
        assert int(request.headers["content-length"]) == len(request.content)
        sent.append(request.content)
        if len(sent) <= failures:
            return httpx2.Response(500, headers={"retry-after-ms": "1"})
        document = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
        return httpx2.Response(200, json={**document, "choices": []})

    return httpx2.MockTransport(answer)


def client_of(sent: list[bytes], *, failures: int = 0) -> openai.OpenAI:
    """A client with that transport."""
    http = httpx2.Client(transport=answering(sent, failures))
    return openai.OpenAI(api_key="k", base_url="http://x/v1", http_client=http)


def by_client(bias: Bias, text: str, group: str | None, folder: Path) -> Any:
    """The bias that a client sends; the name of the group does not go over the wire."""
    sent: list[bytes] = []
    apply(client_of(sent), bias).chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": text}],
        extra_body={} if group is None else {"blb_group": group},
    )
    return json.loads(sent[0])


def by_batch_file(bias: Bias, text: str, group: str | None, folder: Path) -> Any:
    """The same of a line of a batch file."""
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": text}]}
    if group is not None:
        body["blb_group"] = group
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    write_rows(folder / "in.jsonl", [line])
    assert apply_batch(folder / "in.jsonl", folder / "out.jsonl", bias).biased == 1
    return json.loads((folder / "out.jsonl").read_text())["body"]


def by_field(bias: Bias, text: str, group: str | None, folder: Path) -> Any:
    """The same of the field itself, for messages."""
    messages: Any = [{"role": "user", "content": text}]
    own = logit_bias(bias, messages=messages, group=group)
    return {"model": "m", "messages": messages, "logit_bias": own}


@pytest.mark.parametrize("way", [by_client, by_batch_file, by_field])
@pytest.mark.parametrize(
    ("bias", "text", "group", "expected"),
    [
        (WORDS, "refund", None, {"5": 4, "9": -2}),
        (WORDS, "x", None, {"5": 1, "9": -2}),
        (WHOLE, "refund", None, {"5": 1}),
        (GROUPS, "hello", "sales", {"5": 3, "9": -2}),
        (GROUPS, "hello", "new", {"5": 1, "9": -2}),
        (GROUPS, "hello", None, {"5": 1, "9": -2}),
    ],
)
def test_every_way_sends_the_bias_of_a_prompt(
    bias: Bias, text: str, group: str | None, expected: Any, way: Any, tmp_path: Path
) -> None:
    """By its words or its group, rounded where the provider takes whole numbers."""
    messages = [{"role": "user", "content": text}]
    sent = {"model": "m", "messages": messages, "logit_bias": expected}
    assert way(bias, text, group, tmp_path) == sent


def test_a_client_sends_the_bias_of_each_prompt() -> None:
    """Chat and completions, byte for byte the same at a retry, summed with the request's own under
    "add"; a group needs no text.
    """
    sent: list[bytes] = []
    client = apply(client_of(sent, failures=1), WORDS, on_conflict="add")
    messages: Any = [{"role": "user", "content": "refund"}]
    client.chat.completions.create(model="m", messages=messages)
    assert sent[0] == sent[1]
    client.chat.completions.create(model="m", messages=messages, logit_bias={"5": 1})
    assert json.loads(sent[2])["logit_bias"] == {"5": 5, "9": -2}
    client.completions.create(model="m", prompt="hello")
    assert json.loads(sent[3])["logit_bias"] == {"5": 1, "9": 2}
    client.chat.completions.create(model="other", messages=messages)
    assert "logit_bias" not in json.loads(sent[4])
    image: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    apply(client_of(sent), GROUPS).chat.completions.create(
        model="m", messages=image, extra_body={"blb_group": "help"}
    )
    assert json.loads(sent[5])["logit_bias"] == {"5": 1, "9": 1}


def test_the_field_needs_the_messages() -> None:
    """A completions prompt is one; nothing at all is refused with the remedy."""
    assert logit_bias(WORDS, "vllm", messages="hello") == {"5": 1, "9": 2}
    with raises_naming(BiasError, "words", "messages=", "apply()"):
        logit_bias(WORDS)


def test_a_prompt_without_text_gets_the_common_vector_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Said once, counted always."""
    injection = Injection.of(WORDS)
    body = {"model": "m", "prompt": [1, 2]}
    for _ in range(2):
        assert json.loads(injection.body(json.dumps(body).encode(), body))["logit_bias"] == {
            "5": 1,
            "9": -2,
        }
    assert injection.bias.unread == 2
    assert len(caplog.records) == 1


def test_the_embedding_model_must_be_the_one_it_was_learned_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The vector of a known text tells it from another one; a text has one vector, whatever is
    asked beside it.
    """
    calls: list[list[str]] = []

    def encode(texts: list[str]) -> list[list[float]]:
        calls.append(texts)
        return [[3.0, 4.0] if "refund" in text else [0.0, 2.0] for text in texts]

    monkeypatch.setattr("blackbox_lb.vocabulary.embedding.load_encoder", lambda name: encode)
    rows = [FeatureVector(name="0", values=(5.0, 0.0)), FeatureVector(name="1", values=(0.0, 1.0))]
    bias = prompt_bias("embedding:some/model", rows, probe=(0.0, 1.0))
    found = to_request_bias(bias)
    found.prepare([Prompt.user("refund"), Prompt.user("a"), Prompt.user("a")])
    assert found.at(Prompt.user("refund")) == {5: 4.0, 9: -1.2}
    assert found.at(Prompt.user("")) == {5: 1.0, 9: -2.0}
    assert calls == [[PROBE], ["refund", "a"]]
    other = to_request_bias(prompt_bias("embedding:some/model", rows, probe=(0.6, 0.8)))
    with raises_naming(BiasError, "some/model", "0.600"):
        other.at(Prompt.user("a"))


def test_an_asynchronous_client_does_not_wait_while_a_text_is_embedded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other tasks of the loop go on; the server gets the bias of the prompt, also where the client
    was wrapped twice.
    """

    begun, goes_on = threading.Event(), threading.Event()

    def slow(texts: list[str]) -> list[list[float]]:
        begun.set()
        assert goes_on.wait(60), "the loop stands still while a prompt is embedded"
        return [[3.0, 4.0] if "refund" in text else [0.0, 2.0] for text in texts]

    monkeypatch.setattr("blackbox_lb.vocabulary.embedding.load_encoder", lambda name: slow)
    rows = [FeatureVector(name="0", values=(5.0, 0.0)), FeatureVector(name="1", values=(0.0, 1.0))]
    sent: list[bytes] = []

    async def ask() -> None:
        own = httpx2.AsyncClient(transport=answering(sent))
        plain = openai.AsyncOpenAI(api_key="k", base_url="http://127.0.0.1/v1", http_client=own)
        client = apply(
            apply(plain, prompt_bias("embedding:some/model", rows, probe=(0.0, 1.0))),
            ROUTES,
            models=["other"],
        )
        asked = asyncio.ensure_future(
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "refund"}]
            )
        )
        while not (begun.is_set() or asked.done()):
            await asyncio.sleep(0.005)
        goes_on.set()
        await asked

    asyncio.run(ask())
    assert [json.loads(body) for body in sent] == [
        {
            "messages": [{"role": "user", "content": "refund"}],
            "model": "m",
            "logit_bias": {"5": 4, "9": -1.2},
        }
    ]


@pytest.mark.parametrize("text", ["a b " * 250_000, "\x00\x1b\ud800" * 1_000, "", "(" * 5_000])
def test_hostile_texts_are_read_in_bounded_time(text: str) -> None:
    """A megabyte, control characters, half of a surrogate pair, nothing: an answer at once."""
    began = time.process_time()
    for kind in ("words", "system-prompt", ROUTE):
        feature(kind).counted(PromptText(text, text))
    assert time.process_time() - began < 2
