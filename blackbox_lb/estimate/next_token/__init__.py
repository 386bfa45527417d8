"""The listed next-token probabilities at every position, as one sparse table, and computations on
them.
"""
