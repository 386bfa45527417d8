"""Together's rules: lists side by side on both endpoints, with the ids of the sampled tokens; and
the other layout, in which its gpt-oss models answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tests.support.gateway import fields
from tests.support.gateway.engine.completion_view import CompletionView, f32
from tests.support.gateway.engine.logprobs import EnginePosition
from tests.support.gateway.engine.settings import RequestSettings
from tests.support.gateway.engine.upstream import Want
from tests.support.gateway.refusals import JSON
from tests.support.gateway.rules.open_weights import OpenWeightsRules

__all__ = ["TogetherRules"]

IN_CONTENT = "openai/gpt-oss"
"""Models whose names begin so list their tokens in ``logprobs.content``."""


class TogetherRules(OpenWeightsRules):
    """``logprobs`` is a number on chat too, and no logprob is withheld."""

    name: ClassVar[str] = "together"
    tables: ClassVar[Mapping[fields.Endpoint, fields.Fields]] = fields.fields_of("together")
    defaults: ClassVar[RequestSettings] = RequestSettings(
        models=("Qwen/Qwen3.5-9B", "openai/gpt-oss-20b"), legacy_models=("Qwen/Qwen3.5-9B",)
    )
    message: ClassVar[Mapping[str, object]] = {"tool_calls": []}

    def has_entries(self, body: JSON) -> bool:
        """By the model's name."""
        return str(body.get("model")).startswith(IN_CONTENT)

    def entries(self, reading: CompletionView, body: JSON, want: Want, k: int) -> list[JSON]:
        """Each with its logprob, however unlikely."""
        return [self.entry(position, k) for position in reading.told[: reading.kept]]

    def entry(self, position: EnginePosition, k: int) -> JSON:
        """One token of ``logprobs.content``, whose logprob is always given."""
        listed = [self.alternative(token, f32(logprob)) for token, logprob in position.top(k)]
        sampled = self.alternative(position.id, f32(position.logprob), position.raw)
        return {**sampled, "top_logprobs": listed}
