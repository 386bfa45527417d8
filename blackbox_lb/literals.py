"""Words with few values, which the help of a command lists: they need no other module."""

from typing import Literal, TypeAlias

Endpoint: TypeAlias = Literal["chat", "completions", "responses", "decisions"]
DecisionShape: TypeAlias = Literal["systemone", "openai", "sglang"]
"""The shapes of requests to an endpoint that decides between labels."""
Split: TypeAlias = Literal["train", "validation", "test"]
OnConflict: TypeAlias = Literal["raise", "ours", "theirs", "add"]
"""What is done where a request has a bias of its own."""
