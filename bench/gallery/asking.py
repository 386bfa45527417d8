"""What programs of the gallery that ask a model share: the options that name it, the session behind
them with its store, and first lists.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from blackbox_lb import Example, Reward, RolloutStore, Trials, connect

# First lists of prompts as a rival of ``blb eval`` asks them.
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.jobs.evaluation.policies import Policy
from blackbox_lb.rollouts.answers.given_answers import first_completions
from blackbox_lb.rollouts.progress import Silent

__all__ = ["first_lists", "model_options", "opened"]

Command = TypeVar("Command", bound=Callable[..., Any])
OPTIONS = (
    click.option("--provider", default="local", show_default=True),
    click.option("--model"),
    click.option("--base-url"),
)


def model_options(command: Command) -> Command:
    """The options of ``blb`` that name a model."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@asynccontextmanager
async def opened(
    settings: Mapping[str, Any], store: Path, reward: Reward, longest_prompt: int, listed: int = 20
) -> AsyncIterator[Trials]:
    """Trials of a model that ``settings`` name by ``model_options``.

    longest_prompt: in characters. listed: alternatives of a position, as many as ``blb eval`` asks
    for where none are named.
    """
    async with connect(
        settings["provider"],
        model=settings["model"],
        base_url=settings["base_url"],
        max_tokens=reward.max_tokens,
        longest_prompt=longest_prompt,
    ) as session:
        with RolloutStore(store) as stored:
            tokenizer = await session.tokenizer()
            yield Trials(session, stored, tokenizer, reward, Silent(), listed)


async def first_lists(
    trials: Trials,
    examples: Sequence[Example],
    title: str,
    policy: Policy,
    listed: int | None = None,
) -> FirstLists:
    """The first lists of the examples as ``policy`` asks them.

    listed: alternatives of each list; None for as many as help and the provider lists.
    """
    asked = [draw.example for example in examples for draw in policy.requests(example, 1)]
    completions, _ = await first_completions(trials, asked, title, listed)
    return FirstLists.of(completions)
