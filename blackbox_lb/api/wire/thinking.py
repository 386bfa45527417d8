"""Thinking models: whether an answer holds thoughts, and whether it was cut inside them.

Thoughts stand in ``message.reasoning_content`` (DeepSeek, llama.cpp, SGLang) or
``message.reasoning`` (vLLM, OpenRouter), or are parts of a ``message.content`` that is a list
(Mistral, Anthropic behind gateways), and ``usage`` may count their tokens. Most servers list
them among the answer's tokens. DeepSeek lists them apart, in ``logprobs.reasoning_content``,
without the token that ends them; an answer that its limit cut inside them has no
``logprobs.content`` at all (recorded).
"""

from collections.abc import Mapping
from typing import Any

REMEDY = (
    "raise ``max_tokens``, or turn thinking off (the model's own switch, under [request] in a"
    " profile)"
)
CUT = f"were cut inside their thinking, so that they have no text: {REMEDY}"
UNLISTED = (
    "are not whole: tokens of their thinking are counted and not listed with them;"
    f" {REMEDY.partition(', or ')[2]}"
)
"""Notes on completions, behind their number."""
THOUGHT_PARTS = ("thinking", "redacted_thinking", "reasoning")
"""Types of the parts of a message that are thoughts."""


def has_thoughts(answer: Mapping[str, Any], choice: Mapping[str, Any], *, alone: bool) -> bool:
    """Whether the model thought before the completion. ``alone``: it is the answer's only one, so
    that ``usage`` is about it.
    """
    message = choice.get("message")
    logprobs = choice.get("logprobs")
    places = (
        (message, "reasoning_content"),
        (message, "reasoning"),
        (logprobs, "reasoning_content"),
    )
    if any(isinstance(place, Mapping) and place.get(name) for place, name in places):
        return True
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, list) and any(is_thought(part) for part in content):
        return True
    usage = answer.get("usage") if alone else None
    details = (
        [usage.get(f"{kind}_tokens_details") for kind in ("completion", "output")]
        if isinstance(usage, Mapping)
        else []
    )
    return any(isinstance(detail, Mapping) and detail.get("reasoning_tokens") for detail in details)


def is_thought(part: Any) -> bool:
    """Whether a part of a message's content is a thought of the model."""
    return isinstance(part, Mapping) and part.get("type") in THOUGHT_PARTS


def is_cut(text: str, finish_reason: Any, *, thought: bool) -> bool:
    """Whether the limit of tokens cut the completion of a model that ``thought`` before its text
    began.
    """
    return thought and not text and finish_reason == "length"
