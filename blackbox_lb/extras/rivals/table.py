"""Every rival of a bias on decision tasks and on wanted shares: the option of ``blb eval`` for it,
and its maker.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from blackbox_lb.errors import InputError
from blackbox_lb.extras.rivals.calibrate import calibrated
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.extras.rivals.classifier import classifier
from blackbox_lb.extras.rivals.few_shot import few_shot
from blackbox_lb.extras.rivals.labels_only import labels_only
from blackbox_lb.extras.rivals.threshold import threshold
from blackbox_lb.extras.rivals.wanted_shares import label_drawn_in_code, shares_in_words
from blackbox_lb.jobs.evaluation.arms import Alternative
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.tasks.sets.open_labels import OpenLabels

RIVALS: Mapping[str, Callable[[Case, object], Alternative]] = MappingProxyType(
    {
        "labels_only": labels_only,
        "threshold": threshold,
        "calibrate": calibrated,
        "few_shot": few_shot,
        "classifier": classifier,
    }
)
"""Field of the options -> maker of an alternative, from one of its values or True."""

RIVALS_OF_SHARES: Mapping[str, Callable[[Labels, int], Alternative]] = MappingProxyType(
    {"asked_shares": shares_in_words, "drawn_label": label_drawn_in_code}
)
"""Field of the options -> maker of an alternative, from the labels and the seed."""


def rivals_of_shares(
    wanted: Mapping[str, bool], task: Task, reward: Reward, seed: int = 0
) -> tuple[Alternative, ...]:
    """Make the rivals on wanted shares whose flags are set.

    Raises InputError: one is wanted, and the reward compares with no shares, or the rows have none.
    """
    names = [name for name in RIVALS_OF_SHARES if wanted.get(name)]
    if names and not reward.of_shares:
        raise InputError(
            f"``{names[0]}`` is for wanted shares, and the reward is {reward.spec}; use"
            f" ``reward=distribution``, or drop ``{names[0]}``"
        )
    if not names:
        return ()
    labels = Labels.of_shares(task.test)
    return tuple(RIVALS_OF_SHARES[name](labels, seed) for name in names)


def rivals(
    wanted: Mapping[str, object],
    task: Task,
    labels: Labels | None,
    *,
    seed: int = 0,
    listed: int | None = None,
) -> tuple[Alternative, ...]:
    """Make the ``wanted`` rivals: by field, the values given, or whether its flag was.

    Raises InputError: one is wanted and the task has no labels, open ones, or does not suit it.
    """
    given = {
        name: value if isinstance(value, tuple) else (value,) * bool(value)
        for name, value in wanted.items()
    }
    asked = [(name, value) for name in RIVALS for value in given.get(name, ())]
    if asked and labels is None:
        flag = f"``{asked[0][0]}``"
        raise InputError(
            f"{flag} is for decisions between few labels, and the answers of {len(task.train)}"
            " training rows are none; name them with ``labels``, as in ``labels=yes,no``, or drop"
            f" {flag}"
        )
    if asked and isinstance(labels, OpenLabels):
        raise InputError(
            f"``{asked[0][0]}`` needs labels that are spelled, and with ``decide={labels.spec}``"
            " one of them is everything else; try an instruction with ``baseline_prompt``, or drop"
            " it"
        )
    if labels is None:
        return ()
    case = Case(task, labels, seed, listed)
    return tuple(dict.fromkeys(RIVALS[name](case, value) for name, value in asked))
