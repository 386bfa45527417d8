"""What each command does once its options are read: loaded when it runs, and not for its help."""

from __future__ import annotations

__all__: list[str] = []
