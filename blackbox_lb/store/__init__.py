"""The rollout store and its upkeep: checking, rescuing a damaged one, merging, Parquet."""

from blackbox_lb.store.keys import canonical, next_token_key, prompt_hash, request_hash, rollout_key
from blackbox_lb.store.rollouts import (
    RolloutStore,
    StoredSize,
    completion_row,
    next_token_row,
    summed,
)
from blackbox_lb.store.writer import Writer

__all__ = [
    "RolloutStore",
    "StoredSize",
    "Writer",
    "canonical",
    "completion_row",
    "next_token_key",
    "next_token_row",
    "prompt_hash",
    "request_hash",
    "rollout_key",
    "summed",
]
