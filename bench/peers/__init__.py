"""The clients that ``bench.collector`` compares, each a program of its own that times itself and
prints one line of JSON.
"""

from __future__ import annotations

__all__: list[str] = []
