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
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.measuring import machine, markdown, read_rows, today
from blackbox_lb import RolloutStore, Task, Trials, connect, load_task, parse_reward
from blackbox_lb.bias.features import Embedding, parse_feature
from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias
from blackbox_lb.cli.terminal import Terminal
from blackbox_lb.estimate.choice.candidates import compiled
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.inputs.checks import Bools
from blackbox_lb.estimate.inputs.sweep import ANSWERS_L2
from blackbox_lb.jobs.fitting.choosing.from_lists import FromLists, surely_right
from blackbox_lb.jobs.fitting.choosing.proposing import BATCH, calibrations, label_priors
from blackbox_lb.jobs.fitting.choosing.select import Search, select
from blackbox_lb.jobs.fitting.evidence.answers import collect
from blackbox_lb.jobs.fitting.evidence.answers_to_learn import AnswersToLearn
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.varying.by_lists import ByLists, classified
from blackbox_lb.jobs.fitting.varying.feature_matrix import PromptFeatures
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.rollouts.answers.given_answers import (
    AnswerStarts,
    first_completions,
    first_tokens,
)
from blackbox_lb.rollouts.judging.verdict import GREEDY
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example
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
    cells = []
    for (task, size, feature), of in sorted(groups.items()):
        values = {
            name: np.array([row[name] for row in of])
            for name in ("base", "fixed", "sent", "calibrated", "classifier")
        }
        mean = {name: each.mean() for name, each in values.items()}
        error = {
            name: each.std(ddof=1) / len(of) ** 0.5 if len(of) > 1 else 0.0
            for name, each in values.items()
        }
        told = [
            f"{mean[name]:.3f}" + (f" ± {error[name]:.3f}" if error[name] else "")
            for name in values
        ]
        better = mean["sent"] - max(mean["fixed"], mean["classifier"])
        chosen = f"{sum(row['depends'] for row in of)} of {len(of)}"
        cells.append([task, str(size), feature, *told, chosen, f"{better:+.3f}"])
    head = [
        "task",
        "prompts",
        "features",
        "base",
        "fixed bias",
        "sent bias",
        "batch calibration",
        "classifier alone",
        "sent one depends",
        "less the better",
    ]
    return markdown(head, cells)


@dataclass(frozen=True, slots=True)
class Study:
    """What is measured.

    model: a GGUF file, None for the embedded engine's own. features: as of ``blb fit``. sizes:
    numbers of training prompts. draws: of each, None for ``DRAWS``. shared: whether a third of the
    prompts is for choosing. crossed: whether all are, by cross-fitting. unlabelled: training
    prompts whose answers are not used. drawn: see ``--drawn``.
    """

    model: str | None
    features: tuple[str, ...]
    sizes: tuple[int, ...]
    draws: int | None
    shared: bool
    crossed: bool
    unlabelled: int
    drawn: bool

    def part(self, task: Task, seed: str, size: int) -> Task:
        """The task with the prompts of one draw, and of these a third to choose on."""
        train = drawn_rows(task.train, seed, size)
        labelled = {example.id for example in train}
        others = [example for example in task.train if example.id not in labelled]
        task = replace(task, train=train, unlabelled=tuple(others[: self.unlabelled]))
        if self.crossed:
            return replace(task, validation=())
        if not self.shared:
            return task
        learned = len(train) - len(train) // 3
        return replace(task, train=train[:learned], validation=train[learned:])


async def _run(
    data: Path, out: Path, names: Sequence[str], study: Study, test_limit: int | None
) -> None:
    written = out / "rows.jsonl"
    rows: list[dict[str, Any]] = []
    if written.exists():
        rows = read_rows(written)
    reward = parse_reward("contains", max_tokens=SHORT)
    tasks = {name: load_task(data=data / f"{name}.jsonl").first(test=test_limit) for name in names}
    longest = max(task.longest_prompt for task in tasks.values())
    async with connect(
        "local", model=study.model, max_tokens=SHORT, longest_prompt=longest
    ) as session:
        for name, task in tasks.items():
            with RolloutStore(out / f"{name}.db") as store:
                trials = Trials(session, store, await session.tokenizer(), reward, Terminal(), 20)
                test = await first_tokens(trials, task.test, "test", None)
                for size in study.sizes:
                    for draw in range(study.draws or DRAWS.get(size, 1)):
                        measured_before = {
                            row["feature"]
                            for row in rows
                            if (row["task"], row["labels"], row["draw"]) == (name, size, draw)
                        }
                        features = [
                            feature
                            for feature in study.features
                            if feature.partition(":")[0] not in measured_before
                        ]
                        if not features:
                            continue
                        part = study.part(task, f"{name} {size} {draw}", size)
                        drawn = study.drawn and draw == 0
                        new = [
                            {"task": name, "labels": size, "draw": draw, **row}
                            for row in await measured(trials, part, test, features, drawn)
                        ]
                        rows += new
                        with written.open("a", encoding="utf-8") as file:
                            file.writelines(json.dumps(row) + "\n" for row in new)
    click.echo(f"{table(rows)}\n\n{machine()['processor']}, {today()}")


@click.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--model", help="A GGUF file; the embedded engine's own model if left out.")
@click.option(
    "--depends-on", multiple=True, default=("words",), show_default=True, help="As of blb fit."
)
@click.option("--task", "tasks", multiple=True, default=TASKS, show_default=True)
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
    data: Path,
    out: Path,
    model: str | None,
    depends_on: tuple[str, ...],
    tasks: tuple[str, ...],
    sizes: tuple[int, ...],
    draws: int | None,
    shared: bool,
    crossed: bool,
    unlabelled: int,
    test_limit: int | None,
    drawn: bool,
) -> None:
    """DATA holds the tasks as NAME.jsonl; OUT gets rows.jsonl and the stores."""
    out.mkdir(parents=True, exist_ok=True)
    study = Study(model, depends_on, sizes, draws, shared, crossed, unlabelled, drawn)
    asyncio.run(_run(data, out, tasks, study, test_limit))


if __name__ == "__main__":
    main()
