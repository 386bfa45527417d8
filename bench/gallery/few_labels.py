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
from scipy import stats

from bench.gallery.results import model_name
from bench.measuring import read_rows
from blackbox_lb import (
    Example,
    Plan,
    RolloutStore,
    Task,
    Trials,
    connect,
    load_task,
    parse_reward,
)

# A fit up to its choice, and the rivals of ``blb eval``, without a completion of either.
from blackbox_lb.bias.records import LEVEL
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
from blackbox_lb.jobs.forecast import CHARACTERS_A_TOKEN, Forecast
from blackbox_lb.jobs.plan.by_data import completed, pooled
from blackbox_lb.rollouts.answers.given_answers import first_completions
from blackbox_lb.rollouts.judging.verdict import GREEDY, holm
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.tasks.sets.labels import Labels

__all__ = ["crossed", "demand", "main"]

Array: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int64]
Right: TypeAlias = dict[str, Array]
"""Policy -> (d, n) whether it decides each test prompt right, in each draw of labelled rows."""

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
FIXED, WORDS = "fixed", "words"
ONLY, TOLD, SHOWN = "labels only", "instruction", f"{SHOTS} examples"
RBCORR = "RBCorr"
IN_CLIENT = ("contextual calibration", "batch calibration", "thresholds", RBCORR)
"""Rivals that shift the logprobs of the labels: at greedy decoding a bias does the same."""


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
    completions, _ = await first_completions(trials, tests, f"{title}, test", None)
    return LabelledSet(
        title,
        labels,
        await distinctive_tokens(trials, labels),
        pool,
        tests,
        numbers_of(labels, tests),
        FirstLists.of(completions),
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


def crossed(values: Array) -> tuple[float, float, float, float]:
    """The mean of (d, n) values, its 95 % interval, and the two-sided p-value of its being 0.

    Prompts are crossed with draws of labelled rows: the variances of the means over both add up
    (Cameron, Gelbach and Miller 2011, "Robust Inference With Multiway Clustering", whose third
    term, of single cells, is left out: the interval is a little wider). Degrees of freedom by
    Satterthwaite.
    """
    parts = [
        (means.var(ddof=1) / len(means), len(means) - 1)
        for means in (values.mean(axis=0), values.mean(axis=1))
        if len(means) > 1
    ]
    mean = float(values.mean())
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return mean, mean, mean, 1.0 if mean == 0 else 0.0
    freedom = variance**2 / sum(part**2 / count for part, count in parts)
    half = float(stats.t.ppf(0.975, freedom) * variance**0.5)
    p = float(2 * stats.t.sf(abs(mean) / variance**0.5, freedom))
    return mean, mean - half, mean + half, p


def in_draws(rows: Sequence[Mapping[str, Array]]) -> Right:
    """One (d, n) array a policy from what came of it in each draw, the first ones where it was not
    tried in all.
    """
    return {name: np.array([row[name] for row in rows if name in row]) for name in rows[0]}


def kind_of(name: str) -> str:
    """Which kind of policy has this name."""
    if name == BASE:
        return "base"
    if name in (FIXED, WORDS):
        return "bias"
    return "rival and bias" if name.endswith(f" and {FIXED}") else "rival"


def compared(name: str, right: Right) -> dict[str, Array]:
    """What a policy is compared with by name -> the differences (d, n): each learned bias less this
    policy; of a rival with a bias, the two less the rival alone.
    """
    if kind_of(name) == "rival and bias":
        alone = name.removesuffix(f" and {FIXED}")
        return {alone: less(right[name], right[alone])}
    if kind_of(name) == "bias":
        return {}
    return {bias: less(right[bias], right[name]) for bias in (FIXED, WORDS) if bias in right}


def less(first: Array, second: Array) -> Array:
    """(d, n) the difference of two policies in the draws that both have; one that is the same in
    every draw has a single row.
    """
    if 1 not in (len(first), len(second)):
        count = min(len(first), len(second))
        return first[:count] - second[:count]
    return first - second


def evaluation(read: LabelledSet, right: Right, number: int, model: str) -> dict[str, Any]:
    """The evaluation of so many labelled rows, as a page holds it; p-values are adjusted for all of
    its comparisons.
    """
    pairs = {
        (name, other): crossed(values)
        for name in right
        for other, values in compared(name, right).items()
    }
    adjusted = holm([p for *_, p in pairs.values()])
    differences: dict[str, dict[str, Any]] = {name: {} for name in right}
    verdicts: dict[str, dict[str, str]] = {name: {} for name in right}
    for ((name, other), row), p in zip(pairs.items(), adjusted, strict=True):
        difference, low, high, _ = row
        differences[name][other] = {"difference": difference, "low": low, "high": high}
        verdicts[name][other] = "level"
        if p < LEVEL:
            verdicts[name][other] = "wins" if difference > 0 else "loses"
    policies = []
    for name, rows in right.items():
        mean, low, high, _ = crossed(rows)
        policies.append(
            {
                "setting": GREEDY.name,
                "name": name,
                "kind": kind_of(name),
                "hand_made": name == ONLY or name in IN_CLIENT,
                "mean": mean,
                "low": low,
                "high": high,
                "spread": float(rows.mean(axis=1).std(ddof=1)) if len(rows) > 1 else None,
                "verdicts": verdicts[name],
                "differences": differences[name],
            }
        )
    return {
        "title": read.title,
        "model": model,
        "reward": "accuracy",
        "prompts": len(read.tests),
        "policies": policies,
        "labels": number,
        "draws": max(len(rows) for rows in right.values()),
    }


@dataclass(frozen=True, slots=True)
class Draws:
    """How rows are drawn: ``numbers`` of them, ``times`` each; ``has_prompts``: whether an
    instruction is tried, and examples in the prompt with the fewest of them. ``words_from``: the
    number from which on a bias that depends on the words of the prompt is learned, too; None for
    never.
    """

    numbers: Sequence[int]
    times: int
    has_prompts: bool
    words_from: int | None

    @property
    def size(self) -> int:
        """Rows of a block."""
        return max(self.numbers)

    def has_words(self, number: int) -> bool:
        """Whether a bias that depends on the words is learned from so many rows, too."""
        return self.words_from is not None and number >= self.words_from


async def by_number(
    trials: Trials, read: LabelledSet, draws: Draws
) -> tuple[dict[int, Right], RequestBias]:
    """What is right with each number of labelled rows, and the bias of most rows."""
    free = await without_labels(trials, read)
    if draws.has_prompts:
        told = instruction(Case(Task("", (), (), ()), trials.reward, ()), _told(read.labels))
        instructed = await _lists(trials, read, told)
        free[TOLD] = read.by_tokens(instructed, {})[None]
    found = {}
    for number in draws.numbers:
        rows = []
        for draw in range(draws.times):
            block = read.block(draw, draws.size, number)
            row, bias = await _one_draw(trials, read, block, has_words=draws.has_words(number))
            shifts = of_each_prompt(read.tests, bias)
            if draws.has_prompts:
                row[f"{TOLD} and {FIXED}"] = read.by_tokens(instructed, shifts)
            if draws.has_prompts and number == min(draws.numbers) and draw < SHOWN_DRAWS:
                row |= await _with_shots(trials, read, block, shifts, draw)
            rows.append(row)
        right = free | in_draws(rows)
        found[number] = right
        means = ", ".join(f"{name} {values.mean():.3f}" for name, values in right.items())
        click.echo(f"{read.title}, {number} labels: {means}", err=True)
    return found, bias


def _told(labels: Labels) -> str:
    return INSTRUCTION.format(", ".join(labels.names))


async def _lists(trials: Trials, read: LabelledSet, policy: Policy) -> FirstLists:
    """The first lists of the test prompts as ``policy`` asks them."""
    asked = [draw.example for example in read.tests for draw in policy.requests(example, 1)]
    completions, _ = await first_completions(trials, asked, f"{read.title}, {policy.name}", None)
    return FirstLists.of(completions)


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


def means_table(found: Mapping[str, Mapping[int, Right]]) -> dict[str, Any]:
    """The share of right decisions of every policy, a row a number of labels, as the mean over the
    sets.
    """
    numbers = list(dict.fromkeys(number for rows in found.values() for number in rows))
    names = list(
        dict.fromkeys(name for rows in found.values() for row in rows.values() for name in row)
    )
    lines = [[str(number), *(_mean(found, number, name) for name in names)] for number in numbers]
    title = "Right decisions"
    if len(found) > 1:
        title += f", mean of the {len(found)} sets"
    return {"title": title, "head": ["labels", *names], "rows": lines, "notes": []}


def over_sets(found: Mapping[str, Mapping[int, Right]]) -> dict[str, Any]:
    """The fixed bias less every other policy, over all sets, with the fewest and the most labels:
    each set counts as one.
    """
    rows = []
    numbers = sorted({number for sets in found.values() for number in sets})
    for number in dict.fromkeys((numbers[0], numbers[-1])):
        rights = [sets[number] for sets in found.values()]
        for name in rights[0]:
            if kind_of(name) not in ("base", "rival") or not all(name in right for right in rights):
                continue
            gaps = np.array([less(right[FIXED], right[name]).mean() for right in rights])
            half = stats.t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / len(gaps) ** 0.5
            mean = gaps.mean()
            interval = f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"
            above, below = int((gaps > 0).sum()), int((gaps < 0).sum())
            rows.append([name, str(number), interval, str(above), str(below)])
    return {
        "title": f"The fixed bias less each policy, over {len(found)} sets",
        "head": ["policy", "labels", "right decisions", "sets where higher", "lower"],
        "rows": rows,
        "notes": ["95 % intervals over the sets, by Student's t; not adjusted for their number."],
    }


def _mean(found: Mapping[str, Mapping[int, Right]], number: int, name: str) -> str:
    rows = [sets[number] for sets in found.values()]
    if not all(name in row for row in rows):
        return ""
    return f"{np.mean([row[name].mean() for row in rows]):.3f}"


async def as_predicted(
    trials: Trials, read: LabelledSet, bias: RequestBias, count: int
) -> npt.NDArray[np.bool_]:
    """Whether each of the first ``count`` test prompts begins as predicted under the bias."""
    examples = read.tests[:count]
    draw = trials.draw(GREEDY, bias, max_tokens=1, top_logprobs=1)
    keys = await trials.collect(f"{read.title}, asked", examples, draw, 1, scored=False)
    completions = trials.store.completions(key for [key] in keys)
    tokens = np.array([completion.token_ids[0] for completion in completions])
    predicted = read.lists.greedy(of_each_prompt(read.tests, bias))[:count]
    return np.asarray(tokens == predicted)


@click.command(help=__doc__)
@click.argument("sets", nargs=-1, required=True, metavar="TITLE=FILE...")
@click.option("--provider", default="local", show_default=True)
@click.option("--model")
@click.option("--base-url")
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
def main(sets: Sequence[str], **settings: Any) -> None:
    """Read the lists, learn, decide, and print evaluations and tables."""
    named = dict(spec.rpartition("=")[::2] for spec in sets)
    document = asyncio.run(
        _document({title: Path(path) for title, path in named.items()}, **settings)
    )
    click.echo(json.dumps(document, ensure_ascii=False))


def demand(words: Sequence[str]) -> Forecast:
    """The requests and tokens of the program with these words, each prompt once."""
    options = main.make_context("few_labels", list(words)).params
    total = Forecast()
    for spec in options["sets"]:
        pool, tests = examples_of(Path(spec.rpartition("=")[2]))
        tests = tests[: options["test_limit"]]
        rows = max(options["numbers"]) * options["draws"] + UNLABELLED
        asked = [*pool[:rows], *tests, *tests[: options["count"]]]
        if options["prompts"]:
            asked += [*tests, *tests * SHOWN_DRAWS]
        characters = sum(len(example.prompt.text) for example in asked)
        if options["prompts"]:
            mean = characters / len(asked)
            characters += int(mean * SHOTS * SHOWN_DRAWS * len(tests))
        total += Forecast(
            requests=len(asked),
            completions=len(asked),
            prompt_tokens=characters // CHARACTERS_A_TOKEN,
            completion_tokens=len(asked),
        )
    return total


async def _document(
    files: Mapping[str, Path],
    provider: str,
    model: str | None,
    base_url: str | None,
    store: Path,
    numbers: Sequence[int],
    draws: int,
    test_limit: int | None,
    words_from: int | None,
    prompts: bool,
    count: int,
) -> dict[str, Any]:
    sets = {title: examples_of(path) for title, path in files.items()}
    longest = max(
        len(example.prompt.text) for parts in sets.values() for part in parts for example in part
    )
    evaluations = []
    found = {}
    predicted: list[bool] = []
    async with connect(
        provider, model=model, base_url=base_url, max_tokens=1, longest_prompt=longest + ROOM
    ) as session:
        with RolloutStore(store) as stored:
            reward = parse_reward("accuracy", max_tokens=1)
            trials = Trials(session, stored, await session.tokenizer(), reward, Silent(), 20)
            for title, (pool, tests) in sets.items():
                rows = max(numbers) * draws + UNLABELLED
                read = await read_set(trials, title, pool[:rows], tests[:test_limit])
                found[title], bias = await by_number(
                    trials, read, Draws(numbers, draws, prompts, words_from)
                )
                predicted += (await as_predicted(trials, read, bias, count)).tolist()
                name = model_name(session.model)
                evaluations += [
                    evaluation(read, right, number, name) for number, right in found[title].items()
                ]
    note = (
        f"Of {len(predicted)} test prompts that were asked with the bias, {sum(predicted)} began as"
        " predicted."
    )
    tables = [{**means_table(found), "notes": [note], "model": name}]
    if len(found) >= FEWEST_SETS:
        tables.append({**over_sets(found), "model": name})
    return {"evaluations": evaluations, "tables": tables}


if __name__ == "__main__":
    main()
