"""Completions of an evaluation, read back from its store without a request.

A program made by ``reading_program`` takes the words of ``blb eval`` and prints tables as JSON.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np

from blackbox_lb import (
    Bias,
    BlbError,
    Completion,
    Example,
    RolloutStore,
    Trials,
    connect,
    load_task,
    parse_reward,
)

# Which completions of the store are whose, ``blb eval`` alone knows.
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.extras.rivals.table import rivals
from blackbox_lb.jobs.evaluation.policies import Policy, policies_at
from blackbox_lb.rollouts.judging.verdict import Setting, bootstrap, parse_setting
from blackbox_lb.rollouts.progress import Silent

__all__ = ["Evaluated", "Texts", "difference", "reading_program", "stored_texts"]

LISTED = 20
"""Alternatives of a position that ``blb eval`` asks for where no number is named."""
Texts: TypeAlias = list[list[Completion]]
"""The completions of each test prompt."""
Tables: TypeAlias = list[dict[str, Any]]
"""Each with a ``title``, a ``head``, ``rows`` of cells, and ``notes``."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The completions of an evaluation.

    case: the task whose test prompts were judged, the reward, and the setting.
    trials: how they were drawn.
    policies: name of a policy -> its completions.
    instructed: the policies whose prompt holds an instruction.
    """

    case: Case
    trials: Trials
    policies: Mapping[str, Texts]
    instructed: tuple[str, ...]


async def stored_texts(
    trials: Trials,
    setting: Setting,
    policy: Policy,
    examples: Sequence[Example],
    samples: int,
) -> Texts:
    """The completions that ``blb eval`` drew of a policy. BlbError: some are not stored."""
    drawn_at = policy.drawn_at(setting)
    draw = trials.draw(drawn_at, policy.bias, trials.session.biased_endpoint, policy.max_tokens)
    if drawn_at.deterministic:
        samples = 1
    sent = [row.example for example in examples for row in policy.requests(example, samples)]
    keys = await trials.collect(policy.name, sent, draw, samples, scored=False, only_stored=True)
    if any(len(row) < samples for row in keys):
        raise BlbError(
            f"{trials.store.path} lacks completions of {policy.name!r}; run blb eval with these"
            " words first"
        )
    return list(trials.store.by_prompt(keys))


def difference(
    values: Sequence[np.ndarray], base: Sequence[np.ndarray]
) -> tuple[float, float, float]:
    """The mean difference of two policies, paired by prompt, and its 95 % interval."""
    gaps = [
        value.mean() - base_value.mean() for value, base_value in zip(values, base, strict=True)
    ]
    interval = bootstrap(np.array(gaps))
    return float(np.mean(gaps)), interval.low, interval.high


def reading_program(
    description: str | None, tables: Callable[..., Awaitable[Tables]], *options: click.Option
) -> click.Command:
    """A program that takes the words of ``blb eval`` and prints ``tables`` of its completions.

    ``options`` are those of the program itself; ``tables`` gets their values by name, behind what
    was evaluated.
    """

    @click.command(help=description)
    @click.argument("biases", nargs=-1, required=True, metavar="NAME=FILE...")
    @click.option("--provider", default="local", show_default=True)
    @click.option("--model", help="The model that wrote the texts.")
    @click.option("--base-url")
    @click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
    @click.option("--reward", required=True)
    @click.option("--max-tokens", type=int, required=True)
    @click.option("--store", type=click.Path(exists=True, path_type=Path), required=True)
    @click.option("--deploy", required=True)
    @click.option("--test-samples", type=int, default=1, show_default=True)
    @click.option("--test-limit", type=int)
    @click.option("--rival", multiple=True, metavar="NAME:VALUE")
    def main(**settings: Any) -> None:
        """Print the tables as JSON."""
        extra = {option.name: settings.pop(option.name) for option in options if option.name}
        printed = asyncio.run(_read(functools.partial(tables, **extra), settings))
        click.echo(json.dumps({"tables": printed}, ensure_ascii=False))

    main.params.extend(options)
    return main


async def _read(
    tables: Callable[[Evaluated], Awaitable[Tables]], settings: Mapping[str, Any]
) -> Tables:
    task = load_task(data=settings["data"], require_answers=False)
    task = task.first(test=settings["test_limit"])
    reward = parse_reward(settings["reward"], max_tokens=settings["max_tokens"])
    setting = parse_setting(settings["deploy"])
    files = (spec.partition("=") for spec in settings["biases"])
    biases = {name: Bias.load(path) for name, _, path in files}
    case = Case(task, reward, (setting,))
    policies = rivals(settings["rival"], case)
    async with connect(
        settings["provider"],
        model=settings["model"],
        base_url=settings["base_url"],
        max_tokens=reward.max_tokens,
        longest_prompt=task.longest_prompt,
    ) as session:
        with RolloutStore(settings["store"], read_only=True) as store:
            tokenizer = await session.tokenizer()
            trials = Trials(session, store, tokenizer, reward, Silent(), LISTED)
            ready = [await policy.ready(trials) for policy in policies]
            sent = {name: to_request_bias(bias, store) for name, bias in biases.items()}
            texts = {}
            instructed = []
            for policy in policies_at(setting, sent, ready):
                texts[policy.name] = await stored_texts(
                    trials, setting, policy, task.test, settings["test_samples"]
                )
                if "instruction" in policy.facts:
                    instructed.append(policy.name)
            return await tables(Evaluated(case, trials, texts, tuple(instructed)))
