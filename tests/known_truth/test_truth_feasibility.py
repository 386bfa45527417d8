"""Feasibility on planted decisions: of each kind at least 19 of 20 checks give the right answer,
from 60 prompts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import log_softmax

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.feasibility import Answer, feasibility
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from tests.support.errors import raises_naming

PROMPTS, LABELS, VOCAB, LISTED = 60, 3, 40, 30
Vector = npt.NDArray[np.float64]
Planted = Callable[[np.random.Generator], tuple[Vector, npt.NDArray[np.int64]]]


def noise(rng: np.random.Generator) -> tuple[Vector, npt.NDArray[np.int64]]:
    """Logits without any meaning, and labels."""
    return rng.normal(0, 1, (PROMPTS, VOCAB)), rng.integers(0, LABELS, PROMPTS)


def shared_margin(rng: np.random.Generator) -> tuple[Vector, npt.NDArray[np.int64]]:
    """The labels are told apart, and all of them are three nats too low."""
    logits, labels = noise(rng)
    logits[np.arange(PROMPTS), labels] += 3.0
    logits[:, :LABELS] -= 3.0
    return logits, labels


def opposite_signs(rng: np.random.Generator) -> tuple[Vector, npt.NDArray[np.int64]]:
    """The model is surest of what is wrong: every prompt wants its own label lifted above
    another.
    """
    logits, labels = noise(rng)
    logits[:, :LABELS] += 5.0
    logits[np.arange(PROMPTS), labels] -= 4.0
    return logits, labels


def not_listed(rng: np.random.Generator) -> tuple[Vector, npt.NDArray[np.int64]]:
    """The labels are far below the listed tokens."""
    logits, labels = noise(rng)
    logits[:, :LABELS] -= 15.0
    return logits, labels


def already_right(rng: np.random.Generator) -> tuple[Vector, npt.NDArray[np.int64]]:
    """The right label is far above everything."""
    logits, labels = noise(rng)
    logits[np.arange(PROMPTS), labels] += 9.0
    return logits, labels


def no_skill(rng: np.random.Generator) -> tuple[Vector, npt.NDArray[np.int64]]:
    """The model says labels, and any of them whatever is right."""
    logits, labels = noise(rng)
    logits[:, :LABELS] += 5.0
    return logits, labels


@pytest.mark.parametrize(
    ("planted", "answer"),
    [
        (shared_margin, "fixed"),
        (opposite_signs, "depends on the prompt"),
        (not_listed, "not listed"),
        (already_right, "already right"),
        (no_skill, "no skill"),
    ],
)
def test_planted_decisions_are_recognised(planted: Planted, answer: Answer) -> None:
    """Twenty draws of each kind."""
    found = []
    for seed in range(20):
        logits, labels = planted(np.random.default_rng(seed))
        logprobs = log_softmax(logits, axis=1)
        order = np.argsort(-logprobs, axis=1)[:, :LISTED]
        lists = FirstLists(order, np.take_along_axis(logprobs, order, 1))
        found.append(feasibility(lists, [np.array([label]) for label in labels], labels))
    assert sum(each.answer == answer for each in found) >= 19
    assert all(each.sentence for each in found)


def test_what_is_predicted_is_what_the_bias_does() -> None:
    """The predicted share of right decisions is within three standard errors of that on fresh
    prompts under the planted offset.
    """
    rng = np.random.default_rng(0)
    for _ in range(20):
        logits, labels = shared_margin(rng)
        logprobs = log_softmax(logits, axis=1)
        order = np.argsort(-logprobs, axis=1)
        lists = FirstLists(order, np.take_along_axis(logprobs, order, 1))
        found = feasibility(lists, [np.array([label]) for label in labels], labels)
        fresh, truth = shared_margin(rng)
        fresh[:, :LABELS] += 3.0 + 2.0
        right = (fresh.argmax(axis=1) == truth).mean()
        assert (
            abs(found.predicted - right)
            < 3 * np.hypot(found.error, np.sqrt(right * (1 - right) / PROMPTS)) + 0.05
        )


@pytest.mark.parametrize("counts", [(15, 15, 15, 15), (17, 16, 14, 13)])
def test_the_majority_is_the_largest_class(counts: tuple[int, ...]) -> None:
    """Always saying the commonest label is right on its share of the prompts, however balanced the
    labels are; and a base of beginnings is called one.
    """
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    logits = rng.normal(0, 1, (PROMPTS, VOCAB))
    logits[:, : len(counts)] += 9.0
    lists = FirstLists(np.tile(np.arange(VOCAB), (PROMPTS, 1)), log_softmax(logits, axis=1))
    accepted = [np.array([label]) for label in labels]
    found = feasibility(lists, accepted, labels)
    assert found.majority == max(counts) / PROMPTS
    assert found.answer == "no skill"
    assert "greedy decoding begins right" in found.sentence
    assert f"always saying the commonest label on {found.majority:.0%}" in found.sentence
    whole = feasibility(lists, accepted, labels, np.zeros(PROMPTS, np.bool_))
    assert "greedy decoding is right" in whole.sentence


def test_what_says_nothing_is_refused() -> None:
    """One prompt, or one label, is no decision."""
    lists = FirstLists(np.array([[0, 1]] * 3), np.log([[0.6, 0.4]] * 3))
    with raises_naming(InputError, "3 prompts", "1 labels"):
        feasibility(lists, [np.array([0])] * 3, np.zeros(3, np.int64))
