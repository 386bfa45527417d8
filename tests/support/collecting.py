"""Completions of one kind, collected without trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.rollouts.collect import Collection, Series, collect_all
from blackbox_lb.store import RolloutStore
from blackbox_lb.types import Prompt
from blackbox_lb.vocabulary.tokenizer import Tokenizer


async def collect(
    session: Session,
    store: RolloutStore,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    draw: Draw,
    *,
    samples: int,
    **more: Any,
) -> Collection:
    """One series of ``collect_all``: ``samples`` completions of every prompt."""
    series = [Series(prompts, draw, samples)]
    [collection] = await collect_all(session, store, tokenizer, series, **more)
    return collection
