"""OpenRouter's rules: one address before several hosts, of which each lacks some fields of a
request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tests.support.gateway.engine.settings import RequestSettings
from tests.support.gateway.errors.batches import BatchWords
from tests.support.gateway.errors.openai import JSON, Refusal
from tests.support.gateway.requests import fields
from tests.support.gateway.rules.openai import OpenAIRules

__all__ = ["OpenRouterRules"]

NOBODY = (
    "No endpoints found that can handle the requested parameters. To learn more about provider"
    " routing, visit: https://openrouter.ai/docs/guides/routing/provider-selection"
)


class OpenRouterRules(OpenAIRules):
    """The first host in ``hosts`` answers; with ``require_parameters`` the first that lacks no
    field of the request.
    """

    prefix: ClassVar[str] = "/api/v1"
    tables: ClassVar[Mapping[fields.Endpoint, fields.Fields]] = {
        "chat": {**fields.OPENAI["chat"], "provider": fields.Field("object")},
        "completions": fields.OPENAI["completions"],
    }
    official_schema: ClassVar[bool] = False
    defaults: ClassVar[RequestSettings] = RequestSettings(
        models=("openai/gpt-4o-mini",),
        entries=300,
        quantise=1 / 16,
        hosts={"Bare": ("logit_bias",), "Full": ()},
    )
    has_quota: ClassVar[bool] = False
    batches: ClassVar[BatchWords | None] = None

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
        raise Refusal("no host", 404, {"error": {"message": NOBODY, "code": 404}})

    def envelope(self, body: JSON) -> JSON:
        """Fields beside the choices."""
        return {"provider": body["provider"], "system_fingerprint": "fp_gateway"}
