"""Fits whose rollouts are spread over a Ray cluster."""
