"""The listed next-token probabilities at every position, as one sparse table, and what can be computed of them."""
