"""From scored rollouts to one logit-bias vector: numpy and scipy only, no I/O."""

from __future__ import annotations

__all__: list[str] = []
