"""Rules gateway: OpenAI, Azure or Fireworks on loopback, in front of a real engine or the exact
model.
"""

from __future__ import annotations

from tests.support.gateway.engine.settings import Lie, Options
from tests.support.gateway.gateway import Call, RulesGateway
from tests.support.gateway.openai_schema import InvalidRequest
from tests.support.gateway.rule_sources import SOURCES

__all__ = ["SOURCES", "Call", "InvalidRequest", "Lie", "Options", "RulesGateway"]
