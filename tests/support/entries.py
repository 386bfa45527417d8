"""Positions as the chat API tells them."""

from __future__ import annotations

from typing import Any


def entry(text: str, logprob: float, *top: tuple[str, float]) -> dict[str, Any]:
    """One position of the chat dialect, with bytes."""
    alternatives = [
        {"token": other, "bytes": list(other.encode()), "logprob": value} for other, value in top
    ]
    return {
        "token": text,
        "bytes": list(text.encode()),
        "logprob": logprob,
        "top_logprobs": alternatives,
    }
