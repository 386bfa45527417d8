"""The bench of compiling: its exact expectations, its common seeds, its pooled estimate, and what
its tables say.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from bench.studies import local
from bench.studies.bigram import Bigram
from bench.studies.compiled import (
    BASE,
    COMPILED,
    FULL,
    KINDS,
    NAIVE,
    REFITTED,
    Learning,
    largest,
    rows,
)
from bench.studies.compiling import Samples, measure_local
from bench.studies.compiling_exact import PROBLEMS, Case, Plan, measure
from bench.studies.compiling_report import (
    Measured,
    draw_panels,
    exact_series,
    exact_text,
    local_series,
    local_text,
    save,
    shares,
)
from bench.studies.coupled import Drawn, gain_kept, seed_of
from bench.studies.pooling import Pooled
from blackbox_lb import RolloutStore, Trials, connect, load_task, parse_reward
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import projection
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.types import Example, Prompt
from tests.support.exact import ExactModel, ExactServer
from tests.support.truth import Exact


def test_expectations_without_enumeration_are_those_of_all_sequences() -> None:
    """On a model small enough to enumerate, reward and total probability agree to twelve digits."""
    model = Bigram(
        7, 4, seed=3, prompts=2, sharpness=1.0, unigram=np.linspace(0.5, -0.5, 7), end=0.3
    )
    wanted = np.zeros((2, 7), dtype=np.bool_)
    wanted[0, 2] = wanted[1, [1, 4]] = wanted[1, 6] = True

    def value(hit: bool, tokens: int) -> float:
        return hit * 4 / tokens - 0.1 * tokens

    def reward(tokens: tuple[int, ...], prompt: int) -> float:
        return value(any(wanted[prompt, token] for token in tokens if token != 6), len(tokens))

    delta = np.random.default_rng(0).standard_normal(7)
    found = model.exactly(delta, wanted, [0, 1])
    assert found.mass.sum(axis=(1, 2)) == pytest.approx([1.0, 1.0], abs=1e-12)
    assert found.mean(value) == pytest.approx(
        Exact(model, reward).expected_reward(delta), abs=1e-12
    )


def test_the_naive_cut_centres_over_the_whole_vocabulary() -> None:
    """A bias above the mean everywhere it was seen keeps the tokens farthest from that mean, minus
    it, rounded if asked.
    """
    rollouts = ExactModel(12, 4, end=True, seed=1).rollouts(
        200, lambda tokens, prompt: -float(len(tokens)), 2
    )
    fit = projection(rollouts, l2=1.0)
    full = np.zeros(40)
    full[fit.token_ids] = fit.delta + 0.0
    centred = full - full.mean()
    kept = largest(fit, 40, 3, integers=False)
    assert set(kept) == set(np.argsort(-np.abs(centred))[:3].tolist())
    assert all(value == pytest.approx(centred[token]) for token, value in kept.items())
    assert all(value == round(value) != 0 for value in largest(fit, 40, 12, integers=True).values())


def test_every_row_keeps_its_limit() -> None:
    """Entries and whole numbers hold for every kind; more entries keep more of the divergence; the
    full vector keeps all of it.
    """
    problem = PROBLEMS["gated"]
    model = ExactModel(60, 6, end=True, seed=1, prompts=4)
    rollouts = model.rollouts(
        400, lambda tokens, prompt: problem.score(prompt % 2 == 0, len(tokens)), 2, top=15
    )
    found = rows(rollouts, NextToken.of(rollouts), 60, Learning(0.5, 5.0, (3, 20)))
    assert [row.kind for row in found] == [BASE, FULL, *KINDS * 4]
    assert found[0].kept == 0
    assert found[1].kept == pytest.approx(1.0)
    for row in found[2:]:
        assert row.entries is not None
        assert len(row.bias) <= row.entries
        assert not row.integers or all(value == int(value) for value in row.bias.values())
    kept = {(row.kind, row.entries): row.kept for row in found if not row.integers}
    for kind in KINDS:
        assert kept[kind, 3] < kept[kind, 20]
    assert kept[COMPILED, 3] > kept[NAIVE, 3]


def test_seeds_are_of_prompt_and_sample_alone() -> None:
    """The same pair has the same seed, another prompt or number has another, all within 31 bits."""
    one, other = (Example(str(n), Prompt.user(f"question {n}"), ()) for n in range(2))
    seeds = [seed_of(example, sample) for example in (one, other) for sample in range(3)]
    assert len(set(seeds)) == 6
    assert seeds[0] == seed_of(Example("renamed", one.prompt, ("a",)), 0)
    assert all(0 <= seed < 2**31 for seed in seeds)


def drawn(reward: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Drawn:
    """Completions of which only the rewards count."""
    return Drawn((), reward, reward, reward, 0.0)


def test_what_is_common_to_two_policies_cancels() -> None:
    """A row that does what the full vector does keeps its gain without any noise, on fewer samples,
    too.
    """
    noise = np.random.default_rng(0).standard_normal((30, 8))
    base, full = drawn(np.zeros((30, 8))), drawn(2.0 + noise)
    same = gain_kept(drawn(2.0 + noise[:, :3]), full, base)
    assert same is not None
    assert (same.share, same.low, same.high) == (1.0, 1.0, 1.0)
    half = gain_kept(drawn(1.0 + noise[:, :3]), full, base)
    assert half is not None
    assert half.share == pytest.approx(1 - 1 / (2.0 + noise.mean()))
    assert half.low < half.share < half.high
    assert gain_kept(drawn(np.zeros((30, 0))), full, base) is None


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Two problems on a model of 200 tokens."""
    plan = Plan(
        ("gated", "length"), vocabularies=(200,), seeds=(1,), rollouts=400, entries=(10, 30, 300)
    )
    return measure(plan)


def test_limits_beyond_the_vocabulary_are_left_out(cases: list[Case]) -> None:
    """200 tokens have no row of 300 entries; what the others keep is exact, and most of it at 30 of
    them.
    """
    assert {row.entries for case in cases for row in case.rows} == {None, 10, 30}
    for case in cases:
        assert case.kept(0) == 0
        assert case.kept(1) == 1
        assert case.rewards[1] > case.rewards[0]
    assert min(shares(cases, COMPILED, 30, False)) > 0.7
    assert shares(cases, COMPILED, 300, False) == []


def test_the_whole_bench_resumes_and_reports(tmp_path: Path) -> None:
    """Against an exact server: every row is judged, a second run asks for nothing, and more samples
    ask for those alone.
    """
    splits = (("train", range(6)), ("validation", range(6, 8)), ("test", range(8, 13)))
    lines = [
        {"prompt": f"question {n}", "answer": "a", "split": name}
        for name, numbers in splits
        for n in numbers
    ]
    data, profile = tmp_path / "data.jsonl", tmp_path / "own.toml"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    profile.write_text('extends = "llamacpp"\nname = "own"\n')
    learning = Learning(0.5, 5.0, (3, 30, 300))

    async def run(server: ExactServer, samples: Samples | None) -> tuple[list[Measured], Pooled]:
        async with connect(str(profile), base_url=server.base_url, max_tokens=8) as session:
            with RolloutStore(tmp_path / "rollouts.db") as store:
                reward = parse_reward("length", max_tokens=8)
                trials = Trials(session, store, await session.tokenizer(), reward, Silent(), 8)
                plan = local.Plan(samples=5, top_logprobs=8)
                return await measure_local(trials, load_task(data=data), plan, learning, samples)

    def asked(server: ExactServer) -> int:
        return sum(path.endswith("completions") for path, _ in server.calls)

    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)) as server:
        found, pool = asyncio.run(run(server, Samples(1, 2, 2)))
        first = asked(server)
        again = asyncio.run(run(server, Samples(1, 2, 2)))
        assert asked(server) == first
        assert [each.direct for each in again[0]] == [each.direct for each in found]
        stored = asyncio.run(run(server, None))
        for one, other in zip(
            stored[0], found, strict=True
        ):  # rows with one bias share completions
            assert one.drawn.reward.shape >= other.drawn.reward.shape
        assert asked(server) == first
        asyncio.run(run(server, Samples(1, 3, 3)))
        biases = {
            tuple(sorted(each.row.bias.items()))
            for each in found
            if each.row.entries in (None, 30, 300)
        }
        assert asked(server) - first == 5 * len(biases)
    assert [each.row.kind for each in found] == [BASE, FULL, *KINDS * 6]
    assert found[1].drawn.reward.shape == (5, 2)
    assert found[2].drawn.reward.shape == (5, 1)
    direct = [each.direct.share for each in found if each.direct]
    assert direct[:2] == pytest.approx([0.0, 1.0])
    assert found[1].pooled.share == 1
    everything = {each.row.name: each for each in found}
    # 12 tokens: 30 entries hold the full vector, so that it is drawn once and counts as one policy
    assert everything[f"{COMPILED} 30"].row.bias == found[1].row.bias
    assert everything[f"{COMPILED} 30"].direct == found[1].direct
    assert (
        everything[f"{COMPILED} 30"].pooled.share == everything[f"{REFITTED} 30"].pooled.share == 1
    )
    assert pool.mean_weight == pytest.approx(np.ones(len(found)), abs=0.5)
    text = local_text(found, pool, "T/len")
    assert sum(line.startswith("| ") for line in text.splitlines()) == 2 + len(found)
    assert "goal 90%" in text


def test_a_pooled_mean_is_the_truth_within_its_noise(tmp_path: Path) -> None:
    """Completions of all policies, reweighted, tell the exact mean of each of them; a bias that
    nobody sampled much is told too.
    """
    splits = (("train", range(6)), ("validation", range(6, 8)), ("test", range(8, 11)))
    lines = [
        {"prompt": f"question {n}", "answer": "a", "split": name}
        for name, numbers in splits
        for n in numbers
    ]
    data, profile = tmp_path / "data.jsonl", tmp_path / "own.toml"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    profile.write_text('extends = "llamacpp"\nname = "own"\n')
    model = ExactModel(6, 4, end=True, seed=2, prompts=1)

    async def run(server: ExactServer) -> tuple[list[Measured], Pooled]:
        async with connect(str(profile), base_url=server.base_url, max_tokens=4) as session:
            with RolloutStore(tmp_path / "rollouts.db") as store:
                trials = Trials(
                    session,
                    store,
                    await session.tokenizer(),
                    parse_reward("length", max_tokens=4),
                    Silent(),
                    5,
                )
                plan = local.Plan(samples=10, top_logprobs=5)
                return await measure_local(
                    trials,
                    load_task(data=data),
                    plan,
                    Learning(0.5, 5.0, (2,)),
                    Samples(10, 10, 25),
                )

    with ExactServer(model) as server:
        found, pool = asyncio.run(run(server))
    exact = Exact(model, lambda tokens, prompt: 4 / len(tokens))
    for each, reward in zip(found, pool.reward, strict=True):
        delta = np.zeros(6)
        delta[list(each.row.bias)] = list(each.row.bias.values())
        assert reward.mean() == pytest.approx(exact.expected_reward(delta), abs=0.15)
    assert exact.expected_reward(delta) > exact.expected_reward() + 0.3
    assert pool.effective_sample_size[2] > 2 * found[2].drawn.reward.size


def test_tables_and_plot_hold_every_limit(cases: list[Case], tmp_path: Path) -> None:
    """A line a limit and problem; the plot is drawn from the saved series alone."""
    text = exact_text(cases)
    assert text.count("| 30 |") == 3
    assert "goal 90%" in text
    series = exact_series(cases)
    assert set(series) == {(kind, integers) for kind in KINDS for integers in (False, True)}
    pytest.importorskip("matplotlib")
    save("a title", series, tmp_path / "exact.json")
    draw_panels([tmp_path / "exact.json"], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    assert local_series([]) == {key: [] for key in series}
