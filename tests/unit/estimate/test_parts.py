"""Rollouts: parts of them, and parts put together."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel

ALL = ExactModel(9, 6, end=True, prompts=3, seed=1).rollouts(
    12, lambda tokens, _: float(len(tokens)), 2, top=4
)


def same(one: Rollouts, other: Rollouts) -> bool:
    """Whether every column agrees."""
    columns = [field.name for field in fields(Rollouts) if field.name not in ("keys", "costs")]
    pairs = [(getattr(one, name), getattr(other, name)) for name in columns]
    assert one.costs is None
    assert other.costs is None
    return one.keys == other.keys and all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def test_parts_joined_are_the_whole() -> None:
    """Cut anywhere and joined again, all columns are as before; none of them is lost by an empty
    part.
    """
    mask = np.arange(12) < 5
    assert same(Rollouts.join([ALL.take(mask), ALL.take([]), ALL.take(np.flatnonzero(~mask))]), ALL)


def test_the_order_is_the_one_asked_for() -> None:
    """Each completion keeps its own tokens wherever it stands."""
    back = ALL.take(np.arange(12)[::-1])
    assert back.keys == ALL.keys[::-1]
    assert same(back.take(np.arange(12)[::-1]), ALL)


def test_shorter_lists_are_padded() -> None:
    """Parts with lists of different widths fit together, and no probability is added."""
    narrow = replace(
        ALL.take([0]),
        top_ids=ALL.take([0]).top_ids[:, :2],
        top_logprobs=ALL.take([0]).top_logprobs[:, :2],
    )
    both = Rollouts.join([narrow, ALL.take([1])])
    assert both.top_ids.shape[1] == 4
    assert (both.top_ids[: narrow.lengths[0], 2:] == -1).all()
    assert np.exp(both.top_logprobs[: narrow.lengths[0], 2:]).sum() == 0


def test_what_does_not_fit_is_refused() -> None:
    """A key twice, and no part at all."""
    with raises_naming(InputError, "keys", "repeat"):
        Rollouts.join([ALL.take([0]), ALL.take([0])])
    with raises_naming(InputError, "part"):
        Rollouts.join([])
