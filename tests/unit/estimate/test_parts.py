"""Rollouts: parts of them, and parts put together."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from blackbox_lb import Rollouts
from blackbox_lb.errors import InputError
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel

ALL = ExactModel(9, 6, end=True, prompts=3, seed=1).rollouts(
    12, lambda tokens, _: float(len(tokens)), 2, top=4
)


def same(one: Rollouts, other: Rollouts) -> bool:
    """Whether every column agrees."""
    columns = [field.name for field in fields(Rollouts) if field.name not in ("keys", "costs")]
    pairs = [(getattr(one, name), getattr(other, name)) for name in columns]
    return one.keys == other.keys and all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def test_parts_joined_are_the_whole() -> None:
    """Cut anywhere, in any order, with an empty part: each completion keeps its own columns. A key
    that comes twice is refused, and so is no part at all.
    """
    mask = np.arange(12) < 5
    assert same(Rollouts.join([ALL.take(mask), ALL.take([]), ALL.take(np.flatnonzero(~mask))]), ALL)
    backwards = np.arange(12)[::-1]
    assert ALL.take(backwards).keys == ALL.keys[::-1]
    assert same(ALL.take(backwards).take(backwards), ALL)
    with raises_naming(InputError, "keys", "repeat"):
        Rollouts.join([ALL.take([0]), ALL.take([0])])
    with raises_naming(InputError, "part"):
        Rollouts.join([])


def test_shorter_lists_are_padded() -> None:
    """Parts with lists of different widths fit together, and no probability is added."""
    one = ALL.take([0])
    narrow = replace(one, top_ids=one.top_ids[:, :2], top_logprobs=one.top_logprobs[:, :2])
    both = Rollouts.join([narrow, ALL.take([1])])
    assert both.top_ids.shape[1] == 4
    assert (both.top_ids[: narrow.lengths[0], 2:] == -1).all()
    assert np.exp(both.top_logprobs[: narrow.lengths[0], 2:]).sum() == 0
