"""The spelling of a label that is taught: the one that tells the labels apart best."""

from __future__ import annotations

import numpy as np

from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.decisions.spellings import taught_tokens

TOKENS = [np.array([1, 2]), np.array([3, 4])]
"""Two labels of two spellings; tokens 1 and 3 are the likelier ones."""
EACH = np.array([True, True])
"""Either label may be taught as one of its spellings."""


def lists_of(
    prompts: int, seed: int, *, telling: float, listed: float = 1.0
) -> tuple[FirstLists, np.ndarray]:
    """Lists and right labels. The rare spellings follow the label by ``telling`` nats and stand in
    a share ``listed`` of the lists; the likely ones follow it by half a nat.
    """
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 2, prompts)
    sign = np.where(numbers == 0, 1.0, -1.0)
    logprobs = np.stack(
        [
            -1.0 + 0.5 * sign,
            -6.0 + telling * sign,
            -1.0 - 0.5 * sign,
            -6.0 - telling * sign,
        ],
        axis=1,
    )
    logprobs += rng.normal(0, 0.7, logprobs.shape)
    ids = np.tile(np.array([1, 2, 3, 4]), (prompts, 1))
    ids[rng.random(prompts) > listed, 1] = 9
    return FirstLists(ids, logprobs), numbers


def taught(prompts: int, seed: int, **lists: float) -> list[list[int]]:
    """The tokens that are taught."""
    first, numbers = lists_of(prompts, seed, **lists)
    return [ids.tolist() for ids in taught_tokens(first, numbers, TOKENS, EACH)]


def right(first: FirstLists, numbers: np.ndarray, tokens: list[np.ndarray]) -> float:
    """The share that these tokens decide right, with the label's mean logprob divided out."""
    scores = first.best(tokens)
    decided = (scores - scores.mean(axis=0)).argmax(axis=1)
    return float((decided == numbers).mean())


def gains(prompts: int, telling: float) -> np.ndarray:
    """What the taught tokens decide more right than all of them on 2,000 fresh prompts, for 60
    draws of the labelled ones.
    """
    fresh, numbers = lists_of(2000, 1000, telling=telling)
    whole = right(fresh, numbers, TOKENS)
    found = []
    for seed in range(60):
        first, labels = lists_of(prompts, seed, telling=telling)
        found.append(right(fresh, numbers, taught_tokens(first, labels, TOKENS, EACH)) - whole)
    return np.array(found)


def test_a_rare_spelling_that_follows_the_prompt_is_taught() -> None:
    """Although the model hardly says it: 30 prompts are enough, and fresh ones gain by it."""
    found = gains(30, 1.0)
    assert found.mean() > 0.08
    assert (found > 0.05).mean() > 0.8


def test_spellings_that_tell_nothing_more_cost_nothing() -> None:
    """Whichever of them is taught, fresh prompts lose less than a point by the choice."""
    for prompts in (10, 30, 100):
        assert gains(prompts, 0.5).mean() > -0.01, prompts


def test_a_spelling_that_lists_leave_out_is_not_taught() -> None:
    """Of a bound nobody knows how far the token is behind."""
    assert taught(200, 0, telling=2.0, listed=0.8)[0] != [2]


def test_one_label_alone_teaches_no_spelling() -> None:
    """Nor do rows without a label."""
    first, _ = lists_of(50, 0, telling=2.0)
    assert taught_tokens(first, np.zeros(50, np.int64), TOKENS, EACH) == TOKENS
    assert taught_tokens(first, np.full(50, -1), TOKENS, EACH) == TOKENS


def test_a_label_of_several_tokens_keeps_all_of_its_spellings() -> None:
    """And the other one is taught as one all the same."""
    first, numbers = lists_of(200, 0, telling=2.0)
    found = taught_tokens(first, numbers, TOKENS, np.array([False, True]))
    assert [ids.tolist() for ids in found] == [[1, 2], [4]]
