"""The embedded engine with SmolLM2: it samples exactly what it reports, a bias tilts exactly that,
and it ends when it should.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import chisquare

from blackbox_lb.api.local.engine import LocalEngine, resolve_model
from blackbox_lb.tasks.records.tools import calls_text
from blackbox_lb.types import Message

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.live

VOCABULARY = 49_152
END = 2
NEUTRAL = {
    "temperature": 1,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "typical_p": 1,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "xtc_probability": 0,
    "dry_multiplier": 0,
    "mirostat": 0,
    "dynatemp_range": 0,
    "top_n_sigma": -1,
}
QUESTION = "What is the capital of France?"
DRAWS = 200
JSON = dict[str, Any]


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    """One engine for the whole module."""
    with LocalEngine(resolve_model(), parallel=8, context=256) as running:
        yield running


def post(engine: LocalEngine, path: str, body: JSON) -> JSON:
    """The answer to one request, which must succeed."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(engine.base_url), timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer: JSON = json.loads(response.read())
    finally:
        connection.close()
    assert response.status == 200, answer
    return answer


def port_of(base_url: str) -> int:
    """The port in ``http://127.0.0.1:PORT/v1``."""
    return int(base_url.rpartition(":")[2].removesuffix("/v1"))


def request(path: str, text: str, **options: Any) -> JSON:
    """A body for either endpoint under neutral sampling."""
    prompt = (
        {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
    )
    return {**prompt, **NEUTRAL, **options}


def logprobs_of(
    engine: LocalEngine, path: str, text: str, **options: Any
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The full next-token vector in nats, shape (vocabulary,), as the server reports it."""
    asked = (
        {"logprobs": True, "top_logprobs": VOCABULARY}
        if "chat" in path
        else {"logprobs": VOCABULARY}
    )
    answer = post(
        engine, path, request(path, text, max_tokens=1, temperature=0, **asked, **options)
    )
    listed = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    vector = np.full(VOCABULARY, -np.inf)
    vector[[row["id"] for row in listed]] = [row["logprob"] for row in listed]
    return vector


def draw(engine: LocalEngine, path: str, text: str, **options: Any) -> Counter[int]:
    """How often each token came first in ``DRAWS`` seeded one-token completions; -1 for a byte
    fragment, which is not listed.
    """
    asked = {"logprobs": True, "top_logprobs": 1} if "chat" in path else {"logprobs": 1}
    body = request(path, text, max_tokens=1, **asked, **options)

    def one(seed: int) -> int:
        listed = post(engine, path, {**body, "seed": seed})["choices"][0].get("logprobs")
        return int(listed["content"][0]["id"]) if listed else -1

    with ThreadPoolExecutor(8) as pool:
        return Counter(pool.map(one, range(DRAWS)))


def p_value(counts: Counter[int], logprobs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Chi-square of the draws against the distribution: tokens expected at least 5 times, and the
    rest as one cell.
    """
    expected = np.exp(log_softmax(logprobs)) * DRAWS
    cells = np.flatnonzero(expected >= 5)
    assert len(cells) >= 4
    observed = [counts[int(cell)] for cell in cells]
    rest = DRAWS - sum(observed), DRAWS - expected[cells].sum()
    return float(chisquare([*observed, rest[0]], [*expected[cells], rest[1]]).pvalue)


@pytest.mark.parametrize(
    ("path", "text"),
    [("/v1/chat/completions", QUESTION), ("/v1/completions", "My favourite city is")],
)
def test_neutral_sampling_draws_from_the_returned_softmax(
    engine: LocalEngine, path: str, text: str
) -> None:
    """On the routes that rollouts use every id is listed once, the probabilities are those of one
    distribution, and the draws cannot be told from it; draws of tokens of a tenth of the highest
    probability or more can.
    """
    vector = logprobs_of(engine, path, text)
    assert np.isfinite(vector).all()
    assert (vector <= 0).all()
    assert np.exp(vector).sum() == pytest.approx(1, abs=1e-3)
    assert p_value(draw(engine, path, text), vector) > 1e-3
    likely = np.exp(log_softmax(np.where(vector > vector.max() + np.log(0.1), vector, -np.inf)))
    drawn = np.random.default_rng(0).choice(VOCABULARY, DRAWS, p=likely)
    assert p_value(Counter(drawn.tolist()), vector) < 1e-6


def test_a_bias_tilts_the_softmax_exactly(engine: LocalEngine) -> None:
    """Reported logprobs stay those of the unbiased model; what is sampled is softmax(logits +
    bias).
    """
    path = "/v1/chat/completions"
    vector = logprobs_of(engine, path, QUESTION)
    biased = np.argsort(vector)[[-2, -5, -40]]
    bias = [[int(token), 2.0] for token in biased]
    assert logprobs_of(engine, path, QUESTION, logit_bias=bias) == pytest.approx(vector, abs=1e-3)
    tilted = vector.copy()
    tilted[biased] += 2
    prompt = post(engine, "/apply-template", {"messages": [{"role": "user", "content": QUESTION}]})[
        "prompt"
    ]
    options = {
        "n_predict": 1,
        "n_probs": VOCABULARY,
        "post_sampling_probs": True,
        "logit_bias": bias,
    }
    answer = post(engine, "/completion", request("/completion", prompt, seed=1, **options))
    listed = answer["completion_probabilities"][0]["top_probs"]
    after = np.zeros(VOCABULARY)
    after[[row["id"] for row in listed]] = [row["prob"] for row in listed]
    assert after == pytest.approx(np.exp(log_softmax(tilted)), abs=1e-4)
    counts = draw(engine, path, QUESTION, logit_bias=bias)
    assert p_value(counts, tilted) > 1e-3
    assert p_value(counts, vector) < 1e-6


def test_the_end_token_is_listed_and_split_characters_are_not(engine: LocalEngine) -> None:
    """A stopped answer ends in the end token, which has no text; of a character made of three
    tokens only the last is listed.
    """
    path = "/v1/chat/completions"
    body = request(path, "Repeat exactly: 🦜🦜🦜", max_tokens=24, logprobs=True, top_logprobs=2)
    answer = post(engine, path, {**body, "temperature": 0})
    entries = answer["choices"][0]["logprobs"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert (entries[-1]["id"], entries[-1]["token"]) == (END, "")
    assert len(entries) < answer["usage"]["completion_tokens"]


def test_a_seed_repeats_a_completion(engine: LocalEngine) -> None:
    """The same seed gives the same text, another seed another text."""
    path = "/v1/chat/completions"
    texts = [
        post(engine, path, request(path, QUESTION, max_tokens=16, seed=seed))["choices"][0][
            "message"
        ]["content"]
        for seed in (7, 7, 8)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_the_model_goes_by_the_name_of_its_file(engine: LocalEngine) -> None:
    """The server tells the file's name, not where on this machine it lies."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(engine.base_url), timeout=10)
    connection.request("GET", "/v1/models")
    assert [row["id"] for row in json.loads(connection.getresponse().read())["data"]] == [
        resolve_model().stem
    ]
    connection.close()


def closed(port: int) -> bool:
    """Whether nothing listens on the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_the_result_of_a_call_reaches_the_model(engine: LocalEngine) -> None:
    """The template renders a message of the role tool behind the turn that calls, although that
    turn has no content.
    """
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turns = (
        Message("user", "Rain?"),
        Message("assistant", "", calls_text([call])),
        Message("tool", "8 degrees", tool_call_id="c"),
    )
    messages = [message.as_json for message in turns]
    prompt = post(engine, "/apply-template", {"messages": messages})["prompt"]
    assert prompt.index("Rain?") < prompt.index("<|im_start|>tool\n8 degrees<|im_end|>")


def test_leaving_the_block_closes_the_port() -> None:
    """Even with a request in flight: the client is told so by a broken connection, and nobody
    waits.
    """
    with (
        LocalEngine(resolve_model(), parallel=1, context=512) as engine,
        ThreadPoolExecutor(1) as pool,
    ):
        port = port_of(engine.base_url)
        path = "/v1/chat/completions"
        waiting = pool.submit(
            post, engine, path, request(path, "Tell a story.", max_tokens=400, ignore_eos=True)
        )
        time.sleep(0.3)
        begin = time.monotonic()
        engine.close()
        assert time.monotonic() - begin < 3
        assert closed(port)
        with pytest.raises((OSError, http.client.HTTPException)):
            waiting.result(5)


SCRIPT = """
import json, threading, time, urllib.request
from blackbox_lb.api.local.engine import LocalEngine
from blackbox_lb.api.local.engine import resolve_model

def ask(url):
    body = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 400, "ignore_eos": True}
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(asked).read()
    except OSError:
        pass

try:
    with LocalEngine(resolve_model(), parallel=4, context=512) as engine:
        for _ in range(4):
            threading.Thread(target=ask, args=(engine.base_url + "/chat/completions",), daemon=True).start()
        print(engine.base_url, flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    raise SystemExit(130) from None
"""


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_however_the_process_ends_the_engine_ends_too(number: signal.Signals, status: int) -> None:
    """Ctrl-C as a terminal sends it (to the whole group), SIGTERM and kill -9, each with requests
    in flight; nothing is printed.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    port = port_of(process.stdout.readline().strip())
    time.sleep(0.3)
    os.killpg(process.pid, number)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == status
    assert complaints == ""
    deadline = time.monotonic() + 5
    while not closed(port) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert closed(port)
