"""Providers that cannot be recorded here, played from their documentation: what goes out and what
comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias
from blackbox_lb.jobs.fitting.scored_policies import BASE, BIASED, score_policies, verdict_of
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.rollouts.positions import training_set
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import parse_reward
from blackbox_lb.types import UNNAMED, Completion, Example, Prompt, Sampling
from tests.support.collecting import collect
from tests.support.fits import projection
from tests.support.smollm import tokenizer_json

if TYPE_CHECKING:
    from vcr.cassette import Cassette

T = TypeVar("T")
CAPITAL = Prompt.user("Name the capital of Estonia in one word.")
EMOJI = Prompt.user("Show a parrot as one emoji.")
QUESTION = Prompt.user("Is the sky blue? Answer yes or no.")
SIXTEEN = Sampling(max_tokens=16)
EIGHT = Sampling(max_tokens=8, top_logprobs=5)
RESPONSES = Sampling(max_tokens=16, top_logprobs=5)
"""The Responses API takes no ``max_output_tokens`` below 16."""
MINI: dict[str, Any] = {"model": "gpt-4o-mini"}
DEPLOYMENT: dict[str, Any] = {"model": "capitals", "tokenizer": "o200k_base"}
FIREWORKS_MODEL = "accounts/example/deployments/smollm2"
SMOLLM2 = "probe-sha256:cd84d358e4b578e905070cbdfe1dab8d"
"""The fingerprint of its tokenizer, as vLLM, SGLang and llama.cpp tell it."""
KEYS = {
    "OPENAI_API_KEY": "placeholder-for-openai",
    "AZURE_OPENAI_API_KEY": "placeholder-for-azure",
    "FIREWORKS_API_KEY": "placeholder-for-fireworks",
    "LM_API_TOKEN": "placeholder-for-lmstudio",
}
FOREIGN = (
    *("OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_API_VERSION"),
    *("AZURE_OPENAI_AD_TOKEN", "FIREWORKS_BASE_URL", "LMSTUDIO_BASE_URL"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
)
"""What else a user's shell may hold."""
SENT: list[dict[str, str]] = []
"""Headers of the requests of the running test, names in small letters; never written anywhere."""

pytestmark = [pytest.mark.vcr, pytest.mark.usefixtures("tiktoken_cache")]


@pytest.fixture(scope="module")
def vcr_config(vcr_config: dict[str, Any]) -> dict[str, Any]:
    """The address counts too, and what is sent is noted before its headers are dropped."""
    strip = vcr_config["before_record_request"]

    def note(request: Any) -> Any:
        headers = {name.lower(): value for name, value in request.headers.items()}
        if "user-agent" in headers:
            SENT.append(headers)
        return strip(request)

    match_on = ["scheme", "host", "port", *vcr_config["match_on"]]
    return {**vcr_config, "match_on": match_on, "before_record_request": note}


@pytest.fixture
def default_cassette_name(request: pytest.FixtureRequest) -> str:
    """test_azure_classic_collect plays cassettes/azure-classic/collect.yaml."""
    name = request.function.__name__.removeprefix("test_")
    return str(name.replace("azure_classic", "azure-classic").replace("_", "/", 1))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, vcr: Cassette) -> Iterator[None]:
    """Placeholders for keys and nothing else; every part of the cassette is asked for."""
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://example-resource.openai.azure.com")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    SENT.clear()
    yield
    SENT.clear()
    assert vcr.all_played


def talk(provider: str, work: Callable[[Session], Awaitable[T]], **options: Any) -> T:
    """Run ``work`` in a session with the provider."""

    async def go() -> T:
        async with Session(load_profile(provider), **options) as session:
            return await work(session)

    return asyncio.run(go())


Keys = tuple[tuple[str, ...], ...]


def gathered(
    provider: str,
    store: RolloutStore,
    prompts: Sequence[Prompt],
    samples: int,
    sampling: Sampling,
    **options: Any,
) -> tuple[Keys, list[Completion]]:
    """Keys and completions of all prompts, collected into ``store``; a second run has nothing left
    to ask for.
    """

    async def work(session: Session) -> Keys:
        tokenizer = await session.tokenizer()
        wanted: dict[str, Any] = {"draw": Draw(sampling), "samples": samples, "concurrency": 1}
        first = await collect(session, store, tokenizer, prompts, **wanted)
        again = await collect(session, store, tokenizer, prompts, **wanted)
        assert (first.received, again.received) == (len(prompts) * samples, 0)
        assert first.keys == again.keys
        return first.keys

    keys = talk(provider, work, **options)
    return keys, list(store.completions([key for row in keys for key in row]))


def ids(completions: Sequence[Completion]) -> list[list[int]]:
    """The sampled tokens of each."""
    return [completion.token_ids.tolist() for completion in completions]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RolloutStore]:
    """An empty store."""
    with RolloutStore(tmp_path / "s.db") as opened:
        yield opened


def test_openai_collect(store: RolloutStore) -> None:
    """Three samples a request; bytes become ids, of fragments of an emoji too; a censored token is
    bounded, a special unnamed.
    """
    examples = [Example("capital", CAPITAL), Example("emoji", EMOJI)]
    keys, drawn = gathered("openai", store, [CAPITAL, EMOJI], 3, SIXTEEN, **MINI)
    assert ids(drawn[:3]) == [[155897, 3148], [155897, 3148, 13], [720, 1105]]
    assert ids(drawn[3:]) == [[4103, 99, 250], [4103, 99, 250], [4103, 99, 231]]
    assert [each.text for each in drawn] == ["Tallinn", "Tallinn.", "Reval", "🦜", "🦜", "🦉"]
    assert {each.prompt_tokens for each in drawn} == {16, 15}
    assert all(each.whole and each.n_tokens == len(each.token_ids) for each in drawn)
    reval = drawn[2]
    assert reval.bounded is not None
    assert reval.bounded.tolist() == [True, False]
    assert 720 not in reval.top_ids[0]
    assert reval.logprobs[0] == reval.top_logprobs[0, 19]
    assert drawn[1].top_ids[2, 0] == UNNAMED
    assert sum(int((each.top_ids < 0).sum()) for each in drawn) == 1
    size = store.size()
    assert (size.completions, size.tokens, size.bounded, size.outside) == (6, 16, 1, 1)
    training = training_set(store, examples, keys, parse_reward("length", max_tokens=16))
    assert (training.tally["incomplete"], training.tally["filtered"]) == (0, 0)
    table = training.next_token
    assert table.overfull == 0
    assert np.isfinite(projection(training.rollouts, l2=1.0, next_token=table).delta).all()


def test_openai_a_biased_request() -> None:
    """Whole numbers go out as integers; logprobs that come back are the unbiased model's, so what
    the bias forced is bounded.
    """

    async def work(session: Session) -> tuple[Completion, Completion]:
        assert session.highest_id == 199999
        assert session.tells_base_logprobs
        free = await session.complete(CAPITAL, SIXTEEN)
        bias = {720: 15.0, 1105: 5.0, 13: -100.0}
        return free, await session.complete(CAPITAL, SIXTEEN, bias)

    free, biased = talk("openai", work, **MINI)
    assert ids([free, biased]) == [[155897, 3148, 13], [720, 1105]]
    assert biased.top_ids[0].tolist() == free.top_ids[0].tolist()
    assert biased.top_logprobs[0].tolist() == free.top_logprobs[0].tolist()
    assert biased.bounded is not None
    assert biased.bounded.tolist() == [True, False]
    assert {headers["authorization"] for headers in SENT} == {f"Bearer {KEYS['OPENAI_API_KEY']}"}


def test_openai_completions_endpoint() -> None:
    """Strings become ids, ``bytes:\\x`` escapes and a special token's name too; a sampled token
    beside its five stays outside.
    """

    async def work(session: Session) -> list[Completion]:
        sampling = Sampling(max_tokens=3, top_logprobs=5)
        return [
            await session.complete(Prompt.user("The capital of Estonia is"), sampling)
            for _ in range(3)
        ]

    tallinn, riga, owl = drawn = talk(
        "openai", work, model="gpt-3.5-turbo-instruct", endpoint="completions"
    )
    assert ids(drawn) == [[42202, 6258, 13], [432, 16960], [11410, 99, 231]]
    assert [each.text for each in drawn] == [" Tallinn.", " Riga", " 🦉"]
    assert all(
        each.whole and each.top_ids.shape == (each.n_tokens, 5) and (each.top_ids >= 0).all()
        for each in drawn
    )
    assert 378 in tallinn.top_ids[1]
    assert 100257 in tallinn.top_ids[2]
    assert 432 not in riga.top_ids[0]
    assert riga.logprobs[0] < riga.top_logprobs[0, 4]
    assert owl.bounded is None


def test_azure_collect(store: RolloutStore) -> None:
    """Two samples a request under /openai/v1, the key in a header of its own; the answer names the
    model behind the deployment.
    """
    _, drawn = gathered("azure", store, [CAPITAL], 2, SIXTEEN, **DEPLOYMENT)
    assert ids(drawn) == [[155897, 3148], [720, 1105]]
    assert {each.model for each in drawn} == {"gpt-4o-mini-2024-07-18"}
    assert store.size().bounded == 1
    assert {headers["api-key"] for headers in SENT} == {KEYS["AZURE_OPENAI_API_KEY"]}
    assert not any("authorization" in headers for headers in SENT)


def test_azure_a_filtered_prompt(store: RolloutStore, vcr: Cassette) -> None:
    """Refused with 400, or with 200 and the refusal inside: asked once, counted, kept, and the
    other prompts go on.
    """
    bad = "A prompt that the filter refuses."
    prompts = [Prompt.user(bad), Prompt.user(f"{bad} Again."), CAPITAL]
    keys, drawn = gathered("azure", store, prompts, 2, SIXTEEN, **DEPLOYMENT)
    assert vcr.play_count == 4
    assert [each.filtered for each in drawn] == [True] * 4 + [False] * 2
    assert ids(drawn[:4]) == [[]] * 4
    examples = [Example(prompt.text, prompt) for prompt in prompts]
    training = training_set(store, examples, keys, parse_reward("length", max_tokens=16))
    assert (
        training.tally["filtered"],
        training.tally["incomplete"],
        len(training.rollouts.keys),
    ) == (4, 0, 2)
    assert (
        "4 completions are left out: the provider's content filter stopped them"
        in training.left_out
    )


def test_azure_a_filtered_completion(store: RolloutStore) -> None:
    """A choice without message and logprobs is counted and kept; its sibling is read."""
    prompt = Prompt.user("A prompt with an answer that the filter withholds.")
    _, (withheld, sibling) = gathered("azure", store, [prompt], 2, SIXTEEN, **DEPLOYMENT)
    assert (withheld.filtered, withheld.text, ids([withheld])) == (True, "", [[]])
    assert not withheld.whole
    assert (sibling.filtered, sibling.text, ids([sibling])) == (False, "Tallinn", [[155897, 3148]])
    assert sibling.whole


def test_azure_classic_collect(store: RolloutStore) -> None:
    """The deployment in the path, an api-version with every request, and max_tokens."""
    _, drawn = gathered("azure-classic", store, [CAPITAL], 2, SIXTEEN, **DEPLOYMENT)
    assert ids(drawn) == [[155897, 3148], [155897, 3148, 13]]
    assert {headers["api-key"] for headers in SENT} == {KEYS["AZURE_OPENAI_API_KEY"]}


def test_fireworks_collect(store: RolloutStore) -> None:
    """One sample a request; ids stand beside the tokens and are the vocabulary's; four of five
    alternatives are sure.
    """
    model = {"model": FIREWORKS_MODEL, "tokenizer": str(tokenizer_json())}
    keys, drawn = gathered("fireworks", store, [QUESTION], 3, EIGHT, **model)
    assert ids(drawn) == [[10539, 30], [5230], [34355, 17]]
    assert all(each.whole and each.top_ids.shape == (each.n_tokens, 4) for each in drawn)
    assert {each.prompt_tokens for each in drawn} == {40}
    for each in drawn:
        assert each.propensities is not None
        assert np.allclose(each.propensities, each.logprobs, atol=1e-5)
    assert 34355 not in drawn[2].top_ids[0]
    training = training_set(
        store, [Example("sky", QUESTION)], keys, parse_reward("length", max_tokens=8)
    )
    assert len(training.rollouts.keys) == 3
    assert training.next_token.overfull == 0
    assert {headers["authorization"] for headers in SENT} == {f"Bearer {KEYS['FIREWORKS_API_KEY']}"}


def test_fireworks_a_biased_request() -> None:
    """Fractions go out as they are; the propensity is the tilted logprob, the logprob and the list
    stay the model's.
    """
    bias = {5230: 2.5, 10539: -1.25}
    biased = talk(
        "fireworks", lambda session: session.complete(QUESTION, EIGHT, bias), model=FIREWORKS_MODEL
    )
    assert ids([biased]) == [[5230]]
    listed = dict(zip(biased.top_ids[0].tolist(), biased.top_logprobs[0].tolist(), strict=True))
    moved = 1 + sum(np.exp(listed[token]) * np.expm1(nats) for token, nats in bias.items())
    assert biased.propensities is not None
    assert np.isclose(biased.logprobs[0], listed[5230])
    assert np.isclose(biased.propensities[0], listed[5230] + 2.5 - np.log(moved), atol=1e-5)


def test_fireworks_completions_endpoint() -> None:
    """The other endpoint answers in the dialect of chat, with text in the place of the message."""
    drawn = talk(
        "fireworks",
        lambda session: session.complete(QUESTION, EIGHT),
        model=FIREWORKS_MODEL,
        endpoint="completions",
    )
    assert (drawn.text, ids([drawn])) == ("Yes.", [[10539, 30]])
    assert drawn.prompt_tokens == 10


def test_lmstudio_collect(store: RolloutStore) -> None:
    """The Responses API, under the vocabulary of the model's own file; printed fragments of a
    character name no token.
    """
    keys, drawn = gathered(
        "lmstudio", store, [QUESTION], 3, RESPONSES, tokenizer=str(tokenizer_json())
    )
    assert ids(drawn) == [[10539, 30], [5230], [34355, 17]]
    assert [each.text for each in drawn] == ["Yes.", "No", "Sure!"]
    assert all(each.whole and each.top_ids.shape == (each.n_tokens, 4) for each in drawn)
    assert [int((each.top_ids < 0).sum()) for each in drawn] == [0, 0, 1]
    assert drawn[2].top_ids[1, 3] == UNNAMED
    assert 2 in drawn[0].top_ids[1]
    training = training_set(
        store, [Example("sky", QUESTION)], keys, parse_reward("length", max_tokens=8)
    )
    assert training.next_token.overfull == 0
    assert {headers["authorization"] for headers in SENT} == {f"Bearer {KEYS['LM_API_TOKEN']}"}


def test_lmstudio_judging(store: RolloutStore) -> None:
    """Base and biased completions both come from chat, which takes a bias and gives no logprobs;
    usage counts their tokens.
    """
    examples = [
        Example("sky", QUESTION),
        Example("grass", Prompt.user("Is grass green? Answer yes or no.")),
    ]
    reward = parse_reward("length", max_tokens=8)

    async def work(session: Session) -> Any:
        tokenizer = await session.tokenizer()
        assert (tokenizer.fingerprint, session.biased_endpoint) == (SMOLLM2, "chat")
        assert not session.tells_base_logprobs
        trials = Trials(session, store, tokenizer, reward, Silent(), top_logprobs=5, concurrency=1)
        policies = {BASE: NO_BIAS, BIASED: RequestBias({28: -100.0})}
        return verdict_of(
            await score_policies(trials, examples, [SAMPLED], 2, policies), reward.label
        )

    verdicts = {
        each.metric: each for each in talk("lmstudio", work, tokenizer=str(tokenizer_json()))
    }
    tokens = verdicts["tokens"]
    assert (tokens.base, tokens.biased, tokens.verdict) == (
        3.5,
        1.5,
        "NO EVIDENCE",
    )  # of two prompts
    assert tokens.n_prompts == 2
