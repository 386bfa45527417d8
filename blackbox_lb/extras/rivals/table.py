"""Every rival of a bias: the option of ``blb eval`` that asks for it, and its maker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import MappingProxyType

from blackbox_lb.errors import InputError
from blackbox_lb.extras.rivals.biases import labels_only
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.extras.rivals.classifier import classifier
from blackbox_lb.extras.rivals.first_lists import calibrated, threshold
from blackbox_lb.extras.rivals.prompts import few_shot, label_drawn_in_code, shares_in_words
from blackbox_lb.jobs.evaluation.arms import Alternative
from blackbox_lb.rollouts.judging.verdict import Setting
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.sets.labels import CALLS_TOOL, Labels, OpenLabels

RIVALS: Mapping[str, Callable[[Case, object], Alternative]] = MappingProxyType(
    {
        "labels_only": labels_only,
        "threshold": threshold,
        "calibrate": calibrated,
        "few_shot": few_shot,
        "classifier": classifier,
    }
)
"""Option -> maker of an alternative, from a case and a value of the option (True for a flag)."""

LEARNING_RIVALS = frozenset({"threshold", "few_shot", "classifier"})
"""Those of ``RIVALS`` that use the answers of training rows."""

RIVALS_OF_SHARES: Mapping[str, Callable[[Labels, int], Alternative]] = MappingProxyType(
    {"asked_shares": shares_in_words, "drawn_label": label_drawn_in_code}
)
"""Option -> maker of an alternative, from the labels and the seed."""


def rivals_of_shares(
    options: Mapping[str, bool], task: Task, reward: Reward, seed: int = 0
) -> tuple[Alternative, ...]:
    """The rivals on wanted shares.

    Args:
        options: whether each of ``RIVALS_OF_SHARES`` is asked for.
        task: its test prompts have wanted shares.
        reward: compares with shares.
        seed: fixes all draws.

    Raises:
        InputError: a rival is asked for, but the reward compares with no shares, or the rows have
            none.
    """
    names = [name for name in RIVALS_OF_SHARES if options.get(name)]
    if not names:
        return ()
    if not reward.of_shares:
        raise InputError(
            f"``{names[0]}`` is for wanted shares, and the reward is {reward.spec}; use"
            f" ``reward=distribution``, or drop ``{names[0]}``"
        )
    labels = Labels.of_shares(task.test)
    return tuple(RIVALS_OF_SHARES[name](labels, seed) for name in names)


def rivals(
    options: Mapping[str, object],
    task: Task,
    labels: Labels | None,
    *,
    seed: int = 0,
    listed: int | None = None,
) -> tuple[Alternative, ...]:
    """The rivals of a bias on a decision task.

    Args:
        options: by name in ``RIVALS``, the values of the option, or whether its flag is set.
        task: the decision task.
        labels: its labels; None where it has none.
        seed: fixes all random choices.
        listed: alternatives of a first list; None for as many as help.

    Raises:
        InputError: a rival is asked for, but the task has no labels, open ones that it does not
            take, or no training rows to learn from, or does not suit the rival.
    """
    requested: list[tuple[str, object]] = []
    for name in RIVALS:
        value = options.get(name)
        if isinstance(value, tuple):
            requested += [(name, single) for single in value]
        elif value:
            requested.append((name, value))
    if not requested:
        return ()
    if labels is None:
        flag = f"``{requested[0][0]}``"
        rows = f"{len(task.train)} training rows" if task.train else f"{len(task.test)} test rows"
        raise InputError(
            f"{flag} is for decisions between few labels, and the answers of {rows} are none; name"
            f" them with ``labels``, as in ``labels=yes,no``, or drop {flag}"
        )
    learning = [name for name, _ in requested if name in LEARNING_RIVALS]
    if learning and not task.train:
        raise InputError(
            f"``{learning[0]}`` learns from training rows, and the data has only test rows; give"
            f" both with ``data``, or drop ``{learning[0]}``"
        )
    if isinstance(labels, OpenLabels):
        name = requested[0][0]
        raise InputError(
            f"``{name}`` needs labels that are spelled, and with ``decide={labels.spec}`` one of"
            f" them is everything else; try an instruction with ``baseline_prompt``, or drop"
            f" ``{name}``"
        )
    case = Case(task, labels, seed, listed)
    return tuple(dict.fromkeys(RIVALS[name](case, value) for name, value in requested))


# --- The rivals that anybody would try, by the kind of the task

SHOTS = 4
"""Examples before a prompt."""
LOWER = 0.3
"""A lower temperature than the usual ones."""
HIGHER = 1.5
"""A higher temperature, for shares of labels, which are often too uneven."""
BRIEF = "Be brief: answer in as few words as you can."
"""The instruction for a reward of short completions."""
INSTRUCTIONS = {
    "json-schema": "Answer with JSON alone, without a code fence.",
    "exact-match": "Give the answer alone, and nothing else.",
    "contains": "Give the answer alone, and nothing else.",
    "accuracy": "Give the answer alone, and nothing else.",
    "log-accuracy": "Give the answer alone, and nothing else.",
}
"""Name of a reward -> the instruction to do what it rewards."""
CALL_OR_ANSWER = (
    "Call a function only if one of the given functions answers this; otherwise answer in words."
)
"""The instruction where a model decides whether to call a function."""
NO_TRAINING = (
    "``rivals`` leaves out those that learn from training rows, because the data has only test rows"
)


@dataclass(frozen=True, slots=True)
class StandardRivals:
    """The rivals of one task.

    instructions: texts before the prompt.
    temperatures: of sampling without a bias.
    notices: sentences on rivals that are left out, and how to get them.
    The other fields are options of ``RIVALS`` and ``RIVALS_OF_SHARES``.
    """

    labels_only: bool = False
    threshold: bool = False
    calibrate: tuple[str, ...] = ()
    few_shot: tuple[int, ...] = ()
    classifier: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = ()
    asked_shares: bool = False
    drawn_label: bool = False
    notices: tuple[str, ...] = field(default=())


def standard_rivals(
    reward: Reward,
    labels: Labels | None,
    settings: tuple[Setting, ...],
    *,
    takes_messages: bool,
    has_training: bool = True,
) -> StandardRivals:
    """The rivals that suit the reward, the labels and the settings.

    takes_messages: whether the endpoint takes examples as messages before a prompt.
    has_training: whether there are training rows, from which some rivals learn.
    """
    if reward.of_shares:
        return StandardRivals(temperatures=(HIGHER,), asked_shares=True, drawn_label=True)
    if isinstance(labels, OpenLabels):
        return _for_opening(labels)
    if labels is not None:
        return _for_labels(takes_messages, has_training)
    instructions = []
    notices = []
    if reward.by_length:
        instructions.append(BRIEF)
    elif reward.name in INSTRUCTIONS:
        instructions.append(INSTRUCTIONS[reward.name])
    else:
        notices.append(
            "``rivals`` knows no instruction for this reward; give yours with ``baseline_prompt``"
        )
    temperatures = []
    if max(setting.temperature for setting in settings) > LOWER:
        temperatures.append(LOWER)
    return StandardRivals(
        instructions=tuple(instructions),
        temperatures=tuple(temperatures),
        notices=tuple(notices),
    )


def _for_opening(labels: OpenLabels) -> StandardRivals:
    if labels.spec == CALLS_TOOL:
        return StandardRivals(instructions=(CALL_OR_ANSWER,))
    notice = "``rivals`` knows no instruction for this opening; give yours with ``baseline_prompt``"
    return StandardRivals(notices=(notice,))


def _for_labels(takes_messages: bool, has_training: bool) -> StandardRivals:
    if not has_training:
        return StandardRivals(labels_only=True, calibrate=("batch",), notices=(NO_TRAINING,))
    notices = []
    classifiers = ["tfidf"]
    if find_spec("sklearn") is None:
        classifiers = []
        notices.append(
            "``rivals`` leaves out the classifier, which needs scikit-learn (extra clusters)"
        )
    shots = [SHOTS]
    if not takes_messages:
        shots = []
        notices.append("``rivals`` leaves out examples, which need ``endpoint=chat``")
    return StandardRivals(
        labels_only=True,
        calibrate=("batch",),
        few_shot=tuple(shots),
        classifier=tuple(classifiers),
        notices=tuple(notices),
    )
