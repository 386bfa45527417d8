"""``python -m bench.studies.few_labels DATA OUT``: a bias learned from 30, 100 and 300 labelled
prompts, beside a classifier.

For each task, number of training prompts and draw of them: the fixed bias, the bias that ``blb fit
--depends-on`` would send, batch calibration with the best of its lifts on the test prompts, and a
classifier on the same features without the model. All validation prompts choose, whatever the
number, and decide whether the bias may depend on the prompt; with ``--shared`` a third of the
training prompts does; with ``--crossed`` all of them choose the fixed bias, by cross-fitting, as in
a fit of few rows. ``--unlabelled`` gives the fit prompts without
answers. Greedy decisions on the test prompts are read from the model's own list at the first
position of each, with the bias added; one that a token outside the list might win counts as wrong.
``--drawn`` also draws the completions of the first draw, and tells how many of them are right
exactly where the lists say so.

A row is written as soon as it is there, and what the model answered stays in a store: a run that
was cut off goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.arrays import Bools
from bench.measuring import jsonl, machine, markdown, read_rows, today
from blackbox_lb import Example, Plan, RolloutStore, Task, Trials, connect, load_task, parse_reward

# Decisions are read from first lists, without the completions that ``blb eval`` draws.
from blackbox_lb.bias.features import Embedding, parse_feature
from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias
from blackbox_lb.estimate.choice.candidates import compiled
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.inputs.sweep import ANSWERS_L2
from blackbox_lb.jobs.fitting.choosing.from_lists import FromLists, surely_right
from blackbox_lb.jobs.fitting.choosing.proposing import BATCH, calibrations, label_priors
from blackbox_lb.jobs.fitting.choosing.select import Search, select
from blackbox_lb.jobs.fitting.evidence.answers import collect
from blackbox_lb.jobs.fitting.evidence.answers_to_learn import AnswersToLearn
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.varying.by_lists import ByLists, classified
from blackbox_lb.jobs.fitting.varying.feature_matrix import PromptFeatures
from blackbox_lb.rollouts.answers.given_answers import (
    AnswerStarts,
    first_completions,
    first_tokens,
)
from blackbox_lb.rollouts.judging.verdict import GREEDY
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.vocabulary.embedding import TextVectors

__all__ = ["DRAWS", "TASKS", "drawn_rows", "measured", "table"]

TASKS = ("sst2", "rte", "agnews", "trec")
DRAWS = {30: 5, 100: 5, 300: 1}
"""Numbers of training prompts, and how often they are drawn anew; 300 are all that the tasks have.
"""
SHORT = 4
"""Tokens of a completion."""


def drawn_rows(train: Sequence[Example], seed: str, size: int) -> tuple[Example, ...]:
    """The training prompts of one draw, the same for every model and feature."""
    return tuple(random.Random(seed).sample(list(train), min(size, len(train))))


async def measured(
    trials: Trials, task: Task, test: AnswerStarts, features: Sequence[str], drawn: bool
) -> list[dict[str, Any]]:
    """A row a feature: the share of right decisions of the base, of each bias, and of the
    classifier. A task without validation prompts has the bias without features alone.
    """
    examples = (*task.train, *task.validation, *test.examples)
    names = sorted({answer for example in examples for answer in example.answers})
    labels = Labels.named(names, task.train)
    plan = Plan(
        reward="contains", l2=ANSWERS_L2, deploy=("greedy",), learn_from="answers", labels=names
    ).for_data(labels, ())
    job = FitJob.of(trials, task, plan)
    evidence = await collect(job)
    selected = await evidence.choose(job)
    fixed = selected.choice.candidate
    given = evidence.answers
    others = []
    if task.validation:
        chosen_on = await first_tokens(trials, task.validation, "validation", None)
        others.append(chosen_on.whole)
    if task.unlabelled:
        completions, _ = await first_completions(trials, task.unlabelled, "unlabelled", None)
        others.append(FirstLists.of(completions))
    batch = [prior for prior in label_priors(given, labels, others) if prior.name == BATCH]
    calibrated = []
    for proposal in calibrations(batch) if batch else ():
        if proposal.settings["calibration"] == BATCH:
            candidate = compiled(proposal, selected.positions.next_token, job.limits)
            right = _right(test, RequestBias(candidate.logit_bias), given)
            calibrated.append(float(right.mean()))
    rows = []
    for name in features:
        feature = parse_feature(name)
        assert feature is not None
        vectors = _vectors(feature.model) if isinstance(feature, Embedding) else None
        known = PromptFeatures.of(feature, task.train, vectors)
        richer = None
        if task.validation:
            scorer = await FromLists.of(trials, task.validation, plan, given)
            source = ByLists(
                known, len(task.train), given, scorer.first, job.limits, plan.sweep.seed, draws=0
            )
            with_features = await select(
                [fixed],
                scorer,
                plan.goal,
                Search(plan.validation_samples),
                selected.positions.next_token,
                job.limits,
                trials.report,
                challengers=[source],
            )
            richer = with_features.richer
        standing = RequestBias(fixed.logit_bias)
        sent = standing if richer is None else richer.bias
        row: dict[str, Any] = {
            "feature": feature.kind,
            "base": float(_right(test, NO_BIAS, given).mean()),
            "fixed": float(_right(test, standing, given).mean()),
            "sent": float(_right(test, sent, given).mean()),
            "calibrated": max(calibrated, default=float("nan")),
            "origin": selected.choice.sentence,
            "depends": richer is not None,
            "classifier": float(classified(known, task.train, test.examples, labels).mean()),
        }
        if drawn:
            scores = await trials.scores(f"test, {feature.kind}", test.examples, GREEDY, 1, sent)
            assert scores.correct is not None
            whole = np.array(
                [float(right.mean()) if right.size else 0.0 for right in scores.correct]
            )
            row |= {
                "drawn": float(whole.mean()),
                "agree": float((whole == _right(test, sent, given)).mean()),
            }
        rows.append(row)
    return rows


@cache
def _vectors(model: str) -> TextVectors:
    """The embedding model, which computes each text once for all draws."""
    return TextVectors(model)


def _right(test: AnswerStarts, bias: RequestBias, given: AnswersToLearn) -> Bools:
    """(p,) whether greedy decoding begins the answer of each test prompt right, and no token
    outside its list might win.
    """
    return surely_right(test.with_tokens(given.ends), bias)[0]


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """A markdown table: the mean over draws of each task, number of prompts and feature, with its
    standard error.
    """
    groups: dict[tuple[str, int, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["task"], row["labels"], row["feature"]].append(row)
    names = ("base", "fixed", "sent", "calibrated", "classifier")
    cells = []
    for (task, size, feature), of in sorted(groups.items()):
        values = np.array([[row[name] for name in names] for row in of])
        means = values.mean(axis=0)
        shown = [f"{mean:.3f}" for mean in means]
        if len(of) > 1:
            errors = values.std(axis=0, ddof=1) / len(of) ** 0.5
            shown = [f"{mean} ± {error:.3f}" for mean, error in zip(shown, errors, strict=True)]
        _, fixed, sent, _, classifier = means
        chosen = f"{sum(row['depends'] for row in of)} of {len(of)}"
        better = f"{sent - max(fixed, classifier):+.3f}"
        cells.append([task, str(size), feature, *shown, chosen, better])
    head = ["task", "prompts", "features", "base", "fixed bias", "sent bias", "batch calibration"]
    head += ["classifier alone", "sent one depends", "less the better"]
    return markdown(head, cells)


def part_of(
    task: Task, seed: str, size: int, *, shared: bool, crossed: bool, unlabelled: int
) -> Task:
    """The task with the prompts of one draw: of these a third to choose on where they are shared,
    none where cross-fitting chooses; and so many others without their answers.
    """
    train = drawn_rows(task.train, seed, size)
    labelled = {example.id for example in train}
    others = [example for example in task.train if example.id not in labelled]
    task = replace(task, train=train, unlabelled=tuple(others[:unlabelled]))
    if crossed:
        return replace(task, validation=())
    if not shared:
        return task
    learned = len(train) - len(train) // 3
    return replace(task, train=train[:learned], validation=train[learned:])


async def _run(
    data: Path,
    out: Path,
    server: Mapping[str, Any],
    features: Sequence[str],
    names: Sequence[str],
    sizes: Sequence[int],
    draws: int | None,
    test_limit: int | None,
    drawn: bool,
    **parts: Any,
) -> None:
    written = out / "rows.jsonl"
    rows = read_rows(written) if written.exists() else []
    reward = parse_reward("contains", max_tokens=SHORT)
    tasks = {name: load_task(data=data / f"{name}.jsonl").first(test=test_limit) for name in names}
    longest = max(task.longest_prompt for task in tasks.values())
    async with connect(**server, max_tokens=SHORT, longest_prompt=longest) as session:
        for name, task in tasks.items():
            with RolloutStore(out / f"{name}.db") as store:
                trials = Trials(session, store, await session.tokenizer(), reward, Silent(), 20)
                test = await first_tokens(trials, task.test, "test", None)
                turns = [
                    (size, draw) for size in sizes for draw in range(draws or DRAWS.get(size, 1))
                ]
                for size, draw in turns:
                    place = {"task": name, "labels": size, "draw": draw}
                    before = {row["feature"] for row in rows if place.items() <= row.items()}
                    missing = [own for own in features if own.partition(":")[0] not in before]
                    if not missing:
                        continue
                    part = part_of(task, f"{name} {size} {draw}", size, **parts)
                    measures = await measured(trials, part, test, missing, drawn and draw == 0)
                    new = [place | row for row in measures]
                    rows += new
                    with written.open("a", encoding="utf-8") as file:
                        file.write(jsonl(new))
                    click.echo(f"{name}, {size} prompts, draw {draw}", err=True)
    click.echo(f"{table(rows)}\n\n{machine()['processor']}, {today()}")


@click.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--provider", default="local", show_default=True)
@click.option("--model", help="A GGUF file; the embedded engine's own model if left out.")
@click.option("--base-url", help="A server instead of the embedded engine.")
@click.option(
    "--depends-on",
    "features",
    multiple=True,
    default=("words",),
    show_default=True,
    help="As of blb fit.",
)
@click.option("--task", "names", multiple=True, default=TASKS, show_default=True)
@click.option(
    "--prompts",
    "sizes",
    multiple=True,
    type=int,
    default=(*DRAWS,),
    show_default=True,
    help="Training prompts.",
)
@click.option("--draws", type=int, help="Of each number. [default: 5, 5 and 1]")
@click.option("--shared", is_flag=True, help="Choose on a third of the training prompts.")
@click.option("--crossed", is_flag=True, help="Choose on all of them by cross-fitting.")
@click.option("--unlabelled", default=0, show_default=True, help="Prompts without answers.")
@click.option("--test-limit", type=int, help="Test prompts, if not all.")
@click.option("--drawn", is_flag=True, help="Draw the completions of the first draw, too.")
def main(
    out: Path, provider: str, model: str | None, base_url: str | None, **settings: Any
) -> None:
    """DATA holds the tasks as NAME.jsonl; OUT gets rows.jsonl and the stores."""
    out.mkdir(parents=True, exist_ok=True)
    server = {"provider": provider, "model": model, "base_url": base_url}
    asyncio.run(_run(out=out, server=server, **settings))


if __name__ == "__main__":
    main()
