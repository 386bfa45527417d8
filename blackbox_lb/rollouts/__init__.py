"""Completions in, numbers out: collecting, reading what was stored, fresh trials, and their verdicts."""
