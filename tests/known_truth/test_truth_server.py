"""ExactServer: what it samples and says is what the model says."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import numpy as np
import pytest

from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.statistics import fits
from tests.support.truth import Exact

MODEL = ExactModel(5, 2, seed=11, end=True, prompts=2, sharpness=0.7)
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
DRAWS = 400


@pytest.fixture(scope="module")
def server() -> Iterator[ExactServer]:
    """One server for all tests that plant no faults; the prompt "1" is the model's prompt 1."""
    with ExactServer(MODEL, prompt_of=lambda text: int(text == "1")) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: ExactServer) -> Iterator[httpx2.Client]:
    """A plain client."""
    with httpx2.Client(base_url=server.url) as client:
        yield client


def chat(http: httpx2.Client, **body: Any) -> Any:
    """The answer to one chat request with the neutral sampling."""
    answer = http.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "0"}], **NEUTRAL, **body},
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids(choice: Any) -> tuple[int, ...]:
    """The token ids of one choice."""
    return tuple(entry["id"] for entry in choice["logprobs"]["content"])


@pytest.mark.parametrize(
    ("bias", "temperature"),
    [(None, 1.0), ({"0": -1.5, "3": 2.0}, 1.0), ([[0, 1.5], [4, 3.0]], 0.5)],
)
def test_completions_follow_the_model(http: httpx2.Client, bias: Any, temperature: float) -> None:
    """Completions over HTTP pass a chi-square test against softmax((logits + bias) / temperature),
    enumerated.
    """
    extra = {} if bias is None else {"logit_bias": bias}
    delta = np.zeros(5)
    for token, value in bias.items() if isinstance(bias, dict) else bias or []:
        delta[int(token)] = value
    seen = collections.Counter(
        ids(
            chat(http, seed=seed, logprobs=True, top_logprobs=1, temperature=temperature, **extra)[
                "choices"
            ][0]
        )
        for seed in range(DRAWS)
    )
    assert fits(seen, _distribution(delta, temperature)) > 1e-3


def test_default_sampling_is_truncated(http: httpx2.Client) -> None:
    """Without the neutral settings the tail is never drawn and the temperature is .8, as on
    llama.cpp.
    """
    likely = np.exp(MODEL.logprobs([], 0))
    rare = int(likely.argmin())
    first = {
        "messages": [{"role": "user", "content": "0"}],
        "logprobs": True,
        "top_logprobs": 1,
        "max_tokens": 1,
    }
    seen = collections.Counter(
        ids(
            http.post(
                "/v1/chat/completions", json={**first, "seed": seed, "top_p": 1 - likely.min()}
            ).json()["choices"][0]
        )
        for seed in range(300)
    )
    assert seen[(rare,)] == 0
    assert len(seen) > 1


def test_logprobs_are_those_of_the_unbiased_model(http: httpx2.Client) -> None:
    """Neither bias nor temperature changes what is listed: the model's own logprobs, sorted, the
    end token with text "".
    """
    choice = chat(
        http, seed=3, logprobs=True, top_logprobs=9, logit_bias={"4": 30.0}, temperature=0.5
    )["choices"][0]
    (entry,) = choice["logprobs"]["content"]
    assert (choice["finish_reason"], entry["id"], entry["token"], entry["bytes"]) == (
        "stop",
        4,
        "",
        [],
    )
    expected = MODEL.logprobs([], 0)
    assert [other["id"] for other in entry["top_logprobs"]] == np.argsort(-expected).tolist()
    assert entry["logprob"] == pytest.approx(expected[4], abs=1e-6)
    for other in entry["top_logprobs"]:
        assert other["logprob"] == pytest.approx(expected[other["id"]], abs=1e-6)


def test_seed_and_length(http: httpx2.Client) -> None:
    """Same seed and body: same completion. Without a seed they differ. max_tokens cuts with
    finish_reason length.
    """
    assert len({chat(http, seed=5)["choices"][0]["message"]["content"] for _ in range(5)}) == 1
    assert len({chat(http)["choices"][0]["message"]["content"] for _ in range(30)}) > 1
    cut = chat(http, seed=5, max_tokens=1, logprobs=True, top_logprobs=1, logit_bias={"4": False})
    assert (cut["choices"][0]["finish_reason"], len(ids(cut["choices"][0]))) == ("length", 1)
    assert cut["usage"]["completion_tokens"] == 1


def test_greedy_over_http(http: httpx2.Client) -> None:
    """Temperature 0 is the argmax, with the prompt that the text names."""
    for prompt in (0, 1):
        body = {
            "messages": [{"role": "user", "content": str(prompt)}],
            "logprobs": True,
            "top_logprobs": 1,
            "temperature": 0,
        }
        (expected,) = MODEL.sample(1, np.random.default_rng(0), None, 0.0, prompts=prompt).tolist()
        got = ids(http.post("/v1/chat/completions", json=body).json()["choices"][0])
        assert list(got) == [token for token in expected if token >= 0]


def test_text_completions_answer_in_chat_logprob_format(http: httpx2.Client) -> None:
    """POST /v1/completions takes a text and the number of alternatives in logprobs, and lists them
    as chat does.
    """
    body = {"prompt": "1", "logprobs": 2, "seed": 1, "max_tokens": 1, **NEUTRAL}
    answer = http.post("/v1/completions", json=body).json()
    (choice,) = answer["choices"]
    assert answer["object"] == "text_completion"
    (entry,) = choice["logprobs"]["content"]
    assert choice["text"] == entry["token"]
    assert len(entry["top_logprobs"]) == 2
    assert entry["logprob"] == pytest.approx(MODEL.logprobs([], 1)[entry["id"]], abs=1e-6)


def test_no_alternatives_means_no_logprobs(http: httpx2.Client) -> None:
    """logprobs true with top_logprobs 0 lists nothing; top_logprobs alone is refused: both as
    llama.cpp does.
    """
    assert "logprobs" not in chat(http, logprobs=True, top_logprobs=0)["choices"][0]
    body = {"messages": [], "top_logprobs": 3}
    assert http.post("/v1/chat/completions", json=body).status_code == 400


def test_stop_strings(http: httpx2.Client) -> None:
    """The text ends before a stop string, whose tokens are counted and, as on llama.cpp, not
    listed.
    """
    asked = {"seed": 1, "logprobs": True, "top_logprobs": 1}
    whole = chat(http, **asked)
    tokens = ids(whole["choices"][0])
    second = http.post("/detokenize", json={"tokens": [tokens[1]]}).json()["content"]
    answer = chat(http, **asked, stop=[second])
    choice = answer["choices"][0]
    assert tokens[0] != tokens[1]
    assert whole["choices"][0]["message"]["content"].startswith(
        choice["message"]["content"] + second
    )
    assert (ids(choice), answer["usage"]["completion_tokens"], choice["finish_reason"]) == (
        tokens[:1],
        2,
        "stop",
    )
    at_once = chat(http, **asked, stop=[" a"], logit_bias={"0": 50})
    assert "logprobs" not in at_once["choices"][0]
    assert (at_once["choices"][0]["message"]["content"], at_once["usage"]["completion_tokens"]) == (
        "",
        1,
    )


def test_tokens_have_texts_of_their_own(server: ExactServer, http: httpx2.Client) -> None:
    """Every token but the end has a text; tokenize inverts detokenize; unknown characters get ids,
    always the same.
    """
    assert len(set(server.texts)) == MODEL.vocab_size
    text = http.post("/detokenize", json={"tokens": [3, 0, 2]}).json()["content"]
    assert text == " d a c"
    assert http.post("/tokenize", json={"content": text, "add_special": False}).json() == {
        "tokens": [3, 0, 2]
    }
    pieces = http.post("/tokenize", json={"content": " b", "with_pieces": True}).json()
    assert pieces == {"tokens": [{"id": 1, "piece": " b"}]}
    assert server.tokenize("é!") == server.tokenize("é!")
    assert all(0 <= token < 4 for token in server.tokenize("é!"))
    assert http.post("/detokenize", json={"tokens": [99]}).status_code == 400


def test_about_the_server(server: ExactServer, http: httpx2.Client) -> None:
    """Health, properties and the model with its vocabulary size; anything else is 404 with an error
    body.
    """
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/v1/models").json()["data"][0]["meta"]["n_vocab"] == 5
    assert http.get("/props").json()["total_slots"] >= 1
    assert http.get("/nothing").status_code == 404
    assert http.post("/nothing", json={}).json()["error"]["code"] == 404
    with raises_naming(RuntimeError, "not running"):
        _ = ExactServer(MODEL).url


@pytest.mark.parametrize(
    "body",
    [
        {"messages": "hi"},
        {},
        {"messages": [], "n": 2},
        {"messages": [], "stream": True},
        {"messages": [], "logit_bias": 3},
    ],
)
def test_bad_requests_are_400(http: httpx2.Client, body: dict[str, Any]) -> None:
    """What is not served is refused with a reason, never answered wrongly."""
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_planted_faults() -> None:
    """A fault function may change a body (NaN included), answer a status, or drop the connection;
    it sees the number.
    """

    def faults(number: int, response: dict[str, Any]) -> Any:
        if number == 0:
            response["choices"][0]["logprobs"]["content"][0]["logprob"] = float("nan")
        return {0: response, 1: 429, 2: "drop"}.get(number, response)

    body = {"messages": [], "logprobs": True, "top_logprobs": 1}
    with (
        ExactServer(MODEL, faults=faults, delay=0.05) as server,
        httpx2.Client(base_url=server.url) as http,
    ):
        begun = time.monotonic()
        assert "NaN" in http.post("/v1/chat/completions", json=body).text
        assert time.monotonic() - begun >= 0.05
        assert http.post("/v1/chat/completions", json=body).json()["error"]["code"] == 429
        with pytest.raises(httpx2.RemoteProtocolError):
            http.post("/v1/chat/completions", json=body)
        assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert len(server.requests) == 4


def _distribution(delta: np.ndarray, temperature: float) -> dict[tuple[int, ...], float]:
    """Probability of every completion of prompt 0, from the model's next-token logprobs alone."""
    exact = Exact(MODEL, lambda *_: 0.0)
    out = {}
    for row, prompt in zip(exact.sequences.tolist(), exact.prompts, strict=True):
        if prompt == 0:
            tokens = tuple(token for token in row if token >= 0)
            steps = (MODEL.logprobs(tokens[:t], 0) + delta for t in range(len(tokens)))
            scaled = (np.exp(scores / temperature) for scores in steps)
            out[tokens] = float(
                np.prod([p[y] / p.sum() for p, y in zip(scaled, tokens, strict=True)])
            )
    return out
