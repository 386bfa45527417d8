"""Training sets: what is read of each completion, which are left out, and that both are told."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb.errors import InputError, NoLogprobs, StoreError
from blackbox_lb.estimate.next_token import sparse_table as passes
from blackbox_lb.estimate.next_token import tails
from blackbox_lb.estimate.reweighting import censoring_of
from blackbox_lb.rollouts import positions as module
from blackbox_lb.rollouts import reading, scratch
from blackbox_lb.rollouts.columns import columns
from blackbox_lb.rollouts.judging.verdict import score
from blackbox_lb.rollouts.positions import Positions, training_set
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import parse_reward
from blackbox_lb.types import UNNAMED, Completion, EndTokens, Example, Prompt
from tests.support.errors import raises_naming
from tests.support.fits import projection
from tests.support.statistics import statistics_of
from tests.unit.rollouts.test_spans import completion

SETTINGS = {"model": "m", "tokenizer": "t"}
EXAMPLES = [Example(str(n), Prompt.user(f"question {n}")) for n in range(3)]
REWARD = parse_reward("length", max_tokens=9)


def trained(
    folder: Path, drawn: Sequence[Completion], end_tokens: EndTokens | None = None, **options: Any
) -> Positions:
    """The training set of these completions, dealt to the prompts in turn."""
    with RolloutStore(folder / "s.db") as store:
        keys: list[list[str]] = [[] for _ in EXAMPLES]
        for n, each in enumerate(drawn):
            prompt, sample = n % len(EXAMPLES), n // len(EXAMPLES)
            keys[prompt].append(store.add(SETTINGS, EXAMPLES[prompt].prompt, sample, each))
        return training_set(store, EXAMPLES, keys, REWARD, end_tokens or EndTokens(), **options)


def wide(tokens: int, seed: int, width: int = 200) -> Completion:
    """A completion that lists ``width`` of 5,000 tokens at each position."""
    rng = np.random.default_rng(seed)
    top = np.sort(
        rng.integers(0, 5_000 // width, (tokens, width)) + np.arange(0, 5_000, 5_000 // width)
    )
    listed = np.sort(np.log(0.9 * rng.dirichlet(np.full(width, 0.1), tokens) + 1e-9))[:, ::-1]
    return replace(
        completion("hi", tokens),
        token_ids=top[:, 0].astype(np.int32),
        top_ids=top.astype(np.int32),
        top_logprobs=listed.astype(np.float32),
    )


@pytest.mark.parametrize("reason", ["error", "network_error", "some_new_word", ""])
def test_what_an_older_store_holds_as_whole_is_left_out(tmp_path: Path, reason: str) -> None:
    """Older versions stored what the host broke off as whole: it is read as not whole, neither
    learned from nor judged, and counted with the host's word.
    """
    old = replace(completion("broken"), finish_reason=reason)
    filtered = replace(completion("filtered"), finish_reason="content_filter")
    assert old.whole
    training = trained(tmp_path, [completion("hi"), old, old, filtered])
    assert (
        len(training.rollouts.keys),
        training.tally["incomplete"],
        training.tally["filtered"],
    ) == (1, 0, 1)
    assert training.tally[f"{reading.BROKEN_OFF}{reason}"] == 2
    assert any(repr(reason or None) in sentence for sentence in training.left_out)
    scores = score(
        parse_reward("length", max_tokens=9),
        [Example("q", Prompt.user("q"), ())],
        [[completion("hi"), old, filtered]],
    )
    assert (len(scores.reward[0]), scores.left_out, scores.broken_off) == (1, 2, {reason: 1})
    assert repr(reason or None) in scores.unscored


def told(*logprobs: float) -> Completion:
    """A completion whose policy drew with these logprobs."""
    return replace(completion("hi"), propensities=np.array(logprobs, dtype=np.float32))


def test_a_policy_of_its_own_that_drew_is_not_the_base_model(tmp_path: Path) -> None:
    """Where a provider tells the policy that sampled from the base model, inverse propensities read
    the former. Where they differ, the policy that drew is not known; where they agree but for
    rounding, it is the base model. Propensities that do not match the tokens are refused.
    """
    training = trained(tmp_path / "a", [told(-1.0, -1.25, -1.5), completion("hi", 1)])
    assert training.rollouts.logprobs.tolist() == [-1.0, -1.25, -1.5, -2.0]
    assert training.rollouts.top_ids.shape == (4, 0)
    masses = training.next_token.by_token(np.array([0])).mass(0)[1]
    assert masses.tolist() == pytest.approx([np.exp(-0.4)] * 4)
    assert training.rollouts.is_of_base.tolist() == [False, True]
    same = [told(-2.0, -2.001, -1.999), completion("hi")]
    assert trained(tmp_path / "b", same).rollouts.is_of_base.all()
    with raises_naming(InputError, "logprobs"):
        columns({"a": told(0.0, 0.0)}, [0], [0.0])


def test_bounds_are_kept_position_by_position(tmp_path: Path) -> None:
    """Completions with and without bounds stand side by side."""
    bounded = replace(completion("hi"), bounded=np.array([False, True, True]))
    training = trained(tmp_path, [completion("hi", 2), bounded])
    assert training.rollouts.bounded.tolist() == [False, False, False, True, True]
    found = censoring_of(training.rollouts, training.next_token, "drop")
    assert (found.positions, found.outside, found.bounded, found.unobserved) == (5, 3, 2, "drop")
    assert found.mass == pytest.approx(1 - np.exp(-0.4) - np.exp(-1.5), abs=1e-6)
    assert statistics_of(training.rollouts, 1.0, unobserved="drop").drawn == 3


@pytest.mark.parametrize(
    ("others", "incomplete", "filtered"),
    [
        ([replace(completion("hi"), whole=False)], 1, 0),
        ([Completion.empty("content_filter")], 0, 1),
        ([replace(completion("cut"), finish_reason="content_filter")], 0, 1),
        ([replace(completion("hi"), whole=False, token_ids=np.array([0, UNNAMED, 2], np.int32))], 1, 0),
        ([completion("ab", tokens=0)], 1, 0),
    ],
)  # fmt: skip
def test_what_is_left_out_is_counted_by_reason(
    tmp_path: Path, others: list[Completion], incomplete: int, filtered: int
) -> None:
    """Incomplete and filtered completions are told apart, whether the filter left text or not.
    Without a single complete one there is nothing to learn from. An end token that is counted and
    not listed counts in the reward alone, and a completion that two examples share counts once.
    """
    drawn = [replace(completion("hi"), generated=4), *others]
    training = trained(tmp_path / "some", drawn)
    assert (training.tally["incomplete"], training.tally["filtered"]) == (incomplete, filtered)
    assert training.rollouts.lengths.tolist() == [3]
    assert training.rollouts.rewards.tolist() == pytest.approx([np.log(9 / 4)])
    [sentence] = training.left_out
    assert sentence.startswith("1 completions are left out")
    with raises_naming(NoLogprobs, "1"):
        trained(tmp_path / "none", others)
    with RolloutStore(tmp_path / "s.db") as store:
        keys = [store.add(SETTINGS, EXAMPLES[0].prompt, n, completion("hi")) for n in range(2)]
        training = training_set(store, [EXAMPLES[0], EXAMPLES[0]], [keys, keys], REWARD)
    assert training.rollouts.keys == tuple(keys)


def in_small_pieces(patch: pytest.MonkeyPatch) -> None:
    """Blocks of 256 KiB, parts of 16,384 listed tokens, 1 MiB of lists in memory, the rest in files
    of 4 MiB.
    """
    patch.setattr(reading, "BLOCK_BYTES", 1 << 18)
    patch.setattr(tails, "PART", 1 << 14)
    patch.setattr(module, "LISTS_IN_MEMORY", 1 << 20)
    patch.setattr(scratch, "SEGMENT", 1 << 22)


def peak_of(folder: Path, completions: int) -> tuple[int, int]:
    """Positions, and the most bytes of Python memory while the training set is read and fitted."""
    folder.mkdir()
    drawn = (wide(50, seed) for seed in range(completions))
    with RolloutStore(folder / "s.db") as store:
        keys = [[store.add(SETTINGS, EXAMPLES[0].prompt, n, each) for n, each in enumerate(drawn)]]
        gc.collect()
        tracemalloc.start()
        try:
            training = training_set(store, EXAMPLES, keys, REWARD)
            projection(training.rollouts, next_token=training.next_token)
            return training.next_token.n_positions, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def test_memory_grows_with_positions_and_not_with_their_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight times the positions cost vectors of about 50 bytes for each (and some to work with),
    where their lists take 1,600.

    On one core: how much the others hold at a time depends on which of them is first. The smaller
    of two peaks counts: a megabyte comes and goes with the moment at which garbage is collected.
    """
    in_small_pieces(monkeypatch)
    monkeypatch.setattr(passes, "cores", lambda: 1)
    few, low = min(peak_of(tmp_path / name, 20) for name in ("few", "few again"))
    many, high = min(peak_of(tmp_path / name, 160) for name in ("many", "many again"))
    assert (few, many) == (1_000, 8_000)
    assert (high - low) / (many - few) < 400
    assert sorted(path.name for path in (tmp_path / "many").iterdir()) in (
        ["s.db"],
        ["s.db", "s.db-shm", "s.db-wal"],
    )


def test_pieces_and_files_change_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in small blocks into scratch files, a training set is what it is when read at once into
    memory.
    """
    drawn = [wide(20 + n % 7, n) for n in range(30)]
    once = trained(tmp_path, drawn)
    in_small_pieces(monkeypatch)
    pieces = trained(tmp_path, drawn)
    assert len(once.next_token.lists.parts) == 1
    assert len(pieces.next_token.lists.parts) > 3
    assert pieces.rollouts.keys == once.rollouts.keys
    delta = np.linspace(-1, 1, len(once.next_token.token_ids))
    np.testing.assert_array_equal(pieces.next_token.token_ids, once.next_token.token_ids)
    np.testing.assert_allclose(
        pieces.next_token.log_normaliser(delta), once.next_token.log_normaliser(delta), atol=1e-13
    )
    np.testing.assert_allclose(
        pieces.next_token.expected(delta), once.next_token.expected(delta), atol=1e-11
    )


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Space is taken before it is written to, and its lack is told with the bytes and the
    folder.
    """
    in_small_pieces(monkeypatch)
    monkeypatch.setattr(scratch, "SEGMENT", 1 << 60)
    with raises_naming(StoreError, "1,152,921,504,606,846,976"):
        trained(tmp_path, [wide(50, n) for n in range(40)])


def test_an_end_token_that_nobody_lists_is_hidden_in_every_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is not known whether the provider lists end tokens, one that any completion lists
    counts for all of them. An empty completion is learned from, too.
    """
    monkeypatch.setattr(reading, "BLOCK_BYTES", 1)
    ended = replace(completion("hi"), token_ids=np.array([0, 1, 9], dtype=np.int32))
    empty = completion("", tokens=0)
    for last, listed, is_hidden in (
        (completion("hi", 2), None, True),
        (ended, None, False),
        (ended, True, False),
        (ended, False, True),
    ):
        ends = EndTokens(listed, frozenset({9}))
        folder = tmp_path / f"{len(last.token_ids)} {listed}"
        training = trained(folder, [completion("hi"), empty, last], ends, vocab_size=5_000)
        assert sorted(training.rollouts.lengths.tolist()) == [0, len(last.token_ids), 3]
        assert training.next_token.unnamed == pytest.approx(is_hidden * np.exp(-1.5))
