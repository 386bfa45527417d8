"""Real servers' answers, replayed: collection, both endpoints, the bias, the tokenizer and the
errors of each provider.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.errors import RequestRejected
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.columns import columns
from blackbox_lb.rollouts.positions import training_set
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import parse_reward
from blackbox_lb.types import Completion, Example, Prompt, Sampling
from tests.support.collecting import collect
from tests.support.errors import raises_naming
from tests.support.fits import projection
from tests.support.smollm import tokenizer_json

if TYPE_CHECKING:
    from vcr.cassette import Cassette

T = TypeVar("T")
END = 2
PERIOD = 30
VOCABULARY = 49_152
FINGERPRINT = "probe-sha256:cd84d358e4b578e905070cbdfe1dab8d"
RECORDED_AT = "http://127.0.0.1:8000/v1"
TOO_MANY = {"sglang": 9000}
"""Words that are more than the recorded server's context, where that is larger than the others'."""
COUNTRIES = ("Albania", "Angola", "Antigua and Barbuda", "Argentina", "Australia", "Austria")
EXAMPLES = [
    Example(country, Prompt.user(f"What is the capital of {country}?")) for country in COUNTRIES
]
SAMPLING = Sampling(max_tokens=12, top_logprobs=5, seed=5)


@pytest.fixture(params=["vllm", "sglang", "llamacpp"])
def provider(request: pytest.FixtureRequest) -> str:
    """Each provider that was recorded."""
    return str(request.param)


@pytest.fixture
def default_cassette_name(request: pytest.FixtureRequest, provider: str) -> str:
    """cassettes/PROVIDER/TEST.yaml."""
    return f"{provider}/{request.function.__name__.removeprefix('test_')}"


def talk(provider: str, endpoint: Endpoint, work: Callable[[Session], Awaitable[T]]) -> T:
    """Run ``work`` in a session with the recorded (or, to record, the running) server."""
    address = os.environ.get(f"BLB_RECORD_{provider.upper()}", RECORDED_AT)

    profile = load_profile(provider)
    # Where an endpoint names tokens by their text alone, their ids come from the model's own
    # vocabulary.
    tokenizer = str(tokenizer_json()) if profile.endpoint(endpoint).id == "latin-1" else None

    async def go() -> T:
        async with Session(
            profile, base_url=address, endpoint=endpoint, tokenizer=tokenizer
        ) as session:
            return await work(session)

    return asyncio.run(go())


def assert_played(vcr: Cassette) -> None:
    """No part of a recording is left over."""
    from vcr.record_mode import RecordMode

    assert vcr.record_mode != RecordMode.NONE or vcr.all_played


async def as_recorded(*arguments: Any) -> Completion:
    """The completion as it came: the recordings are older than the requests for parts of
    characters.
    """
    completion: Completion = arguments[-1]
    return completion


@pytest.mark.vcr
def test_collect(
    provider: str, tmp_path: Path, vcr: Cassette, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six prompts with four samples each become rollouts in which the estimator finds a better
    policy for short answers.
    """
    monkeypatch.setattr("blackbox_lb.rollouts.collect.with_fragments", as_recorded)
    reward = parse_reward("length", max_tokens=12)
    with RolloutStore(tmp_path / "s.db") as store:

        async def work(session: Session) -> tuple[tuple[str, ...], ...]:
            tokenizer = await session.tokenizer()
            assert tokenizer.fingerprint == FINGERPRINT
            assert tokenizer.vocabulary_size in (VOCABULARY, None)
            prompts = [example.prompt for example in EXAMPLES]
            done = await collect(
                session, store, tokenizer, prompts, Draw(SAMPLING), samples=4, concurrency=2
            )
            return done.keys

        keys = talk(provider, "chat", work)
        training = training_set(store, EXAMPLES, keys, reward)
        drawn = [key for row in keys for key in row]
        whole = {
            key: each
            for key, each in zip(drawn, store.completions(drawn), strict=True)
            if each.whole
        }
    assert_played(vcr)
    rollouts = columns(whole, [0] * len(whole), [0.0] * len(whole))
    assert (training.rollouts.keys, training.rollouts.token_ids.tolist()) == (
        rollouts.keys,
        rollouts.token_ids.tolist(),
    )
    assert len(whole) + training.tally["incomplete"] == 24
    assert set(rollouts.lengths) <= set(range(1, 13))
    table = training.next_token
    assert table.overfull == 0
    sure = 4 if provider == "vllm" else 5
    assert ((rollouts.top_ids >= 0).sum(axis=1) == sure).all()
    listed = rollouts.top_ids == rollouts.token_ids[:, None]
    assert np.allclose(
        rollouts.top_logprobs[listed], rollouts.logprobs[listed.any(axis=1)], atol=1e-6
    )
    ended = rollouts.token_ids[np.cumsum(rollouts.lengths) - 1] == END
    assert ended[rollouts.lengths < 12].all()
    fitted = projection(training.rollouts, l2=1.0, next_token=table)
    assert fitted.gain > 0


@pytest.mark.vcr
def test_completions_endpoint(provider: str, vcr: Cassette) -> None:
    """The legacy endpoint gives ids, logprobs and all five alternatives."""

    async def work(session: Session) -> None:
        completion = await session.complete(EXAMPLES[0].prompt, SAMPLING)
        assert completion.whole
        assert completion.n_tokens >= 1
        assert completion.top_ids.shape == (completion.n_tokens, 5)
        assert (completion.top_ids >= 0).all()
        assert (np.exp(completion.top_logprobs).sum(axis=1) <= 1.0001).all()

    talk(provider, "completions", work)
    assert_played(vcr)


@pytest.mark.vcr
def test_a_bias_moves_sampling(provider: str, vcr: Cassette) -> None:
    """+100 on the end token ends every completion at once; its logprob is the unbiased model's, or
    the biased one's: as claimed.
    """

    async def work(session: Session) -> None:
        prompt = EXAMPLES[0].prompt
        biased = await session.complete(prompt, SAMPLING, {END: 100.0})
        assert biased.token_ids.tolist() == [END]
        assert biased.finish_reason == "stop"
        if session.profile.logprobs.meaning == "after bias":
            assert biased.logprobs[0] > -1e-6
            return
        assert biased.logprobs[0] < -3
        free = await session.complete(prompt, SAMPLING)
        assert biased.top_ids[0].tolist() == free.top_ids[0].tolist()
        assert np.allclose(biased.top_logprobs[0], free.top_logprobs[0], atol=0.05)

    talk(provider, "chat", work)
    assert_played(vcr)


@pytest.mark.vcr
@pytest.mark.parametrize("provider", ["llamacpp"], indirect=True)
def test_a_stop_text(provider: str, vcr: Cassette) -> None:
    """The text ends before a stop text, whose tokens are counted and not listed; what is listed can
    be learned from.
    """

    async def work(session: Session) -> None:
        prompt, stopping = (
            Prompt.user("Write a long story about a dog."),
            replace(SAMPLING, max_tokens=40, stop=(".", " a dog")),
        )
        several = await session.complete(prompt, stopping)
        free = await session.complete(prompt, replace(stopping, stop=()))
        assert free.text.startswith(several.text)
        assert not any(stop in several.text for stop in stopping.stop)
        assert any(free.text.startswith(several.text + stop) for stop in stopping.stop)
        assert (several.whole, several.finish_reason) == (True, "stop")
        listed = len(several.token_ids)
        assert listed < several.n_tokens <= listed + 2
        assert several.token_ids.tolist() == free.token_ids[:listed].tolist()
        assert np.allclose(several.logprobs, free.logprobs[:listed], atol=1e-3)
        at_once = await session.complete(prompt, stopping, {PERIOD: 100.0})
        assert (at_once.text, at_once.whole, at_once.n_tokens, len(at_once.token_ids)) == (
            "",
            True,
            1,
            0,
        )

    talk(provider, "chat", work)
    assert_played(vcr)


@pytest.mark.vcr
def test_texts_of_tokens(provider: str, vcr: Cassette) -> None:
    """The server prints tokens, special ones and fragments of a character included."""

    async def work(session: Session) -> None:
        assert await session.texts_of([7042, END, 116]) == [" Paris", "<|im_end|>", "\ufffd"]

    talk(provider, "chat", work)
    assert_played(vcr)


@pytest.mark.vcr
def test_a_refusal_in_the_servers_own_words(provider: str, vcr: Cassette) -> None:
    """A prompt longer than the context comes back as the server's sentence, without a retry."""

    async def work(session: Session) -> None:
        with raises_naming(RequestRejected, "400", "``max_tokens``"):
            await session.complete(Prompt.user("word " * TOO_MANY.get(provider, 4000)), SAMPLING)

    talk(provider, "chat", work)
    assert_played(vcr)
