"""The nouns of the package: prompts go out, completions with token logprobs come back.

Arrays use these axes: ``t`` tokens of one completion, ``k`` listed alternatives. Logprobs are in nats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Completion", "Endpoint", "Example", "FloatArray", "IntArray", "Message", "Prompt", "Sampling", "Split"]

Endpoint: TypeAlias = Literal["chat", "completions"]
Split: TypeAlias = Literal["train", "validation", "test"]
IntArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]

NO_TOKEN = -1
"""Padding in ``Completion.top_ids``."""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent: chat messages. A plain text prompt is one user message.

    On the ``completions`` endpoint the text of the messages is sent as it is, so it must be a single message.
    """

    messages: tuple[Message, ...]

    @classmethod
    def user(cls, text: str) -> Prompt:
        """A prompt of one user message."""
        return cls((Message("user", text),))

    @property
    def text(self) -> str:
        """All message contents, joined by blank lines."""
        return "\n\n".join(message.content for message in self.messages)


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with its accepted answers (empty where the reward needs none)."""

    id: str
    prompt: Prompt
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a completion is drawn: softmax((logits + bias) / temperature), truncated by nothing; temperature 0 is greedy.

    ``max_tokens`` and ``top_logprobs`` count tokens; ``seed`` is None where none is sent.
    """

    temperature: float = 1.0
    max_tokens: int = 256
    top_logprobs: int = 20
    seed: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One sampled completion with the provider's token logprobs.

    ``token_ids``, ``logprobs``: shape (t,), the sampled tokens and their logprobs under the *unbiased* model at temperature 1.
    ``top_ids``, ``top_logprobs``: shape (t, k), each row sorted from most likely, padded with -1 and -inf; a row never
    misses a token more likely than one it lists. ``whole`` is False where the provider listed fewer tokens than it generated.
    ``token_bytes`` maps ids seen in this answer to their bytes, as far as the provider gives them.
    """

    text: str
    finish_reason: str
    token_ids: IntArray
    logprobs: FloatArray
    top_ids: IntArray
    top_logprobs: FloatArray
    prompt_tokens: int = 0
    model: str = ""
    whole: bool = True
    token_bytes: dict[int, bytes] = field(default_factory=dict)

    @property
    def n_tokens(self) -> int:
        """Tokens listed, the end token included where the provider lists it."""
        return len(self.token_ids)
