"""What hosts of open models have in common: no rule of OpenAI's account or schema, and the ids of
the tokens in their answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tests.support.gateway.batches import BatchLimits
from tests.support.gateway.engine.completion_view import CompletionView
from tests.support.gateway.engine.upstream import Want
from tests.support.gateway.refusals import JSON
from tests.support.gateway.rules.openai import OpenAIRules, asked

__all__ = ["OpenWeightsRules"]


class OpenWeightsRules(OpenAIRules):
    """Chat and completions answer alike: entries, or lists side by side with the ids of the sampled
    tokens.
    """

    official_schema: ClassVar[bool] = False
    properties: ClassVar[int | None] = None
    batches: ClassVar[BatchLimits | None] = None
    usage_details: ClassVar[JSON] = {}
    beside: ClassVar[JSON] = {}
    message: ClassVar[Mapping[str, object]] = {}
    """Fields of a message beside its role and content."""

    def chat_choice(self, index: int, reading: CompletionView, body: JSON, want: Want) -> JSON:
        """One choice of the chat endpoint."""
        message = {"role": "assistant", "content": reading.text, **self.message}
        return {"index": index, "message": message, **self.rest(reading, body, want)}

    def legacy_choice(self, index: int, reading: CompletionView, body: JSON, want: Want) -> JSON:
        """One choice of the completions endpoint."""
        return {"index": index, "text": reading.text, **self.rest(reading, body, want)}

    def rest(self, reading: CompletionView, body: JSON, want: Want) -> JSON:
        """Why a choice ended, and its logprobs."""
        k = asked(body)
        logprobs: JSON | None = None
        if k is not None and self.has_entries(body):
            logprobs = {"content": self.entries(reading, body, want, k)}
        elif k is not None:
            ids = [position.id for position in reading.told]
            logprobs = {**self.legacy_lists(reading, k, 0), "token_ids": ids}
        return {"finish_reason": reading.finish, "logprobs": logprobs}

    def has_entries(self, body: JSON) -> bool:
        """Whether the tokens are listed as entries of ``logprobs.content``."""
        raise NotImplementedError

    def entries(self, reading: CompletionView, body: JSON, want: Want, k: int) -> list[JSON]:
        """The entries, with ``k`` alternatives each."""
        raise NotImplementedError
