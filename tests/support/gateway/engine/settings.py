"""Settings: what a test chooses about the service that the gateway plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["Fault", "Lie", "RequestSettings"]

Lie: TypeAlias = Literal["top_p 0.9", "after bias", "ignored bias", "64 entries", "integers"]
Fault: TypeAlias = Callable[[int], int | None]
"""Number of an accepted completion request, from 0 -> a status to answer instead, or None."""


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Options of ``RulesGateway``, with their values filled in.

    key, token: what clients must send; ``token`` is an Entra token (azure). models, legacy_models
    (completions endpoint only), reasoning_models (refuse logprobs with 400): names, or deployments
    (azure). entries: most entries of a bias, None for no limit.
    largest: largest token id that may be biased, the last of the vocabulary unless given. quantise:
    nats, see the rule "answer: quantised"; None switches it off. filter_prompts: a text that meets
    the content filter (azure). hosts: name -> fields that the host lacks, the
    preferred one first (openrouter). lie: a planted lie: sampling secretly truncated at top-p .9,
    logprobs of the biased distribution, the bias ignored, no more than 64 entries, fractions
    rounded.
    """

    key: str = "gateway-key"
    token: str = "gateway-token"  # opens nothing but this gateway
    models: tuple[str, ...] = ()
    legacy_models: tuple[str, ...] = ()
    reasoning_models: tuple[str, ...] = ()
    entries: int | None = None
    largest: int | None = None
    quantise: float | None = None
    filter_prompts: str | None = None
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lie: Lie | None = None

    def applied(self, bias: Mapping[int, float]) -> dict[int, float]:
        """The bias that really reaches the engine."""
        if self.lie == "ignored bias":
            return {}
        if self.lie == "integers":
            return {token: float(round(value)) for token, value in bias.items()}
        return dict(bias)
