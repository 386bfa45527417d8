"""Completions in, numbers out: collecting, reading the store, fresh trials, and their verdicts."""
