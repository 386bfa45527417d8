"""Fields: which request fields a provider knows, their types and ranges, and what of them the
gateway can really do.

Ranges are those of OpenAI's OpenAPI description 2.3.0, schemas CreateChatCompletionRequest,
CreateCompletionRequest and ModelResponseProperties, of ``CompletionCreateParamsBase`` in
Fireworks' Python client, and of Together's OpenAPI description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from openai.types import completion_create_params as legacy_params
from openai.types.chat import completion_create_params as chat_params

__all__ = ["FIREWORKS", "OPENAI", "SERVED", "STOPS", "TOGETHER", "Endpoint", "Field", "Fields"]

Endpoint: TypeAlias = Literal["chat", "completions"]
Kind: TypeAlias = Literal["integer", "number", "boolean", "string", "array", "object", "other"]


@dataclass(frozen=True, slots=True)
class Field:
    """``low`` and ``high`` are the range of a number, None where there is no limit."""

    kind: Kind
    low: float | None = None
    high: float | None = None


Fields: TypeAlias = Mapping[str, Field]

STOPS = 4
"""Most stop sequences: schema StopConfiguration.maxItems."""

OTHER = Field("other")
PENALTY = Field("number", -2, 2)
COMMON: Fields = {
    "frequency_penalty": PENALTY,
    "n": Field("integer", 1, 128),
    "presence_penalty": PENALTY,
    "temperature": Field("number", 0, 2),
    "top_p": Field("number", 0, 1),
    "user": Field("string"),
    "model": Field("string"),
}

CHAT: Fields = {
    **dict.fromkeys(chat_params.CompletionCreateParamsNonStreaming.__annotations__, OTHER),
    **COMMON,
    "logprobs": Field("boolean"),
    "max_completion_tokens": Field("integer", 1),
    "max_tokens": Field("integer", 1),
    "messages": Field("array"),
    "seed": Field("integer", -(2**63), 2**63 - 1),
    "store": Field("boolean"),
    "top_logprobs": Field("integer", 0, 20),
}
LEGACY: Fields = {
    **dict.fromkeys(legacy_params.CompletionCreateParamsNonStreaming.__annotations__, OTHER),
    **COMMON,
    "best_of": Field("integer", 0, 20),
    "echo": Field("boolean"),
    "logprobs": Field("integer", 0, 5),
    "max_tokens": Field("integer", 0),
    "seed": Field("integer", -(2**63), 2**63 - 1),
    "suffix": Field("string"),
}
OPENAI: Mapping[Endpoint, Fields] = {"chat": CHAT, "completions": LEGACY}

FIREWORKS_OTHER = [
    "context_length_exceeded_behavior",
    "echo",
    "echo_last",
    "ignore_eos",
    "metadata",
    "mirostat_lr",
    "mirostat_target",
    "perf_metrics_in_response",
    "prediction",
    "prompt_cache_isolation_key",
    "prompt_cache_max_len",
    "raw_output",
    "reasoning_effort",
    "response_format",
    "speculation",
    "stop",
    "stream",
    "logit_bias",
    "logprobs",
]
FIREWORKS_COMMON: Fields = {
    **dict.fromkeys(FIREWORKS_OTHER, OTHER),
    **COMMON,
    "max_completion_tokens": Field("integer", 0),
    "max_tokens": Field("integer", 0),
    "min_p": Field("number", 0, 1),
    "repetition_penalty": Field("number", 0, 2),
    "return_token_ids": Field("boolean"),
    "seed": Field("integer"),
    "top_k": Field("integer", 0, 100),
    "top_logprobs": Field("integer", 0, 5),
    "typical_p": Field("number", 0, 1),
}
FIREWORKS_CHAT_OTHER = [
    "function_call",
    "functions",
    "parallel_tool_calls",
    "prompt_truncate_len",
    "tool_choice",
    "tools",
]
FIREWORKS: Mapping[Endpoint, Fields] = {
    "chat": {
        **FIREWORKS_COMMON,
        **dict.fromkeys(FIREWORKS_CHAT_OTHER, OTHER),
        "messages": Field("array"),
    },
    "completions": {**FIREWORKS_COMMON, "prompt": OTHER, "images": OTHER},
}

TOGETHER_COMMON: Fields = {
    **COMMON,
    "context_length_exceeded_behavior": OTHER,
    "echo": OTHER,
    "logit_bias": OTHER,
    "logprobs": Field("integer", 0, 20),
    "max_tokens": Field("integer", 0),
    "min_p": Field("number", 0, 1),
    "repetition_penalty": Field("number"),
    "seed": Field("integer"),
    "stop": OTHER,
    "stream": OTHER,
    "top_k": Field("integer"),
}
TOGETHER: Mapping[Endpoint, Fields] = {
    "chat": {
        **TOGETHER_COMMON,
        "messages": Field("array"),
        "reasoning_effort": OTHER,
        "response_format": OTHER,
        "tool_choice": OTHER,
        "tools": OTHER,
    },
    "completions": {**TOGETHER_COMMON, "prompt": OTHER},
}
"""ChatCompletionRequest and CompletionRequest of togethercomputer/openapi, 2026-04-28."""

SERVED: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "context_length_exceeded_behavior": ("truncate", "error"),
    "echo": (False,),
    "echo_last": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "ignore_eos": (False,),
    "images": (),
    "mirostat_lr": (),
    "mirostat_target": (),
    "modalities": (["text"],),
    "moderation": (),
    "perf_metrics_in_response": (False,),
    "prediction": (),
    "prompt_truncate_len": (),
    "raw_output": (False,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "speculation": (),
    "stream": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
"""Known fields that the gateway cannot act on -> the values, besides null, that ask for nothing."""
