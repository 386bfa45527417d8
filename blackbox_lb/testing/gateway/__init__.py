"""Rules gateway: OpenAI, Azure or Fireworks on loopback, in front of a real engine or the exact model."""

from __future__ import annotations

from blackbox_lb.testing.gateway.engine.settings import Lie, Options
from blackbox_lb.testing.gateway.gateway import Call, RulesGateway
from blackbox_lb.testing.gateway.openai_schema import InvalidRequest
from blackbox_lb.testing.gateway.rule_sources import SOURCES

__all__ = ["SOURCES", "Call", "InvalidRequest", "Lie", "Options", "RulesGateway"]
