"""Judging a bias: fresh completions with and without it, paired by prompt, and a verdict that says how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from blackbox_lb.bias import Verdict
from blackbox_lb.errors import InputError
from blackbox_lb.tasks import Reward
from blackbox_lb.types import Completion, Example

__all__ = [
    "GREEDY",
    "SAMPLED",
    "Interval",
    "Scores",
    "Setting",
    "bootstrap",
    "check_values",
    "compare",
    "parse_setting",
    "score",
    "together",
]

Array = npt.NDArray[np.float64]
REPLICATES = 10_000
"""Bootstrap replicates: the paper's B (appendix on bootstrap confidence intervals)."""
LEVEL = 0.05
"""The chance, over all rows of one verdict together, that a bias which changes nothing is said to help or to hurt."""
LARGEST = 1e100
"""A larger reward has no variance left in double precision."""
BLOCK = 2_000_000
"""Resampled values held at once, to bound memory at 16 MB."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Sampling settings that a user deploys with; ``temperature`` 0 is greedy."""

    name: str
    temperature: float

    @property
    def deterministic(self) -> bool:
        """Whether a second sample of a prompt would only repeat the first."""
        return self.temperature == 0


SAMPLED = Setting("temperature 1", 1.0)
GREEDY = Setting("greedy", 0.0)


def parse_setting(spec: str) -> Setting:
    """``greedy`` or ``temperature=T`` with T in [0, 2].

    Raises:
        InputError: anything else.
    """
    if spec == "greedy":
        return GREEDY
    name, _, number = spec.partition("=")
    try:
        temperature = float(number)
    except ValueError:
        temperature = -1.0
    if name != "temperature" or not 0 <= temperature <= 2:
        raise InputError(
            f"cannot deploy with {spec!r}; write greedy, or temperature=T with T from 0 to 2, as in temperature=0.5"
        )
    return GREEDY if temperature == 0 else Setting(f"temperature {temperature:g}", temperature)


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of one policy at one setting; each list holds one array a prompt, with one value a completion.

    ``reward``: what a user reads (``Reward.value``); ``correct``: 0 or 1, None where the reward knows no right answer;
    ``tokens``: completion lengths. ``left_out``: completions without scores, stopped by a content filter or unreadable.
    """

    reward: tuple[Array, ...]
    correct: tuple[Array, ...] | None
    tokens: tuple[Array, ...]
    left_out: int = 0

    @property
    def mean_reward(self) -> float:
        """The mean over prompts of what a user reads; NaN where no prompt has a completion."""
        means = [float(row.mean()) for row in self.reward if row.size]
        return float(np.mean(means)) if means else float("nan")


def score(reward: Reward, examples: Sequence[Example], completions: Sequence[Sequence[Completion]]) -> Scores:
    """Score ``completions[p]``, the completions of ``examples[p]``; those without anything to score are only counted."""
    pairs = [
        (example, [each for each in row if each.readable]) for example, row in zip(examples, completions, strict=True)
    ]
    stopped = sum(map(len, completions)) - sum(len(row) for _, row in pairs)
    values = tuple(np.array([reward.value(reward.score(e, c)) for c in row], dtype=float) for e, row in pairs)
    right = [[reward.correct(e, c) for c in row] for e, row in pairs]
    known = all(flag is not None for row in right for flag in row)
    correct = tuple(np.array(row, dtype=float) for row in right) if known else None
    tokens = tuple(np.array([c.n_tokens for c in row], dtype=float) for _, row in pairs)
    return Scores(values, correct, tokens, stopped)


def check_values(label: str, values: Array) -> None:
    """Raise InputError where values that a user reads, of shape (n,), have no mean and no variance."""
    bad = values[~(np.abs(values) <= LARGEST)]
    if bad.size:
        raise InputError(
            f"{label} is {bad[0]:g} for {bad.size} of {values.size} completions, so it has no mean to compare; let your function "
            f"return a finite number instead, within {LARGEST:g} of 0 and low enough for what it stands for"
        )


def compare(setting: Setting, base: Scores, biased: Scores, reward: Reward, *, seed: int = 0) -> list[Verdict]:
    """A row for each metric: reward, accuracy where the reward knows it, tokens; what is read side by side goes ``together``."""
    verdicts = [_verdict(setting, reward.label, "higher", base.reward, biased.reward, seed)]
    if base.correct is not None and biased.correct is not None and reward.label != "accuracy":
        verdicts.append(_verdict(setting, "accuracy", "higher", base.correct, biased.correct, seed))
    return [*verdicts, _verdict(setting, "tokens", "lower", base.tokens, biased.tokens, seed)]


def _verdict(
    setting: Setting,
    metric: str,
    better: Literal["higher", "lower"],
    base: Sequence[Array],
    biased: Sequence[Array],
    seed: int,
) -> Verdict:
    both = [(one, other) for one, other in zip(base, biased, strict=True) if one.size and other.size]
    if not both:
        raise InputError("nothing to compare: no test prompt has a completion with and without the bias")
    base_means, biased_means = (_means(side) for side in zip(*both, strict=True))
    differences = biased_means - base_means
    found = bootstrap(differences, seed=seed)
    row = Verdict(
        setting=setting.name,
        metric=metric,
        better=better,
        base=float(base_means.mean()),
        biased=float(biased_means.mean()),
        difference=float(differences.mean()),
        low=found.low,
        high=found.high,
        p=found.p,
        n_prompts=len(differences),
        n_base=sum(len(row) for row in base),
        n_biased=sum(len(row) for row in biased),
        verdict="NO EVIDENCE",
    )
    return _decided(row, found.p)


def _decided(row: Verdict, p: float) -> Verdict:
    """The row with the p-value that it is judged by."""
    good = (row.difference > 0) == (row.better == "higher")
    word = "NO EVIDENCE" if p > LEVEL else "HELPS" if good else "HURTS"
    return row.model_copy(update={"p": p, "verdict": word})


def together(rows: Sequence[Verdict]) -> list[Verdict]:
    """The rows with p-values adjusted for being many, and the verdicts that follow.

    One of six rows of a bias that does nothing is beyond its own 95 % interval in up to a quarter of all cases. Adjusted step by
    step (Holm 1979, "A simple sequentially rejective multiple test procedure"), any of them is in at most 5 %, however they depend
    on each other.
    """
    adjusted, highest = dict.fromkeys(range(len(rows)), 1.0), 0.0
    for rank, number in enumerate(sorted(adjusted, key=lambda number: rows[number].p)):
        highest = min(max(highest, (len(rows) - rank) * rows[number].p), 1.0)
        adjusted[number] = highest
    return [_decided(row, adjusted[number]) for number, row in enumerate(rows)]


def _means(rows: Sequence[Array]) -> Array:
    return np.array([row.mean() for row in rows])


@dataclass(frozen=True, slots=True)
class Interval:
    """The 95 % interval of a mean, and the two-sided p-value of its being 0."""

    low: float
    high: float
    p: float


def bootstrap(values: Array, *, replicates: int = REPLICATES, seed: int = 0) -> Interval:
    """The percentile bootstrap of the mean (the paper, appendix on bootstrap confidence intervals), expanded.

    ``values``: shape (n,), one paired difference a prompt. Prompts are what is resampled, because completions of one prompt are not
    independent. The plain percentile interval is too narrow for few prompts: its spread misses the factor n/(n-1) and Student's t.
    The percentiles are moved outwards by both (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 5.2); from
    a few hundred prompts on it is the paper's. The p-value is the level of the interval that just reaches 0, and never below
    2^(1-n), what n differences of one sign are worth in a sign test: a handful of prompts proves nothing.

    Raises:
        InputError: no values.
    """
    n = len(values)
    if n == 0:
        raise InputError("nothing to compare: no prompts were evaluated")
    means = _resampled_means(values, replicates, seed)
    if n == 1:
        return Interval(float(means[0]), float(means[0]), 1.0)
    wider = np.sqrt(n / (n - 1))
    tail = float(stats.norm.cdf(stats.t.ppf(0.025, n - 1) * wider))
    low, high = np.quantile(means, [tail, 1 - tail])
    beyond = max(min(float((means <= 0).mean()), float((means >= 0).mean())), 0.5 / (replicates + 1))
    p = min(2 * float(stats.t.cdf(stats.norm.ppf(beyond) / wider, n - 1)), 1.0)
    return Interval(float(low), float(high), max(p, 2.0 ** (1 - n)))


def _resampled_means(values: Array, replicates: int, seed: int) -> Array:
    generator, n = np.random.default_rng(seed), len(values)
    means = np.empty(replicates)
    step = max(1, BLOCK // n)
    for start in range(0, replicates, step):
        count = min(step, replicates - start)
        means[start : start + count] = values[generator.integers(0, n, size=(count, n))].mean(axis=1)
    return means
