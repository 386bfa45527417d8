"""Reading: one completion as a provider tells it: where its text ends, which tokens count, which
logprobs are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.support.gateway.engine.logprobs import EnginePosition, quantised, tilted
from tests.support.gateway.engine.settings import RequestSettings
from tests.support.gateway.engine.upstream import EngineCompletion, UpstreamEngine, Want

__all__ = ["CompletionView", "TokenPrinting", "f32", "read"]


@dataclass(frozen=True, slots=True)
class CompletionView:
    """``drawn``: every listed position as the engine gave it, ``told``: the same as the provider
    tells it.

    ``kept``: how many of them belong to the text before a stop sequence. ``tokens``: what usage
    counts. ``post``: the logprob that each position was drawn with, where the engine told it.
    """

    text: str
    finish: str
    drawn: tuple[EnginePosition, ...]
    told: tuple[EnginePosition, ...]
    kept: int
    tokens: int
    prompt_tokens: int
    post: tuple[float | None, ...] = ()


class TokenPrinting:
    """How tokens are printed: text, exact bytes, and the name of a special token, which has no
    bytes.
    """

    def __init__(self, upstream: UpstreamEngine) -> None:
        self._upstream = upstream

    def raw(self, token: int, printed: bytes = b"") -> bytes:
        """The bytes of a token; none for a special one."""
        return self._upstream.raw(token, printed)

    def text(self, token: int, printed: bytes = b"") -> str:
        """As in ``token``: bytes that are no UTF-8 become ``\\xe2``."""
        raw = self.raw(token, printed)
        return raw.decode("utf-8", "backslashreplace") if raw else self._upstream.special(token)

    def key(self, token: int, printed: bytes = b"") -> str:
        """As in the keys of legacy lists: ``bytes:\\xe2\\x80`` where the bytes are no UTF-8."""
        text = self.text(token, printed)
        return text if _is_utf8(self.raw(token, printed)) else f"bytes:{text}"

    def offsets(self, positions: Sequence[EnginePosition]) -> list[int]:
        """Where each token begins, in characters of the text of all."""
        joined, starts = b"", []
        for position in positions:
            starts.append(len(joined.decode("utf-8", "ignore")))
            joined += self.raw(position.id, position.raw)
        return starts


def read(
    settings: RequestSettings,
    shown: TokenPrinting,
    draw: EngineCompletion,
    want: Want,
    stops: list[str],
) -> CompletionView:
    """``draw`` under the rules and lies of ``settings``."""
    positions = draw.positions
    told = [
        tilted(each, want.bias) if settings.lie == "after bias" and want.bias else each
        for each in positions
    ]
    if settings.quantise is not None:
        told = [quantised(each, settings.quantise) for each in told]
    whole = CompletionView(
        draw.text,
        draw.finish,
        positions,
        tuple(told),
        len(positions),
        draw.generated,
        draw.prompt_tokens,
        draw.post,
    )
    found = [draw.text.index(stop) for stop in stops if stop and stop in draw.text]
    return _cut(whole, shown, min(found), stops) if found else whole


def f32(value: float) -> float:
    """Logprobs travel as 32-bit floats."""
    return float(np.float32(value))


def _cut(
    reading: CompletionView, shown: TokenPrinting, at: int, stops: list[str]
) -> CompletionView:
    """The text before character ``at``, where a stop sequence begins."""
    over = min(at + len(stop) for stop in stops if stop and reading.text.startswith(stop, at))
    starts = shown.offsets(reading.drawn)
    kept = sum(start < at for start in starts)
    tokens = sum(start < over for start in starts)
    return replace(reading, text=reading.text[:at], finish="stop", kept=kept, tokens=tokens)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
