"""Reward against KL of every estimator at equal rollouts, on models whose truth is known."""
