"""The nouns of the package: prompts go out, completions with token logprobs come back.

Arrays use these axes: ``t`` tokens of one completion, ``k`` listed alternatives. Logprobs are in nats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "BoolArray",
    "Completion",
    "Draw",
    "EndTokens",
    "Endpoint",
    "Example",
    "FloatArray",
    "IntArray",
    "Message",
    "Prompt",
    "Sampling",
    "Split",
]

Endpoint: TypeAlias = Literal["chat", "completions", "responses"]
Split: TypeAlias = Literal["train", "validation", "test"]
IntArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

NO_TOKEN = -1
"""Padding in ``Completion.top_ids``."""
UNNAMED = -2
"""A listed token without an identity (a special token whose bytes the provider keeps back): it has a probability and no bias."""


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

    ``max_tokens`` and ``top_logprobs`` count tokens; ``seed`` is None where none is sent. ``stop``: a completion ends before the
    first of these texts.
    """

    temperature: float = 1.0
    max_tokens: int = 256
    top_logprobs: int = 20
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Draw:
    """How completions are drawn.

    sampling: temperature, longest completion in tokens, listed alternatives, seed and stop texts.
    bias: nats by token id; None or empty: none.
    endpoint: where the model is asked; None: the session's own.
    """

    sampling: Sampling
    bias: Mapping[int, float] | None = None
    endpoint: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class EndTokens:
    """How a provider treats the tokens that end a completion.

    ``listed``: whether a sampled end token is the last of the listed tokens; None where nobody knows. ``ids``: all special tokens.
    ``openers``: tokens that may begin a stop text, where those of the stop text that ended a completion may not be listed.
    """

    listed: bool | None = True
    ids: frozenset[int] = frozenset()
    openers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One sampled completion with the provider's token logprobs.

    ``token_ids``, ``logprobs``: shape (t,), the listed tokens and their logprobs under the *unbiased* model at temperature 1
    (the row ``logprobs.meaning`` of the provider's profile says where a bias or another temperature changes them).
    ``propensities``: (t,), their logprobs under the policy that sampled them, where the provider tells both.
    ``bounded``: (t,), True where the provider gives no logprob for the sampled token: ``logprobs`` then holds the smallest listed
    one, which it cannot exceed, and is no propensity; None where every logprob is given.
    ``top_ids``, ``top_logprobs``: shape (t, k), each row sorted from most likely, padded with -1 and -inf; -2 is a listed token
    without an id. A row never misses a token more likely than one it lists. ``whole`` is False where the provider listed
    fewer tokens than it generated, or nothing that can be read; ``generated`` is how many it says it did, None where it does not
    say.
    ``token_bytes`` maps ids seen in this answer to their bytes, as far as the provider gives them. ``fingerprint``: what the
    provider says of the system that answered (``system_fingerprint``), "" where it says nothing.
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
    propensities: FloatArray | None = None
    bounded: BoolArray | None = None
    generated: int | None = None
    fingerprint: str = ""

    @classmethod
    def empty(cls, finish_reason: str, model: str = "") -> Completion:
        """A completion without any token, as a content filter leaves it; not ``whole``."""
        none, table = np.zeros(0), np.zeros((0, 0))
        ids, logprobs = none.astype(np.int32), none.astype(np.float32)
        return cls("", finish_reason, ids, logprobs, table.astype(np.int32), table.astype(np.float32), model=model, whole=False)

    @property
    def filtered(self) -> bool:
        """Whether the provider's content filter kept the completion, or its rest, back."""
        return self.finish_reason == "content_filter"

    @property
    def readable(self) -> bool:
        """Whether there is anything to score: not what a content filter stopped, nor what nobody could read beside its siblings."""
        return not self.filtered and (self.whole or self.n_tokens > 0)

    @property
    def n_tokens(self) -> int:
        """Tokens generated, as the provider counts them; where it does not, tokens listed."""
        return len(self.token_ids) if self.generated is None else self.generated
