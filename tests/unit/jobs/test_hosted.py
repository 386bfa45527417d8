"""The main job through hosted APIs' rules: what is sent is valid, what comes back is learned from,
and no key stays anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from openai import OpenAI

from blackbox_lb import Bias, apply
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.safety.http import retries
from tests.encodings import register_encoding
from tests.support.commands import blb, options, refused
from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import RulesGateway
from tests.support.hosted_keys import set_keys
from tests.support.printed import ended_well, printed
from tests.support.questions import questions, write_questions, write_rows

MODEL = ExactModel(40, 8, end=True, prompts=4, sharpness=0.7)
OPEN_WEIGHTS = ExactModel(40, 40, end=True, prompts=4, sharpness=0.7)
"""As any host would serve them."""
END = 39
LAST_ID = 295
"""Of the encoding: all single bytes stand behind the exact model's tokens."""
KEY = "sk-gateway-0123456789abcdefghijklmnop"
FIRE = "accounts/fireworks/models/gateway"
REWARD = r"regex:\b[cd]\b"
"""Met by more completions once these tokens are favoured. Length can hardly be taught: the end
token is not listed.
"""
PROVIDERS = {
    "openai": ("gpt-4o-mini", "OPENAI_API_KEY"),
    "azure": ("gpt-4o-mini", "AZURE_OPENAI_API_KEY"),
    "fireworks": (FIRE, "FIREWORKS_API_KEY"),
}


@pytest.fixture
def engine() -> Iterator[ExactServer]:
    """The exact model that stands behind every provider here."""
    with ExactServer(MODEL) as running:
        yield running


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, engine: ExactServer) -> None:
    """Keys in the environment, short waits, and the exact model's vocabulary as an encoding of
    tiktoken.
    """
    set_keys(monkeypatch, [variable for _, variable in PROVIDERS.values()], KEY)
    monkeypatch.setattr(retries, "retry_pause", lambda state: 0.01)
    register_encoding(monkeypatch, "hosted", engine.texts, END)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Questions in three splits."""
    return write_rows(tmp_path / "data.jsonl", questions(12, 6, 20, answer="a"))


@pytest.fixture
def small_run(data: Path, tmp_path: Path) -> Callable[..., Result]:
    """A command against a gateway, in this process, with a small task."""

    def run(command: str, gateway: RulesGateway, provider: str, *more: object) -> Result:
        where = options(provider=provider, model=PROVIDERS[provider][0], base_url=gateway.base_url)
        task = options(data=data, reward=REWARD, max_tokens=8, out=tmp_path / "run")
        return blb(command, *where, "--tokenizer", "hosted", *task, "--json", *more)

    return run


FIT = options(samples_per_prompt=16, test_samples=12, tau=0.1, l2=0.5, deploy="temperature=1")
FEW = options(samples_per_prompt=6, validation_samples=2, test_samples=2, deploy="temperature=1")


@pytest.mark.parametrize("provider", ["openai", "fireworks"])
def test_a_fit_from_prompts_to_a_verdict(
    provider: str, engine: ExactServer, small_run: Callable[..., Result], tmp_path: Path
) -> None:
    """Tokens that are rewarded become more frequent than the model itself has them; every request
    is valid; several samples share one request's prompt."""
    drawn = MODEL.sample(4_000, np.random.default_rng(0), prompts=np.arange(4_000) % MODEL.prompts)
    rewarded = [engine.texts.index(text) for text in (" c", " d")]
    with RulesGateway(provider, engine, key=KEY) as gateway:
        document = printed(small_run("fit", gateway, provider, *FIT))
        assert gateway.invalid_requests == []
        assert set(gateway.statuses) == {200}
        sent = [call.body for call in gateway.calls if call.body is not None]
    row = document["verdict"][0]
    assert row["verdict"] == "HELPS", row
    assert row["base"] == pytest.approx(np.isin(drawn, rewarded).any(axis=1).mean(), rel=0.35)
    if load_profile(provider).sampling.shares_prompt:
        assert {body.get("n", 1) for body in sent} >= {16, 12}
    bias = Bias.load(tmp_path / "run" / "bias.json")
    assert bias.provider == provider
    assert bias.censoring is not None
    assert (bias.censoring.bounded > 0) == (provider != "fireworks")
    assert max(bias.logit_bias) <= END
    texts = [entry.text for entry in bias.entries if entry.id != END and entry.text]
    assert all(text.startswith(" ") for text in texts)
    if provider != "fireworks":
        assert all(value == int(value) for value in bias.logit_bias.values())


def routed(tmp_path: Path, *rows: str) -> str:
    """A profile of OpenRouter, as after a self-test that confirmed all, with these rows."""
    path = tmp_path / "routed.toml"
    path.write_text("\n".join(('extends = "openrouter"', "unknown = []", *rows)))
    return str(path)


def through_openrouter(command: str, gateway: RulesGateway, profile: str, *more: object) -> Result:
    """A command against the gateway's OpenRouter."""
    where = options(provider=profile, model="openai/gpt-4o-mini", base_url=gateway.base_url)
    return blb(command, *where, "--tokenizer", "hosted", *more)


def test_a_bias_that_is_dropped_on_the_way(
    monkeypatch: pytest.MonkeyPatch, engine: ExactServer, data: Path, tmp_path: Path
) -> None:
    """A host that ignores it is found by a fit and by the self-test; with ``require_parameters`` no
    such host is asked.
    """
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
    with RulesGateway(
        "openrouter", engine, key=KEY, hosts={"Bare": ("logit_bias",)}, concurrency=1
    ) as gateway:
        unasked = ("[request]", "provider = { require_parameters = false }")
        known = routed(tmp_path, *unasked, "[logprobs]", 'meaning = "before bias"')
        task = options(data=data, reward=REWARD, max_tokens=8, out=tmp_path / "run")
        many = options(samples_per_prompt=32, test_samples=48, tau=0.05, l2=0.1)
        fitted = through_openrouter(
            "fit", gateway, known, *task, *many, "--deploy", "temperature=1"
        )
        assert "bias are those of a model without it" in " ".join(fitted.stderr.split()), (
            fitted.output
        )
        dropped = routed(tmp_path, *unasked)
        result = through_openrouter("doctor", gateway, dropped, "--yes")
        assert result.exit_code == 1, result.output
        assert re.search(r"bias .*CONTRADICTED +ignored", result.stdout), result.stdout
        asked = through_openrouter("doctor", gateway, routed(tmp_path), "--yes")
        assert "No endpoints found that can handle the requested parameters" in asked.output


def test_another_host_in_the_middle_of_a_run_is_drift(
    monkeypatch: pytest.MonkeyPatch, engine: ExactServer, data: Path, tmp_path: Path
) -> None:
    """The first biased request goes to another host than the unbiased ones, and the run says so and
    stops.
    """
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
    task = ("--data", data, "--reward", REWARD, "--max-tokens", 8, "--out", tmp_path / "run", *FIT)
    with RulesGateway("openrouter", engine, key=KEY) as gateway:
        result = through_openrouter("fit", gateway, routed(tmp_path), *task)
    assert result.exit_code != 0
    assert "the system that answers changed from 'Bare' to 'Full'" in result.output


def test_a_model_that_cannot_be_adapted_costs_nothing(
    engine: ExactServer, small_run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A known reasoning model is refused before a connection; an unknown one by its first refusal,
    in the same words.
    """
    with RulesGateway(
        "openai", engine, key=KEY, models=("gpt-4o-mini",), reasoning_models=("newer",)
    ) as gateway:
        monkeypatch.setitem(PROVIDERS, "openai", ("o3-mini", "OPENAI_API_KEY"))
        known = small_run("fit", gateway, "openai")
        assert not gateway.calls
        monkeypatch.setitem(PROVIDERS, "openai", ("newer", "OPENAI_API_KEY"))
        unknown = small_run("fit", gateway, "openai", "--concurrency", 1)
        assert gateway.statuses == [200, 400]
    for result, model in ((known, "o3-mini"), (unknown, "newer")):
        assert result.exit_code == 2
        assert f"{model} cannot be adapted through openai: " in result.stderr
        assert "models that work: gpt-4o-mini" in result.stderr


def test_a_filtered_prompt_does_not_decide_a_verdict(
    engine: ExactServer, small_run: Callable[..., Result]
) -> None:
    """Test prompts that the filter stops have no score: an empty answer is not a short one."""
    with RulesGateway("azure", engine, key=KEY, filter_prompts="question 2") as gateway:
        document = printed(small_run("fit", gateway, "azure", *FEW))
    assert {row["n_prompts"] for row in document["verdict"]} == {10}, (
        "questions 18, 19 and 30 to 37"
    )
    assert all(row["base"] >= 1 for row in document["verdict"] if row["metric"] == "tokens")


def test_azure_by_deployment_version_and_token(
    engine: ExactServer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classic API: the deployment stands in the path, the version in the query, the resource's
    address in the variable. A token in the environment serves where no key is set. A deployment's
    own name says nothing of its vocabulary: the option and the usual answers are named.
    """
    monkeypatch.delenv("AZURE_OPENAI_API_KEY")
    monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "entra-token")
    with RulesGateway("azure", engine, key=KEY, token="entra-token") as gateway:
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", gateway.url)
        where = options(provider="azure-classic", model="gpt-4o-mini", tokenizer="hosted")
        task = options(data=data, reward="length", max_tokens=8, out=tmp_path / "run")
        ended_well(blb("collect", *where, *task))
        assert gateway.invalid_requests == []
        posts = [call for call in gateway.calls if call.body is not None]
        unnamed = options(provider="azure", model="mine", base_url=gateway.url)
        assert "--tokenizer o200k_base" in refused("collect", *unnamed, *task)
    assert {call.status for call in posts} == {200}
    paths = {call.path.partition("?")[0] for call in posts}
    assert paths == {"/openai/deployments/gpt-4o-mini/chat/completions"}


@pytest.mark.parametrize(
    ("host", "model", "variable"),
    [
        ("openrouter", "openai/gpt-4o-mini", "OPENROUTER_API_KEY"),
        ("together", "Qwen/Qwen3.5-9B", "TOGETHER_API_KEY"),
    ],
)
def test_key_doctor_fit_apply(
    host: str, model: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tutorial's path for open weights on a host: a fit before the self-test is refused; with
    what it saved one is paid for within its limit, and its bias goes out with a client's requests.
    """
    monkeypatch.setenv(variable, KEY)
    mine, out = tmp_path / "mine.toml", tmp_path / "run"
    data = write_questions(tmp_path / "train.jsonl", 60)
    hosts: dict[str, tuple[str, ...]] = {"Full": ()}  # read by OpenRouter's rules alone
    with (
        ExactServer(OPEN_WEIGHTS) as weights,
        RulesGateway(
            host, weights, key=KEY, concurrency=1, largest=LAST_ID, hosts=hosts
        ) as gateway,
    ):
        where = options(model=model, base_url=gateway.base_url, tokenizer="hosted", concurrency=1)
        paid = options(price="100,100", max_cost=5, samples_per_prompt=12, test_samples=8)
        fitted = options(data=data, reward=REWARD, max_tokens=8, out=out, tau=0.1, l2=0.5)
        task = (*fitted, *paid, "--deploy", "temperature=1")
        assert "blb doctor" in refused("fit", "--provider", host, *where, *task)
        asked = len(gateway.calls)

        ended_well(blb("doctor", "--provider", host, *where, "--yes", "--save", mine))
        assert load_profile(str(mine)).unknown == []
        assert len(gateway.calls) - asked < 125

        fit = printed(blb("fit", "--provider", mine, *where, *task, "--json", "--yes"))
        assert fit["verdict"][0]["verdict"] == "HELPS"
        if host == "openrouter":  # every request asks for a host that takes all its fields
            bodies = [call.body for call in gateway.calls[asked:] if call.body is not None]
            assert all(body["provider"] == {"require_parameters": True} for body in bodies)
        bias = Bias.load(out / "bias.json")
        client = apply(OpenAI(base_url=gateway.base_url, api_key=KEY), bias)
        client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "question 1"}], max_tokens=4
        )
        sent = gateway.calls[-1]
    assert sent.status == 200
    assert sent.body is not None
    received = {int(token): value for token, value in sent.body["logit_bias"].items()}
    assert received == dict(bias.logit_bias)
