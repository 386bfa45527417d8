"""Known truth for tests: a language model whose every quantity is exact, a server for it, and hosted APIs' rules on loopback."""

from __future__ import annotations

from blackbox_lb.testing.chaos.server import MODES, ChaosServer
from blackbox_lb.testing.exact_model.model import ExactModel
from blackbox_lb.testing.exact_model.server import ExactServer
from blackbox_lb.testing.exact_model.truth import Exact
from blackbox_lb.testing.gateway import RulesGateway

__all__ = ["MODES", "ChaosServer", "Exact", "ExactModel", "ExactServer", "RulesGateway"]
