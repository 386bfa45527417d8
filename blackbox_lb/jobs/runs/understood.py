"""What a command understood of the data and the reward, in one sentence before anything is sent."""

from __future__ import annotations

import math

from blackbox_lb.jobs.runs.conclusion import SHARES
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.rewards.reward import REWARDS
from blackbox_lb.tasks.sets.labels import FIRST_NAMED, Labels

POWER_FACTOR = 2.8
"""Standard errors of a difference that a test at 5 % shows in 80 % of experiments: 1.96 + 0.84."""
SPREAD_OF_SHARES = 0.5
"""Standard deviation of the difference of a prompt, where a quarter of the answers change between
right and wrong.
"""
MOST_LABELS = 6
"""Labels that are counted by name."""


def understood(
    task: Task, reward: Reward, labels: Labels | None, *, limit: int | None = None
) -> str:
    """Rows by their use, the smallest effect that the test prompts show, labels, and the reward.

    limit: training rows that are used, None for all.
    """
    learned = len(task.train[:limit])
    rows = learned + len(task.validation) + len(task.test)
    parts = [
        f"{rows:,} prompts: {learned:,} to learn, {len(task.validation):,} to choose,"
        f" {len(task.test):,} to judge (shows effects above about {smallest_effect(task, reward)})"
    ]
    if labels is not None:
        examples = [*task.train[:limit], *task.validation, *task.test]
        parts.append(f"labels: {_counted(labels.counts(examples))}")
    if reward.of_shares:
        parts.append(f"labels with wanted shares: {', '.join(task.train[0].answers)}")
    parts.append(f"reward: {_meaning(reward)}")
    return "; ".join(parts)


def smallest_effect(task: Task, reward: Reward) -> str:
    """The difference that the test prompts show in four of five experiments: in points where the
    reward is a share, else in standard deviations of a prompt's difference.
    """
    errors = POWER_FACTOR / math.sqrt(max(len(task.test), 1))
    if reward.label in SHARES:
        return f"{min(100 * SPREAD_OF_SHARES * errors, 100):.0f} points"
    return f"{errors:.2f} standard deviations"


def _counted(counts: dict[str, int]) -> str:
    names = [f"{name} {count}" for name, count in counts.items()]
    if len(names) > MOST_LABELS:
        names = [*names[:MOST_LABELS], f"and {len(names) - MOST_LABELS} more"]
    return ", ".join(names)


def _meaning(reward: Reward) -> str:
    """The reward's name with its meaning, and what counts as right."""
    form = "distribution[:COLUMN]" if reward.of_shares else reward.spec
    meaning = REWARDS.get(form, "")
    words = f"{reward.spec} ({meaning})" if meaning else reward.spec
    if not reward.needs_answer or reward.of_shares:
        return words
    right = reward.accuracy_matcher.spec
    rule = "the first label named is the right one" if right == FIRST_NAMED else right
    return f"{words}; right: {rule}"
