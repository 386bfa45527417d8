"""``blb fit``: from prompts and a reward to a bias with its verdict."""

from __future__ import annotations

__all__: list[str] = []
