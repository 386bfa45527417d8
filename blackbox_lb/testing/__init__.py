"""Known truth for tests: a language model whose every quantity is exact, a server for it, and hosted APIs' rules on loopback."""

from __future__ import annotations

from blackbox_lb.testing.chaos import MODES, ChaosServer
from blackbox_lb.testing.exact import Exact
from blackbox_lb.testing.gateway import RulesGateway
from blackbox_lb.testing.model import ExactModel
from blackbox_lb.testing.server import ExactServer

__all__ = ["MODES", "ChaosServer", "Exact", "ExactModel", "ExactServer", "RulesGateway"]
