"""Stop texts: a completion that one ended stays usable, what a provider does not list is told, and
nothing false is learned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb.api.session import Session
from blackbox_lb.errors import ProfileError
from blackbox_lb.jobs.fitting.fit import fit
from blackbox_lb.jobs.fitting.result import Fitted
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.jobs.records.run_record import Remembering
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.columns import columns
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Task, parse_reward
from blackbox_lb.types import UNNAMED, Completion, EndTokens, Example, Prompt
from tests.encodings import register_encoding
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import RulesGateway

END, MAX_TOKENS, STOP = 5, 8, " b"
MODEL = ExactModel(6, MAX_TOKENS, end=True, prompts=4, sharpness=0.7)
LENGTH = parse_reward("length", max_tokens=MAX_TOKENS)
EXAMPLES = tuple(Example(str(n), Prompt.user(f"question {n}"), ("a",)) for n in range(12))
TASK = Task("stops", EXAMPLES[:6], EXAMPLES[6:8], EXAMPLES[8:], max_tokens=MAX_TOKENS, stop=(STOP,))
PLAN = Plan(
    reward="length",
    samples_per_prompt=12,
    validation_samples=6,
    test_samples=4,
    tau=(0.5,),
    l2=(2.0, 20.0),
)


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model with an end token, behind llama.cpp's manners."""
    with ExactServer(MODEL) as running:
        yield running


def trying(
    tmp_path: Path,
    address: str,
    work: Callable[[Trials], Any],
    profile: str = "llamacpp",
    **session: Any,
) -> Any:
    """What ``work`` returns of trials with the stop text."""

    async def go() -> Any:
        with RolloutStore(tmp_path / "s.db") as store:
            async with Session(load_profile(profile), base_url=address, **session) as running:
                tokenizer = await running.tokenizer()
                report = Remembering(Silent())
                trials = Trials(running, store, tokenizer, LENGTH, report, 5, seed=3, stop=(STOP,))
                return await work(trials)

    return asyncio.run(go())


async def drawn(trials: Trials, samples: int) -> list[Completion]:
    """Completions of the training prompts."""
    keys = await trials.collect("training", TASK.train, trials.draw(SAMPLED), samples)
    return list(trials.store.completions(key for row in keys for key in row))


def test_a_fit_with_a_stop_text(server: ExactServer, tmp_path: Path) -> None:
    """Every completion that was cut counts as whole, with all of its tokens; the fit says how many,
    and learns no veto of " b".
    """

    async def work(trials: Trials) -> tuple[Fitted, list[str]]:
        assert isinstance(trials.report, Remembering)
        return await fit(trials, TASK, PLAN), trials.report.notices

    fitted, notices = trying(tmp_path, server.base_url, work)
    result = fitted.result
    asked = [body for path, body in server.calls if path.endswith("completions")]
    assert all(body["stop"] == [STOP] for body in asked)
    assert (result.training.incomplete, result.training.filtered) == (0, 0)
    assert fitted.bias.rollouts == 6 * 12
    ended = "ended at a stop text whose tokens the provider does not list"
    [said] = [notice for notice in notices if ended in notice]
    assert 10 < int(said.split()[0]) < 6 * 12
    assert 1 not in fitted.bias.logit_bias
    assert 1 not in fitted.uncompiled.logit_bias
    assert END in fitted.bias.logit_bias
    assert not result.kl_whole
    assert "what ends it is not listed" in result.kl_sentence
    assert result.usage.completions == len(asked)


def test_what_is_read_of_a_cut_completion(server: ExactServer, tmp_path: Path) -> None:
    """The count holds the stop text's token, the list does not. Of the tokens that may begin a stop
    text, one that a completion lists as sampled can be learned of; others lose theirs.
    """

    async def work(trials: Trials) -> tuple[list[Completion], EndTokens]:
        return await drawn(trials, 6), trials.end_tokens

    completions, ends = trying(tmp_path, server.base_url, work)
    cut = [one for one in completions if one.finish_reason == "stop" and END not in one.token_ids]
    assert cut
    for one in cut:
        assert one.whole
        assert one.n_tokens == len(one.token_ids) + 1
        assert STOP not in one.text
    assert any(not len(one.token_ids) for one in cut), "one began with the stop text"
    assert ends.stop_prefix_ids == {1}
    named = {str(n): one for n, one in enumerate(completions) if len(one.token_ids)}
    beginning = EndTokens(True, stop_prefix_ids=frozenset({0, 1}))
    found = columns(named, [0] * len(named), [0.0] * len(named), beginning)
    assert 0 in found.token_ids
    assert 0 in found.top_ids
    assert 1 not in found.top_ids
    assert UNNAMED in found.top_ids
    assert np.isfinite(found.top_logprobs[found.top_ids == UNNAMED]).all()


@pytest.fixture
def gateway(server: ExactServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RulesGateway]:
    """OpenAI's rules before the exact model, whose vocabulary is an encoding of tiktoken."""
    register_encoding(monkeypatch, "stops", server.texts, END)
    with RulesGateway("openai", server) as running:
        monkeypatch.setenv("OPENAI_API_KEY", running.key)
        yield running


HOSTED: dict[str, Any] = {"profile": "openai", "model": "gpt-4o-mini", "tokenizer": "stops"}


def test_too_many_stop_texts_cost_nothing(gateway: RulesGateway, tmp_path: Path) -> None:
    """A fit that OpenAI would refuse is refused before anything is asked for, with the limit and
    the wish.
    """

    async def work(trials: Trials) -> None:
        with raises_naming(ProfileError, "openai", "4", "5"):
            await fit(replace(trials, stop=tuple("abcde")), TASK, PLAN)

    trying(tmp_path, gateway.base_url, work, **HOSTED)
    assert gateway.requests == []


@pytest.mark.parametrize(
    ("endpoint", "model", "unlisted"),
    [("chat", "gpt-4o-mini", {0, 1}), ("completions", "gpt-3.5-turbo-instruct", {0})],
)
def test_stop_texts_under_openais_rules(
    gateway: RulesGateway, tmp_path: Path, endpoint: Endpoint, model: str, unlisted: set[int]
) -> None:
    """Chat lists what is before the stop text, the legacy endpoint more than it counts: both are
    whole, all requests valid.
    """

    async def work(trials: Trials) -> list[Completion]:
        return await drawn(trials, 4)

    session = {**HOSTED, "model": model, "endpoint": endpoint}
    completions = trying(tmp_path, gateway.base_url, work, **session)
    assert gateway.invalid_requests == []
    assert all(body["stop"] == [STOP] and "n" not in body for body in gateway.requests)
    assert all(one.whole for one in completions)
    assert not any(STOP in one.text for one in completions)
    assert {one.n_tokens - len(one.token_ids) for one in completions} == unlisted
    assert any(one.n_tokens > len(one.token_ids) or 1 in one.token_ids for one in completions)
    assert not any(1 in one.token_ids[:-1] for one in completions)
