"""Together's rules: lists side by side on both endpoints, with the ids of the sampled tokens; and
the other layout, in which its gpt-oss models answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from tests.support.gateway.engine.completion_view import CompletionView, f32
from tests.support.gateway.engine.from_request import DEFAULTS
from tests.support.gateway.engine.logprobs import EnginePosition
from tests.support.gateway.engine.settings import RequestSettings
from tests.support.gateway.engine.upstream import Want
from tests.support.gateway.errors.batches import BatchWords
from tests.support.gateway.errors.openai import JSON
from tests.support.gateway.requests import fields
from tests.support.gateway.rules.openai import OpenAIRules, asked

__all__ = ["TogetherRules"]

IN_CONTENT = "openai/gpt-oss"
"""Models whose names begin so list their tokens in ``logprobs.content``."""


class TogetherRules(OpenAIRules):
    """``logprobs`` is a number on chat too, and no logprob is withheld."""

    tables: ClassVar[Mapping[fields.Endpoint, fields.Fields]] = fields.TOGETHER
    official_schema: ClassVar[bool] = False
    defaults: ClassVar[RequestSettings] = RequestSettings(
        models=("Qwen/Qwen3.5-9B", "openai/gpt-oss-20b"), legacy_models=("Qwen/Qwen3.5-9B",)
    )
    properties: ClassVar[int | None] = None
    sampling: ClassVar[frozenset[str]] = frozenset(DEFAULTS)
    has_quota: ClassVar[bool] = False
    batches: ClassVar[BatchWords | None] = None

    def usage(self, prompt_tokens: int, generated: int) -> JSON:
        """What is paid for."""
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": prompt_tokens + generated,
        }

    def envelope(self, body: JSON) -> JSON:
        """Nothing beside the choices."""
        return {}

    def chat_choice(
        self, index: int, reading: CompletionView, body: JSON, want: Want, rng: np.random.Generator
    ) -> JSON:
        """One choice of the chat endpoint."""
        message = {"role": "assistant", "content": reading.text, "tool_calls": []}
        return {"index": index, "message": message, **self._rest(reading, body, rng)}

    def legacy_choice(
        self, index: int, reading: CompletionView, body: JSON, want: Want, rng: np.random.Generator
    ) -> JSON:
        """One choice of the completions endpoint."""
        return {"index": index, "text": reading.text, **self._rest(reading, body, rng)}

    def entry(self, position: EnginePosition, k: int) -> JSON:
        """One token of ``logprobs.content``, whose logprob is always given."""
        listed = [self.alternative(token, f32(logprob)) for token, logprob in position.top(k)]
        sampled = self.alternative(position.id, f32(position.logprob), position.raw)
        return {**sampled, "top_logprobs": listed}

    def _rest(self, reading: CompletionView, body: JSON, rng: np.random.Generator) -> JSON:
        k = asked(body)
        logprobs: JSON | None = None
        if k is not None and str(body.get("model")).startswith(IN_CONTENT):
            listed = reading.told[: reading.kept]
            logprobs = {"content": [self.entry(position, k) for position in listed]}
        elif k is not None:
            ids = [position.id for position in reading.told]
            logprobs = {**self.legacy_lists(reading, k, 0, rng), "token_ids": ids}
        return {"finish_reason": reading.finish, "logprobs": logprobs}
