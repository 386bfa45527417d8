"""Policies and comparisons as rows: every mean with its interval, every difference with its
p-value, all corrected together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from blackbox_lb.bias.records import Verdict
from blackbox_lb.jobs.evaluation.arms import BASE, ArmResult
from blackbox_lb.jobs.evaluation.document import (
    Comparison,
    Decisions,
    Evaluation,
    Mean,
    PolicyResult,
    SharesOfGroup,
)
from blackbox_lb.providers.prices import Prices
from blackbox_lb.rollouts.judging.verdict import (
    LEVEL,
    LOWER,
    Array,
    PolicyScores,
    bootstrap,
    decide,
    holm,
    paired,
    sample_size,
    sign_test,
)

ANSWERS = 1_000
"""Number of answers that a cost is for."""


def policy(drawn: ArmResult, label: str, limit: int, prices: Prices | None) -> PolicyResult:
    """The row of one arm; ``label``: of the reward; ``limit``: longest completion of the arms that
    do not cut it earlier.

    Raises InputError: no prompt has a completion that can be read.
    """
    arm = drawn.arm
    means = {name: mean_of(rows) for name, rows in drawn.scores.metrics(label).items()}
    max_tokens = limit
    if arm.alternative.max_tokens is not None:
        max_tokens = arm.alternative.max_tokens
    cost = None
    if prices is not None:
        cost = ANSWERS * prices.dollars(drawn.prompt_tokens, drawn.completion_tokens)
    decisions = None
    if drawn.decisions is not None:
        decisions = Decisions.model_validate(drawn.decisions.as_json())
    return PolicyResult(
        name=arm.name,
        bias=arm.bias_name,
        entries=len(arm.sent),
        setting=arm.setting.name,
        temperature=arm.drawn_at.temperature,
        max_tokens=max_tokens,
        instruction=arm.alternative.instruction,
        best_of=arm.alternative.best_of,
        kind="completions" if arm.alternative.decision is None else "decisions",
        shots=len(arm.alternative.shots),
        prompts=sum(row.size > 0 for row in drawn.scores.tokens),
        completions=drawn.answers,
        left_out=drawn.scores.left_out,
        metrics=means,
        prompt_tokens=drawn.prompt_tokens,
        completion_tokens=drawn.completion_tokens,
        cost=cost,
        decisions=decisions,
        shares=_shares(drawn.scores),
    )


def _shares(scores: PolicyScores) -> tuple[SharesOfGroup, ...]:
    """The labels that were drawn, of all prompts and of each group; none where the reward compares
    with no wanted shares.
    """
    if scores.shares is None:
        return ()
    return tuple(SharesOfGroup.model_validate(group.as_json()) for group in scores.shares.rows)


def mean_of(rows: Sequence[Array]) -> Mean:
    """The mean over prompts, an array of completions each, with the paper's percentile interval
    (prompts resampled, unpaired).

    The paper, appendix on bootstrap confidence intervals. InputError: no prompt has a completion.
    """
    means = np.array([row.mean() for row in rows if row.size])
    interval = bootstrap(means)
    return Mean(
        mean=float(means.mean()), low=interval.percentile_low, high=interval.percentile_high
    )


def comparisons(
    drawn: Sequence[ArmResult], label: str, effect: float | None = None
) -> tuple[Comparison, ...]:
    """All comparisons of the arms of all settings, with p-values adjusted for their number.

    At each setting: every policy against the base, in every metric; and in the reward, each bias
    against each alternative alone, the two together against that alternative, and every further
    bias against the first. ``effect``: a difference of the reward.

    Raises InputError: two arms have no prompt in common.
    """
    rows = [
        _comparison(base, rival, label, metric)
        for base, rival, metrics in _pairs(drawn)
        for metric in base.scores.metrics(label)
        if (metric == label or metrics == "all") and metric in rival.scores.metrics(label)
    ]
    return tuple(
        row.model_copy(
            update={
                "p": p,
                "verdict": decide(row.difference, row.better, p),
                "needed": sample_size(row.difference, row.sd, level=LEVEL / len(rows)),
                "needed_for_effect": (
                    None
                    if effect is None or row.metric != label
                    else sample_size(effect, row.sd, level=LEVEL / len(rows))
                ),
            }
        )
        for row, p in zip(rows, holm([row.p for row in rows]), strict=True)
    )


def _pairs(
    drawn: Sequence[ArmResult],
) -> Iterator[tuple[ArmResult, ArmResult, Literal["all", "reward"]]]:
    for setting in dict.fromkeys(result.arm.setting for result in drawn):
        arms = {
            (result.arm.alternative.name, result.arm.bias_name): result
            for result in drawn
            if result.arm.setting == setting
        }
        base = arms["", None]
        first = next(
            (result for (alternative, bias), result in arms.items() if not alternative and bias),
            None,
        )
        yield from ((base, result, "all") for key, result in arms.items() if key != ("", None))
        biases = [bias for alternative, bias in arms if not alternative and bias]
        for (alternative, bias), result in arms.items():
            if alternative and bias is None:
                for name in biases:
                    yield result, arms["", name], "reward"
                    if (alternative, name) in arms:
                        yield result, arms[alternative, name], "reward"
            elif not alternative and bias and first is not None and result is not first:
                yield first, result, "reward"


def _comparison(base: ArmResult, other: ArmResult, label: str, metric: str) -> Comparison:
    """One row, its p-value not adjusted yet."""
    base_values, other_values = paired(
        base.scores.metrics(label)[metric], other.scores.metrics(label)[metric]
    )
    differences = np.where(
        np.isclose(base_values, other_values, rtol=1e-12, atol=0), 0.0, other_values - base_values
    )  # equal but for rounding
    interval = bootstrap(differences)
    mean = float(differences.mean())
    better: Literal["higher", "lower"] = "lower" if metric in LOWER else "higher"
    deviation = 0.0
    if len(differences) > 1:
        deviation = float(differences.std(ddof=1))
    return Comparison(
        base=base.arm.name,
        other=other.arm.name,
        setting=base.arm.setting.name,
        metric=metric,
        better=better,
        base_mean=float(base_values.mean()),
        other_mean=float(other_values.mean()),
        difference=mean,
        low=interval.low,
        high=interval.high,
        percentile_low=interval.percentile_low,
        percentile_high=interval.percentile_high,
        p=interval.p,
        p_sign=sign_test(differences),
        sd=deviation,
        n_prompts=len(differences),
        verdict=decide(mean, better, interval.p),
    )


def resolvable(prompts: int, rows: int) -> bool:
    """Whether the clearest possible difference on so many prompts would be a verdict among so many
    comparisons.
    """
    return bootstrap(np.ones(prompts)).p * rows <= LEVEL


def as_verdicts(found: Evaluation) -> Iterator[Verdict]:
    """Each comparison in the form of a bias file, its second policy as the biased one."""
    completions = {(row.setting, row.name): row.completions for row in found.policies}
    alike = Verdict.model_fields.keys() & Comparison.model_fields.keys() - {"base"}
    for row in found.comparisons:
        yield Verdict(
            **row.model_dump(include=alike),
            base=row.base_mean,
            biased=row.other_mean,
            n_base=completions.get((row.setting, row.base), 0),
            n_biased=completions.get((row.setting, row.other), 0),
        )


def verdicts(found: Evaluation, name: str) -> list[Verdict]:
    """The verdicts for a bias file: the rows of the bias ``name`` against the base, as in the
    evaluation.
    """
    pairs = zip(found.comparisons, as_verdicts(found), strict=True)
    return [verdict for row, verdict in pairs if (row.base, row.other) == (BASE, name)]
