"""Phrases that are kept out of a language model's answers: by a client and through ``blb proxy``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from blackbox_lb import apply
from blackbox_lb.api.local.engine import LocalEngine, resolve_model
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.phrases import PhraseList
from tests.live.test_third_party import Served, chunks, curl, running_proxy, text_of
from tests.support.environments import OFFLINE, Install, environment, output
from tests.support.smollm import FINGERPRINT

__all__ = ["environment"]  # a fixture

QUESTION = "Is the sky blue?"
MAX_TOKENS = 20  # as curl of the other clients' tests asks


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """SmolLM2 behind a proxy that keeps two stretches of its own greedy answer out."""
    pytest.importorskip("xllamacpp")
    folder = tmp_path_factory.mktemp("phrases")
    with LocalEngine(resolve_model(), parallel=2, context=512, threads=2) as engine:
        model = httpx2.get(f"{engine.base_url}/models").json()["data"][0]["id"]
        words = greedy(engine.base_url, model).split()
        bias = Bias(
            provider="llamacpp",
            model=model,
            tokenizer=FINGERPRINT,
            reward="avoid:phrases.txt",
            estimator="words",
            entries=(),
            phrases=(f'"{words[1]} {words[2]}"', f'"{words[4]} {words[5]} {words[6]}"'),
        )
        bias.save(folder / "free.json")
        with running_proxy(
            f"--bias=free={folder / 'free.json'}", "--upstream", engine.base_url
        ) as proxy:
            yield Served(engine.base_url, proxy, model, folder)


def greedy(base: str, model: str) -> str:
    """The engine's own answer."""
    content = [{"role": "user", "content": QUESTION}]
    body = {"model": model, "messages": content, "temperature": 0, "max_tokens": MAX_TOKENS}
    answer = httpx2.post(f"{base}/chat/completions", json=body, timeout=60).raise_for_status()
    return text_of(answer.json())


def asked(model: str) -> dict[str, Any]:
    """What the SDK is asked."""
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS}


def free(served: Served) -> tuple[str, Any]:
    """Text and usage of the answer that a biased client gets."""
    plain = openai.OpenAI(base_url=served.engine, api_key="none")
    client = apply(plain, served.folder / "free.json")
    answer = client.chat.completions.create(**asked(served.model))
    return answer.choices[0].message.content or "", answer.usage


@pytest.mark.live
def test_a_client_gets_an_answer_without_them(served: Served) -> None:
    """It has as many tokens as were asked for, and begins as the engine's own does."""
    own = greedy(served.engine, served.model)
    text, usage = free(served)
    phrases = PhraseList.of_entries(Bias.load(served.folder / "free.json").phrases)
    assert phrases.hits(own)
    assert not phrases.hits(text)
    assert text.split()[0] == own.split()[0]
    assert usage.completion_tokens <= MAX_TOKENS
    assert usage.x_phrases["steps_back"] >= 1
    assert usage.x_phrases["let_through"] == 0


@pytest.mark.live
def test_clients_of_the_proxy_get_the_same(served: Served) -> None:
    """curl and the SDK, whole and as a stream."""
    expected = free(served)[0]
    assert text_of(json.loads(curl(served, "chat", "@free", QUESTION))) == expected
    streamed = chunks(curl(served, "chat", "@free", QUESTION, stream=True))
    assert "".join(text_of(chunk) for chunk in streamed) == expected
    assert len(streamed) > 5
    client = openai.OpenAI(base_url=served.proxy, api_key="none")
    events = client.chat.completions.create(stream=True, **asked(f"{served.model}@free"))
    assert "".join(event.choices[0].delta.content or "" for event in events) == expected
    assert text_of(json.loads(curl(served, "chat", "", QUESTION))) == greedy(
        served.engine, served.model
    )


@pytest.mark.live
@pytest.mark.slow
def test_llm_gets_the_same(served: Served, environment: Install, tmp_path: Path) -> None:
    """The command ``llm``, which streams."""
    program = environment("llm") / "llm"
    model = f"{served.model}@free"
    row = {"model_id": "free", "model_name": model, "api_base": served.proxy}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([row]))
    options = ["-o", "temperature", "0", "-o", "max_tokens", str(MAX_TOKENS)]
    printed = output(
        program, "-m", "free", *options, QUESTION, LLM_USER_PATH=str(tmp_path), **OFFLINE
    )
    assert printed.strip() == free(served)[0].strip()
