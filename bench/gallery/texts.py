"""Completions of an evaluation, read back from its store; none of them is asked for again.

A program made by ``reading_program`` takes the words of ``blb eval`` and prints tables as JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click

from bench.gallery.asking import model_options, opened
from blackbox_lb import Bias, Completion, Trials, load_task, parse_reward

# Which completions of the store are whose, ``blb eval`` alone knows.
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.extras.rivals.table import rivals
from blackbox_lb.jobs.evaluation.policies import policies_at
from blackbox_lb.jobs.evaluation.results import collect_answers
from blackbox_lb.rollouts.judging.verdict import Array, bootstrap, parse_setting

__all__ = ["Evaluated", "Tables", "Texts", "difference", "reading_program"]

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


def difference(values: Array, base: Array) -> tuple[float, float, float]:
    """The mean difference of two policies, paired by prompt, and its 95 % interval.

    values, base: (n,) of each prompt.
    """
    gaps = values - base
    interval = bootstrap(gaps)
    return float(gaps.mean()), interval.low, interval.high


def reading_program(
    description: str | None, tables: Callable[[Evaluated], Awaitable[Tables]]
) -> click.Command:
    """A program that takes the words of ``blb eval`` and prints ``tables`` of its completions."""

    @click.command(help=description)
    @click.argument("biases", nargs=-1, required=True, metavar="NAME=FILE...")
    @model_options
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
        printed = asyncio.run(_read(tables, settings))
        click.echo(json.dumps({"tables": printed}, ensure_ascii=False))

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
    async with opened(settings, settings["store"], reward, task.longest_prompt) as trials:
        ready = [await policy.ready(trials) for policy in policies]
        sent = {name: to_request_bias(bias, trials.store) for name, bias in biases.items()}
        judged = [(setting, policy) for policy in policies_at(setting, sent, ready)]
        collected = await collect_answers(trials, task.test, judged, settings["test_samples"])
        texts = {
            policy.name: list(trials.store.by_prompt(keys))
            for (_, policy), keys in zip(judged, collected, strict=True)
        }
        instructed = [policy.name for _, policy in judged if "instruction" in policy.facts]
        return await tables(Evaluated(case, trials, texts, tuple(instructed)))
