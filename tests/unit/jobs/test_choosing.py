"""Choosing: what is sampled, what is said, and what is refused, over an exact model's API."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from blackbox_lb.api.session import Session
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.choice.goal import ByPrompt, Goal
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import Prior
from blackbox_lb.estimate.sparse.sparsify import Sparse
from blackbox_lb.jobs.fitting.choosing.proposing import with_labels_of
from blackbox_lb.jobs.fitting.choosing.scorers import Challenger, Choice, FromSamples
from blackbox_lb.jobs.fitting.choosing.select import PROVEN, Search, is_proven, select
from blackbox_lb.jobs.fitting.document import Measured
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import GREEDY, SAMPLED, PolicyScores, Setting
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward, parse_reward
from blackbox_lb.types import EndTokens, Example, Prompt
from tests.support.choosing import choose
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer

END, MAX_TOKENS, PROMPTS = 5, 6, 16
MODEL = ExactModel(6, MAX_TOKENS, end=True, prompts=PROMPTS, sharpness=0.7)
EXAMPLES = tuple(Example(str(n), Prompt.user(f"question {n}"), ("c",)) for n in range(PROMPTS))
TRAINING = MODEL.rollouts(200, lambda tokens, _: -float(len(tokens)), 1, top=4)
TAIL = NextToken.of(TRAINING)
LENGTH = parse_reward("length", max_tokens=MAX_TOKENS)
MORE_ENDS, FEWER_ENDS, WILD = ({END: 1.0}, {END: -1.0}, {0: 6.0, 1: -6.0})


class Heard(Silent):
    """A reporter that remembers its remarks."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        """Remember it."""
        self.notices.append(text)

    detail = notice


def candidate(number: int, bias: dict[int, float]) -> Candidate:
    """A candidate that sends this bias."""
    ids, values = (
        np.array(list(bias), dtype=np.int64),
        np.array(list(bias.values()), dtype=np.float64),
    )
    return Candidate({"tau": number}, ids, values, sparse=Sparse(ids, values, 0, 0.0, 0.0, 0, 0))


Chooser = Callable[..., tuple[Choice, list[str], list[Any]]]


@pytest.fixture
def chosen(tmp_path: Path) -> Iterator[Chooser]:
    """Choose among biases through a served model; also the remarks, and the bias of every
    completion request.
    """
    with ExactServer(MODEL, prompt_of=lambda text: int(text.split()[-1])) as server:

        async def go(
            biases: Sequence[dict[int, float]], rows: str, reward: Reward, options: Any
        ) -> Any:
            profile = tmp_path / "own.toml"
            profile.write_text(f'extends = "llamacpp"\nname = "own"\n{rows}\n')
            heard = Heard()
            with ExitStack() as stack:
                store = stack.enter_context(RolloutStore(tmp_path / "s.db"))
                async with Session(load_profile(str(profile)), base_url=server.base_url) as session:
                    tokenizer = await session.tokenizer()
                    trials = Trials(session, store, tokenizer, reward, heard, 4, seed=3)
                    field = [candidate(n, bias) for n, bias in enumerate(biases)]
                    origin = options.pop("origin", "")
                    if origin:
                        field = [replace(row, estimator="rule", origin=origin) for row in field]
                    choice = await choose(trials, EXAMPLES, field, TAIL, **options)
            asked = [
                body.get("logit_bias")
                for path, body in server.calls
                if path.endswith("completions")
            ]
            return choice, heard.notices, asked

        def run(
            *biases: dict[int, float], rows: str = "", reward: Reward = LENGTH, **options: Any
        ) -> Any:
            return asyncio.run(go(biases, rows, reward, {"samples": 6} | options))

        yield run


def test_every_candidate_is_sampled_and_the_best_one_wins(chosen: Chooser) -> None:
    """The bias that shortens wins over one that lengthens and a wild one; the second call asks for
    nothing; JSON has no NaN.
    """
    choice, said, asked = chosen(FEWER_ENDS, MORE_ENDS, WILD)
    assert choice.candidate.logit_bias == MORE_ENDS
    assert choice.tried[1].status == "chosen"
    best = choice.tried[1].reward
    assert best is not None
    assert choice.base.reward is not None
    assert best > choice.base.reward
    assert "its validation number is too good: the test prompts say what it is worth" in said[-1]
    assert len(chosen(FEWER_ENDS, MORE_ENDS, WILD)[2]) == len(asked)
    json.dumps([row.model_dump() for row in choice.tried], allow_nan=False)


@pytest.mark.parametrize(("samples", "options"), [(3, {}), (6, {"budget": 18})], ids=["", "budget"])
def test_halving_asks_for_the_rest_of_the_survivors_only(
    chosen: Chooser, samples: int, options: dict[str, int]
) -> None:
    """Of five candidates all get a few samples, the best of them more, the first ones not again,
    also on the draws of three; what it costs is said before the first completion.
    """
    biases = [{END: 3.0 + n, 0: 5.0} for n in range(5)]
    choice, said, asked = chosen(*biases, samples=samples, **options)
    spent = sorted(row.samples for row in choice.tried)
    assert 1 <= spent[0] < samples
    assert spent[0] < spent[-1]
    assert sum(spent) <= options.get("budget", 3 * 5)
    assert len(asked) == PROMPTS * (samples + sum(spent))
    most = PROMPTS * sum(spent)
    assert f"at most {most:,} completions beside {PROMPTS * samples} of the base" in said[0]
    assert sum(notice.startswith("validation, ") for notice in said) == 5


def test_the_same_bias_twice_is_sampled_once(chosen: Chooser) -> None:
    """Two settings that send the same entries are one policy."""
    choice, _, asked = chosen(MORE_ENDS, dict(MORE_ENDS), WILD)
    assert choice.tried[1].status == "the same bias as projection (tau 0)"
    assert len(asked) == 3 * 6 * PROMPTS


def test_a_single_candidate_costs_nothing(chosen: Chooser) -> None:
    """With nothing to choose between no validation completion is drawn, of the base either, and
    that is said.
    """
    choice, said, asked = chosen(MORE_ENDS, dict(MORE_ENDS), settings=(SAMPLED, GREEDY))
    assert (choice.candidate.logit_bias, asked) == (MORE_ENDS, [])
    assert [row.status for row in choice.tried] == ["chosen", "the same bias as projection (tau 0)"]
    assert (
        "the only candidate: with nothing to choose between, nothing is drawn on the validation"
        " prompts" in said[-1]
    )
    assert choice.base == Measured()


@pytest.mark.parametrize(
    ("goal", "reward", "tokens", "correct", "proven"),
    [
        (Goal(), 2.0, 9.0, 1.0, True),
        (Goal(), 0.5, 3.0, 1.0, False),
        (Goal("pareto"), 0.5, 3.0, 1.0, True),
        (Goal("pareto"), 2.0, 9.0, 1.0, False),
        (Goal("pareto"), 0.5, 3.0, 0.0, False),
    ],
)
def test_phases_and_features_must_win_by_the_goal(
    goal: Goal, reward: float, tokens: float, correct: float, proven: bool
) -> None:
    """Beside a fixed bias that earns 1 with 6 right tokens: what counts is the goal of the fit,
    be it the reward or tokens at the same accuracy.
    """
    fixed = candidate(0, {0: 1.0})

    def both(value: float) -> tuple[np.ndarray, ...]:
        return tuple(np.array([value + 0.01 * prompt]) for prompt in range(PROMPTS))

    class Measured:
        reward = LENGTH
        session = SimpleNamespace(tells_base_logprobs=False)

        async def scores_of_all(self, *call: Any) -> list[PolicyScores]:
            fixed_scores = PolicyScores(both(1.0), both(1.0), both(6.0))
            richer_scores = PolicyScores(both(reward), both(correct), both(tokens))
            return [
                fixed_scores if policy.bias.common in ({}, fixed.logit_bias) else richer_scores
                for policy in call[-1]
            ]

    class Richer:
        name = "words"

        async def challenge(self, standing: Candidate) -> list[Challenger]:
            assert standing is fixed
            bias = RequestBias({1: 1.0})
            entries = candidate(1, bias.common)
            return [Challenger(entries, bias, "words", np.zeros(1), np.zeros(0))]

    scorer = FromSamples(cast(Trials, Measured()), EXAMPLES, goal, (SAMPLED,))
    heard = Heard()
    limits = CompileLimits(None, -100.0, 100.0, integers=False)
    choice = asyncio.run(
        select([fixed], scorer, goal, Search(6), TAIL, limits, heard, challengers=[Richer()])
    )
    assert (choice.richer is not None) == proven
    assert choice.candidate is fixed
    kept = [text for text in heard.notices if text.startswith("the bias is the same for all")]
    assert len(kept) == (not proven)


def test_every_candidate_is_drawn_at_every_setting(chosen: Chooser) -> None:
    """Greedy once a prompt; the numbers that choose are the means over the settings."""
    settings = (Setting("temperature 0.5", 0.5), GREEDY)
    choice, said, asked = chosen(FEWER_ENDS, MORE_ENDS, settings=settings)
    assert len(asked) == 3 * (6 + 1) * PROMPTS
    assert choice.candidate.logit_bias == MORE_ENDS
    assert any("6 samples a prompt, mean of temperature 0.5, greedy)" in notice for notice in said)


def test_all_greedy_is_drawn_once(chosen: Chooser) -> None:
    """Deployed greedily there is one completion a prompt and candidate, however many samples are
    allowed.
    """
    choice, _, asked = chosen(FEWER_ENDS, MORE_ENDS, {END: 2.0}, settings=(GREEDY,))
    assert len(asked) == 4 * PROMPTS
    assert {row.samples for row in choice.tried} == {1}


def test_candidates_of_a_rung_are_drawn_together() -> None:
    """The base first, then all candidates in one stage, and what follows the race in one more."""
    stages: list[int] = []

    class Counted(_Told):
        async def scores_of_all(self, *call: Any) -> list[PolicyScores]:
            stages.append(len(call[-1]))
            return await super().scores_of_all(*call)

    field = [candidate(number, {0: 1.0 + number}) for number in range(4)]
    trials = cast(Trials, Counted(0.1, 0.2, 0.3, 0.4, 0.5))
    choice = asyncio.run(choose(trials, EXAMPLES[:1], field, TAIL, samples=1))
    assert choice.candidate is field[-1]
    assert stages == [1, 4]


def test_nothing_beats_the_base(chosen: Chooser) -> None:
    """Harmful candidates only: the least harmful is still chosen and judged, and that is said."""
    choice, said, _ = chosen({END: -0.4}, FEWER_ENDS)
    assert choice.candidate.logit_bias == {END: -0.4}
    assert any("no candidate beat the base" in notice for notice in said)


def test_what_cannot_be_compared_is_refused(chosen: Chooser) -> None:
    """No candidate, and a reward without a mean, are refused before a candidate is paid for."""
    with raises_naming(InputError, "``tau``", "``l2``", "``alpha``"):
        chosen()
    never = parse_reward(lambda example, completion: -1e200, max_tokens=MAX_TOKENS)
    with raises_naming(InputError, "-1e+200", "18"):
        chosen(MORE_ENDS, FEWER_ENDS, reward=never)


class _Told:
    """Trials whose validation rewards are given: first the base's, then each candidate's; NaN where
    all were filtered.
    """

    reward = SimpleNamespace(label="reward", has_spans=False)
    report = Silent()
    session = SimpleNamespace(
        end_tokens=EndTokens(False), tells_base_logprobs=False, profile=SimpleNamespace(name="told")
    )

    def __init__(self, *rewards: float) -> None:
        self._rewards = iter(rewards)

    async def scores_of_all(self, *call: Any) -> list[PolicyScores]:
        """The next of them, on one prompt."""
        values = [next(self._rewards) for _ in call[-1]]
        parts = [np.zeros(0) if math.isnan(value) else np.array([value]) for value in values]
        return [PolicyScores((one,), None, (one,)) for one in parts]


@pytest.mark.parametrize(
    ("rewards", "best"),
    [((math.nan, 0.1), 1), ((0.1, math.nan), 0), ((0.2, 0.3), 1), ((math.nan, math.nan), 0)],
)
def test_a_candidate_without_completions_is_never_preferred(
    rewards: tuple[float, float], best: int
) -> None:
    """Where the content filter stopped all completions of a candidate, any other that has some is
    chosen before it.
    """
    field = [candidate(0, MORE_ENDS), candidate(1, FEWER_ENDS)]
    trials = cast(Trials, _Told(0.15, *rewards))
    choice = asyncio.run(choose(trials, EXAMPLES[:1], field, TAIL, samples=1))
    assert choice.candidate is field[best]
    assert choice.base.reward == 0.15
    json.dumps([row.model_dump() for row in choice.tried], allow_nan=False)


def test_validation_prompts_that_are_all_filtered() -> None:
    """Without a single completion there is nothing to choose by."""
    trials = cast(Trials, _Told(math.nan))
    with raises_naming(InputError, "validation prompts", "content filter"):
        asyncio.run(
            choose(
                trials, EXAMPLES[:1], [candidate(0, MORE_ENDS), candidate(1, WILD)], TAIL, samples=1
            )
        )


@pytest.mark.parametrize("prompts", [3, 10, 50])
def test_one_prompt_proves_nothing(prompts: int) -> None:
    """One more right answer is one standard error, whatever the number of prompts; what half of
    them show is proven from ten on.
    """
    parts = np.zeros(prompts)
    parts[0] = 1.0
    assert ByPrompt(parts).value == pytest.approx(ByPrompt(parts).standard_error)
    assert not is_proven(ByPrompt(parts))
    parts[: prompts // 2] = 1.0
    assert is_proven(ByPrompt(parts)) == (prompts >= 10)


def test_a_difference_is_proven_as_often_as_it_says() -> None:
    """Of differences without a mean, about 2.3 in 100 pass, also where there are few prompts."""
    draws = np.random.default_rng(0).normal(0, 1, (20_000, 4))
    passed = np.mean([is_proven(ByPrompt(parts)) for parts in draws])
    assert passed == pytest.approx(1 - PROVEN, abs=4 * math.sqrt(0.023 / 20_000))
    assert not is_proven(ByPrompt(np.array([5.0])))
    assert not is_proven(ByPrompt(np.array([5.0, np.nan])))


def test_the_labels_of_a_calibration_keep_their_distances_and_the_learned_lift() -> None:
    """All else stays as learned, and what depends on the prompt is learned as the whole was."""
    prior = Prior.of("calibration", {0: 1.0, 1: -1.0}, np.array([0, 1]))
    learned = candidate(0, {0: 4.0, 1: 1.0, END: 2.0})
    limits = CompileLimits(None, -100.0, 100.0, integers=False)
    calibrated = with_labels_of(prior, learned, TAIL, limits)
    assert calibrated.logit_bias == pytest.approx({0: 3.5, 1: 1.5, END: 2.0})
    assert calibrated.stands
    assert calibrated.learned_from is learned
