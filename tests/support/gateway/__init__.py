"""Rules gateway: OpenAI, Azure or Fireworks on loopback, in front of a real engine or the exact
model.
"""

from __future__ import annotations

from tests.support.gateway.engine import Lie
from tests.support.gateway.gateway import RulesGateway

__all__ = ["Lie", "RulesGateway"]
