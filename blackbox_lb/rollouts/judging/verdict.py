"""Judging a bias: fresh completions with and without it, paired by prompt, and a verdict with its
certainty.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from blackbox_lb.bias.records import LEVEL, Comparison
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.diagnosis.truncation import Truncation
from blackbox_lb.tasks.rewards.thinking import loops
from blackbox_lb.types import broken_off_by_host

if TYPE_CHECKING:
    from blackbox_lb.rollouts.judging.decisions import DrawnShares
    from blackbox_lb.tasks import Reward, Score
    from blackbox_lb.types import Completion, Example

Array = npt.NDArray[np.float64]
REPLICATES = 10_000
"""Bootstrap replicates: the paper's B (appendix on bootstrap confidence intervals)."""
POWER = 0.8
"""The chance to show a true difference for which a sample size is given: the convention of Cohen
1988.
"""
BLOCK = 2_000_000
"""Resampled values held at once, to bound memory at 16 MB."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The 95 % interval of a mean, and the two-sided p-value of its being 0.

    ``percentile_low``, ``percentile_high``: the paper's interval; ``low`` and ``high`` are an
    expansion of it.
    """

    low: float
    high: float
    p: float
    percentile_low: float
    percentile_high: float


def bootstrap(values: Array, *, replicates: int = REPLICATES, seed: int = 0) -> Interval:
    """The percentile bootstrap of the mean (the paper, appendix on bootstrap confidence intervals),
    as it is and expanded.

    ``values``: shape (n,), one number a prompt: the mean of its completions, or their paired
    difference. Prompts are resampled, because completions of one prompt are not independent. The
    plain percentile interval is too narrow for few prompts: its spread misses the factor k/(k-1)
    and Student's t with k-1 degrees of freedom. The percentiles are moved outwards by both
    (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 5.2); from a few
    hundred prompts on it is the paper's. k counts the values that are not 0: where a bias changes
    5 of 50 answers, these 5 differences alone tell how far its effect varies.
    The p-value is the level of the expanded interval that just reaches 0, and never below 2^(1-k),
    the p-value of k differences of one sign in a sign test: a handful of prompts proves nothing.

    Raises InputError: no values.
    """
    n = len(values)
    if n == 0:
        raise InputError("nothing to compare: no prompts were evaluated")
    means = _resampled_means(values, replicates, seed)
    plain_low, plain_high = np.quantile(means, [0.025, 0.975]).tolist()
    nonzero = int(np.count_nonzero(values))
    if n == 1 or nonzero == 0:
        return Interval(plain_low, plain_high, 1.0, plain_low, plain_high)
    from scipy import special

    informative = max(nonzero, 2)
    wider = np.sqrt(informative / (informative - 1))
    tail = float(special.ndtr(special.stdtrit(informative - 1, 0.025) * wider))
    low, high = np.quantile(means, [tail, 1 - tail])
    beyond = max(
        min(float((means <= 0).mean()), float((means >= 0).mean())), 0.5 / (replicates + 1)
    )
    p = min(2 * float(special.stdtr(informative - 1, special.ndtri(beyond) / wider)), 1.0)
    return Interval(float(low), float(high), max(p, 2.0 ** (1 - nonzero)), plain_low, plain_high)


def _resampled_means(values: Array, replicates: int, seed: int) -> Array:
    generator = np.random.default_rng(seed)
    n = len(values)
    means = np.empty(replicates)
    step = max(1, BLOCK // n)
    for start in range(0, replicates, step):
        count = min(step, replicates - start)
        means[start : start + count] = values[generator.integers(0, n, size=(count, n))].mean(
            axis=1
        )
    return means


def sign_test(differences: Array) -> float:
    """The p-value of an exact two-sided sign test over the (n,) differences that are not 0; 1 where
    all are.

    It only counts the prompts that got better, so no single prompt can decide (Conover 1999,
    "Practical Nonparametric Statistics", section 3.4).
    """
    from scipy import special

    above = int((differences > 0).sum())
    below = int((differences < 0).sum())
    return min(2 * float(special.bdtr(min(above, below), above + below, 0.5)), 1.0)


def holm(p: Sequence[float]) -> list[float]:
    """p-values adjusted step by step for their number (Holm 1979, "A simple sequentially rejective
    multiple test procedure").

    One of six rows of a bias that does nothing is beyond its own 95 % interval in up to a quarter
    of all cases. Of the adjusted ones, any is below .05 in at most 5 %, however they depend on each
    other.
    """
    adjusted = dict.fromkeys(range(len(p)), 1.0)
    highest = 0.0
    for rank, number in enumerate(sorted(adjusted, key=lambda number: p[number])):
        highest = min(max(highest, (len(p) - rank) * p[number]), 1.0)
        adjusted[number] = highest
    return list(adjusted.values())


def sample_size(effect: float, sd: float, *, level: float = LEVEL) -> int | None:
    """The fewest prompts at which a paired two-sided test at ``level`` shows a mean difference
    ``effect`` with the chance ``POWER``.

    ``sd``: standard deviation of the differences between prompts, in the unit of ``effect``. The
    power is that of the t-test with noncentrality ``effect sqrt(n) / sd`` (Cohen 1988, "Statistical
    Power Analysis for the Behavioral Sciences", section 2.5). The search for n goes upwards from
    the normal approximation ``((z(1 - level/2) + z(POWER)) sd / effect)^2``, and from the least n
    that can reach ``level`` in a sign test. None where the effect is 0, or too small for any
    existing number of prompts.
    """
    if effect == 0:
        return None
    from scipy import special

    fewest = max(2, math.ceil(1 - math.log2(level)))
    z = -float(special.ndtri(level / 2))
    ratio = (z + float(special.ndtri(POWER))) * sd / abs(effect)
    if ratio > 1e8:  # the square has no meaning to the last prompt
        return None
    n = max(fewest, math.ceil(ratio**2))
    while n < 10_000 and _power(abs(effect) / sd if sd else math.inf, n, level) < POWER:
        n += 1
    return n


def _power(standardised: float, n: int, level: float) -> float:
    """The power of the two-sided one-sample t-test with ``n`` values; the share on the wrong side
    is negligible at this power.
    """
    if math.isinf(standardised):
        return 1.0
    from scipy import special

    return 1.0 - float(
        special.nctdtr(n - 1, standardised * math.sqrt(n), -special.stdtrit(n - 1, level / 2))
    )


DIVERGENCE = "Jensen-Shannon"
"""The metric beside minus the total variation to wanted shares, in nats."""
LOWER = frozenset({"tokens", "thinking tokens", "answer tokens", "loops", DIVERGENCE})
"""Metrics of which less is better."""
LARGEST = 1e100
"""A larger reward has no variance left in double precision."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Sampling settings that a user deploys with; ``temperature`` 0 is greedy."""

    name: str
    temperature: float

    @property
    def deterministic(self) -> bool:
        """Whether a second sample of a prompt would only repeat the first."""
        return self.temperature == 0

    def samples_of(self, samples: int) -> int:
        """Completions a prompt where ``samples`` are wanted: one where more would repeat it."""
        if self.deterministic:
            return 1
        return samples


SAMPLED = Setting("temperature 1", 1.0)
GREEDY = Setting("greedy", 0.0)


def parse_setting(spec: str) -> Setting:
    """``greedy`` or ``temperature=T`` with T in [0, 2]. Raises InputError: anything else."""
    if spec == "greedy":
        return GREEDY
    name, _, number = spec.partition("=")
    try:
        temperature = float(number)
    except ValueError:
        temperature = -1.0
    if name != "temperature" or not 0 <= temperature <= 2:
        raise InputError(
            f"cannot deploy with {spec!r}; write greedy, or temperature=T with T from 0 to 2, as in"
            " temperature=0.5"
        )
    return GREEDY if temperature == 0 else Setting(f"temperature {temperature:g}", temperature)


@dataclass(frozen=True, slots=True)
class PolicyScores:
    """Scores of one policy at one setting; each list holds one array a prompt, with one value a
    completion.

    ``reward``: in the user's own unit (``Reward.displayed``); ``correct``: 0 or 1, None where the
    reward knows no right answer;
    ``tokens``: completion lengths. ``thinking``: by name, where the reward names what thinking is:
    tokens inside and outside of it, and as 0 or 1 whether a completion ended before its limit, and
    whether it loops.
    ``left_out``: completions without scores, stopped by a content filter, broken off by the host
    or unreadable; ``broken_off``: the second of these by their finish reasons.
    ``cut``: share of the others that the limit of tokens cut.
    ``shares``: the labels that the completions name, where the reward compares these with wanted
    shares; a completion's reward is then its part of that of all of them.
    """

    reward: tuple[Array, ...]
    correct: tuple[Array, ...] | None
    tokens: tuple[Array, ...]
    left_out: int = 0
    thinking: Mapping[str, tuple[Array, ...]] = field(default_factory=dict)
    shares: DrawnShares | None = None
    cut: float = 0.0
    broken_off: Mapping[str, int] = field(default_factory=dict)

    @property
    def unscored(self) -> str:
        """A sentence on the completions without scores."""
        host = broken_off_by_host(self.broken_off)
        if host:
            host = f" {host},"
        return (
            f"{self.left_out} completions are not scored: a content filter stopped them,{host} or"
            " they could not be read"
        )

    def metrics(self, label: str) -> dict[str, tuple[Array, ...]]:
        """Every metric by name, the reward, called ``label``, first; accuracy where the reward
        gives it and is not itself that.
        """
        metrics = {label: self.reward}
        if self.correct is not None and label != "accuracy":
            metrics["accuracy"] = self.correct
        if self.shares is not None:
            metrics[DIVERGENCE] = self.shares.divergence
        return {**metrics, "tokens": self.tokens, **self.thinking}


Watch: TypeAlias = Callable[["Completion", "Score | None", "bool | None"], None]
"""Gets each completion in its order with its score and whether it is correct; both are None where
there is nothing to score.
"""


def score(
    reward: Reward,
    examples: Sequence[Example],
    completions: Iterable[Sequence[Completion]],
    watch: Watch = lambda completion, score, correct: None,
) -> PolicyScores:
    """Score the completions of each example, row by row; those without anything to score are only
    counted.

    Raises InputError: the reward compares with wanted shares, and an example has none.
    """
    from blackbox_lb.api.limits.concurrency import computing  # a command's help needs none

    values: list[Array] = []
    texts: list[list[str]] = []
    correct: list[list[bool | None]] = []
    tokens: list[Array] = []
    stopped = 0
    host = Counter[str]()
    cut: list[bool] = []
    thinking: dict[str, list[Array]] = {}
    for example, row in zip(examples, completions, strict=True):
        read = [completion for completion in row if completion.readable]
        stopped += len(row) - len(read)
        host.update(completion.finish_reason for completion in row if completion.broken_off)
        texts.append([completion.text for completion in read])
        cut += [completion.cut for completion in read]
        scores: list[Score] = []
        with computing():
            if not reward.of_shares:
                scores = [reward.score(example, completion) for completion in read]
                displayed = [reward.displayed(result.value) for result in scores]
                values.append(np.array(displayed, dtype=float))
            flags = [reward.correct(example, completion) for completion in read]
        correct.append(flags)
        judged = iter(zip_longest(scores, flags))
        for completion in row:
            result, is_correct = next(judged) if completion.readable else (None, None)
            watch(completion, result, is_correct)
        tokens.append(np.array([completion.n_tokens for completion in read], dtype=float))
        for name, column in _thinking(reward, read).items():
            thinking.setdefault(name, []).append(column)
    all_judged = all(flag is not None for row in correct for flag in row)
    right = tuple(np.array(row, dtype=float) for row in correct) if all_judged else None
    shares = None
    rewards_of_prompts = tuple(values)
    if reward.grouped_by is not None:
        from blackbox_lb.rollouts.judging.decisions import DrawnShares

        with computing():
            shares = DrawnShares.of(examples, texts, reward.grouped_by)
        rewards_of_prompts = shares.reward
        right = None
    return PolicyScores(
        rewards_of_prompts,
        right,
        tuple(tokens),
        stopped,
        {name: tuple(rows) for name, rows in thinking.items()},
        shares,
        sum(cut) / max(len(cut), 1),
        host,
    )


def _thinking(reward: Reward, completions: Sequence[Completion]) -> dict[str, Array]:
    """See ``PolicyScores.thinking``; one value a completion."""
    if reward.thinking is None:
        return {}
    lengths = np.array(
        [reward.thinking.lengths(completion)[:2] for completion in completions], dtype=float
    ).reshape(-1, 2)
    return {
        "thinking tokens": lengths[:, 0],
        "answer tokens": lengths[:, 1],
        "finished": np.array([not completion.cut for completion in completions], dtype=float),
        "loops": np.array(
            [loops(completion.token_ids.tolist()) for completion in completions], dtype=float
        ),
    }


def check_values(label: str, values: Array) -> None:
    """Raise InputError where values of shape (n,), in the user's own unit, have no mean and no
    variance.
    """
    bad = values[~(np.abs(values) <= LARGEST)]
    if bad.size:
        raise InputError(
            f"{label} is {bad[0]:g} for {bad.size} of {values.size} completions, so it has no mean"
            f" to compare; let your function return a finite number instead, within {LARGEST:g} of"
            " 0 and low enough for what it stands for"
        )


def truncation_of(reward: Reward, completions: Iterable[Completion]) -> Truncation | None:
    """The truncation of ``completions`` at the reward's limit; None where the reward is not by
    length, or none can be read.
    """
    if not reward.by_length:
        return None
    read = [completion for completion in completions if completion.readable]
    if not read:
        return None
    return Truncation.of(
        [completion.n_tokens for completion in read],
        [completion.cut for completion in read],
        reward.max_tokens,
    )


def compare(
    setting: Setting,
    base: PolicyScores,
    other: PolicyScores,
    label: str,
    *,
    policies: tuple[str, str] = ("base", "bias"),
) -> list[Comparison]:
    """``other`` less ``base``: a row for each metric of both, the reward first (see
    ``comparison``).
    """
    of_other = other.metrics(label)
    return [
        comparison(setting, base, other, label, metric=metric, policies=policies)
        for metric in base.metrics(label)
        if metric in of_other
    ]


def comparison(
    setting: Setting,
    base: PolicyScores,
    other: PolicyScores,
    label: str,
    *,
    metric: str | None = None,
    policies: tuple[str, str],
) -> Comparison:
    """``other`` less ``base`` in one metric, its p-value not adjusted yet (see ``together``).

    label: of the reward. metric: by name, None for the reward. policies: the names of the two.
    Raises InputError: they have no prompt in common.
    """
    metric = metric or label
    rows = base.metrics(label)[metric]
    other_rows = other.metrics(label)[metric]
    base_means, means, differences = paired(rows, other_rows)
    better: Literal["higher", "lower"] = "lower" if metric in LOWER else "higher"
    row = paired_comparison(setting, metric, better, base_means, means, differences, policies)
    return row.replacing(
        n_base=sum(len(row) for row in rows),
        n_biased=sum(len(row) for row in other_rows),
        cut_base=base.cut,
        cut_biased=other.cut,
    )


def paired_comparison(
    setting: Setting,
    metric: str,
    better: Literal["higher", "lower"],
    base: Array,
    other: Array,
    differences: Array,
    policies: tuple[str, str],
) -> Comparison:
    """``other`` (n,) less ``base`` (n,), means of prompts, by their ``differences`` (n,); its
    p-value is not adjusted yet (see ``together``).
    """
    interval = bootstrap(differences)
    difference = float(differences.mean())
    deviation = 0.0
    if len(differences) > 1:
        deviation = float(differences.std(ddof=1))
    return Comparison(
        against=policies[0],
        policy=policies[1],
        setting=setting.name,
        metric=metric,
        better=better,
        base=float(base.mean()),
        biased=float(other.mean()),
        difference=difference,
        low=interval.low,
        high=interval.high,
        percentile_low=interval.percentile_low,
        percentile_high=interval.percentile_high,
        p=interval.p,
        p_sign=sign_test(differences),
        sd=deviation,
        n_prompts=len(differences),
        n_base=len(differences),
        n_biased=len(differences),
        verdict=decide(difference, better, interval.p),
    )


def paired(base: Sequence[Array], other: Sequence[Array]) -> tuple[Array, Array, Array]:
    """(n,) both means of every prompt with completions of both, and (n,) their differences, other
    less base.

    A difference is exactly 0 where both are equal but for rounding, because a prompt that changed
    counts as evidence. Raises InputError: no prompt has both.
    """
    both = [
        (base_row.mean(), other_row.mean())
        for base_row, other_row in zip(base, other, strict=True)
        if base_row.size and other_row.size
    ]
    if not both:
        raise InputError("nothing to compare: no test prompt has a completion of both policies")
    base_means = np.array([base_mean for base_mean, _ in both])
    other_means = np.array([other_mean for _, other_mean in both])
    equal = np.isclose(base_means, other_means, rtol=1e-12, atol=0)
    return base_means, other_means, np.where(equal, 0.0, other_means - base_means)


def decide(
    difference: float, better: Literal["higher", "lower"], p: float
) -> Literal["HELPS", "NO EVIDENCE", "HURTS"]:
    """The verdict on a difference, by its p-value."""
    if p > LEVEL:
        return "NO EVIDENCE"
    if (difference > 0) == (better == "higher"):
        return "HELPS"
    return "HURTS"


def together(rows: Sequence[Comparison]) -> list[Comparison]:
    """The rows with p-values adjusted for their number (``holm``), and the verdicts that follow."""
    adjusted = holm([row.p for row in rows])
    return [
        row.replacing(p=p, verdict=decide(row.difference, row.better, p))
        for row, p in zip(rows, adjusted, strict=True)
    ]
