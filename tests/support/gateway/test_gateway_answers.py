"""Answers of the rules gateway: the exact model's numbers in each provider's shape, and each
planted lie really lies.
"""

from __future__ import annotations

import json
import ssl
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

import httpx2
import numpy as np
import numpy.typing as npt
import openai
import pytest
from scipy.special import log_softmax
from scipy.stats import chisquare

from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import Lie, RulesGateway
from tests.support.gateway.engine.logprobs import EnginePosition, quantised

JSON = dict[str, Any]
SIZE, END = 40, 39
MODEL = ExactModel(SIZE, 3, seed=5, end=True, sharpness=0.4)
FIRST = MODEL.logprobs()
SMALL = ExactModel(6, 2, seed=12, sharpness=0.5)
FIRE = "accounts/fireworks/models/gateway"
PROMPT = [{"role": "user", "content": "hello"}]
DRAWS = 500


@pytest.fixture(scope="module")
def engine() -> Iterator[ExactServer]:
    """One exact engine for the whole module."""
    with ExactServer(MODEL) as running:
        yield running


@pytest.fixture(scope="module")
def small() -> Iterator[ExactServer]:
    """A small one, for statistics."""
    with ExactServer(SMALL) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(engine: ExactServer) -> Iterator[RulesGateway]:
    """OpenAI without quantisation, so that numbers can be compared."""
    with RulesGateway("openai", engine, quantise=None) as running:
        yield running


def client_of(gateway: RulesGateway) -> openai.OpenAI:
    """The real client; without certificates, which take a tenth of a second to load."""
    http = httpx2.Client(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), timeout=60)
    return openai.OpenAI(
        base_url=gateway.base_url, api_key=gateway.key, max_retries=0, http_client=http
    )


def ask(gateway: RulesGateway, **fields: Any) -> JSON:
    """One chat answer through the openai client, as JSON."""
    with client_of(gateway) as client:
        body: JSON = {"model": gateway.models[0], "messages": PROMPT, **fields}
        raw = client.chat.completions.with_raw_response.create(**body)
        assert raw.parse().choices
        answer: JSON = json.loads(raw.content)
        return answer


def ask_legacy(gateway: RulesGateway, **fields: Any) -> JSON:
    """One answer of the completions endpoint through the openai client, as JSON."""
    with client_of(gateway) as client:
        body: JSON = {"model": "gpt-3.5-turbo-instruct", "prompt": "hello", **fields}
        raw = client.completions.with_raw_response.create(**body)
        assert raw.parse().choices
        answer: JSON = json.loads(raw.content)
        return answer


def token_of(entry: JSON, texts: list[str]) -> int:
    """The id of an entry, found by its bytes; the end token has none."""
    return END if entry["bytes"] is None else texts.index(bytes(entry["bytes"]).decode())


def firsts(
    gateway: RulesGateway, texts: list[str], draws: int = DRAWS, **fields: Any
) -> Counter[int]:
    """First tokens of ``draws`` completions, 125 a request."""
    seen: Counter[int] = Counter()
    for _ in range(draws // 125):
        for choice in ask(gateway, n=125, max_tokens=1, logprobs=True, **fields)["choices"]:
            seen[token_of(choice["logprobs"]["content"][0], texts)] += 1
    return seen


def fits(seen: Counter[int], logprobs: npt.NDArray[np.float64]) -> float:
    """The p-value of a chi-square test of counts against a distribution."""
    expected = np.exp(logprobs) * sum(seen.values())
    observed = np.array([seen[token] for token in range(len(logprobs))])
    assert expected.min() > 4
    return float(chisquare(observed, expected).pvalue)


def test_chat_entries_are_the_models(gateway: RulesGateway, engine: ExactServer) -> None:
    """No ids; the bytes tell the token; the top list is the model's, and sampled tokens keep to the
    rules of the top 20.
    """
    ranks = np.argsort(-FIRST, kind="stable").tolist()
    seen = Counter[str]()
    for choice in ask(gateway, n=128, max_tokens=1, logprobs=True, top_logprobs=5)["choices"]:
        assert choice["logprobs"]["refusal"] is None
        if not choice["logprobs"]["content"]:  # the end token came first
            seen["end"] += 1
            continue
        (entry,) = choice["logprobs"]["content"]
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        listed = [token_of(other, engine.texts) for other in entry["top_logprobs"]]
        assert listed == ranks[:5]
        np.testing.assert_allclose(
            [other["logprob"] for other in entry["top_logprobs"]], FIRST[listed], rtol=1e-6
        )
        token = token_of(entry, engine.texts)
        rank = ranks.index(token)
        seen["listed" if rank < 5 else "kept" if rank < 20 else "far"] += 1
        assert (token in listed) == (rank < 5)
        assert entry["logprob"] == (
            -9999.0 if rank >= 20 else pytest.approx(FIRST[token], rel=1e-6)
        )
    assert min(seen["listed"], seen["kept"], seen["far"], seen["end"]) > 0


def test_the_end_token_is_neither_listed_nor_counted(gateway: RulesGateway) -> None:
    """The list is as long as completion_tokens."""
    bias = {str(END): 100}
    answer = ask(gateway, logprobs=True, top_logprobs=2, logit_bias=bias)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["logprobs"]["content"] == []
    assert answer["usage"]["completion_tokens"] == 0


def test_choices_and_usage(gateway: RulesGateway, engine: ExactServer) -> None:
    """``n`` becomes as many requests to the engine, each with a seed of its own; usage counts them
    all.
    """
    answer = ask(gateway, n=3, seed=7, max_completion_tokens=2, logprobs=True)
    sent = engine.requests[-3:]
    assert sorted(body["seed"] for body in sent) == [7, 8, 9]
    assert all(body["max_tokens"] == 2 and "n" not in body for body in sent)
    lengths = [len(choice["logprobs"]["content"]) for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == sum(lengths)
    assert answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    repeated = ask(gateway, n=3, seed=7, max_completion_tokens=2, logprobs=True)
    assert repeated["choices"] == answer["choices"]


def test_nothing_is_listed_unless_asked(gateway: RulesGateway) -> None:
    """Logprobs are null without ``logprobs``."""
    assert ask(gateway, max_tokens=1)["choices"][0]["logprobs"] is None
    assert ask_legacy(gateway)["choices"][0]["logprobs"] is None


def test_first_tokens_follow_the_model(small: ExactServer) -> None:
    """Sampling through the gateway is the model's, and with a bias the tilted model's."""
    with RulesGateway("openai", small) as gateway:
        assert fits(firsts(gateway, small.texts), SMALL.logprobs()) > 1e-4
        delta = np.array([0.0, 1.5, 0, 0, -0.5, 0])
        seen = firsts(gateway, small.texts, logit_bias={"1": 1.5, "4": -0.5})
        assert fits(seen, log_softmax(SMALL.logprobs() + delta)) > 1e-4
        truncated = firsts(gateway, small.texts, 250, top_p=0.5)
        assert 0 < len(truncated) < 6


def test_gaps_are_multiples_of_a_sixteenth(engine: ExactServer) -> None:
    """As recorded: gaps to the likeliest are whole sixteenths of a nat, and the listed mass is the
    model's.
    """
    with RulesGateway("openai", engine) as gateway:
        for choice in ask(gateway, n=20, max_tokens=1, logprobs=True, top_logprobs=20)["choices"]:
            for entry in choice["logprobs"]["content"]:
                listed = np.array([other["logprob"] for other in entry["top_logprobs"]])
                gaps = (listed[0] - listed) * 16
                np.testing.assert_allclose(gaps, np.round(gaps), atol=1e-4)
                assert np.exp(listed).sum() == pytest.approx(
                    np.exp(np.sort(FIRST)[-20:]).sum(), rel=1e-5
                )


def test_quantised_logprobs_are_those_of_a_distribution() -> None:
    """The listed mass stays, no logprob is positive, and an unlisted sampled token stays
    unlisted.
    """
    logprobs = np.sort(log_softmax(np.random.default_rng(0).normal(size=30)))[::-1]
    for token in (0, 25):
        before = EnginePosition(token, float(logprobs[token]), np.arange(20), logprobs[:20])
        after = quantised(before, 0.0625)
        assert np.exp(after.logprobs).sum() == pytest.approx(np.exp(before.logprobs).sum())
        assert after.logprobs.max() <= 0
        assert (after.rank() < 20) == (token < 20)
        assert abs(after.logprob - before.logprob) < 0.1


def test_partial_characters_print_as_escapes() -> None:
    """A token that is no UTF-8 shows escapes beside its exact bytes, and in legacy lists a
    ``bytes:`` key.
    """
    half = [32, 0xE2, 0x80]

    def broken(number: int, answer: JSON) -> JSON:
        """Token 2 becomes the first half of a character."""
        for entry in answer["choices"][0]["logprobs"]["content"]:
            for each in (entry, *entry["top_logprobs"]):
                if each["id"] == 2:
                    each |= {"token": "", "bytes": half}
        return answer

    with ExactServer(SMALL, faults=broken) as server, RulesGateway("openai", server) as gateway:
        answer = ask(gateway, max_tokens=1, logprobs=True, top_logprobs=6, logit_bias={"2": 100})
        (entry,) = answer["choices"][0]["logprobs"]["content"]
        assert (entry["token"], entry["bytes"]) == (" \\xe2\\x80", half)
        lists = ask_legacy(gateway, max_tokens=1, logprobs=5, logit_bias={"2": 100})["choices"][0][
            "logprobs"
        ]
        assert lists["tokens"] == ["bytes: \\xe2\\x80"]


def test_legacy_lists(gateway: RulesGateway, engine: ExactServer) -> None:
    """String keys in no order, offsets from the end of the prompt, real logprobs even outside the
    list, null for none.
    """
    ranks = np.argsort(-FIRST, kind="stable").tolist()
    names = [*engine.texts[:END], "<|endoftext|>"]
    outside, orders = 0, set()
    for choice in ask_legacy(gateway, n=60, logprobs=3)["choices"]:
        lists = choice["logprobs"]
        assert "".join(lists["tokens"]) == choice["text"]
        if not lists["tokens"]:
            continue
        assert {names.index(text) for text in lists["top_logprobs"][0]} == set(ranks[:3])
        orders.add(tuple(lists["top_logprobs"][0]))
        token = names.index(lists["tokens"][0])
        assert lists["token_logprobs"][0] == pytest.approx(FIRST[token], rel=1e-6)
        outside += lists["tokens"][0] not in lists["top_logprobs"][0]
        starts = np.cumsum([5, *map(len, lists["tokens"])])[:-1]
        assert lists["text_offset"] == starts.tolist()
    assert outside > 0
    assert len(orders) > 1
    assert ask_legacy(gateway, logprobs=0)["choices"][0]["logprobs"]["top_logprobs"] is None


def test_stop_sequences(gateway: RulesGateway, engine: ExactServer) -> None:
    """The text ends before the stop sequence; chat lists what is before it, legacy lists everything
    generated.
    """
    bias = {"4": 100}  # " e e e"
    answer = ask(gateway, logprobs=True, logit_bias=bias, stop=[" e e e", "e e"])
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    assert answer["usage"]["completion_tokens"] == 3
    choice = ask(gateway, logprobs=True, logit_bias=bias, stop="e e")["choices"][0]
    assert (choice["message"]["content"], len(choice["logprobs"]["content"])) == (" ", 1)
    choice = ask_legacy(gateway, logprobs=1, logit_bias=bias, stop="e e")["choices"][0]
    assert (choice["text"], choice["logprobs"]["tokens"]) == (" ", [" e"] * 3)
    assert choice["logprobs"]["text_offset"] == [5, 6, 6]
    assert "stop" not in engine.requests[-1]


def test_fireworks_tells_both_logprobs(engine: ExactServer) -> None:
    """Ids in every entry; ``logprob`` is the model's, ``sampling_logprob`` that of what was sampled
    from, both exact.
    """
    bias, temperature = {3: 2.5, 7: -1.25}, 0.7
    delta = np.array([bias.get(token, 0.0) for token in range(SIZE)])
    tilted = log_softmax((FIRST + delta) / temperature)
    fields: JSON = {"n": 50, "max_tokens": 1, "logprobs": True, "top_logprobs": 5}
    with RulesGateway("fireworks", engine) as gateway:
        plain = ask(gateway, **fields)
        answer = ask(gateway, **fields, temperature=temperature, logit_bias=bias)
        for choice in plain["choices"]:
            for entry in choice["logprobs"]["content"]:
                assert (
                    entry["sampling_logprob"]
                    == entry["logprob"]
                    == pytest.approx(FIRST[entry["token_id"]], rel=1e-6)
                )
        ranks = np.argsort(-FIRST, kind="stable").tolist()
        for choice in answer["choices"]:
            for entry in choice["logprobs"]["content"]:
                assert entry["logprob"] == pytest.approx(FIRST[entry["token_id"]], rel=1e-6)
                assert entry["sampling_logprob"] == pytest.approx(
                    tilted[entry["token_id"]], rel=1e-5
                )
                assert [other["token_id"] for other in entry["top_logprobs"]] == ranks[:5]
        assert (
            ask(gateway, **fields, presence_penalty=1)["choices"][0]["logprobs"]["content"][0][
                "sampling_logprob"
            ]
            is None
        )


def test_fireworks_truncation_is_in_the_propensity(engine: ExactServer) -> None:
    """With top_k 3 only three tokens are drawn, and their propensities sum to 1."""
    with RulesGateway("fireworks", engine) as gateway:
        told = {}
        for choice in ask(
            gateway,
            n=60,
            max_tokens=1,
            logprobs=True,
            top_logprobs=1,
            extra_body={"top_k": 3, "return_token_ids": True},
        )["choices"]:
            for entry in choice["logprobs"]["content"]:
                told[entry["token_id"]] = entry["sampling_logprob"]
            assert choice["token_ids"] == [
                entry["token_id"] for entry in choice["logprobs"]["content"]
            ]
        assert set(told) <= set(np.argsort(-FIRST)[:3].tolist())
        assert np.exp(list(told.values())).sum() == pytest.approx(1.0, rel=1e-5)


def test_fireworks_legacy_lists(engine: ExactServer) -> None:
    """``logprobs`` as a number gives parallel lists with ids."""
    with RulesGateway("fireworks", engine) as gateway:
        extra = {"logprobs": 2, "top_k": 1}
        lists = ask(gateway, extra_body=extra, max_tokens=2)["choices"][0]["logprobs"]
        assert len(lists["token_ids"]) == len(lists["tokens"]) == len(lists["top_logprobs"])
        assert lists["token_ids"][0] == int(FIRST.argmax())


def test_lie_of_truncated_sampling(small: ExactServer) -> None:
    """Top-p .9: the tail is never drawn although it has a tenth of the mass, and the logprobs do
    not show it.
    """
    shares = np.exp(SMALL.logprobs())
    order = np.argsort(-shares)
    tail = set(order[1 + int(np.searchsorted(np.cumsum(shares[order]), 0.9)) :].tolist())
    assert sum(shares[token] for token in tail) > 0.03
    with RulesGateway("openai", small, lie="top_p 0.9", quantise=None) as gateway:
        assert not set(firsts(gateway, small.texts)) & tail
        entry = ask(gateway, max_tokens=1, logprobs=True, top_logprobs=6)["choices"][0]["logprobs"][
            "content"
        ][0]
        assert np.exp([other["logprob"] for other in entry["top_logprobs"]]).sum() == pytest.approx(
            1.0, rel=1e-5
        )


def test_lie_of_logprobs_after_the_bias(engine: ExactServer) -> None:
    """The returned logprobs are exactly the tilted model's, those of unbiased requests the
    model's.
    """
    bias = {3: 2.5, 7: -1.25, 11: 60.0}
    tilted = log_softmax(FIRST + np.array([bias.get(token, 0.0) for token in range(SIZE)]))
    cases: list[tuple[Lie | None, Any]] = [("after bias", tilted), (None, FIRST)]
    for lie, truth in cases:
        with RulesGateway("openai", engine, lie=lie, quantise=None) as gateway:
            answer = ask(gateway, max_tokens=1, logprobs=True, top_logprobs=4, logit_bias=bias)
            (entry,) = answer["choices"][0]["logprobs"]["content"]
            listed = [token_of(other, engine.texts) for other in entry["top_logprobs"]]
            assert listed == np.argsort(-truth, kind="stable")[:4].tolist()
            np.testing.assert_allclose(
                [other["logprob"] for other in entry["top_logprobs"]], truth[listed], rtol=1e-5
            )
            assert token_of(entry, engine.texts) == 11  # it is drawn in any case


def test_lie_of_an_ignored_bias(small: ExactServer) -> None:
    """A bias of 100 forces its token on an honest service and changes nothing on this one."""
    rare = int(SMALL.logprobs().argmin())
    with (
        RulesGateway("openai", small) as honest,
        RulesGateway("openai", small, lie="ignored bias") as liar,
    ):
        assert set(firsts(honest, small.texts, 125, logit_bias={str(rare): 100})) == {rare}
        assert fits(firsts(liar, small.texts, logit_bias={str(rare): 100}), SMALL.logprobs()) > 1e-4


def test_lie_of_sixty_four_entries(engine: ExactServer) -> None:
    """64 entries are taken, 65 refused in the words of the real limit."""
    with RulesGateway("openai", engine, lie="64 entries", largest=1000) as gateway:
        ask(gateway, max_tokens=1, logit_bias={str(token): 1 for token in range(64)})
        with pytest.raises(
            openai.BadRequestError, match="You provided 65 logit biases, but can provide at most 64"
        ):
            ask(gateway, max_tokens=1, logit_bias={str(token): 1 for token in range(65)})


def test_lie_of_integers(engine: ExactServer) -> None:
    """Fractions reach the engine rounded; without the lie they reach it as they are."""
    cases: list[tuple[Lie | None, Any]] = [
        ("integers", [[3, 2.0], [7, 0.0]]),
        (None, [[3, 1.75], [7, -0.25]]),
    ]
    for lie, sent in cases:
        with RulesGateway("openai", engine, lie=lie) as gateway:
            ask(gateway, max_tokens=1, logit_bias={"3": 1.75, "7": -0.25})
            assert engine.requests[-1]["logit_bias"] == sent


def test_every_lie_has_a_test() -> None:
    """The lies that can be planted are the five above."""
    assert get_args(Lie) == ("top_p 0.9", "after bias", "ignored bias", "64 entries", "integers")


def test_the_engine_is_asked_neutrally(gateway: RulesGateway, engine: ExactServer) -> None:
    """What the request does not say is neutral, as llama.cpp wants it said."""
    ask(gateway, max_tokens=1)
    neutral = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "repeat_penalty": 1.0,
    }
    assert neutral.items() <= engine.requests[-1].items()
    ask(gateway, max_tokens=1, temperature=0.5, top_p=0.25)
    assert {"temperature": 0.5, "top_p": 0.25}.items() <= engine.requests[-1].items()
