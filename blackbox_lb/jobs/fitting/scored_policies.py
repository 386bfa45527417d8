"""The test prompts: completions of each policy are drawn together, read once and scored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blackbox_lb.bias.records import Comparison, Verdict
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.records import Decisions
from blackbox_lb.rollouts.judging.decisions import decision_scores, label_tokens
from blackbox_lb.rollouts.judging.trials import NamedBias, Trials, policy_parts
from blackbox_lb.rollouts.judging.verdict import (
    SAMPLED,
    PolicyScores,
    Setting,
    compare,
    together,
)
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Completion, Example

BASE = "base"
BIASED = "biased"
FIXED = "fixed bias"


@dataclass(frozen=True, slots=True, eq=False)
class PolicyTest:
    """What a policy did on the test prompts at one setting.

    Attributes:
        completions: (x,) those of each prompt, without their lists.
        scores: of these.
        decisions: None where there are no labels.
        kl: nats a completion to the base; NaN where it was not computed.
    """

    completions: tuple[tuple[Completion, ...], ...]
    scores: PolicyScores
    decisions: Decisions | None = None
    kl: float = float("nan")


@dataclass(frozen=True, slots=True, eq=False)
class SettingTest:
    """The policies by name, at one setting and on the same (x,) examples."""

    setting: Setting
    examples: tuple[Example, ...]
    policies: Mapping[str, PolicyTest]


async def score_policies(
    trials: Trials,
    examples: Sequence[Example],
    settings: Sequence[Setting],
    samples: int,
    policies: Mapping[str, RequestBias],
    labels: Labels | None = None,
    tail: NextToken | None = None,
) -> list[SettingTest]:
    """Draw completions of ``examples`` unless they are in the store, and score them.

    Args:
        trials: the model under test.
        examples: (x,) the prompts, and what is right.
        settings: those at which the policies are drawn.
        samples: completions a prompt; greedy takes one.
        policies: by name.
        labels: of a decision, None where there are none to score.
        tail: of the unbiased training rollouts; None for no KL.

    Raises InputError: a score is not finite. ProviderError: the API failed.
    """
    begins = []
    if labels is not None:
        begins = await label_tokens(trials, labels)
    where = trials.session.biased_endpoint
    tests = []
    for setting in settings:
        place = f"test at {setting.name}"
        biases = [NamedBias(f"{place}, {name}", bias) for name, bias in policies.items()]
        parts = policy_parts(trials.draw, examples, setting, samples, biases, where)
        collected = await trials.collect_all(place, parts)
        results = {}
        for (name, bias), part, keys in zip(policies.items(), parts, collected, strict=True):
            rows = list(trials.store.by_prompt(keys))
            scores = trials.scored(part.name, examples, rows)
            decisions = None
            if labels is not None:
                decisions = decision_scores(trials, part.name, examples, rows, bias, labels, begins)
            kl = float("nan")
            if tail is not None and name == BIASED and setting == SAMPLED:
                kl = await trials.kl_of(examples, keys, rows, bias, tail)
            completions = tuple(
                tuple(completion.without_lists() for completion in row) for row in rows
            )
            results[name] = PolicyTest(completions, scores, decisions, kl)
        tests.append(SettingTest(setting, tuple(examples), results))
    return tests


def verdict_of(tests: Sequence[SettingTest], label: str) -> list[Verdict]:
    """The base against the biased policy: a verdict a metric and setting, adjusted for being
    several. label: of the reward.
    """
    rows: list[Comparison] = []
    for test in tests:
        base = test.policies[BASE].scores
        biased = test.policies[BIASED].scores
        rows += compare(test.setting, base, biased, label)
    return [row.as_verdict for row in together(rows)]
