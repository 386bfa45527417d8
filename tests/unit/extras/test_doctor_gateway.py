"""The doctor before hosted APIs: nothing is contradicted of OpenAI's, Azure's and Fireworks' own
rules, and every lie is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from blackbox_lb.api.session import Session
from blackbox_lb.extras.doctor.findings import Report
from blackbox_lb.extras.doctor.run import CHECKS, examine
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.vocabulary import Vocabulary
from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import Lie, RulesGateway
from tests.support.hosted_keys import set_keys

FIRE = "accounts/fireworks/models/gateway"
PROVIDERS = {
    "openai": ("gpt-4o-mini", "OPENAI_API_KEY"),
    "azure": ("gpt-4o-mini", "AZURE_OPENAI_API_KEY"),
    "fireworks": (FIRE, "FIREWORKS_API_KEY"),
}
KEY = "sk-gateway-0123456789abcdefghijklmnop"
SIZE = 80
PROVEN = (
    *("bias", "bias.high", "bias.low", "bias.highest_id"),
    *("logprobs.censored", "sampling.n", "neutral"),
)
BASICS = ("tokenizer", "lists of alternatives", "token identity")
MEANING = ("effect of a bias", "meaning of logprobs")
LIES: list[tuple[str, Lie, str, object, tuple[str, ...]]] = [
    ("openai", "top_p 0.9", "neutral", None, ("several completions", "neutral sampling")),
    ("fireworks", "after bias", "logprobs.meaning", "after bias", MEANING),
    ("azure", "after bias", "logprobs.meaning", "after bias", MEANING),
    ("azure", "ignored bias", "bias", None, ("effect of a bias",)),
    ("openai", "64 entries", "bias.entries", 64, ("effect of a bias", "entries of a bias")),
    ("fireworks", "integers", "bias.fractions", False, ("effect of a bias", "fractions")),
]
"""Provider, lie, the row that it is about, its true value, and the checks that find it."""


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys in the environment."""
    set_keys(monkeypatch, [variable for _, variable in PROVIDERS.values()], KEY)


def self_test(
    provider: str,
    seed: int,
    lie: Lie | None = None,
    titles: Sequence[str] | None = None,
    known: Callable[[ExactServer], Vocabulary] | None = None,
) -> Report:
    """One self-test through a gateway."""
    sharpness = (
        2.0 if provider == "fireworks" else 1.5
    )  # its lists are short, and must reach the mass that a lie cuts
    model = ExactModel(SIZE, 12, seed=seed, end=True, prompts=16, sharpness=sharpness)
    checks = [check for check in CHECKS if titles is None or check.title in (*BASICS, *titles)]

    async def run(base_url: str) -> Report:
        name, _ = PROVIDERS[provider]
        session = Session(
            load_profile(provider),
            model=name,
            base_url=base_url,
            tokenizer="o200k_base",
            attempts=1,
        )
        async with session:
            session.vocabulary = (known or vocabulary)(server)
            return await examine(session, checks=checks, concurrency=1)

    with (
        ExactServer(model, seed=seed) as server,
        RulesGateway(provider, server, key=KEY, lie=lie, concurrency=1) as gateway,
    ):
        return asyncio.run(run(gateway.base_url))


def vocabulary(server: ExactServer) -> Vocabulary:
    """The exact model's own; its last token ends the text."""
    ordinary = {token: text.encode() for token, text in enumerate(server.texts) if text}
    return Vocabulary("exact", ordinary, {"<|endoftext|>": SIZE - 1}, SIZE, server.tokenize)


def swapped(server: ExactServer) -> Vocabulary:
    """Another model's: the same texts, with neighbouring ids the other way round."""
    right = vocabulary(server)
    ordinary = {
        token ^ 1 if (token ^ 1) in right.ordinary else token: raw
        for token, raw in right.ordinary.items()
    }
    ids = {raw: token for token, raw in ordinary.items()}
    encode = lambda text: [ids[right.ordinary[token]] for token in right.encode(text)]  # noqa: E731
    return Vocabulary("another", ordinary, right.special, right.size, encode)


def holes(server: ExactServer) -> Vocabulary:
    """Another model's: every tenth token is not in it."""
    right = vocabulary(server)
    return replace(
        right, ordinary={token: raw for token, raw in right.ordinary.items() if token % 10}
    )


def resplit(server: ExactServer) -> Vocabulary:
    """Another model's: it names all tokens, and splits a text otherwise, here every third token."""
    right = vocabulary(server)
    return replace(
        right, encoder=lambda text: [t if n % 3 else 0 for n, t in enumerate(right.encode(text))]
    )


@pytest.mark.parametrize(
    ("known", "titles"), [(swapped, ("effect of a bias",)), (holes, ()), (resplit, ())]
)
@pytest.mark.usefixtures("tiktoken_cache")
def test_a_deployment_of_another_model_is_found_out(
    known: Callable[[ExactServer], Vocabulary], titles: tuple[str, ...]
) -> None:
    """A deployment's name may promise another vocabulary than its model has: tokens that have no id
    under it, a text that it would split otherwise or, where all texts agree, a bias that brings
    another token than it names."""
    report = self_test("azure", 0, titles=titles, known=known)
    assert [each.row for each in report.contradicted] == ["tokens.id"], report.findings


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.usefixtures("tiktoken_cache")
def test_nothing_is_contradicted_of_a_provider_that_keeps_its_rules(provider: str) -> None:
    """Missing ids, -9999.0, quantised logprobs and hidden end tokens are what the profile says, and
    no lie.
    """
    report = self_test(provider, 0)
    assert not report.contradicted, report.contradicted
    findings = {each.row: each for each in report.findings}
    for row in PROVEN:
        assert findings[row].status == "CONFIRMED", findings[row]
    assert report.requests < 120


@pytest.mark.parametrize(("provider", "lie", "row", "found", "titles"), LIES)
@pytest.mark.usefixtures("tiktoken_cache")
def test_every_lie_is_contradicted(
    provider: str, lie: Lie, row: str, found: object, titles: tuple[str, ...]
) -> None:
    """With the true value, where there is one. Azure says nothing of what its logprobs mean, so
    that there the truth is measured.
    """
    report = self_test(provider, list(PROVIDERS).index(provider), lie, titles)
    (seen,) = [each for each in report.findings if each.row == row]
    claims_nothing = (provider, lie) == ("azure", "after bias")
    assert (seen.status, seen.found) == ("MEASURED" if claims_nothing else "CONTRADICTED", found)
    assert {each.row for each in report.contradicted} <= {row}, report.contradicted
