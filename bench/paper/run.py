"""Every method of one of the paper's tables, learned and judged on one benchmark."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from bench.paper.clusters import clusters_in_table, clusters_of
from bench.paper.plan import Part
from blackbox_lb import (
    Bias,
    Reward,
    RolloutStore,
    Trials,
    connect,
    fit_async,
    parse_reward,
)

# Greedy answers under the caps of the test are judged here, beside those of the fits.
from blackbox_lb.errors import ConnectionFailed, InputError
from blackbox_lb.jobs.evaluation.compare import mean_of
from blackbox_lb.rollouts.judging.verdict import GREEDY, PolicyScores, compare, together
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.vocabulary.embedding import EXTRA

__all__ = ["Place", "results_of"]

MISSING = "missing"
"""The key of a method's result that says why it was not run."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is run.

    Attributes:
        server: provider, model, base_url, endpoint and tokenizer.
        folder: of all results.
        top_logprobs, seed, concurrency: of the requests.
    """

    server: Mapping[str, Any]
    folder: Path
    top_logprobs: int | None
    seed: int
    concurrency: int | None

    @asynccontextmanager
    async def trials(self, part: Part, reward: Reward) -> AsyncIterator[Trials]:
        """What draws and scores completions of a benchmark, in the store of all methods."""
        async with connect(
            **self.server,
            max_tokens=reward.max_tokens,
            longest_prompt=part.task.longest_prompt,
        ) as session:
            with RolloutStore(self.folder / part.name / "rollouts.db") as store:
                known = await session.tokenizer()
                yield Trials(
                    session,
                    store,
                    known,
                    reward,
                    Silent(),
                    self.top_logprobs or 20,
                    seed=self.seed,
                    stop=part.task.stop,
                )


def rewards_of(part: Part) -> tuple[Reward, Reward]:
    """The reward under the token cap of training and validation, and under that of the test."""
    name = part.table["reward"]
    correct = part.task.correct
    train, test = (
        parse_reward(name, max_tokens=part.paper[cap], correct=correct)
        for cap in ("train_cap", "test_cap")
    )
    return train, test


async def results_of(part: Part, place: Place) -> dict[str, Any]:
    """All methods of the table on one benchmark. Everything received is in a store: the same call
    resumes.

    A method that cannot be run says why in its place; only a provider that fails ends the run.
    """
    methods: dict[str, dict[str, Any]] = {"base": {}}
    if part.table["clusters"]:
        methods["clusters"] = {}
    for name in ("ips", "projection"):
        methods[name] = await learned(part, place, name)
    if "clusters" in methods:
        methods["clusters"] = await clusters(part, place, methods["ips"].get(MISSING))
    await judge(part, place, methods)
    counts = {split: len(getattr(part.task, split)) for split in ("train", "validation", "test")}
    return {
        "benchmark": part.name,
        "task": part.task.name,
        "note": part.task.note,
        **counts,
        "methods": methods,
    }


async def learned(part: Part, place: Place, method: str) -> dict[str, Any]:
    """``method`` learned under the training cap."""
    table = part.table
    title = f"{part.paper['title']}, {method}"
    rollouts = part.rollouts
    settings: dict[str, Any] = {"entries": None, "positions": part.paper["positions"]}
    if method == "projection":
        rollouts = part.projected
        settings = {"tau": table["projection"]["tau"], "entries": table["projection"]["entries"]}
    else:
        settings |= {"tau": table["tau"], "alpha": table["alpha"], "alpha_scale": "absolute"}
        settings["estimator"] = (method,)
    folder = place.folder / part.name / method
    click.echo(f"{title}:", err=True)
    try:
        run = await fit_async(
            part.task,
            **place.server,
            **settings,
            reward=table["reward"],
            max_tokens=part.paper["train_cap"],
            samples_per_prompt=rollouts.samples,
            limit=rollouts.problems,
            validation_samples=1,
            test_samples=1,
            objective=table["objective"],
            deploy=("greedy",),
            top_logprobs=place.top_logprobs,
            seed=place.seed,
            concurrency=place.concurrency,
            store=place.folder / part.name / "rollouts.db",
            out=folder,
            go_on=True,
        )
    except InputError as error:
        click.echo(f"{title} not run: {error}", err=True)
        return {MISSING: str(error)}
    bias = run.bias
    keys = ("tau", "l2", "alpha")
    return {
        "rollouts": bias.rollouts,
        "params": {"clusters": table["clusters"]}.get(method, len(bias.entries)),
        "entries": len(bias.entries),
        "chosen": ", ".join(
            f"{key} {bias.settings[key]:g}" for key in keys if key in bias.settings
        ),
        "compiled": None if bias.compiled is None else bias.compiled.sentence,
        "bias": str(folder / "bias.json"),
    }


async def clusters(part: Part, place: Place, unlearnable: str | None) -> dict[str, Any]:
    """The paper's tied baseline, where what it takes beyond the provider is there. unlearnable: why
    ``ips`` was not run, which reads the same rollouts.
    """
    if any(find_spec(name) is None for name in ("sentence_transformers", "sklearn")):
        return {MISSING: f"needs the extra clusters: {EXTRA}"}
    if unlearnable:
        return {MISSING: unlearnable}
    embedding = part.table["embedding"] or None
    try:
        async with place.trials(part, rewards_of(part)[0]) as trials:
            labels, sentence = await clusters_of(
                trials, part.task, part.table["clusters"], embedding
            )
        click.echo(sentence, err=True)
        with clusters_in_table(labels):
            return await learned(part, place, "clusters")
    except (InputError, ConnectionFailed) as error:
        return {MISSING: str(error)}


async def judge(part: Part, place: Place, methods: dict[str, dict[str, Any]]) -> None:
    """Add accuracy, tokens and the verdict against the base to each method, p-values adjusted for
    all of them; each bias is saved with its verdict.
    """
    biases = {
        name: Bias.load(result["bias"]) for name, result in methods.items() if "bias" in result
    }
    test = part.task.test
    _, reward = rewards_of(part)
    async with place.trials(part, reward) as trials:
        if "bias" in methods["ips"]:
            methods["ips"]["params"] = trials.tokenizer.vocabulary_size
        scores = {"base": await trials.scores("test at greedy, base", test, GREEDY, 1)}
        for name, bias in biases.items():
            scores[name] = await trials.scores(
                f"test at greedy, {name}", test, GREEDY, 1, bias.logit_bias
            )
    rows = [
        (name, row)
        for name in biases
        for row in compare(GREEDY, scores["base"], scores[name], reward.label)
    ]
    adjusted = together([row for _, row in rows])
    for name, own in scores.items():
        verdict = [row for (method, _), row in zip(rows, adjusted, strict=True) if method == name]
        if name in biases:
            biases[name].verified(tuple(verdict)).save(methods[name]["bias"])
        methods[name] |= _means(own)
        methods[name]["verdict"] = [row.model_dump(mode="json") for row in verdict]


def _means(scores: PolicyScores) -> dict[str, Any]:
    means = {"tokens": mean_of(scores.tokens).model_dump()}
    if scores.correct is not None:
        means["accuracy"] = mean_of(scores.correct).model_dump()
    return means
