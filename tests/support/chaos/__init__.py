"""A server that fails on purpose, in every way that was seen."""

from __future__ import annotations

from tests.support.chaos.server import MODES, ChaosServer

__all__ = ["MODES", "ChaosServer"]
