"""Verdicts that hold: the whole job on an exact model, in process, with rewards of which the truth
is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits, candidates
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.rollouts.judging.verdict import (
    GREEDY,
    SAMPLED,
    PolicyScores,
    Setting,
    compare,
    together,
)
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.tasks import parse_reward
from tests.support.exact import ExactModel
from tests.support.exact.model import NOTHING, rewards_of
from tests.support.truth import Exact

Score = Callable[[tuple[int, ...], int], float]
Values = npt.NDArray[np.float64]

VOCABULARY, HORIZON, GOOD = 24, 8, frozenset({1, 3, 5, 8, 11, 14, 17, 20})
TRAIN, VALIDATION, TEST = range(40), range(40, 60), range(60, 110)
MODEL = ExactModel(VOCABULARY, HORIZON, end=True, prompts=110, sharpness=0.7, seed=3)
LABEL = parse_reward("length", max_tokens=HORIZON)
SWEEP = Sweep(tau=(0.5,), l2=(2.0, 20.0))
LIMITS = CompileLimits(entries=None, low=-100.0, high=100.0, integers=False)


@dataclass(frozen=True)
class Job:
    """One run from rollouts to verdicts: learns from ``learned``, chooses and judges by
    ``score``.
    """

    learned: Score
    score: Score
    seed: int

    def draw(
        self, prompts: Sequence[int], n: int, setting: Setting, delta: Values | None, salt: int
    ) -> PolicyScores:
        """Scores of ``n`` fresh completions of each prompt."""
        of = np.repeat(np.array(prompts), 1 if setting.deterministic else n)
        rows = MODEL.sample(
            len(of),
            np.random.default_rng([self.seed, salt]),
            delta,
            setting.temperature,
            prompts=of,
        )
        lengths = (rows != NOTHING).sum(axis=1)
        values = rewards_of(self.score, rows, lengths, of)
        split = [
            tuple(each[of == prompt] for prompt in prompts)
            for each in (values, lengths.astype(np.float64))
        ]
        return PolicyScores(split[0], None, split[1])

    def validation(self, candidate: Candidate, salt: int) -> float:
        """What the choice is made by."""
        scores = self.draw(VALIDATION, 4, SAMPLED, _full(candidate), salt)
        return float(np.mean([row.mean() for row in scores.reward]))

    def words(self) -> list[str]:
        """What is said of the reward at temperature 1 and greedy, in one table with the lengths."""
        rollouts = MODEL.rollouts(
            10 * len(TRAIN), self.learned, self.seed, top=10, prompts=list(TRAIN)
        )
        tried = list(candidates(Positions.of(rollouts), SWEEP, LIMITS))
        best = max(range(len(tried)), key=lambda i: self.validation(tried[i], 100 + i))
        rows = []
        for salt, setting in enumerate((SAMPLED, GREEDY)):
            base = self.draw(TEST, 6, setting, None, 10 + salt)
            rows += compare(
                setting,
                base,
                self.draw(TEST, 6, setting, _full(tried[best]), 20 + salt),
                LABEL.label,
            )
        return [row.verdict for row in together(rows) if row.metric != "tokens"]


def _full(candidate: Candidate) -> Values:
    """The candidate over the whole vocabulary."""
    full = np.zeros(VOCABULARY)
    full[candidate.sparse.token_ids] = candidate.sparse.values
    return full


def noise(seed: int) -> Job:
    """A reward that no completion could tell."""
    rng = np.random.default_rng([seed, 7])

    def score(tokens: tuple[int, ...], prompt: int) -> float:
        return float(rng.normal())

    return Job(score, score, seed)


def good(tokens: tuple[int, ...], prompt: int) -> float:
    """The share of good tokens."""
    return 3 * len(GOOD.intersection(tokens)) / HORIZON


def bad(tokens: tuple[int, ...], prompt: int) -> float:
    """The opposite of what is wanted."""
    return -good(tokens, prompt)


@pytest.mark.parametrize(
    ("runs", "fewest"), [(12, 11), pytest.param(200, 190, marks=pytest.mark.slow)]
)
def test_noise_is_no_evidence(runs: int, fewest: int) -> None:
    """Of a reward of pure noise nothing is claimed, at either setting, in at least 95 % of 200
    runs.
    """
    found = sum(set(noise(seed).words()) == {"NO EVIDENCE"} for seed in range(runs))
    print(f"\npure noise: NO EVIDENCE in {found} of {runs} runs")
    assert found >= fewest


@pytest.mark.parametrize(("learned", "word"), [(good, "HELPS"), (bad, "HURTS")])
def test_a_reward_helps_and_its_opposite_hurts(learned: Score, word: str) -> None:
    """Learned from what is wanted, the bias helps at temperature 1; learned from the opposite, it
    hurts: in ten of ten runs.
    """
    assert {Job(learned, good, seed).words()[0] for seed in range(10)} == {word}


def length(tokens: tuple[int, ...], prompt: int) -> float:
    """Compression's reward."""
    return float(np.log(4 / len(tokens)))


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [16, 50, 200])
@pytest.mark.parametrize("reward", [good, length])
def test_the_interval_of_the_evaluation_covers(prompts: int, reward: Score) -> None:
    """Prompts drawn anew each time, from a population with a known difference: 93 to 97 % of 1,000
    intervals hold it.
    """
    model = ExactModel(6, 4, end=True, prompts=300, sharpness=1.0, seed=5)
    delta = np.array([0.0, -1.0, 0.5, 1.0, 0.0, 0.7])
    exact = Exact(model, reward)
    truth = {"reward": exact.expected_reward(delta) - exact.expected_reward()}
    truth["tokens"] = exact.expectation(exact.lengths.astype(float), delta) - exact.expectation(
        exact.lengths.astype(float)
    )
    hits = dict.fromkeys(truth, 0)
    for seed in range(1000):
        rng = np.random.default_rng([seed, prompts])
        asked = rng.integers(0, 300, prompts)
        base, biased = (_scores(model, asked, reward, rng, bias) for bias in (None, delta))
        for row, name in zip(compare(SAMPLED, base, biased, LABEL.label), truth, strict=True):
            hits[name] += row.low <= truth[name] <= row.high
    print(
        f"\n{reward.__name__}, {prompts} prompts: "
        + ", ".join(f"{name} {count / 10:.1f} %" for name, count in hits.items())
    )
    assert all(930 <= count <= 970 for count in hits.values()), hits


def _scores(
    model: ExactModel,
    asked: npt.NDArray[np.int64],
    reward: Score,
    rng: np.random.Generator,
    delta: Values | None,
) -> PolicyScores:
    """Four completions of each prompt."""
    of = np.repeat(asked, 4)
    rows = model.sample(len(of), rng, delta, prompts=of)
    lengths = (rows != NOTHING).sum(axis=1)
    values = rewards_of(reward, rows, lengths, of)
    return PolicyScores(
        tuple(values.reshape(-1, 4)), None, tuple(lengths.astype(np.float64).reshape(-1, 4))
    )
