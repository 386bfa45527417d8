"""Known truth for tests: a language model whose every quantity is exact, and a server for it on loopback."""

from __future__ import annotations

from blackbox_lb.testing.model import ExactModel
from blackbox_lb.testing.server import ExactServer

__all__ = ["ExactModel", "ExactServer"]
