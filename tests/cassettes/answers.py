"""Constructed answers in the shape that each provider documents, from completions of the toy
model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tests.cassettes.toy import Story, Token, drawn, raw, text_of

__all__ = [
    "FIREWORKS_MODEL",
    "JSON",
    "LMSTUDIO_MODEL",
    "NOW",
    "SMOLLM2_IDS",
    "filtered",
    "fireworks",
    "lmstudio_chat",
    "lmstudio_response",
    "openai_chat",
    "openai_legacy",
]

JSON: TypeAlias = dict[str, Any]
NOW = 1795219200
"""2026-11-21, in seconds since 1970."""
FAR_AWAY = -9999.0
"""What OpenAI tells of a sampled token outside the 20 likeliest (schema
ChatCompletionTokenLogprob).
"""
FIREWORKS_MODEL = "accounts/example/deployments/smollm2"
LMSTUDIO_MODEL = "smollm2-135m-instruct"
QUESTION_TOKENS, CHAT_TOKENS = 10, 30
"""Of the question under SmolLM2, and what its chat template puts around a message."""
SMOLLM2_IDS: Mapping[Token, int] = {
    "<|im_end|>": 2,
    b"Yes": 10539,
    b"No": 5230,
    b"The": 504,
    b"It": 1589,
    b"I": 57,
    b"Sure": 34355,
    b".": 30,
    b",": 28,
    b"!": 17,
    b"\n": 198,
    b"\xf0\x9f": 10813,
}


def usage(prompt: int, generated: int) -> JSON:
    """What is paid for, in tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }


DETAILS = {
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {
        "reasoning_tokens": 0,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
}


# --- OpenAI: schemas CreateChatCompletionResponse, ChatCompletionTokenLogprob,
# CreateCompletionResponse ---


def openai_chat(story: Story, samples: Sequence[Sequence[Token]], prompt: int) -> JSON:
    """One choice a sample, with 20 alternatives a token. ``prompt``: its tokens."""
    choices = [_choice(index, story, tokens) for index, tokens in enumerate(samples)]
    return {
        "id": "chatcmpl-constructed",
        "object": "chat.completion",
        "created": NOW,
        "model": "gpt-4o-mini-2024-07-18",
        "choices": choices,
        "usage": {**usage(prompt, sum(map(len, samples))), **DETAILS},
        "service_tier": "default",
        "system_fingerprint": "fp_constructed",
    }


def _choice(index: int, story: Story, tokens: Sequence[Token]) -> JSON:
    content = [
        {
            **_alternative(at.token, FAR_AWAY if at.logprob is None else at.logprob),
            "top_logprobs": [_alternative(*pair) for pair in at.listed],
        }
        for at in drawn(story, tokens)
    ]
    return {
        "index": index,
        "message": {
            "role": "assistant",
            "content": text_of(tokens),
            "refusal": None,
            "annotations": [],
        },
        "logprobs": {"content": content, "refusal": None},
        "finish_reason": "stop",
    }


def _alternative(token: Token, logprob: float) -> JSON:
    """Fragments of characters are printed as escapes, a special token has no bytes."""
    return {
        "token": _escaped(token),
        "logprob": logprob,
        "bytes": None if isinstance(token, str) else list(token),
    }


def _escaped(token: Token) -> str:
    return token if isinstance(token, str) else token.decode("utf-8", "backslashreplace")


def openai_legacy(story: Story, tokens: Sequence[Token], prompt: str, prompt_tokens: int) -> JSON:
    """Parallel lists of strings. A sampled token outside its list of five stands beside it; the
    lists have no order.
    """
    places = drawn(story, tokens)
    tops = [
        {_key(token): value for token, value in [*at.listed[:5], (at.token, at.logprob)]}
        for at in places
    ]
    starts = [
        len(b"".join(map(raw, tokens[:t])).decode("utf-8", "ignore")) for t in range(len(tokens))
    ]
    logprobs = {
        "tokens": [_key(token) for token in tokens],
        "token_logprobs": [at.logprob for at in places],
        "top_logprobs": [dict(sorted(top.items())) for top in tops],
        "text_offset": [len(prompt) + start for start in starts],
    }
    return {
        "id": "cmpl-constructed",
        "object": "text_completion",
        "created": NOW,
        "model": "gpt-3.5-turbo-instruct",
        "choices": [
            {"text": text_of(tokens), "index": 0, "logprobs": logprobs, "finish_reason": "length"}
        ],
        "usage": usage(prompt_tokens, len(tokens)),
    }


def _key(token: Token) -> str:
    whole = isinstance(token, str) or token.decode("utf-8", "ignore").encode() == token
    return _escaped(token) if whole else f"bytes:{_escaped(token)}"


# --- Azure: schemas createChatCompletionResponse, contentFilterPromptResults,
# contentFilterChoiceResults ---

SAFE: JSON = {
    name: {"filtered": False, "severity": "safe"}
    for name in ("hate", "self_harm", "sexual", "violence")
}
HATE: JSON = {**SAFE, "hate": {"filtered": True, "severity": "high"}}


def filtered(answer: JSON, *withheld: int) -> JSON:
    """OpenAI's answer as it leaves Azure's filter: of a ``withheld`` choice neither message nor
    logprobs are left.
    """
    choices = [
        (
            {
                "index": choice["index"],
                "finish_reason": "content_filter",
                "logprobs": None,
                "content_filter_results": HATE,
            }
            if choice["index"] in withheld
            else {**choice, "content_filter_results": SAFE}
        )
        for choice in answer["choices"]
    ]
    prompt = [{"prompt_index": 0, "content_filter_results": SAFE}]
    return {**answer, "choices": choices, "prompt_filter_results": prompt}


# --- Fireworks: its SDK's NewLogProbsContent and NewLogProbsContentTopLogProbs ---


def fireworks(
    story: Story,
    tokens: Sequence[Token],
    bias: Mapping[Token, float] | None = None,
    *,
    chat: bool = True,
) -> JSON:
    """Five alternatives. ``logprob`` is the model's, ``sampling_logprob`` that of softmax(logits +
    bias).
    """
    entries = []
    for t, at in enumerate(drawn(story, tokens)):
        logprob = dict(at.listed)[at.token]
        entry = {
            **_named(at.token, logprob),
            "sampling_logprob": round(_tilted(at.listed, at.token, bias or {}), 6),
            "text_offset": len(text_of(tokens[:t])),
            "top_logprobs": [_named(*pair) for pair in at.listed[:5]],
        }
        entries.append(entry)
    said = (
        {"message": {"role": "assistant", "content": text_of(tokens)}}
        if chat
        else {"text": text_of(tokens)}
    )
    return {
        "id": "constructed",
        "object": "chat.completion" if chat else "text_completion",
        "created": NOW,
        "model": FIREWORKS_MODEL,
        "choices": [
            {"index": 0, **said, "logprobs": {"content": entries}, "finish_reason": "stop"}
        ],
        "usage": usage(QUESTION_TOKENS + (CHAT_TOKENS if chat else 0), len(tokens)),
    }


def _named(token: Token, logprob: float) -> JSON:
    return {
        "token": _printed(token),
        "bytes": list(_printed(token).encode()),
        "logprob": logprob,
        "token_id": SMOLLM2_IDS[token],
    }


def _printed(token: Token) -> str:
    """A fragment of a character as U+FFFD."""
    return raw(token).decode("utf-8", "replace")


def _tilted(
    listed: Sequence[tuple[Token, float]], sampled: Token, bias: Mapping[Token, float]
) -> float:
    """log p + delta - log(1 + sum over biased tokens of p (e^delta - 1)); all biased tokens must be
    listed.
    """
    logprobs = dict(listed)
    moved = sum(math.exp(logprobs[token]) * math.expm1(nats) for token, nats in bias.items())
    return logprobs[sampled] + bias.get(sampled, 0.0) - math.log1p(moved)


# --- LM Studio: schemas Response, OutputTextContent, LogProb; chat without logprobs ---


def lmstudio_response(story: Story, tokens: Sequence[Token]) -> JSON:
    """The Responses API; ``bytes`` are those of the printed text."""

    def alternative(token: Token, logprob: float | None) -> JSON:
        return {
            "token": _printed(token),
            "logprob": logprob,
            "bytes": list(_printed(token).encode()),
        }

    entries = [
        {
            **alternative(at.token, at.logprob),
            "top_logprobs": [alternative(*pair) for pair in at.listed[:5]],
        }
        for at in drawn(story, tokens)
    ]
    part = {
        "type": "output_text",
        "text": text_of(tokens),
        "annotations": [],
        "logprobs": entries,
    }
    message = {
        "id": "msg_constructed",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    return {
        "id": "resp_constructed",
        "object": "response",
        "created_at": NOW,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": LMSTUDIO_MODEL,
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": 1.0,
        "top_p": 1.0,
        "usage": {
            "input_tokens": QUESTION_TOKENS + CHAT_TOKENS,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": len(tokens),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": QUESTION_TOKENS + CHAT_TOKENS + len(tokens),
        },
    }


def lmstudio_chat(text: str, prompt: int, generated: int) -> JSON:
    """A chat completion, whose logprobs are always null. ``prompt`` and ``generated`` count
    tokens.
    """
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-constructed",
        "object": "chat.completion",
        "created": NOW,
        "model": LMSTUDIO_MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": usage(prompt, generated),
        "system_fingerprint": LMSTUDIO_MODEL,
    }
