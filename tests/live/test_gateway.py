"""The rules gateway in front of the embedded engine: the same tokens and logprobs in the provider's
shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from scipy.special import log_softmax

from blackbox_lb.api.local.engine import LocalEngine, resolve_model
from tests.live.test_local_engine import END, VOCABULARY, logprobs_of
from tests.support.errors import raises_naming
from tests.support.gateway import RulesGateway

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.live

JSON = dict[str, Any]
QUESTION = "What is the capital of France?"
FIRE = "accounts/fireworks/models/gateway"


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    """One engine for the whole module."""
    with LocalEngine(resolve_model(), parallel=8, context=256) as running:
        yield running


def ask(gateway: RulesGateway, model: str, **fields: Any) -> Any:
    """One chat answer."""
    with openai.OpenAI(base_url=gateway.base_url, api_key=gateway.key, max_retries=0) as client:
        body: JSON = {"model": model, "messages": [{"role": "user", "content": QUESTION}], **fields}
        return client.chat.completions.create(**body)


def test_openai_rules_on_a_real_model(engine: LocalEngine) -> None:
    """Bytes add up to the text, gaps are sixteenths, special tokens have a name and no bytes, and
    the last id may be biased.
    """
    with RulesGateway("openai", engine) as gateway:
        answer = ask(
            gateway, "gpt-4o-mini", n=3, seed=1, max_tokens=12, logprobs=True, top_logprobs=20
        )
        special = set()
        for choice in answer.choices:
            joined = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
            assert joined.decode() == choice.message.content
            for entry in choice.logprobs.content:
                listed = np.array([other.logprob for other in entry.top_logprobs])
                gaps = (listed[0] - listed) * 16
                np.testing.assert_allclose(gaps, np.round(gaps), atol=1e-3)
                special |= {other.token for other in entry.top_logprobs if other.bytes is None}
        assert answer.usage.completion_tokens == sum(
            len(choice.logprobs.content) for choice in answer.choices
        )
        assert "<|im_end|>" in special
        ask(gateway, "gpt-4o-mini", max_tokens=1, logit_bias={str(VOCABULARY - 1): 1})
        with raises_naming(openai.BadRequestError, VOCABULARY - 1):
            ask(gateway, "gpt-4o-mini", max_tokens=1, logit_bias={str(VOCABULARY): 1})
        assert gateway.invalid_requests == []


def test_fireworks_propensities_on_a_real_model(engine: LocalEngine) -> None:
    """Both logprobs are exact: the model's, and the tilted one's over the whole vocabulary; the end
    token can be forced.
    """
    bias = {3575: 2.0, 504: -3.0}
    with RulesGateway("fireworks", engine) as gateway:
        fields: JSON = {"n": 4, "max_tokens": 8, "logprobs": True, "top_logprobs": 5}
        biased = ask(gateway, FIRE, logit_bias=bias, **fields).to_dict()
        whole = logprobs_of(engine, "/v1/chat/completions", QUESTION)
        delta = np.array([bias.get(token, 0.0) for token in range(VOCABULARY)])
        tilted = log_softmax(whole + delta)
        # A character of several tokens is not listed, and then what is listed first was not sampled
        # first.
        listed = [
            (choice["logprobs"]["content"], choice["message"]["content"])
            for choice in biased["choices"]
        ]
        firsts = [
            entries[0]
            for entries, text in listed
            if entries and text.startswith(entries[0]["token"])
        ]
        assert firsts
        for entry in firsts:
            assert entry["logprob"] == pytest.approx(whole[entry["token_id"]], abs=2e-3)
            assert entry["sampling_logprob"] == pytest.approx(tilted[entry["token_id"]], abs=2e-3)
        told = [
            entry["sampling_logprob"]
            for choice in biased["choices"]
            for entry in choice["logprobs"]["content"]
        ]
        assert sum(value is None for value in told) <= len(told) / 4
        forced = ask(gateway, FIRE, logit_bias={str(END): 100}, max_tokens=4, logprobs=True)
        assert forced.choices[0].logprobs.content == []
        assert forced.choices[0].finish_reason == "stop"
