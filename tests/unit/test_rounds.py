"""Rounds end to end against an exact model: what is sent, what is reweighted, what resumes, what is refused."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from blackbox_lb.api.session import Session
from blackbox_lb.errors import InputError, NoLogprobs
from blackbox_lb.estimate.choice.candidates import CompileLimits
from blackbox_lb.jobs.fitting.rounds import SLACK, Explored, Rounds, check_rounds, explore
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import parse_reward
from blackbox_lb.testing import ExactModel, ExactServer
from blackbox_lb.types import Example, Prompt
from tests.support.truth import Exact

VOCAB, HORIZON, TOP = 12, 4, 5
MODEL = ExactModel(VOCAB, HORIZON, end=True, prompts=3, sharpness=0.7)
EXAMPLES = [Example(str(n), Prompt.user(f"question {n}")) for n in range(12)]
REWARD = parse_reward("length", max_tokens=HORIZON)
FREE = CompileLimits(None, -100.0, 100.0, False)
PLAN = Rounds(rounds=3, samples=10, trust=0.2, tau=0.3, l2=5.0)
COMPLETIONS = "/v1/chat/completions"


class Remarks(Silent):
    """Keeps what is remarked."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def remark(self, text: str) -> None:
        """Keep it."""
        self.said.append(text)


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model behind HTTP."""
    with ExactServer(MODEL) as running:
        yield running


def sent(server: ExactServer) -> list[dict[int, float]]:
    """The bias of each completion request, in order of arrival."""
    bodies = [body for path, body in server.calls if path == COMPLETIONS]
    return [{int(token): value for token, value in body.get("logit_bias") or []} for body in bodies]


def own(**logprobs: object) -> Profile:
    """llama.cpp's profile with other rows of logprobs."""
    profile = load_profile("llamacpp")
    return profile.model_copy(update={"logprobs": profile.logprobs.model_copy(update=logprobs)})


@contextmanager
def after_bias(server: ExactServer) -> Iterator[None]:
    """Answers list the likeliest tokens of the biased policy, with its logprobs."""

    def tilt(number: int, answer: dict[str, Any]) -> dict[str, Any]:
        body = [body for path, body in server.calls if path == COMPLETIONS][number]
        delta = np.zeros(VOCAB)
        for token, value in body.get("logit_bias") or []:
            delta[int(token)] = value
        prompt = zlib.crc32(body["messages"][-1]["content"].encode()) % MODEL.prompts
        entries = answer["choices"][0]["logprobs"]["content"]
        ids = [entry["id"] for entry in entries]
        for t, entry in enumerate(entries):
            table = log_softmax(MODEL.logprobs(ids[:t], prompt) + delta)
            entry["logprob"] = float(table[ids[t]])
            entry["top_logprobs"] = [
                {"id": int(token), "token": server.texts[token], "bytes": None, "logprob": float(table[token])}
                for token in np.argsort(-table, kind="stable")[:TOP]
            ]
        return answer

    server.faults = tilt
    yield
    server.faults = None


def run(
    server: ExactServer,
    folder: Path,
    plan: Rounds = PLAN,
    *,
    profile: Profile | None = None,
    limits: CompileLimits = FREE,
    report: Silent | None = None,
    top: int = TOP,
) -> Explored:
    """Explore with a store in the folder."""

    async def go() -> Explored:
        async with Session(profile or load_profile("llamacpp"), base_url=server.base_url) as session:
            with RolloutStore(folder / "s.db") as store:
                tokenizer = await session.tokenizer()
                trials = Trials(session, store, tokenizer, REWARD, report or Silent(), top, seed=3)
                return await explore(trials, EXAMPLES, plan, limits)

    return asyncio.run(go())


def test_the_budget_is_split_and_each_round_has_its_bias(server: ExactServer, tmp_path: Path) -> None:
    """Ten samples in three rounds are 4, 3 and 3 of each prompt; the first has no bias, the others one each, as reported."""
    report = Remarks()
    found = run(server, tmp_path, report=report)
    biases = sent(server)
    assert len(biases) == 120
    assert not any(biases[:48])
    for part in (biases[48:84], biases[84:]):
        assert part[0]
        assert all(each == part[0] for each in part)
    assert biases[48] != biases[84]
    assert [each.rollouts for each in found.drawn] == [48, 36, 36]
    assert [each.entries for each in found.drawn] == [0, len(biases[48]), len(biases[84])]
    assert found.base.sum() == 48
    assert len(report.said) == 2
    assert f"round 2 of 3: 36 rollouts drawn with {len(biases[48])} entries, KL 0.20 nats" in report.said[0]
    assert f"worth {found.effective_sample_size:.0f} of the base's" in report.said[1]


def true_kl(old: dict[int, float], new: dict[int, float]) -> float:
    """KL(p_old || p_new) a completion over the examples' prompts, from all sequences."""
    exact, deltas = Exact(MODEL, lambda *_: 0.0), np.zeros((2, VOCAB))
    for delta, each in zip(deltas, (old, new), strict=True):
        delta[list(each)] = list(each.values())
    here, there = (np.log(exact.probabilities(delta)) for delta in deltas)
    return float((np.exp(here) * counts()[exact.prompts]) @ (here - there) * MODEL.prompts / len(EXAMPLES))


def counts() -> np.ndarray:
    """How many examples have each of the model's prompts."""
    return np.bincount([zlib.crc32(each.prompt.text.encode()) % MODEL.prompts for each in EXAMPLES], minlength=3)


@pytest.mark.parametrize(
    "limits", [CompileLimits(4, -100.0, 100.0, False), CompileLimits(None, -5.0, 5.0, True)], ids=["few", "whole"]
)
def test_trust_holds_for_what_is_sent(server: ExactServer, tmp_path: Path, limits: CompileLimits) -> None:
    """Compiled to 4 entries or to whole numbers, the bias of a round is about as close to the one before as trust says."""
    found = run(server, tmp_path, replace(PLAN, samples=30, trust=0.5), limits=limits)
    steps = [sent(server)[n * 120] for n in range(3)]
    assert any(steps[1:])
    for k, (old, new) in enumerate(pairwise(steps)):
        assert found.drawn[k + 1].kl <= 0.5 * SLACK
        assert found.drawn[k + 1].kl == pytest.approx(true_kl(old, new), rel=0.3, abs=0.02)
        assert limits.entries is None or len(new) <= limits.entries
        assert not limits.integers or all(value == int(value) for value in new.values())


@pytest.mark.parametrize("meaning", ["before bias", "after bias"])
def test_the_pool_averages_as_the_base_does(server: ExactServer, tmp_path: Path, meaning: str) -> None:
    """Lists are the base model's, weights average 1 and give the base's mean reward, which the raw completions do not."""
    plan = Rounds(rounds=2, samples=50, trust=2.0, tau=0.15, l2=1.0)
    if meaning == "after bias":
        with after_bias(server):
            found = run(server, tmp_path, plan, profile=own(meaning=meaning))
    else:
        found = run(server, tmp_path, plan)
    rollouts = found.training.rollouts
    weights = np.exp(rollouts.tilt)
    assert found.drawn[1].kl > 0.3
    assert found.mean_weight == pytest.approx(1, abs=0.1)
    assert weights.max() <= 2 + 1e-9
    mixed, truth, raw = weights @ rollouts.rewards / weights.sum(), [], rollouts.rewards.mean()
    exact = Exact(MODEL, lambda tokens, _: float(np.log(HORIZON / len(tokens))))
    for prompt in range(MODEL.prompts):
        own_mass = np.exp(exact.base) * (exact.prompts == prompt)
        truth.append(own_mass @ exact.rewards / own_mass.sum())
    base = float(counts() @ truth / len(EXAMPLES))
    assert mixed == pytest.approx(base, abs=0.06)
    assert abs(raw - base) > 2 * abs(mixed - base)


def test_the_same_call_resumes(server: ExactServer, tmp_path: Path) -> None:
    """A second run asks for nothing and finds the same pool."""
    first = run(server, tmp_path)
    asked = len(sent(server))
    second = run(server, tmp_path)
    assert len(sent(server)) == asked
    assert first.training.rollouts.keys == second.training.rollouts.keys
    np.testing.assert_array_equal(first.training.rollouts.tilt, second.training.rollouts.tilt)


def test_one_round_is_the_plain_training_set(server: ExactServer, tmp_path: Path) -> None:
    """It sends no bias, says nothing of rounds and has no log ratios."""
    report = Remarks()
    found = run(server, tmp_path, Rounds(samples=2), report=report)
    assert not any(sent(server))
    assert found.training.rollouts.log_ratios is None
    assert found.base.all()
    assert (found.mean_weight, report.said) == (1.0, [])


def test_where_nothing_can_be_learned_yet_the_base_is_sampled_again(
    server: ExactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constant reward, or none at all: later rounds draw further samples of the base, each counted once."""
    for value in (0.25, -np.inf):
        folder = tmp_path / str(value)
        folder.mkdir()
        monkeypatch.setattr(type(REWARD), "score", lambda *_, value=value: value)
        found = run(server, folder)
        assert len(set(found.training.rollouts.keys)) == 120
        assert found.base.all()
        assert [each.entries for each in found.drawn] == [0, 0, 0]
    assert not any(sent(server))


def test_completions_left_out_are_counted_over_all_rounds(server: ExactServer, tmp_path: Path) -> None:
    """Content filters are counted, and a round without any usable completion is an error that says why."""

    def stop(number: int, answer: dict[str, Any]) -> dict[str, Any]:
        if number % 4 == 0:
            answer["choices"][0]["finish_reason"] = "content_filter"
        return answer

    server.faults = stop
    found = run(server, tmp_path)
    assert found.training.filtered == 30
    assert sum(each.rollouts for each in found.drawn) == 90
    server.faults = lambda number, answer: stop(0, answer)
    (tmp_path / "all").mkdir()
    with pytest.raises(NoLogprobs, match=r"none of 48 completions has a complete list .*\(48 were stopped by a content filter\)"):
        run(server, tmp_path / "all")


def test_providers_that_allow_one_round_only(server: ExactServer, tmp_path: Path) -> None:
    """Unknown meaning, a bias at another endpoint, no logprobs: refused before anything is asked for, with the remedy."""
    profile = load_profile("llamacpp")
    chat = profile.endpoints["chat"]
    elsewhere = {**profile.endpoints, "chat": chat.model_copy(update={"bias": False})}
    silent = {"chat": chat.model_copy(update={"ask_logprobs": "no"})}
    for unfit, top, why in (
        (own(meaning="unknown"), TOP, "logprobs.meaning is unknown"),
        (profile.model_copy(update={"endpoints": elsewhere}), TOP, "takes a bias at its completions endpoint"),
        (profile.model_copy(update={"endpoints": silent}), TOP, "come without listed logprobs"),
        (profile, 0, "come without listed logprobs"),
    ):
        with pytest.raises(InputError, match=rf"{why}.*use --rounds 1"):
            run(server, tmp_path, profile=unfit, top=top)
    assert not sent(server)
    check_rounds(Session(own(meaning="after bias"), base_url=server.base_url), TOP)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": 3, "samples": 2}, "2 completions a prompt cannot be split over 3 rounds"),
        ({"trust": 0.0}, "trust is 0"),
        ({"tau": -1.0}, "tau is -1"),
    ],
)
def test_plans_that_make_no_sense(options: dict[str, Any], why: str) -> None:
    """Each is refused by name and value."""
    with pytest.raises(InputError, match=why):
        Rounds(**options)


def test_sizes_add_up() -> None:
    """The first rounds take what does not divide."""
    assert Rounds(rounds=3, samples=11).sizes == (4, 4, 3)
    assert Rounds(samples=7).sizes == (7,)
