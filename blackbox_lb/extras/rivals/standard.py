"""The rivals that anybody would try instead of a bias, by the kind of the task."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec

from blackbox_lb.rollouts.judging.verdict import Setting
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.tasks.sets.open_labels import CALLS_TOOL, OpenLabels

SHOTS = 4
"""Examples before a prompt."""
LOWER = 0.3
"""The lower temperature that is tried."""
HIGHER = 1.5
"""The higher temperature that is tried where shares of labels are wanted, which are often too
uneven."""
BRIEF = "Be brief: answer in as few words as you can."
"""The instruction where shorter completions earn more."""
INSTRUCTIONS = {
    "json-schema": "Answer with JSON alone, without a code fence.",
    "exact-match": "Give the answer alone, and nothing else.",
    "contains": "Give the answer alone, and nothing else.",
    "accuracy": "Give the answer alone, and nothing else.",
    "log-accuracy": "Give the answer alone, and nothing else.",
}
"""Name of a reward -> the instruction that asks for what it rewards."""
CALL_OR_ANSWER = (
    "Call a function only if one of the given functions answers this; otherwise answer in words."
)
"""The instruction where a model decides whether to call a function."""


@dataclass(frozen=True, slots=True)
class StandardRivals:
    """The rivals of one task. notices: sentences on what was left out, and how to get it."""

    labels_only: bool = False
    calibrate: tuple[str, ...] = ()
    few_shot: tuple[int, ...] = ()
    classifier: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = ()
    asked_shares: bool = False
    drawn_label: bool = False
    notices: tuple[str, ...] = field(default=())


def standard_rivals(
    reward: Reward, labels: Labels | None, settings: tuple[Setting, ...], *, takes_messages: bool
) -> StandardRivals:
    """The rivals that suit the reward, the labels and the settings.

    takes_messages: whether the endpoint takes examples as messages before a prompt.
    """
    if reward.of_shares:
        return StandardRivals(temperatures=(HIGHER,), asked_shares=True, drawn_label=True)
    if isinstance(labels, OpenLabels):
        return _for_opening(labels)
    if labels is not None:
        return _for_labels(takes_messages)
    notices = []
    instruction = BRIEF if reward.by_length else INSTRUCTIONS.get(reward.name)
    if instruction is None:
        notices.append(
            "``rivals`` knows no instruction for this reward; give yours with ``baseline_prompt``"
        )
    hottest = max(setting.temperature for setting in settings)
    return StandardRivals(
        instructions=() if instruction is None else (instruction,),
        temperatures=(LOWER,) if hottest > LOWER else (),
        notices=tuple(notices),
    )


def _for_opening(labels: OpenLabels) -> StandardRivals:
    if labels.spec == CALLS_TOOL:
        return StandardRivals(instructions=(CALL_OR_ANSWER,))
    notice = "``rivals`` knows no instruction for this opening; give yours with ``baseline_prompt``"
    return StandardRivals(notices=(notice,))


def _for_labels(takes_messages: bool) -> StandardRivals:
    notices = []
    has_classifier = find_spec("sklearn") is not None
    if not has_classifier:
        notices.append(
            "``rivals`` leaves out the classifier, which needs scikit-learn (extra clusters)"
        )
    if not takes_messages:
        notices.append("``rivals`` leaves out examples, which need ``endpoint=chat``")
    return StandardRivals(
        labels_only=True,
        calibrate=("batch",),
        few_shot=(SHOTS,) if takes_messages else (),
        classifier=("tfidf",) if has_classifier else (),
        notices=tuple(notices),
    )
