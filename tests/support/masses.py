"""The model's own probabilities in a table of positions."""

from __future__ import annotations

import numpy as np

from blackbox_lb.estimate.next_token.next_token import NextToken


def kl(table: NextToken, delta: np.ndarray) -> np.ndarray:
    """(m,) ``KL(pi_delta || pi_0)`` at each position in nats."""
    return np.maximum(table.mean(delta, delta) - table.log_normaliser(delta), 0.0)


def dense(table: NextToken) -> np.ndarray:
    """(m, s) pi_0, token by token."""
    masses = table.by_token(np.arange(len(table.token_ids)))
    out = np.zeros((table.n_positions, len(table.token_ids)))
    for token in range(len(table.token_ids)):
        rows, mass = masses.mass(token)
        out[rows, token] = mass
    return out
