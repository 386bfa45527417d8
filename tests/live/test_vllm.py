"""A real vLLM with ``LearnedBias``: its logprobs are the mathematics of the bias, whatever else
runs in the batch.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.export import vllm_xargs
from blackbox_lb.bias.features import FeatureVector, PromptText, bucket_of
from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.records import Entry
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.vocabulary import load_vocabulary
from blackbox_lb.vocabulary.tokenizer import PROBE_TEXT, fingerprint
from tests.support.biases import WIDE, phased_bias, prompt_bias
from tests.support.vllm_server import DTYPE, ERROR, MODEL, NEEDED, vllm_server

pytestmark = NEEDED
ROOT = Path(__file__).parents[2]
CONTEXT, BLOCK, BLOCKS, TOGETHER = 512, 32, 80, 24
"""80 blocks of 32 tokens are 2,560: too few for 24 requests of 200, so that vLLM preempts."""
POSITIONS = 2
PARITY = {"inside": "inside:a..e", "until": "until:th"}
"""Phases in which only odd ids are allowed, and elsewhere only even ones."""
BY_WORDS = {"words": False, "words-opening": True}
"""Biases that depend on the prompt: whether they depend on the answer so far as well."""
FORBID = -60.0
NEUTRAL = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
WORDS = (
    "the",
    "capital",
    "of",
    "France",
    "is",
    "a",
    "small",
    "town",
    "near",
    "river",
    "where",
    "old",
    "men",
    "walk",
    "every",
)
JSON = dict[str, Any]


@dataclass(frozen=True)
class Server:
    """A running vLLM, its folder of biases and what is in them (vocabulary,)."""

    port: int
    folder: Path
    bias: dict[str, NDArray[np.float64]]
    log: Path

    def post(self, path: str, body: JSON) -> tuple[int, JSON]:
        """Status and answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps({"model": "m", **body}).encode(),
            {"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=500) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def complete(
        self, prompt: str | list[int], name: str | None, tokens: int, **options: Any
    ) -> JSON:
        """The first choice of a completion that must succeed; ``name`` None leaves it to the
        server's default.
        """
        body = {
            "prompt": prompt,
            "max_tokens": tokens,
            **NEUTRAL,
            "return_token_ids": True,
            **options,
        }
        if name is not None:
            body.setdefault("vllm_xargs", {"blb_bias": name})
        status, answer = self.post("/v1/completions", body)
        assert status == 200, answer
        choice: JSON = answer["choices"][0]
        return choice

    def logprobs(
        self,
        prompt: str | list[int],
        name: str | None,
        tokens: int,
        arguments: JSON | None = None,
    ) -> tuple[list[int], list[int], NDArray[np.float64]]:
        """Prompt ids, sampled ids, and all logprobs of each position (tokens, vocabulary) as the
        server processed them. arguments: ``vllm_xargs``, instead of the name.
        """
        options: JSON = {"logprobs": -1, "return_tokens_as_token_ids": True, "ignore_eos": True}
        if arguments is not None:
            options["vllm_xargs"] = arguments
        choice = self.complete(prompt, name, tokens, **options)
        lists = np.full((tokens, len(self.bias["house"])), np.nan)
        for row, listed in zip(lists, choice["logprobs"]["top_logprobs"], strict=True):
            for token, logprob in listed.items():
                row[int(token.removeprefix("token_id:"))] = logprob
        return choice["prompt_token_ids"], choice["token_ids"], lists

    def abort(self, prompt: str, name: str, after: int) -> int:
        """Break the connection of a streamed completion after some events; returns how many
        came.
        """
        body = {
            "model": "m",
            "prompt": prompt,
            "max_tokens": 300,
            "stream": True,
            "ignore_eos": True,
            **NEUTRAL,
        }
        body["vllm_xargs"] = {"blb_bias": name}
        content = json.dumps(body).encode()
        head = "\r\n".join(
            [
                "POST /v1/completions HTTP/1.1",
                "Host: x",
                "Content-Type: application/json",
                f"Content-Length: {len(content)}",
                "\r\n",
            ]
        )
        with socket.create_connection(("127.0.0.1", self.port), timeout=500) as connection:
            connection.sendall(head.encode() + content)
            seen = b""
            while seen.count(b"data:") < after:
                seen += connection.recv(65536)
        return seen.count(b"data:")

    def metric(self, name: str) -> float:
        """The sum of a counter."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def save(folder: Path, name: str, values: NDArray[np.float64], tokenizer: str) -> None:
    """A bias file with an entry for every token of a non-zero value."""
    entries = tuple(
        Entry(id=int(token), bias=float(values[token])) for token in np.flatnonzero(values)
    )
    Bias(
        provider="vllm",
        model="m",
        tokenizer=tokenizer,
        vocab_size=len(values),
        reward="test",
        estimator="test",
        entries=entries,
    ).save(folder / f"{name}.json")


def save_phases(
    folder: Path, name: str, spec: str, vectors: Sequence[NDArray[np.float64]], tokenizer: str
) -> None:
    """A bias file with phases: one vector for each, that of the rest last."""
    wholes = [dict(enumerate(row.tolist())) for row in vectors]
    bias = phased_bias(spec, wholes, tokenizer=tokenizer, vocab_size=len(vectors[0]))
    bias.save(folder / f"{name}.json")


def bias_by_words(size: int, tokenizer: str, phase: bool) -> Bias:
    """A bias of every 30th token that depends on the words of the prompt, and with ``phase`` on
    whether two tokens have been generated as well.
    """
    draws = np.random.default_rng(2)
    tokens = range(0, size, 30)
    entries = tuple(Entry(id=token, bias=float(draws.normal())) for token in tokens)
    vectors = [
        FeatureVector(
            name=word, bucket=bucket_of(word), values=tuple(draws.normal(0, 1, len(tokens)))
        )
        for word in WORDS
    ]
    bias = prompt_bias(
        "words", vectors, tokenizer=tokenizer, vocab_size=size, entries=entries, sent=WIDE
    )
    if not phase:
        return bias
    (opening,) = Phases.parse(["opening:2"]).features
    moved = opening.one_vector(draws.normal(0, 3, len(tokens)).tolist())
    return bias.model_copy(update={"features": (*bias.features, moved)})


def probe() -> str:
    """The fingerprint of the model's tokenizer, from its file."""
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(
        str(Path(MODEL, "tokenizer.json"))
    )
    return fingerprint(tokenizer.encode(PROBE_TEXT, add_special_tokens=False).ids)


def installed(folder: Path) -> None:
    """What an installation of this checkout tells of itself: its entry points."""
    points = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"][
        "entry-points"
    ]
    information = folder / "blackbox_lb-0.1.0.dist-info"
    information.mkdir()
    information.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: blackbox-lb\nVersion: 0.1.0\n"
    )
    lines = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in each.items())
        for group, each in points.items()
    ]
    information.joinpath("entry_points.txt").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """vLLM with the processor both installed and named, so that a bias added twice would show in
    every test.
    """
    folder = tmp_path_factory.mktemp("biases")
    size = json.loads(Path(MODEL, "config.json").read_text(encoding="utf-8"))["vocab_size"]
    draws, even = np.random.default_rng(1), np.arange(size) % 2 == 0
    bias = {name: draws.normal(0, 1, size) for name in ("house", "a", "b")}
    bias |= {"odd": np.where(even, FORBID, 0.0), "even": np.where(even, 0.0, FORBID)}
    for name, values in bias.items():
        save(folder, name, values, probe())
    save(folder, "foreign", bias["a"], "probe-sha256:of-another-model")
    save_phases(folder, "opening", "opening:2", [bias["a"], bias["b"]], probe())
    for name, spec in PARITY.items():
        save_phases(folder, name, spec, [bias["odd"], bias["even"]], probe())
    for name, phase in BY_WORDS.items():
        bias_by_words(size, probe(), phase).save(folder / f"{name}.json")
    site = tmp_path_factory.mktemp("site")
    installed(site)
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    flags = f"""--model {MODEL} --served-model-name m --dtype {DTYPE} --max-model-len {CONTEXT}
        --max-logprobs -1 --logprobs-mode processed_logprobs --generation-config vllm
        --max-num-seqs {TOGETHER} --block-size {BLOCK} --num-gpu-blocks-override {BLOCKS} --enforce-eager
        --logits-processors blackbox_lb.serve.vllm:LearnedBias"""
    ours = {
        "BLB_BIAS_DIR": str(folder),
        "BLB_BIAS_DEFAULT": "house",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{site}",
    }
    with vllm_server(flags, log, ours) as port:
        yield Server(port, folder, bias, log)


def prompts(number: int) -> list[str]:
    """Different prompts of different lengths."""
    draws = random.Random(number)
    return [" ".join(draws.choices(WORDS, k=draws.randint(4, 40))) for _ in range(number)]


def test_the_files_are_read_at_start(server: Server) -> None:
    """The log names what is served, and says once of the foreign file why it is not."""
    text = server.log.read_text(errors="replace")
    assert (
        "LearnedBias: a, b, even, house, inside, odd, opening, until, words, words-opening;" in text
    )
    assert text.count("bias foreign is refused") == 1
    assert "of-another-model" in text


def test_logprobs_differ_by_the_bias_less_the_normaliser(server: Server) -> None:
    """All logprobs at every position are base + delta - log sum exp(base + delta): three biases and
    none in one changing batch.
    """
    names = ["a", "b", "none", None] * 2
    ours, others = prompts(len(names)), prompts(30)
    with ThreadPoolExecutor(TOGETHER) as pool:
        fillers = [
            pool.submit(
                server.complete,
                prompt,
                ("a", "none", "odd", "b")[i % 4],
                8 + 7 * i % 90,
                ignore_eos=True,
            )
            for i, prompt in enumerate(others[:10])
        ]
        wanted = [
            pool.submit(server.logprobs, prompt, name, POSITIONS)
            for prompt, name in zip(ours, names, strict=True)
        ]
        fillers += [
            pool.submit(server.complete, prompt, ("b", "none")[i % 2], 20)
            for i, prompt in enumerate(others[10:20])
        ]
        aborted = [
            pool.submit(server.abort, prompt, ("a", "even")[i % 2], 3 + i)
            for i, prompt in enumerate(others[20:])
        ]
        found = [each.result() for each in wanted]
        assert all(each.result() for each in fillers)
        assert all(each.result() >= 3 for each in aborted)
    worst, slopes = [], []
    for name, (prompt, sampled, biased_tv) in zip(names, found, strict=True):
        for position in range(POSITIONS):
            _, _, base = server.logprobs(prompt + sampled[:position], "none", 1)
            delta = np.zeros(base.shape[1]) if name == "none" else server.bias[name or "house"]
            expected = base[0] + delta - logsumexp(base[0] + delta)
            worst.append(float(np.abs(biased_tv[position] - expected).max()))
            moved = biased_tv[position] - base[0]
            slopes += [np.polyfit(delta, moved, 1)[0]] if delta.any() else []
    print(
        f"{DTYPE}: {len(worst)} positions of {base.shape[1]} logprobs, largest error"
        f" {max(worst):.2g} nats, median of the"
    )
    print(f"largest {np.median(worst):.2g}; slope on delta {min(slopes):.5f} to {max(slopes):.5f}")
    assert max(worst) < ERROR
    assert max(abs(slope - 1) for slope in slopes) < ERROR / 10


def test_rows_are_never_mixed(server: Server) -> None:
    """Under preemption and aborts each request keeps its own bias: odd ids for one, even ids for
    the other, both for none.
    """
    before = server.metric("vllm:num_preemptions_total")
    names = ["odd", "even", "none"] * 12
    texts = prompts(48)
    with ThreadPoolExecutor(48) as pool:
        long = [
            pool.submit(server.complete, text, name, 200, ignore_eos=True)
            for text, name in zip(texts, names, strict=False)
        ]
        cut = [
            pool.submit(server.abort, text, names[i], 5 + 9 * i)
            for i, text in enumerate(texts[36:])
        ]
        ids = [np.array(each.result()["token_ids"]) for each in long]
        assert all(each.result() for each in cut)
    preempted = server.metric("vllm:num_preemptions_total") - before
    wrong = sum(
        int((each % 2 != (name == "odd")).sum())
        for name, each in zip(names, ids, strict=False)
        if name != "none"
    )
    free = [each % 2 for name, each in zip(names, ids, strict=False) if name == "none"]
    print(
        f"{sum(map(len, ids)):,} tokens of {len(ids)} requests, {len(cut)} aborted, {preempted:.0f}"
        f" preemptions, {wrong} wrong"
    )
    assert preempted > 0
    assert wrong == 0
    assert all(0 < each.mean() < 1 for each in free)


def test_a_phase_changes_where_its_tokens_say(server: Server) -> None:
    """Under preemption each token of each request is of the kind that the tokens before it ask
    for.
    """
    vocabulary = load_vocabulary(Path(MODEL, "tokenizer.json"))
    before = server.metric("vllm:num_preemptions_total")
    names = [*PARITY, "none"] * 12
    with ThreadPoolExecutor(48) as pool:
        texts = prompts(36)
        long = [
            pool.submit(server.complete, text, name, 200, ignore_eos=True)
            for text, name in zip(texts, names, strict=True)
        ]
        found = [each.result()["token_ids"] for each in long]
    changes, wrong, total = 0, 0, 0
    for name, ids in zip(names, found, strict=True):
        if name in PARITY:
            along = Phases.parse([PARITY[name]]).along(
                vocabulary.bytes_of(token) or b"" for token in ids
            )
            numbers = list(along)[: len(ids)]
            wrong += sum(token % 2 != number for token, number in zip(ids, numbers, strict=True))
            changes, total = changes + int(np.count_nonzero(np.diff(numbers))), total + len(ids)
    preempted = server.metric("vllm:num_preemptions_total") - before
    print(
        f"{total:,} tokens of requests with phases, {changes} changes of phase, {preempted:.0f}"
        f" preemptions, {wrong} wrong"
    )
    assert wrong == 0
    assert changes > 100
    assert preempted > 0


def test_across_a_change_the_logprobs_are_those_of_each_vector(server: Server) -> None:
    """All of them, at the two positions before the change and the two after it."""
    prompt, sampled, found = server.logprobs(prompts(1)[0], "opening", 4)
    worst = []
    for position, name in enumerate("aabb"):
        _, _, base = server.logprobs(prompt + sampled[:position], "none", 1)
        expected = base[0] + server.bias[name]
        worst.append(float(np.abs(found[position] - (expected - logsumexp(expected))).max()))
    print(f"{DTYPE}: largest errors {', '.join(f'{each:.2g}' for each in worst)} nats")
    assert max(worst) < ERROR


@pytest.mark.parametrize("name", BY_WORDS)
def test_each_prompt_gets_the_bias_of_its_own_words(server: Server, name: str) -> None:
    """Among requests with other biases, all logprobs of the first four positions are those of base
    + delta of the prompt, of which the server gets the numbers alone.
    """
    bias = Bias.load(server.folder / f"{name}.json")
    texts = prompts(6)
    sent = to_request_bias(bias)
    read = [PromptText.of_request({"prompt": text}) for text in texts]
    assert len({str(sent.of_text(text)) for text in read}) == len(texts)

    def logprobs(text: str) -> tuple[list[int], list[int], NDArray[np.float64]]:
        return server.logprobs(text, name, 4, vllm_xargs(bias, name, messages=text))

    with ThreadPoolExecutor(TOGETHER) as pool:
        fillers = [
            pool.submit(server.complete, text, ("a", "none")[number % 2], 40, ignore_eos=True)
            for number, text in enumerate(prompts(16))
        ]
        answers = list(pool.map(logprobs, texts))
        assert all(filler.result() for filler in fillers)
    largest = []
    for text, (prompt, sampled, biased) in zip(read, answers, strict=True):
        for position in range(4):
            _, _, base = server.logprobs(prompt + sampled[:position], "none", 1)
            phase = sent.phases.of_state(0, position)
            delta = np.zeros(base.shape[1])
            for token, nats in sent.of_text(text, phase).items():
                delta[token] = nats
            expected = base[0] + delta - logsumexp(base[0] + delta)
            largest.append(float(np.abs(biased[position] - expected).max()))
    print(f"{DTYPE}: {len(largest)} positions, largest error {max(largest):.2g} nats")
    assert max(largest) < ERROR


def test_numbers_that_are_missing_or_foreign_are_a_400(server: Server) -> None:
    """A request for a bias that depends on the prompt brings its numbers, and no others."""
    for features in (None, ["words:0", 1.0, "route:x", 1.0], "words"):
        arguments = {"blb_bias": "words"} | ({} if features is None else {"blb_features": features})
        body = {"prompt": "x", "max_tokens": 2, "vllm_xargs": arguments}
        status, answer = server.post("/v1/completions", body)
        assert status == 400
        assert "vllm_xargs()" in answer["error"]["message"]
    assert len(server.complete("x", "a", 2, ignore_eos=True)["token_ids"]) == 2


def test_the_same_as_the_request_field(server: Server) -> None:
    """A vector of the server and the same one sent as ``logit_bias`` give the same logprobs: about
    1,000 entries, since more than 1,024 in one request end the engine under model runner V2 (seen
    with vLLM 0.32 on an H100)."""
    (text,) = prompts(1)
    size = len(server.bias["a"])
    values = np.where(np.arange(size) % (size // 999) == 0, server.bias["a"], 0.0)
    save(server.folder, "some", values, probe())
    time.sleep(1.1)
    choice = server.complete(text, "some", 12, temperature=0, logprobs=5)
    field = {str(token): float(values[token]) for token in np.flatnonzero(values)}
    assert 900 < len(field) <= 1024
    sent = server.complete(text, "none", 12, temperature=0, logprobs=5, logit_bias=field)
    assert choice["token_ids"] == sent["token_ids"]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(
        sent["logprobs"]["token_logprobs"], abs=1e-5
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("absent", "no bias named 'absent'"),
        ("../a", "no bias named"),
        ("foreign", "bias foreign: .*of-another-model"),
        (3, "not the name"),
    ],
)
def test_a_bias_that_cannot_be_had_is_a_400(server: Server, value: object, said: str) -> None:
    """The request is refused with the reason, and the server goes on."""
    status, answer = server.post(
        "/v1/completions", {"prompt": "x", "max_tokens": 2, "vllm_xargs": {"blb_bias": value}}
    )
    assert status == 400
    assert re.search(said, answer["error"]["message"])
    assert len(server.complete("x", "a", 2, ignore_eos=True)["token_ids"]) == 2


def test_a_file_that_changes_is_served_without_a_restart(server: Server) -> None:
    """A new file, its next version and, over a half-written one, still that version."""
    size = len(server.bias["a"])
    for token in (1234, 4321):
        save(server.folder, "new", np.where(np.arange(size) == token, 80.0, 0.0), probe())
        time.sleep(1.1)
        assert server.complete("x", "new", 3, ignore_eos=True)["token_ids"] == [token] * 3
    server.folder.joinpath("new.json").write_text("{")
    time.sleep(1.1)
    assert server.complete("x", "new", 3, ignore_eos=True)["token_ids"] == [4321] * 3
