"""The rollout store: completions on disk by content hash.

``upkeep`` checks stores and merges what is intact in them, ``joined`` reads several as one, and
``parquet`` exports and imports them.
"""

from blackbox_lb.store.rollouts import (
    RolloutStore,
    StoredSize,
    Writer,
    completion_row,
    summed,
)
from blackbox_lb.store.rows import canonical, prompt_hash, request_hash, rollout_key

__all__ = [
    "RolloutStore",
    "StoredSize",
    "Writer",
    "canonical",
    "completion_row",
    "prompt_hash",
    "request_hash",
    "rollout_key",
    "summed",
]
