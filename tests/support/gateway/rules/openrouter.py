"""OpenRouter's rules: one address before several hosts, of which each lacks some fields of a
request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tests.support.gateway import fields
from tests.support.gateway.batches import BatchLimits
from tests.support.gateway.engine.settings import RequestSettings
from tests.support.gateway.refusals import JSON, refusal
from tests.support.gateway.rules.openai import OpenAIRules

__all__ = ["OpenRouterRules"]


class OpenRouterRules(OpenAIRules):
    """The first host in ``hosts`` answers; with ``require_parameters`` the first that lacks no
    field of the request.
    """

    name: ClassVar[str] = "openrouter"
    prefix: ClassVar[str] = "/api/v1"
    tables: ClassVar[Mapping[fields.Endpoint, fields.Fields]] = {
        "chat": {**OpenAIRules.tables["chat"], "provider": (None, None)},
        "completions": OpenAIRules.tables["completions"],
    }
    official_schema: ClassVar[bool] = False
    defaults: ClassVar[RequestSettings] = RequestSettings(
        models=("openai/gpt-4o-mini",),
        entries=300,
        quantise=1 / 16,
        hosts={"Bare": ("logit_bias",), "Full": ()},
    )
    batches: ClassVar[BatchLimits | None] = None

    def routed(self, body: JSON) -> JSON:
        """The request as its host reads it: without the fields that the host lacks, and with the
        host's name in ``provider``.
        """
        asked = body.get("provider") or {}
        for host, lacks in self.settings.hosts.items():
            if not asked.get("require_parameters") or not set(lacks) & set(body):
                return {
                    **{name: value for name, value in body.items() if name not in lacks},
                    "provider": host,
                }
        raise refusal(self.name, "no host")

    def envelope(self, body: JSON) -> JSON:
        """Fields beside the choices."""
        return {"provider": body["provider"], "system_fingerprint": "fp_gateway"}
