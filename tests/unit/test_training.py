"""Training sets: what is read of each completion, which are left out, and that both are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blackbox_lb.errors import InputError, NoLogprobs
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.statistics import Statistics
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import parse_reward
from blackbox_lb.training import Training, censored, columns, training_set
from blackbox_lb.types import UNNAMED, Completion, Example, Prompt

SETTINGS = {"model": "m", "tokenizer": "t"}
EXAMPLES = [Example(str(n), Prompt.user(f"question {n}")) for n in range(3)]
REWARD = parse_reward("length", max_tokens=9)


def completion(text: str = "hi", tokens: int = 3) -> Completion:
    """A completion with two alternatives a token, all but its first sampled outside them."""
    return Completion(
        text=text,
        finish_reason="stop",
        token_ids=np.arange(tokens, dtype=np.int32),
        logprobs=np.full(tokens, -2.0, dtype=np.float32),
        top_ids=np.tile(np.array([[0, 9]], dtype=np.int32), (tokens, 1)),
        top_logprobs=np.tile(np.array([[-0.4, -1.5]], dtype=np.float32), (tokens, 1)),
        whole=True,
    )


def trained(folder: Path, drawn: Sequence[Completion]) -> Training:
    """The training set of one completion for each of the first prompts."""
    with RolloutStore(folder / "s.db") as store:
        keys = [(store.add(SETTINGS, EXAMPLES[n].prompt, 0, each),) for n, each in enumerate(drawn)]
        return training_set(store, EXAMPLES, keys, REWARD)


def test_positions_are_the_listed_ones(tmp_path: Path) -> None:
    """A provider that counts an end token that it does not list has one more token than positions, and rewards count it."""
    training = trained(tmp_path, [replace(completion(), generated=4), completion(tokens=2)])
    assert training.rollouts.lengths.tolist() == [3, 2]
    assert training.rollouts.rewards.tolist() == pytest.approx([np.log(9 / 4), np.log(9 / 2)])
    assert (training.incomplete, training.filtered, training.left_out) == (0, 0, [])


def test_propensities_are_read_where_they_are_told(tmp_path: Path) -> None:
    """Where a provider tells the policy that sampled from the base model, inverse propensities read the former."""
    told = replace(completion(), propensities=np.array([-1.0, -1.25, -1.5], dtype=np.float32))
    training = trained(tmp_path, [told, completion(tokens=1)])
    assert training.rollouts.logprobs.tolist() == [-1.0, -1.25, -1.5, -2.0]
    assert training.rollouts.top_logprobs[:, 0].tolist() == pytest.approx([-0.4] * 4)


def test_bounds_are_kept_position_by_position(tmp_path: Path) -> None:
    """Completions with and without bounds stand side by side."""
    bounded = replace(completion(), bounded=np.array([False, True, True]))
    training = trained(tmp_path, [completion(tokens=2), bounded])
    assert training.rollouts.is_bounded.tolist() == [False, False, False, True, True]
    found = censored(training.rollouts, NextToken.of(training.rollouts), "drop")
    assert (found.positions, found.outside, found.bounded, found.unobserved) == (5, 3, 2, "drop")
    assert found.mass == pytest.approx(1 - np.exp(-0.4) - np.exp(-1.5), abs=1e-6)
    assert Statistics.of(training.rollouts, unobserved="drop").drawn.tolist() in ([2, 1], [1, 2])


def test_what_is_left_out_is_counted_by_reason(tmp_path: Path) -> None:
    """Incomplete and filtered completions are told apart, whether the filter left text or not."""
    cut = replace(completion("cut"), finish_reason="content_filter")
    for drawn, incomplete, filtered in (
        ([completion(), replace(completion(), whole=False)], 1, 0),
        ([completion(), Completion.empty("content_filter")], 0, 1),
        ([completion(), cut, replace(completion(), whole=False, token_ids=np.array([0, UNNAMED, 2], np.int32))], 1, 1),
    ):
        folder = tmp_path / f"{incomplete}{filtered}"
        training = trained(folder, drawn)
        assert (training.incomplete, training.filtered) == (incomplete, filtered)
        assert len(training.rollouts.keys) == 1
        assert len(training.left_out) == bool(incomplete) + bool(filtered)
        assert all(sentence.startswith("1 completions are left out") for sentence in training.left_out)


def test_nothing_left_is_an_error_that_says_why(tmp_path: Path) -> None:
    """Without a single complete completion there is nothing to learn from; filtered ones are named."""
    with pytest.raises(
        NoLogprobs, match=r"none of 2 completions has a complete list .*\(1 were stopped by a content filter\)"
    ):
        trained(tmp_path, [Completion.empty("content_filter"), replace(completion(), whole=False)])


def test_a_completion_without_tokens_is_no_training(tmp_path: Path) -> None:
    """A provider that counts tokens and lists none has given nothing to learn from."""
    with pytest.raises(NoLogprobs):
        trained(tmp_path, [replace(completion(tokens=0), generated=5)])


def test_columns_of_different_lengths_are_refused() -> None:
    """Propensities that do not match the tokens never reach an estimator."""
    short = replace(completion(), propensities=np.zeros(2, dtype=np.float32))
    with pytest.raises(InputError, match="logprobs must have shape"):
        columns({"a": short}, [0], [0.0])
