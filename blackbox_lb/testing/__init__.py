"""Known truth for tests: a small language model whose every quantity is exact, and a server that serves it."""

from __future__ import annotations

from blackbox_lb.testing.exact import Exact
from blackbox_lb.testing.model import ExactModel
from blackbox_lb.testing.server import ExactServer

__all__ = ["Exact", "ExactModel", "ExactServer"]
