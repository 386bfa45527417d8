"""The rows of an evaluation: every mean and difference with its interval, corrected within two
families.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np

from blackbox_lb.bias.records import LEVEL, Comparison, Verdict
from blackbox_lb.jobs.evaluation.document import Evaluation, Mean, PolicyResult
from blackbox_lb.jobs.evaluation.policies import BASE
from blackbox_lb.jobs.evaluation.results import Judged, PolicyAnswers
from blackbox_lb.jobs.evaluation.texts import text_figures
from blackbox_lb.providers.prices import Prices
from blackbox_lb.rollouts.judging.decisions import beside_commonest
from blackbox_lb.rollouts.judging.verdict import (
    Array,
    Setting,
    bootstrap,
    compare,
    comparison,
    sample_size,
    together,
)
from blackbox_lb.tasks import Reward
from blackbox_lb.types import Example

ANSWERS = 1_000
"""Number of answers that a cost is for."""
MOST_PROMPTS = 1_000
"""Test prompts that are advised at most. The clearest difference has a p-value of a ten-thousandth
on however many (``bootstrap``), so that among more than 500 comparisons none are enough.
"""


def row_of(
    result: PolicyAnswers,
    label: str,
    limit: int,
    prices: Prices | None,
    base: PolicyAnswers | None = None,
) -> PolicyResult:
    """The row of one policy; ``label``: of the reward; ``limit``: longest completion of the
    policies that do not cut it earlier; ``base``: what its texts are compared with.

    Raises InputError: no prompt has a completion that can be read.
    """
    policy = result.policy
    means = {name: mean_of(rows) for name, rows in result.scores.metrics(label).items()}
    max_tokens = limit
    if policy.max_tokens is not None:
        max_tokens = policy.max_tokens
    cost = None
    if prices is not None:
        cost = ANSWERS * prices.dollars(result.prompt_tokens, result.completion_tokens)
    texts = None
    if result.texts is not None:
        against = None if base is None or base is result else base.texts
        texts = text_figures(result.texts, against)
    return PolicyResult(
        name=policy.name,
        bias=policy.judged,
        entries=len(policy.bias),
        setting=result.setting.name,
        temperature=policy.drawn_at(result.setting).temperature,
        max_tokens=max_tokens,
        **policy.facts,
        prompts=sum(row.size > 0 for row in result.scores.tokens),
        completions=result.answers,
        left_out=result.scores.left_out,
        cut=result.scores.cut,
        metrics=means,
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        cost=cost,
        decisions=result.decisions,
        shares=() if result.scores.shares is None else result.scores.shares.rows,
        phrases=len(policy.bias.phrase_entries),
        texts=texts,
    )


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


Family: TypeAlias = Literal["primary", "secondary"]


def comparisons(results: Sequence[PolicyAnswers], label: str) -> tuple[Comparison, ...]:
    """All comparisons of the policies of all settings, with p-values adjusted within each of the
    two families of ``pairs``: at most 5 % of evaluations without any effect have a verdict in one.

    The primary comparisons are in every metric, the secondary ones in the reward alone. A family
    is a question that is asked by itself (Hochberg and Tamhane 1987, "Multiple Comparison
    Procedures", section 1.2): whether a bias is better than the base was settled before the
    rivals were added, and does not become less sure by looking at them.

    label: of the reward. Raises InputError: two policies have no prompt in common.
    """
    scores = {(result.setting, result.policy.name): result.scores for result in results}
    families: dict[Family, list[Comparison]] = {"primary": [], "secondary": []}
    for setting, names, family in pairs([(result.setting, result.policy) for result in results]):
        base = scores[setting, names[0]]
        policy = scores[setting, names[1]]
        if family == "primary":
            families[family] += compare(setting, base, policy, label, policies=names)
        else:
            families[family].append(comparison(setting, base, policy, label, policies=names))
    rows = []
    for family, members in families.items():
        level = LEVEL / max(len(members), 1)
        for row in together(members):
            needed = sample_size(row.difference, row.sd, level=level)
            rows.append(row.replacing(family=family, needed=needed))
    return tuple(rows)


def pairs(
    judged: Sequence[Judged],
) -> Iterator[tuple[Setting, tuple[str, str], Family]]:
    """The names of the policies that are compared at each setting, with the family of the
    comparison.

    Primary: each bias against the base; where there is no bias, each rival. Secondary: each rival
    against the base, alone and together with each bias; each bias against each rival alone, the two
    together against that rival, and every further bias against the first.
    """
    for setting in dict.fromkeys(setting for setting, _ in judged):
        here = [policy for at, policy in judged if at == setting]
        names = {(policy.rival, policy.judged): policy.name for policy in here}
        biases = [judged for rival, judged in names if not rival and judged]
        for (rival, judged_bias), name in names.items():
            if name == BASE:
                continue
            is_primary = not biases or not rival
            yield setting, (BASE, name), "primary" if is_primary else "secondary"
            if rival and judged_bias is None:
                for bias in biases:
                    yield setting, (name, bias), "secondary"
                    if (rival, bias) in names:
                        yield setting, (name, names[rival, bias]), "secondary"
            elif not rival and judged_bias != biases[0]:
                yield setting, (biases[0], name), "secondary"


def planned(
    judged: Sequence[Judged], reward: Reward, examples: Sequence[Example]
) -> dict[str, int]:
    """The number of comparisons of each family that the policies will give."""
    matcher = reward.right
    has_answers = not matcher.needs_answer or all(example.answers for example in examples)
    metrics = 2  # the reward and the tokens
    if reward.of_shares or (reward.label != "accuracy" and has_answers):
        metrics += 1
    if reward.thinking is not None:
        metrics += 4
    counts = Counter(family for _, _, family in pairs(judged))
    return {"primary": metrics * counts["primary"], "secondary": counts["secondary"]}


def unresolvable(
    prompts: int, judged: Sequence[Judged], planned_rows: Mapping[str, int]
) -> Iterator[str]:
    """A sentence for each family in which even the clearest difference, one of one sign on every
    prompt, could be no verdict among so many comparisons.
    """
    clearest = bootstrap(np.ones(prompts)).p
    names = list(dict.fromkeys(setting.name for setting, _ in judged))
    for family, rows in planned_rows.items():
        if clearest * rows <= LEVEL:
            continue
        needed = _enough_prompts(rows)
        remedies = []
        if needed is None:
            remedies.append("judge fewer biases at a time")
        else:
            remedies.append(f"give {needed:,} test prompts or more")
        if len(names) > 1:
            one = names[-1].replace(" ", "=")
            remedies.append(
                f"judge at one setting (``deploy={one}``, {rows // len(names)} comparisons)"
            )
        if family == "secondary":
            remedies.append("compare with fewer rivals")
        yield (
            f"{prompts} prompts are too few for the {rows} {family} comparisons: even the"
            f" clearest difference would not be significant, which it is among"
            f" {int(LEVEL / clearest)} at most; {', or '.join(remedies)}"
        )


def _enough_prompts(rows: int) -> int | None:
    """Prompts on which the clearest difference is significant among ``rows`` comparisons; None
    where ``MOST_PROMPTS`` are too few.
    """
    sizes = range(1, MOST_PROMPTS + 1)
    place = bisect_left(sizes, True, key=lambda size: bootstrap(np.ones(size)).p * rows <= LEVEL)
    if place == len(sizes):
        return None
    return sizes[place]


def verdicts(evaluation: Evaluation, name: str) -> list[Verdict]:
    """The verdicts for a bias file: the rows of the bias ``name`` against the base, as in the
    evaluation.
    """
    rows = [
        row.as_verdict
        for row in evaluation.comparisons
        if (row.against, row.policy) == (BASE, name)
    ]
    decisions = {
        policy.setting: policy.decisions
        for policy in evaluation.policies
        if policy.name == name and policy.decisions is not None
    }
    return beside_commonest(rows, decisions, evaluation.reward)
