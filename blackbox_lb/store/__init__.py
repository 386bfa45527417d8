"""The rollout store: completions on disk by content hash.

``upkeep`` checks and merges stores, ``recovery`` saves what is intact in a damaged one, ``joined``
reads several as one, and ``parquet`` exports and imports them.
"""

from blackbox_lb.store.rollouts import (
    RolloutStore,
    StoredSize,
    Writer,
    completion_row,
    next_token_row,
    summed,
)
from blackbox_lb.store.rows import canonical, next_token_key, prompt_hash, request_hash, rollout_key

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
