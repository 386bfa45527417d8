"""Reward against KL at equal rollouts, with known truth: the projection from five logprobs against
the paper's estimator.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest

from bench.curves import Curve, Point
from bench.exact import PEER, SUBJECT, Plan, compare, curve, measure
from bench.problems import PROBLEMS
from bench.studies import local
from blackbox_lb import RolloutStore, Trials, connect, load_task, parse_reward
from blackbox_lb.rollouts.progress import Silent
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import questions, write_rows


def point(kl: float, reward: float) -> Point:
    """A point of which only these two count."""
    return Point("any", 1, 1.0, "", reward, kl, 1.0)


def test_a_frontier_by_eye() -> None:
    """Dominated points drop out; between two biases the frontier is the straight line that mixing
    them reaches.
    """
    found = Curve(
        [point(1.0, 2.0), point(1.5, 1.9), point(3.0, 3.0), point(0.5, 0.9), point(4.0, 2.0)], 0.0
    )
    assert found.hull == [(0.0, 0.0), (1.0, 2.0), (3.0, 3.0)]
    assert [found.kl_at(reward) for reward in (-1.0, 1.0, 2.5, 3.0)] == pytest.approx(
        [0.0, 0.5, 2.0, 3.0]
    )
    assert found.kl_at(3.1) == math.inf
    assert found.objective(1.0) == 1.0
    assert found.objective(10.0) == 0.0
    assert found.level(0.5) == 1.5


def test_a_frontier_of_nothing_better_is_the_base() -> None:
    """Where no bias beats the base model, or no KL is known, the frontier is the base model
    alone.
    """
    for points in ([], [point(1.0, -1.0)], [point(math.nan, 5.0)]):
        assert Curve(points, 0.5).hull == [(0.0, 0.5)]


def test_a_mixture_of_biases_lies_on_or_above_the_line() -> None:
    """A policy that picks one of two biases for each completion has at most the average KL, so the
    hull promises nothing untrue.
    """
    rng = np.random.default_rng(0)
    base, one, other = rng.dirichlet(np.ones(50), 3)
    mixed = (one + other) / 2
    kl = [float(p @ np.log(p / base)) for p in (one, other, mixed)]
    assert kl[2] <= (kl[0] + kl[1]) / 2


def test_the_model_is_as_peaked_as_it_is_described() -> None:
    """Five tokens hold about .74 of the probability and twenty about .91; completions have about
    five tokens.
    """
    problem = PROBLEMS["rare"]
    found = problem.model().rollouts(600, problem.reward, 1, top=20)
    mass = np.exp(found.top_logprobs.astype(np.float64)).cumsum(axis=1).mean(axis=0)
    assert mass[4] == pytest.approx(0.74, abs=0.03)
    assert mass[19] == pytest.approx(0.91, abs=0.02)
    assert found.lengths.mean() == pytest.approx(5.3, abs=0.5)
    assert found.rewards.mean() == pytest.approx(0.095, abs=0.04)


def test_a_rare_good_token_costs_a_fraction_of_the_kl_and_of_the_rollouts() -> None:
    """Quick: 400 rollouts with five logprobs beat 2,000 of ips on E[r] - tau KL, and its best
    reward costs under half of its KL.
    """
    plan = Plan(rollouts=(400, 2000), draws=1, completions=500, estimators=(SUBJECT, PEER))
    base, points = measure(["rare"], plan)["rare"]
    found = compare(PROBLEMS["rare"], base, points)
    assert len(found.rollouts) == 2
    assert found.fifth_suffices == 1
    assert found.kl_ratio < 0.5
    assert curve(points, base, SUBJECT, 2000).highest > base + 0.15


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rare", "answer"])
def test_what_depends_on_content_needs_a_fifth_of_the_rollouts(name: str) -> None:
    """Means of four draws: a fifth of the rollouts of ips suffices, at a quarter of its KL."""
    plan = Plan(rollouts=(200, 400, 1000, 2000), estimators=(SUBJECT, PEER))
    base, points = measure([name], plan, processes=2)[name]
    found = compare(PROBLEMS[name], base, points)
    assert found.fifth_suffices == 1
    assert found.kl_ratio <= 0.25


@pytest.mark.parametrize("limit", [None, 2])
def test_the_run_on_a_real_model_resumes_and_reports(tmp_path: Path, limit: int | None) -> None:
    """Against an exact server: every planned bias is judged, and a second run asks for no
    completion.
    """
    splits = (("train", range(6)), ("validation", range(6, 9)), ("test", range(9, 13)))
    rows = questions(6, 3, 4, answer="a")
    data, profile = tmp_path / "data.jsonl", tmp_path / "own.toml"
    write_rows(data, rows)
    profile.write_text('extends = "llamacpp"\nname = "own"\n')
    plan = local.Plan(samples=5, test_samples=2, limit=limit, top_logprobs=8)

    async def run(server: ExactServer) -> tuple[local.Measured, list[local.Measured]]:
        async with connect(str(profile), base_url=server.base_url, max_tokens=8) as session:
            with RolloutStore(tmp_path / "rollouts.db") as store:
                reward = parse_reward("length", max_tokens=8)
                trials = Trials(
                    session, store, await session.tokenizer(), reward, Silent(), plan.top_logprobs
                )
                return await local.measure(trials, load_task(data=data), plan)

    def drawn(server: ExactServer) -> int:
        return sum(path.endswith("completions") for path, _ in server.calls)

    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)) as server:
        base, found = asyncio.run(run(server))
        asked = drawn(server)
        again = asyncio.run(run(server))
        assert drawn(server) == asked > 0
    assert again[1] == found
    train, test = (limit or len(list(numbers)) for _, numbers in (splits[0], splits[2]))
    assert asked == train * plan.samples + test * plan.test_samples * (1 + len(local.PLANNED))
    assert [each.point.rollouts for each in found if each.point.estimator == PEER] == [
        train * plan.samples
    ] * 3
    assert {each.point.rollouts for each in found} == {
        train * plan.samples,
        train * plan.samples // 5,
    }
    assert base.point.kl == 0
    table = local.table(base, found, "T/len")
    assert len(table.splitlines()) == 3 + len(local.PLANNED)
    assert "fifth" in local.comparison(base, found)
