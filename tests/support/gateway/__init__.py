"""Rules gateway: OpenAI, Azure or Fireworks on loopback, in front of a real engine or the exact
model.
"""

from __future__ import annotations

from tests.support.gateway.checks import InvalidRequest
from tests.support.gateway.engine.settings import Lie, Options
from tests.support.gateway.gateway import Call, RulesGateway

__all__ = ["Call", "InvalidRequest", "Lie", "Options", "RulesGateway"]
