"""``python -m bench.studies.decisions DATA OUT``: probabilities over options, mended from few
answers, beside what a user would do instead.

DATA holds ``NAME.jsonl``, a row a decision: ``{"id", "probabilities": [...], "answer": 0,
"options": [...]}`` and, for the levels of a score, ``"ordered": true``. Of each file, number of
labelled rows and draw of them, every way learns from the same rows and is judged on all others;
then the same from values rounded to two decimals. Promises are made for made-up readers whose
errors are known, and for the files themselves, whose rows are drawn anew with replacement.

OUT gets ``rows.jsonl``, ``promises.jsonl`` and the tables as ``decisions.md``.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np

from bench.measuring import machine, markdown, read_rows, today, write_rows
from blackbox_lb.binomial import RISK, binomial_tail
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.mending import (
    CandidateMending,
    Mending,
    MendingRows,
    best_mending,
    mending_candidates,
)
from blackbox_lb.estimate.promising import Certified, certified, preset_cuts

__all__ = ["main", "measured", "promises", "reanchored", "summary", "table", "vectors"]

LABELS = (10, 30, 100)
FEWEST_TESTED = 40
UNROUNDED = 1e-6
"""Bound of a probability that a file has as 0 at full precision."""
WAYS = ("as it is", "temperature", "batch prior", "ReAnchor", "fit")
NOISE = 2.0
"""Standard errors of a paired difference that noise alone seldom exceeds."""
SAME = 1e-12

Population: TypeAlias = tuple[Vector, Vector]
"""(n,) confidences, and the chance that each decision is wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class VectorSet:
    """Labelled vectors of one reader and question."""

    name: str
    rows: MendingRows

    def part(self, places: Ids) -> MendingRows:
        """Some of the rows."""
        return MendingRows(
            self.rows.logprobs[places],
            self.rows.answers[places],
            self.rows.floored[places],
            self.rows.is_ordered,
        )


def vectors(path: Path, decimals: int | None = None) -> VectorSet:
    """A file of labelled vectors, rounded to so many decimals; what is then 0 stands at half of the
    last one.
    """
    rows = read_rows(path)
    probabilities = np.array([row["probabilities"] for row in rows], np.float64)
    bound = UNROUNDED
    name = path.stem
    if decimals is not None:
        probabilities = np.round(probabilities, decimals)
        bound = 0.5 * 10**-decimals
        name = f"{name}, {decimals} decimals"
    is_floored = probabilities <= 0
    logprobs = np.log(np.where(is_floored, bound, probabilities))
    answers = np.array([row["answer"] for row in rows], np.int64)
    is_ordered = bool(rows[0].get("ordered", False))
    return VectorSet(name, MendingRows(logprobs, answers, is_floored, is_ordered))


MOST_CANDIDATES = 40
LEAST_WEIGHT = 1e-3
MOST_WEIGHT = 1e3
CHECKS = 5


def reanchored(logprobs: Vector, answers: Ids) -> Vector:
    """The log weights of the options that the optimizer ``ReAnchor`` of dspy 3.4.1 finds for
    accuracy: one option after the other, once, among the geometric middles of the gaps between
    the weights at which decisions flip; the best of all rows, of equals the one in the widest gap,
    with the fewest decimals there. It is kept where it is better, and where the same choice without
    each of five folds is better on the fold left out.

    logprobs: (n, c) nats. answers: (n,). Returns (c,) nats.
    """
    size = logprobs.shape[1]
    weights = np.zeros(size)
    order = list(range(len(answers)))
    random.Random(0).shuffle(order)
    count = min(CHECKS, len(answers))
    folds = [order[number::count] for number in range(count)]
    for option in range(size):
        logits = logprobs + weights
        others = np.delete(logits, option, axis=1).max(axis=1)
        middles, widths = _middles(others - logprobs[:, option])
        candidates = np.repeat(weights[None], len(middles), axis=0)
        candidates[:, option] = middles
        is_right = np.array(
            [(logprobs + candidate).argmax(axis=1) == answers for candidate in candidates]
        ).reshape(len(candidates), len(answers))
        before = logits.argmax(axis=1) == answers
        best = _better(before, is_right, widths, np.arange(len(answers)))
        if best is None:
            continue
        gain = 0
        for fold in folds:
            kept = np.setdiff1d(np.arange(len(answers)), fold)
            choice = _better(before, is_right, widths, kept)
            if choice is not None:
                gain += int(is_right[choice][fold].sum()) - int(before[fold].sum())
        if gain > 0:
            weights = candidates[best]
    return weights


def _middles(flips: Vector) -> tuple[Vector, Vector]:
    """The middles of the gaps between log weights at which a decision flips, and the gaps' widths;
    at most 40.
    """
    low = max(np.log(LEAST_WEIGHT), flips.min() - np.log(4))
    high = min(np.log(MOST_WEIGHT), flips.max() + np.log(4))
    inner = np.unique(flips[(flips > low) & (flips < high)])
    if len(inner) > MOST_CANDIDATES - 1:
        step = (len(inner) - 1) / (MOST_CANDIDATES - 2)
        places = {round(number * step) for number in range(MOST_CANDIDATES - 1)}
        inner = inner[sorted(places)]
    points = np.concatenate([[low], inner, [high]])
    middles = []
    widths = []
    for start, end in itertools.pairwise(points.tolist()):
        if start < end:
            middles.append(_shortest((start + end) / 2, start, end))
            widths.append(end - start)
    return np.array(middles), np.array(widths)


def _shortest(middle: float, start: float, end: float) -> float:
    """The log of the weight with the fewest decimals near the middle of a gap."""
    for decimals in range(1, 12):
        weight = round(math.exp(middle), decimals)
        if math.exp(start) < weight < math.exp(end):
            return math.log(weight)
    return middle


def _better(before: Bools, is_right: Bools, widths: Vector, rows: Ids) -> int | None:
    """The candidate with the most right decisions on these rows, of equals the one with the widest
    gap; None where none has more than before.
    """
    if not len(is_right):
        return None
    totals = is_right[:, rows].sum(axis=1)
    best = int(np.lexsort((widths, totals))[-1])
    if totals[best] > before[rows].sum():
        return best
    return None


def chosen_mending(rows: MendingRows) -> CandidateMending:
    """What a fit of these rows chooses."""
    return best_mending(mending_candidates(rows), rows.answers)


def learned(rows: MendingRows, seed: int) -> dict[str, tuple[str, Mending]]:
    """Way -> the name of what it chose, and the mending that it learned."""
    size = rows.logprobs.shape[1]
    candidates = mending_candidates(rows, seed)
    mendings = {candidate.name: candidate.mending for candidate in candidates}
    ways = {name: (name, mendings[name]) for name in ("as it is", "temperature", "batch prior")}
    weights = reanchored(rows.logprobs, rows.answers)
    ways["ReAnchor"] = ("ReAnchor", Mending(1.0, np.zeros(size), weights))
    best = best_mending(candidates, rows.answers)
    ways["fit"] = (best.name, best.mending)
    return ways


def measured(data: VectorSet, labels: Sequence[int], draws: int) -> list[dict[str, Any]]:
    """A row a number of labels, draw and way: accuracy and log loss on all other rows, and for the
    last draw their gains over rivals. Draws with one option alone are drawn again.
    """
    rows: list[dict[str, Any]] = []
    total = len(data.rows.answers)
    for count in labels:
        if count > total - FEWEST_TESTED:
            continue
        is_right = {way: np.full((draws, total), np.nan) for way in WAYS}
        losses = {way: np.full((draws, total), np.nan) for way in WAYS}
        for draw in range(draws):
            rng = np.random.default_rng([draw, count])
            order = rng.permutation(total)
            while len(set(data.rows.answers[order[:count]].tolist())) < 2:
                order = rng.permutation(total)
            test = data.part(order[count:])
            places = np.arange(len(test.answers))
            for way, (name, mending) in learned(data.part(order[:count]), draw).items():
                mended = mending.probabilities(test.logprobs)
                likelihood = np.maximum(mended[places, test.answers], np.finfo(np.float64).tiny)
                is_right[way][draw, order[count:]] = mended.argmax(axis=1) == test.answers
                losses[way][draw, order[count:]] = -np.log(likelihood)
                rows.append(
                    {
                        "data": data.name,
                        "labels": count,
                        "draw": draw,
                        "way": way,
                        "chosen": name,
                        "accuracy": float(np.nanmean(is_right[way][draw])),
                        "log_loss": float(np.nanmean(losses[way][draw])),
                    }
                )
        for row in rows[-len(WAYS) :]:
            way = row["way"]
            row["gains"] = {
                "log loss": _gain(losses["temperature"] - losses[way]),
                "batch prior": _gain(is_right[way] - is_right["batch prior"]),
                "ReAnchor": _gain(is_right[way] - is_right["ReAnchor"]),
            }
    return rows


def _gain(differences: Vector) -> tuple[float, float]:
    """The mean of paired differences (draws, rows), NaN where a row taught, and its standard error
    over draws and over rows together.
    """
    by_draw = np.nanmean(differences, axis=1)
    is_tested = ~np.isnan(differences).all(axis=0)
    by_row = np.nanmean(differences[:, is_tested], axis=0)
    error = np.hypot(_standard_error(by_draw), _standard_error(by_row))
    return float(by_draw.mean()), float(error)


def cells_of(
    rows: Iterable[Mapping[str, Any]], measure: str
) -> dict[tuple[str, int], dict[str, Vector]]:
    """(data, labels) -> way -> the measure of every draw."""
    cells: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        cells[row["data"], row["labels"]][row["way"]].append(row[measure])
    return {
        key: {way: np.array(values) for way, values in ways.items()} for key, ways in cells.items()
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy and log loss of every way: means over draws with their standard errors."""
    accuracy = cells_of(rows, "accuracy")
    log_loss = cells_of(rows, "log_loss")
    lines = []
    for data, labels in accuracy:
        cells = [
            f"{_mean(accuracy[data, labels][way])} / {_mean(log_loss[data, labels][way])}"
            for way in WAYS
        ]
        lines.append([data, str(labels), *cells])
    return markdown(["data", "labels", *WAYS], lines)


def _mean(values: Vector) -> str:
    if len(values) < 2:
        return f"{values.mean():.3f}"
    return f"{values.mean():.3f} ± {_standard_error(values):.3f}"


def _standard_error(values: Vector) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """For each number of labels and way: mean accuracy and log loss over files, the files in which
    the fit has a smaller log loss than temperature, and those in which it is worse beyond noise:
    in log loss than temperature, in accuracy than the batch prior and than ReAnchor.
    """
    accuracy = cells_of(rows, "accuracy")
    log_loss = cells_of(rows, "log_loss")
    lines = []
    for labels in sorted({labels for _, labels in accuracy}):
        keys = [key for key in accuracy if key[1] == labels]
        for way in WAYS:
            mean_accuracy = np.mean([accuracy[key][way].mean() for key in keys])
            mean_loss = np.mean([log_loss[key][way].mean() for key in keys])
            line = [str(labels), way, f"{mean_accuracy:.3f} / {mean_loss:.3f}"]
            gains = [
                row["gains"]
                for row in rows
                if "gains" in row and row["way"] == way and row["labels"] == labels
            ]
            better = sum(gain["log loss"][0] > 0 for gain in gains)
            line.append(f"{better} of {len(gains)}")
            for rival in ("log loss", "batch prior", "ReAnchor"):
                worse = sum(gain[rival][0] < -NOISE * gain[rival][1] - SAME for gain in gains)
                line.append(str(worse))
            lines.append(line)
    head = [
        "labels",
        "way",
        "accuracy / log loss",
        "log loss below temperature's",
        "above it beyond noise",
        "accuracy below batch prior's beyond noise",
        "below ReAnchor's beyond noise",
    ]
    return markdown(head, lines)


ERROR = 0.1
SIZES = (100, 300, 1000)
REFERENCE = 20_000
"""Rows of a made-up population."""
FALLING = 0.3
"""A made-up row of confidence x is wrong with the chance ``FALLING * (1 - x)``."""


def populations(sets: Iterable[VectorSet]) -> dict[str, tuple[Population, float]]:
    """Name -> a population and the share of errors to promise: made-up ones, and the rows of each
    file under its mending of all rows without their folds, where a half of them keeps the promise.
    """
    confidences = np.random.default_rng(0).random(REFERENCE)
    named: dict[str, tuple[Population, float]] = {
        "informative confidence": ((confidences, FALLING * (1 - confidences)), ERROR)
    }
    for level in (0.101, 0.12):
        even = np.full(REFERENCE, level)
        named[f"errors of {level:.1%} everywhere"] = ((confidences, even), ERROR)
    for data in sets:
        mended = chosen_mending(data.rows).left_out
        is_wrong = mended.argmax(axis=1) != data.rows.answers
        top = mended.max(axis=1)
        upper = is_wrong[top >= np.median(top)]
        named[data.name] = ((top, is_wrong.astype(np.float64)), max(float(upper.mean()), 0.02))
    return named


def point_pick(confidences: Vector, is_right: Bools, error: float) -> float | None:
    """The lowest cut whose share of errors in the sample meets the wish."""
    order = np.argsort(-confidences, kind="stable")
    wrong = np.cumsum(~is_right[order])
    kept = np.flatnonzero(wrong <= error * np.arange(1, len(order) + 1))
    if len(kept):
        return float(confidences[order[kept[-1]]])
    return None


def bounded_pick(confidences: Vector, is_right: Bools, error: float) -> float | None:
    """The lowest of all cuts whose exact 95 % bound meets the wish (Clopper and Pearson 1934)."""
    order = np.argsort(-confidences, kind="stable")
    wrong = np.cumsum(~is_right[order]).tolist()
    for place in range(len(order) - 1, -1, -1):
        rows = place + 1
        if binomial_tail(rows - wrong[place], rows, 1 - error) <= RISK:
            return float(confidences[order[place]])
    return None


def preset_pick(confidences: Vector, is_right: Bools, error: float) -> float | None:
    """The cut of a fixed sequence of preset ones."""
    promise = certified(confidences, is_right, preset_cuts(confidences), error)
    if isinstance(promise, Certified):
        return promise.cut
    return None


RULES = {
    "point pick": point_pick,
    "bound on all cuts": bounded_pick,
    "preset cuts in sequence": preset_pick,
}


def promises(
    named: Mapping[str, tuple[Population, float]], sizes: Sequence[int], resamplings: int
) -> list[dict[str, Any]]:
    """A row a population, number of rows and rule: the shares of samples in which it promises a
    cut, and in which the promise is broken, and the mean share of the population that is answered.
    """
    rows = []
    for name, ((confidences, chances), error) in named.items():
        for size in sizes:
            rng = np.random.default_rng(size)
            cuts: dict[str, list[float | None]] = {rule: [] for rule in RULES}
            for _ in range(resamplings):
                places = rng.integers(0, len(confidences), size)
                is_right = rng.random(size) >= chances[places]
                for rule, pick in RULES.items():
                    cuts[rule].append(pick(confidences[places], is_right, error))
            for rule, picked in cuts.items():
                promised = [cut for cut in picked if cut is not None]
                is_answered = [confidences >= cut for cut in promised]
                broken = sum(chances[mask].mean() > error + 1e-12 for mask in is_answered)
                coverage = sum(mask.mean() for mask in is_answered)
                rows.append(
                    {
                        "population": name,
                        "error": error,
                        "rows": size,
                        "rule": rule,
                        "promised": len(promised) / resamplings,
                        "broken": float(broken) / resamplings,
                        "coverage": float(coverage) / resamplings,
                    }
                )
    return rows


def promise_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """A line a population and number of rows, the rules side by side."""
    lines: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for row in rows:
        cell = f"{row['promised']:.0%} / {row['broken']:.1%} / {row['coverage']:.2f}"
        lines[row["population"], f"{row['error']:.2f}", str(row["rows"])].append(cell)
    head = ["population", "errors at most", "rows", *RULES]
    return markdown(head, [[*key, *cells] for key, cells in lines.items()])


@click.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--labels", multiple=True, type=int, default=LABELS, show_default=True, help="Labelled rows."
)
@click.option("--draws", default=20, show_default=True, help="Of each number of labelled rows.")
@click.option("--resamplings", default=500, show_default=True, help="Of each promise.")
@click.option(
    "--rows",
    "sizes",
    multiple=True,
    type=int,
    default=SIZES,
    show_default=True,
    help="Of promises.",
)
@click.option("--processes", default=1, show_default=True, help="That share the files.")
def main(
    data: Path,
    out: Path,
    labels: tuple[int, ...],
    draws: int,
    resamplings: int,
    sizes: tuple[int, ...],
    processes: int,
) -> None:
    """DATA holds the labelled vectors as NAME.jsonl; OUT gets rows and tables."""
    paths = sorted(data.glob("*.jsonl"))
    sets = [vectors(path) for path in paths]
    rows = []
    tables = []
    measure = partial(measured, labels=labels, draws=draws)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        spread = pool.map if processes > 1 else map
        for decimals in (None, 2):
            copies = [vectors(path, decimals) for path in paths]
            part: list[dict[str, Any]] = []
            for copy, copy_rows in zip(copies, spread(measure, copies), strict=True):
                part += copy_rows
                click.echo(copy.name)
            rows += part
            tables += [table(part), summary(part)]
    write_rows(out / "rows.jsonl", rows)
    promised = promises(populations(sets), sizes, resamplings)
    write_rows(out / "promises.jsonl", promised)
    text = "\n\n".join([*tables, promise_table(promised), f"{machine()['processor']}, {today()}"])
    (out / "decisions.md").write_text(f"{text}\n", encoding="utf-8")
    click.echo(text)


if __name__ == "__main__":
    main()
