"""The estimators as a researcher calls them: positions, weights, and a bias."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import blackbox_lb as blb
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.statistics import TokenIPS
from blackbox_lb.estimate.inputs.rollouts import PositionWeights
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection import projection as projections
from blackbox_lb.estimate.projection.projection import Prior
from blackbox_lb.estimate.projection.standard_errors import standard_errors as errors_of
from blackbox_lb.types import EndTokens
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.fits import projection, standard_errors
from tests.support.statistics import statistics_of
from tests.support.stored import SAMPLING, SETTINGS, store_completions

TAU = 0.5
MODEL = ExactModel(15, 5, seed=3, end=True, prompts=20)
ROLLOUTS = MODEL.rollouts(400, lambda tokens, _: -0.3 * len(tokens), 1, top=8)
POSITIONS = blb.Positions.of(ROLLOUTS)


def dense(fitted: blb.Projection | blb.IPS) -> np.ndarray:
    """(v,) the bias of every token."""
    return np.array([fitted.bias_.get(token, 0.0) for token in range(MODEL.vocab_size)])


def test_they_are_the_estimators_of_the_program() -> None:
    """Values, tokens and standard errors are those of the functions behind ``blb fit``."""
    weights, table = blb.RewardTilt(tau=TAU), POSITIONS.next_token
    ours = blb.Projection(l2=2.0).fit(POSITIONS, weights)
    fit = projection(ROLLOUTS, tau=TAU, l2=2.0, next_token=table)
    np.testing.assert_array_equal(ours.values_, fit.delta)
    np.testing.assert_array_equal(ours.token_ids_, fit.token_ids)
    errors = standard_errors(ROLLOUTS, table, fit, tau=TAU, l2=2.0).errors
    np.testing.assert_array_equal(ours.standard_errors_, errors)
    sums = statistics_of(ROLLOUTS, TAU)
    relative = blb.IPS(alpha=0.1).fit(POSITIONS, weights)
    np.testing.assert_allclose(relative.values_, TokenIPS(sums).delta(TAU, 0.1, relative=True))
    absolute = blb.IPS(alpha=0.052, alpha_scale="absolute").fit(POSITIONS, weights)
    np.testing.assert_allclose(absolute.values_, TokenIPS(sums).delta(TAU, 0.052))
    for fitted in (ours, relative, absolute):
        assert dense(fitted)[MODEL.vocab_size - 1] > max(dense(fitted)[:-1]), "shorter is better"


def test_a_second_fit_forgets_the_first() -> None:
    """Values and standard errors are those of the last weights."""
    ours = blb.Projection().fit(POSITIONS, blb.RewardTilt(tau=1.0))
    before, errors = ours.values_, ours.standard_errors_
    ours.fit(POSITIONS, blb.RewardTilt(tau=0.3))
    assert np.abs(ours.values_ - before).max() > 0.1
    assert np.abs(ours.standard_errors_ - errors).max() > 0.01


def test_rollouts_of_no_weight_bear_no_part_of_the_penalty() -> None:
    """The fit to a sample of which a third weighs nothing has its standard errors: the parts of the
    gradient cancel at its maximum, though the weights have another mean than 1.
    """
    weights = (np.arange(len(ROLLOUTS.keys)) % 3 > 0).astype(float)
    values = np.repeat(weights, ROLLOUTS.lengths)
    rule = PositionWeights(values, np.zeros(len(values)), "global")
    prior = Prior("lift", np.array([3, 4]), np.array([2.0, -3.0]), np.array([], np.int64))
    table = NextToken.of(ROLLOUTS)
    for chosen in (None, prior):
        fit = projections.projection(ROLLOUTS, rule, l2=9.0, next_token=table, prior=chosen)
        errors = errors_of(ROLLOUTS, table, fit, rule, l2=9.0, prior=chosen).errors
        assert np.isfinite(errors).all()


def test_other_weights() -> None:
    """Rewards to go where there are costs, and answers beside what was drawn."""
    costs = replace(ROLLOUTS, costs=np.full(len(ROLLOUTS.token_ids), -0.3))
    to_go = blb.Projection().fit(blb.Positions.of(costs), blb.RewardToGo(tau=TAU, gamma=0.5))
    assert dense(to_go)[MODEL.vocab_size - 1] > 0.3
    given = MODEL.rollouts(40, lambda *_: 0.0, 7, top=8)
    given = replace(given, keys=tuple(f"given {key}" for key in given.keys), shares=np.ones(40))
    both = blb.Positions.of(blb.Rollouts.join([ROLLOUTS, given]))
    rule = blb.RewardTilt(tau=TAU) + blb.GivenAnswers()
    fitted = blb.Projection(l2=2.0).fit(both, rule)
    assert (
        np.abs(dense(fitted) - dense(blb.Projection(l2=2.0).fit(both, blb.RewardTilt(TAU)))).max()
        > 0.01
    )
    assert np.isfinite(fitted.standard_errors_).all()


def test_what_they_cannot_do_they_say() -> None:
    """Reading before fitting, sums of completions with weights of positions, and bad settings."""
    for unfitted in (blb.Projection(), blb.IPS()):
        with pytest.raises(InputError):
            _ = unfitted.bias_
    with pytest.raises(InputError):
        _ = blb.Projection().standard_errors_
    rule = blb.RewardToGo(tau=TAU)
    for weights in (rule, blb.RewardTilt(TAU, "prompt")):
        with pytest.raises(InputError):
            blb.IPS().fit(POSITIONS, weights)
    for make in (lambda: blb.Projection(l2=0.0), lambda: blb.IPS(alpha=-1)):
        with pytest.raises(InputError):
            make()


ALL = ExactModel(9, 6, end=True, prompts=3, seed=1).rollouts(
    12, lambda tokens, _: float(len(tokens)), 2, top=4
)


def same(one: blb.Rollouts, other: blb.Rollouts) -> bool:
    """Whether every column agrees."""
    columns = [field.name for field in fields(blb.Rollouts) if field.name not in ("keys", "costs")]
    pairs = [(getattr(one, name), getattr(other, name)) for name in columns]
    return one.keys == other.keys and all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def test_parts_joined_are_the_whole() -> None:
    """Cut anywhere, in any order, with an empty part: each completion keeps its own columns. A key
    that comes twice is refused, and so is no part at all.
    """
    mask = np.arange(12) < 5
    assert same(
        blb.Rollouts.join([ALL.take(mask), ALL.take([]), ALL.take(np.flatnonzero(~mask))]), ALL
    )
    backwards = np.arange(12)[::-1]
    assert ALL.take(backwards).keys == ALL.keys[::-1]
    assert same(ALL.take(backwards).take(backwards), ALL)
    with raises_naming(InputError, "keys", "repeat"):
        blb.Rollouts.join([ALL.take([0]), ALL.take([0])])
    with raises_naming(InputError, "part"):
        blb.Rollouts.join([])


def test_shorter_lists_are_padded() -> None:
    """Parts with lists of different widths fit together, and no probability is added."""
    one = ALL.take([0])
    narrow = replace(one, top_ids=one.top_ids[:, :2], top_logprobs=one.top_logprobs[:, :2])
    both = blb.Rollouts.join([narrow, ALL.take([1])])
    assert both.top_ids.shape[1] == 4
    assert (both.top_ids[: narrow.lengths[0], 2:] == -1).all()
    assert np.exp(both.top_logprobs[: narrow.lengths[0], 2:]).sum() == 0


def task_of(path: Path, kind: str) -> blb.Task:
    """Thirty prompts of a kind."""
    rows = [json.dumps({"prompt": f"{kind} {n}", "answer": "a"}) for n in range(30)]
    path.write_text("\n".join(rows))
    return blb.load_task(data=path)


@pytest.fixture
def collected(tmp_path: Path) -> tuple[Path, blb.Task]:
    """A store with completions of a task, those of a bias and of a stop text among them."""
    path, task = tmp_path / "rollouts.db", task_of(tmp_path / "train.jsonl", "question")
    for change in ({}, {"bias": {"3": 1.0}}, {"sampling": {**SAMPLING, "stop": ["x"]}}):
        store_completions(path, task, MODEL, settings={**SETTINGS, **change})
    return path, task


def test_positions_come_from_a_store(collected: tuple[Path, blb.Task]) -> None:
    """The base model's completions of the training prompts, scored; nothing else of the store."""
    path, task = collected
    positions = blb.Positions.load(path, task, blb.parse_reward("length", max_tokens=5))
    assert len(positions.rollouts.keys) == 2 * len(task.train)
    assert positions.next_token.n_positions == len(positions.rollouts.token_ids)
    fitted = blb.Projection().fit(positions, blb.RewardTilt(tau=0.5))
    assert fitted.bias_[MODEL.vocab_size - 1] > 0.1


def test_a_store_of_other_prompts_or_ends_is_refused(
    collected: tuple[Path, blb.Task], tmp_path: Path
) -> None:
    """No completion of the task, and a provider of which nobody knows whether it lists the end."""
    (path, task), reward = collected, blb.parse_reward("length", max_tokens=5)
    with raises_naming(InputError, "14", "other"):
        blb.Positions.load(path, task_of(tmp_path / "other.jsonl", "riddle"), reward)
    store_completions(path, task, MODEL, settings={**SETTINGS, "provider": "mine"})
    with raises_naming(InputError, "mine", "end_tokens=EndTokens(False"):
        blb.Positions.load(path, task, reward)
    positions = blb.Positions.load(path, task, reward, end_tokens=EndTokens(True))
    assert len(positions.rollouts.keys) == 4 * len(task.train)
