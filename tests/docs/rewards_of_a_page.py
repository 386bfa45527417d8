"""The reward of docs/own-rewards.md, as a file of the reader's."""

from __future__ import annotations

import blackbox_lb as blb


def polite(example: blb.Example, completion: blb.Completion) -> float:
    """1 for an answer that says please, less 0.01 for each token."""
    return float("please" in completion.text.lower()) - 0.01 * completion.n_tokens
