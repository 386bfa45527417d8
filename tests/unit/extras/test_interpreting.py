"""From scores to bands and families, by example."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.reweighting import intervention_scores
from blackbox_lb.extras.analysis.document import TokenScore
from blackbox_lb.extras.analysis.interpret import (
    Texts,
    bands,
    families,
    token_scores,
)

WORDS = [
    "The",
    " capital",
    " of",
    " France",
    " is",
    " Paris",
    ".",
    "<end>",
    "\n",
    "\x1b[31m",
    " Lima",
    " Capital",
]
TEXTS = Texts(
    {n: word.encode() for n, word in enumerate(WORDS) if n != 7}, {7: "<|end|>"}, frozenset({7})
)


def rollouts(*completions: Sequence[int]) -> Rollouts:
    """Completions of these tokens, without lists."""
    tokens = np.array([token for each in completions for token in each], dtype=np.int32)
    none = np.zeros((len(tokens), 0))
    return Rollouts(
        keys=tuple(str(n) for n in range(len(completions))),
        prompts=np.zeros(len(completions), np.int64),
        rewards=np.zeros(len(completions)),
        lengths=np.array([len(each) for each in completions]),
        token_ids=tokens,
        logprobs=np.zeros(len(tokens), np.float32),
        top_ids=none.astype(np.int32),
        top_logprobs=none.astype(np.float32),
    )


def rows(drawn: Rollouts, shifts: Sequence[float]) -> dict[int, TokenScore]:
    """The token rows by id."""
    values = np.array(shifts, dtype=float)
    scores = intervention_scores(drawn.token_ids, drawn.rollout_of, values)
    return {each.id: each for each in token_scores(scores, {5: 1.5}, TEXTS)}


def test_bands_are_the_papers() -> None:
    """Lower ends are included, 0 is in none, and every other score is in exactly one."""
    scores = np.array(
        [
            1.0,
            0.999,
            0.1,
            0.0999,
            0.01,
            0.0099,
            0.0,
            -0.001,
            -0.0011,
            -0.01,
            -0.1,
            -0.11,
            -1.0,
            -1.01,
        ]
    )
    assert [row.count for row in bands(scores)] == [1, 2, 2, 1, 1, 2, 1, 2, 1]
    assert bands(scores)[3].label == "0 < S < 0.01"


def test_a_token_is_shown_as_it_is_safe_to_print() -> None:
    """Its text, without what could move a cursor, its bytes and its bias; one that is part of a
    character is of a family of its own.
    """
    one, other = [0, 1, 2, 3, 4, 5, 6, 7], [9, 5, 8]
    found = rows(rollouts(one, other, one, [5]), [0.5] * 20)
    assert found[9].text == "\\x1b[31m"
    assert (found[5].bias, found[4].bias, found[5].count, found[5].bytes) == (
        1.5,
        0.0,
        4,
        b" Paris".hex(),
    )
    assert (found[7].family, found[7].bytes) == ("special", "")
    assert Texts({1: b"\xe4\xb8"}, {}).family(1) == "part of a character"


def test_families_by_surface() -> None:
    """Each side apart, the promoted from the highest mean on, the suppressed from the lowest on."""
    found = families(
        rows(rollouts([0, 1, 5, 6, 7, 8, 3]), [0.2, -0.5, 1.0, -0.1, 2.0, -3.0, 0.5]).values()
    )
    assert [(row.side, row.name, row.size, row.mean_score) for row in found] == [
        ("promoted", "special", 1, 2.0),
        ("promoted", "word start", 2, 0.75),
        ("promoted", "capitalised", 1, 0.2),
        ("suppressed", "whitespace", 1, -3.0),
        ("suppressed", "word start", 1, -0.5),
        ("suppressed", "punctuation", 1, -0.1),
    ]
    assert found[1].examples == (" Paris", " France")
