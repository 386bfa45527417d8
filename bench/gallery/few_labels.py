"""``python -m bench.gallery.few_labels TITLE=FILE ...``: decisions of one token, learned from few
labelled rows, several draws of them, beside what one would do instead.

Everything is known from first lists: greedy decoding takes the token whose logprob and bias have
the highest sum, so no policy has to be drawn. Some prompts are asked with a bias all the same, and
counted where the answer is another one. Each draw of labelled rows is a block of its own of the
rows to learn from; a number of them are the first ones of each block. It prints evaluations and
tables as JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
import numpy.typing as npt

from bench.gallery.asking import first_lists, model_options, opened
from bench.gallery.over_draws import (
    FIXED,
    ONLY,
    RBCORR,
    WORDS,
    Array,
    Right,
    evaluation,
    in_draws,
    means_table,
    over_sets,
)
from bench.gallery.results import model_name
from bench.measuring import read_rows
from blackbox_lb import Example, Plan, Task, Trials, load_task, parse_reward

# A fit up to its choice, and the rivals of ``blb eval``, without a completion of either.
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.estimate.decisions.first_lists import FirstLists, Shifts
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.extras.rivals.classifier import learned_classifier
from blackbox_lb.extras.rivals.first_lists import (
    LabelLists,
    content_free,
    distinctive_tokens,
    label_lists,
    offsets,
)
from blackbox_lb.extras.rivals.prompts import few_shot, instruction
from blackbox_lb.jobs.evaluation.policies import BASE, CLASSIFIER, Policy
from blackbox_lb.jobs.fitting.choosing.from_lists import of_each_prompt
from blackbox_lb.jobs.fitting.evidence import answers
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.plan.by_data import completed, pooled
from blackbox_lb.rollouts.judging.verdict import GREEDY
from blackbox_lb.tasks.sets.labels import Labels

__all__ = ["main"]

Ids: TypeAlias = npt.NDArray[np.int64]

ROOM = 4000
"""Characters of an instruction or of examples before a prompt."""
UNLABELLED = 100
"""Prompts without an answer that a fit reads beside the labelled rows."""
SHOTS, SHOWN_DRAWS = 4, 2
"""Examples in the prompt, and the draws in which they are tried: each asks all test prompts again.
"""
FEWEST_SETS = 5
"""Sets over which the bias is compared with each policy, at least."""
INSTRUCTION = "Answer with exactly one of these and nothing else: {}."
TOLD, SHOWN = "instruction", f"{SHOTS} examples"


@dataclass(frozen=True, slots=True, eq=False)
class LabelledSet:
    """A set whose prompts have their first lists.

    Attributes:
        title: of the set.
        labels: of the decision.
        tokens: (l,) those that begin each label and no other.
        pool: rows to learn from.
        tests: rows to judge on.
        truth: (n,) the right label of each of ``tests``.
        lists: of ``tests``.
        pooled: the probability of each label on each row of ``pool``.
        tested: the same of ``tests``.
    """

    title: str
    labels: Labels
    tokens: Sequence[Ids]
    pool: tuple[Example, ...]
    tests: tuple[Example, ...]
    truth: Ids
    lists: FirstLists
    pooled: LabelLists
    tested: LabelLists

    def by_tokens(self, lists: FirstLists, shifts: Shifts) -> Array:
        """(n,) whether greedy decoding under ``shifts`` begins each test prompt's label."""
        decided = lists.greedy(shifts)
        rows = [
            np.isin(token, self.tokens[label])
            for token, label in zip(decided, self.truth, strict=True)
        ]
        return np.array(rows, np.float64)

    def by_labels(self, shifts: Array) -> Array:
        """(n,) whether the label with the highest logprob and shift is each test prompt's."""
        decided = np.array(self.tested.decided(shifts).labels, np.int64)
        right: Array = (decided == self.truth).astype(np.float64)
        return right

    def block(self, draw: int, size: int, number: int) -> Sequence[int]:
        """The places in ``pool`` of the first ``number`` of a draw's ``size`` rows. Where these
        have one label alone, the last of them is the first row with another.
        """
        begin = draw * size
        labels = numbers_of(self.labels, self.pool[begin : begin + size])
        places = list(range(begin, begin + number))
        if len(set(labels[:number].tolist())) < 2:
            places[-1] = begin + int((labels != labels[0]).argmax())
        return places


def examples_of(path: Path) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """The rows of a file to learn from, and those to judge on."""
    rows = read_rows(path)
    task = load_task(data=[row | {"split": "test"} for row in rows], learns=False)
    pairs = list(zip(rows, task.test, strict=True))
    teaching, judging = (
        tuple(example for row, example in pairs if row["split"] == split)
        for split in ("train", "test")
    )
    return teaching, judging


async def read_set(
    trials: Trials, title: str, pool: tuple[Example, ...], tests: tuple[Example, ...]
) -> LabelledSet:
    """Read the first lists of a set, unless they are in the store. pool: rows to learn from. tests:
    rows to judge on.
    """
    labels = Labels.found_in(pool)
    if labels is None:
        raise click.UsageError(f"{title} has no few labels as answers")
    case = Case(Task(title, (), (), tests), trials.reward, (GREEDY,), labels)
    return LabelledSet(
        title,
        labels,
        await distinctive_tokens(trials, labels),
        pool,
        tests,
        numbers_of(labels, tests),
        await first_lists(trials, tests, f"{title}, test", Policy()),
        await label_lists(trials, pool, f"{title}, to learn from", case, labels),
        await label_lists(trials, tests, f"{title}, test", case, labels),
    )


def numbers_of(labels: Labels, examples: Sequence[Example]) -> Ids:
    """(n,) the number of each row's label."""
    return np.array([labels.of(example) for example in examples], np.int64)


async def without_labels(trials: Trials, read: LabelledSet) -> Right:
    """The policies that learn from no labelled row: the same in every draw."""
    free = content_free(read.tests)
    case = Case(Task(read.title, (), (), read.tests), trials.reward, (GREEDY,), read.labels)
    lists = await label_lists(trials, free, f"{read.title}, without content", case, read.labels)
    likeliest = read.lists.best(read.tokens)
    decided = {
        BASE: read.by_tokens(read.lists, {}),
        ONLY: (likeliest.argmax(axis=1) == read.truth).astype(np.float64),
        "contextual calibration": read.by_labels(-np.log(np.nanmean(lists.shares, axis=0))),
        "batch calibration": read.by_labels(-np.log(np.nanmean(read.tested.shares, axis=0))),
    }
    return {name: right[None] for name, right in decided.items()}


def by_thresholds(table: Array, numbers: Ids) -> dict[str, Array]:
    """The shifts (l,) that labelled rows give: an offset each, and RBCorr's rule: minus the mean
    logprob of each label, over as many rows of every label (Bhatt and Ivanova 2026).
    """
    means = [np.nanmean(table[numbers == label], axis=0) for label in np.unique(numbers)]
    return {"thresholds": offsets(table, numbers), RBCORR: -np.mean(means, axis=0)}


async def learned(
    trials: Trials, task: Task, labels: Labels, *, depends_on: Sequence[str] = ()
) -> RequestBias:
    """The bias that ``blb fit`` chooses for these rows."""
    plan = Plan(
        reward=trials.reward.name,
        labels=",".join(labels.names),
        learn_from="answers",
        depends_on=tuple(depends_on),
    )
    plan = completed(plan, task, trials.reward)
    job = FitJob.of(trials, pooled(plan, task, trials.reward), plan)
    evidence = await answers.collect(job)
    choice = (await evidence.choose(job)).choice
    if choice.richer is not None:
        return choice.richer.bias
    return RequestBias(choice.candidate.logit_bias)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was given, by the names of its options.

    Attributes:
        numbers: of labelled rows.
        draws: of each number.
        test_limit: rows to judge on; None for all.
        words_from: the number from which on a bias that depends on the words of the prompt is
            learned, too; None for never.
        prompts: whether an instruction is tried, and examples in the prompt with the fewest rows.
        count: prompts of each set that are asked with a bias.
    """

    store: Path
    numbers: Sequence[int]
    draws: int
    test_limit: int | None
    words_from: int | None
    prompts: bool
    count: int

    @property
    def size(self) -> int:
        """Rows of a block."""
        return max(self.numbers)


async def by_number(
    trials: Trials, read: LabelledSet, options: Options
) -> tuple[dict[int, Right], RequestBias]:
    """What is right with each number of labelled rows, and the bias of most rows."""
    free = await without_labels(trials, read)
    if options.prompts:
        asked = INSTRUCTION.format(", ".join(read.labels.names))
        told = instruction(Case(Task("", (), (), ()), trials.reward, ()), asked)
        instructed = await _lists(trials, read, told)
        free[TOLD] = read.by_tokens(instructed, {})[None]
    found = {}
    for number in options.numbers:
        has_words = options.words_from is not None and number >= options.words_from
        rows = []
        for draw in range(options.draws):
            block = read.block(draw, options.size, number)
            row, bias = await _one_draw(trials, read, block, has_words=has_words)
            shifts = of_each_prompt(read.tests, bias)
            if options.prompts:
                row[f"{TOLD} and {FIXED}"] = read.by_tokens(instructed, shifts)
            if options.prompts and number == min(options.numbers) and draw < SHOWN_DRAWS:
                row |= await _with_shots(trials, read, block, shifts, draw)
            rows.append(row)
        right = free | in_draws(rows)
        found[number] = right
        means = ", ".join(f"{name} {values.mean():.3f}" for name, values in right.items())
        click.echo(f"{read.title}, {number} labels: {means}", err=True)
    return found, bias


async def _lists(trials: Trials, read: LabelledSet, policy: Policy) -> FirstLists:
    """The first lists of the test prompts as ``policy`` asks them."""
    return await first_lists(trials, read.tests, f"{read.title}, {policy.name}", policy)


async def _one_draw(
    trials: Trials, read: LabelledSet, places: Sequence[int], *, has_words: bool
) -> tuple[dict[str, Array], RequestBias]:
    """What is right where the rows at these ``places`` are labelled, and the fixed bias. Rows
    behind them are read without their answers.
    """
    rows = tuple(read.pool[place] for place in places)
    numbers = numbers_of(read.labels, rows)
    table = read.pooled.logprobs[list(places)]
    decided = {
        name: read.by_labels(shifts) for name, shifts in by_thresholds(table, numbers).items()
    }
    texts = [example.prompt.text for example in rows]
    classifier = learned_classifier(texts, numbers, None, 0)
    guessed = classifier.predict([example.prompt.text for example in read.tests])
    decided[CLASSIFIER] = (guessed == read.truth).astype(np.float64)
    unlabelled = [
        replace(read.pool[place % len(read.pool)], answers=())
        for place in range(places[-1] + 1, places[-1] + 1 + UNLABELLED)
    ]
    teaching = len(rows) - len(rows) // 3
    task = Task(
        read.title,
        rows[:teaching],
        rows[teaching:],
        read.tests[:1],
        unlabelled=tuple(unlabelled),
        divided=True,
    )
    bias = await learned(trials, task, read.labels)
    decided[FIXED] = read.by_tokens(read.lists, of_each_prompt(read.tests, bias))
    if has_words:
        by_words = await learned(trials, task, read.labels, depends_on=["words"])
        decided[WORDS] = read.by_tokens(read.lists, of_each_prompt(read.tests, by_words))
    return decided, bias


async def _with_shots(
    trials: Trials, read: LabelledSet, places: Sequence[int], shifts: Shifts, draw: int
) -> dict[str, Array]:
    """Examples in the prompt, alone and with the bias."""
    rows = tuple(read.pool[place] for place in places)
    case = Case(Task(read.title, rows, (), read.tests), trials.reward, (), read.labels, seed=draw)
    lists = await _lists(trials, read, few_shot(case, str(SHOTS)))
    return {SHOWN: read.by_tokens(lists, {}), f"{SHOWN} and {FIXED}": read.by_tokens(lists, shifts)}


async def below_prediction(
    trials: Trials, read: LabelledSet, bias: RequestBias, count: int
) -> Array:
    """Nats by which the token that each of the first ``count`` test prompts begins with under the
    bias lies below the predicted one: 0 where it is that one, inf where it is not listed.
    """
    examples = read.tests[:count]
    draw = trials.draw(GREEDY, bias, max_tokens=1, top_logprobs=1)
    keys = await trials.collect(f"{read.title}, asked", examples, draw, 1, scored=False)
    completions = trials.store.completions(key for [key] in keys)
    tokens = np.array([completion.token_ids[0] for completion in completions])
    lists = read.lists.only(np.arange(len(examples)))
    tilted = lists.tilted(of_each_prompt(examples, bias))
    came = np.where(lists.ids == tokens[:, None], tilted, -np.inf).max(axis=1)
    below: Array = tilted.max(axis=1) - came
    return below


def prediction_note(below: Array) -> str:
    """What the asked prompts say of the predictions. below: as ``below_prediction`` returns it."""
    others = below[below != 0]
    note = (
        f"Of {len(below)} test prompts that were asked with the bias, {len(below) - len(others)}"
        " began as predicted"
    )
    if not len(others):
        return f"{note}."
    if np.isinf(others).any():
        return f"{note}; not all others with a listed token."
    return f"{note}, the others with a token that was at most {others.max():.2f} nats below it."


@click.command(help=__doc__)
@click.argument("sets", nargs=-1, required=True, metavar="TITLE=FILE...")
@model_options
@click.option("--store", type=click.Path(path_type=Path), required=True)
@click.option(
    "--number",
    "numbers",
    type=int,
    multiple=True,
    required=True,
    help="Repeatable: of labelled rows.",
)
@click.option("--draws", type=int, default=5, show_default=True, help="Of each number.")
@click.option("--test-limit", type=int, help="Of the rows to judge on.")
@click.option(
    "--words-from",
    type=int,
    help="Labelled rows from which on a bias that depends on the words is learned, too.",
)
@click.option(
    "--prompts",
    is_flag=True,
    help=f"Also try an instruction, and {SHOTS} examples in the prompt with the fewest labels.",
)
@click.option(
    "--asked",
    "count",
    default=50,
    show_default=True,
    help="Test prompts of each set that are asked with a bias.",
)
def main(
    sets: Sequence[str], provider: str, model: str | None, base_url: str | None, **options: Any
) -> None:
    """Read the lists, learn, decide, and print evaluations and tables."""
    named = dict(spec.rpartition("=")[::2] for spec in sets)
    files = {title: Path(path) for title, path in named.items()}
    settings = {"provider": provider, "model": model, "base_url": base_url}
    document = asyncio.run(_document(files, settings, Options(**options)))
    click.echo(json.dumps(document, ensure_ascii=False))


async def _document(
    files: Mapping[str, Path], settings: Mapping[str, Any], options: Options
) -> dict[str, Any]:
    sets = {title: examples_of(path) for title, path in files.items()}
    longest = max(
        len(example.prompt.text) for parts in sets.values() for part in parts for example in part
    )
    evaluations = []
    found = {}
    below = []
    reward = parse_reward("accuracy", max_tokens=1)
    async with opened(settings, options.store, reward, longest + ROOM) as trials:
        name = model_name(trials.session.model)
        for title, (pool, tests) in sets.items():
            rows = options.size * options.draws + UNLABELLED
            read = await read_set(trials, title, pool[:rows], tests[: options.test_limit])
            found[title], bias = await by_number(trials, read, options)
            below.append(await below_prediction(trials, read, bias, options.count))
            evaluations += [
                evaluation(title, right, number, name) for number, right in found[title].items()
            ]
    note = prediction_note(np.concatenate(below))
    tables = [{**means_table(found), "notes": [note], "model": name}]
    if len(found) >= FEWEST_SETS:
        tables.append({**over_sets(found), "model": name})
    return {"evaluations": evaluations, "tables": tables}


if __name__ == "__main__":
    main()
