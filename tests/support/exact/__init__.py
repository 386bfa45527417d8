"""Known truth for tests: a language model whose every quantity is exact, and a server for it on
loopback.
"""

from __future__ import annotations

from tests.support.exact.model import ExactModel
from tests.support.exact.server import ExactServer

__all__ = ["ExactModel", "ExactServer"]
