"""The rivals of a bias by their names in ``rival=NAME[:VALUE]``, and those that suit a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from blackbox_lb.errors import InputError
from blackbox_lb.extras.rivals import biases, classifier, first_lists, prompts
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.jobs.evaluation.policies import Policy
from blackbox_lb.rollouts.judging.verdict import Setting
from blackbox_lb.safety.printable import near_or_listed
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.rewards.forms.avoid import AvoidList
from blackbox_lb.tasks.sets.labels import CALLS_TOOL, Labels, OpenLabels


@dataclass(frozen=True, slots=True)
class Rival:
    """A kind of rival.

    make: the policy, from a case and the value. takes: the value in the help, empty for none.
    """

    make: Callable[[Case, str], Policy]
    takes: str = ""


RIVALS = {
    "prompt": Rival(prompts.instruction, "TEXT"),
    "temperature": Rival(prompts.temperature, "T"),
    "max-tokens": Rival(prompts.max_tokens, "N"),
    "best-of": Rival(prompts.best_of, "N"),
    "few-shot": Rival(prompts.few_shot, "K"),
    "asked-shares": Rival(prompts.shares_in_words),
    "drawn-label": Rival(prompts.label_drawn_in_code),
    "words": Rival(biases.words, "FILE:NATS"),
    "close": Rival(biases.close, "NATS"),
    "labels-only": Rival(biases.labels_only),
    "phrases": Rival(biases.phrases, "FILE"),
    "threshold": Rival(first_lists.threshold),
    "calibrate": Rival(first_lists.calibrated, "contextual|batch"),
    "classifier": Rival(classifier.classifier, "tfidf|embedding:NAME"),
}
"""Name -> rival."""


def rivals(specs: Sequence[str], case: Case) -> tuple[Policy, ...]:
    """The policies of ``specs``, each NAME or NAME:VALUE.

    Raises:
        InputError: an unknown name, a value that is missing or not taken, or a rival that does not
            suit the case.
    """
    return tuple(dict.fromkeys(_rival(spec, case) for spec in specs))


def _rival(spec: str, case: Case) -> Policy:
    name, colon, value = spec.partition(":")
    if name not in RIVALS:
        forms = [
            f"{known}:{rival.takes}" if rival.takes else known for known, rival in RIVALS.items()
        ]
        raise InputError(
            f"``rival={spec}``: there is no rival"
            f" {name!r}{near_or_listed(name, forms, 'give one of')}"
        )
    rival = RIVALS[name]
    if rival.takes and not colon:
        raise InputError(f"``rival={name}`` needs a value; give {name}:{rival.takes}")
    if colon and not rival.takes:
        raise InputError(f"``rival={spec}``: {name} takes no value; leave it out")
    return rival.make(case, value)


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
MOST_NAMED = 20
"""Words and phrases that an instruction to avoid them names."""
CALL_OR_ANSWER = (
    "Call a function only if one of the given functions answers this; otherwise answer in words."
)
"""The instruction where a model decides whether to call a function."""
NO_TRAINING = (
    "``rivals`` leaves out those that learn from training rows, because the data has only test rows"
)


def standard_rivals(
    reward: Reward,
    labels: Labels | None,
    settings: tuple[Setting, ...],
    *,
    takes_messages: bool,
    has_training: bool = True,
    keeps_phrases_out: bool = False,
) -> tuple[list[str], list[str]]:
    """The rivals that suit the reward, the labels and the settings, as ``rivals`` reads them; and
    sentences on rivals that are left out, and how to get them.

    takes_messages: whether the endpoint takes examples as messages before a prompt.
    has_training: whether there are training rows, from which some rivals learn.
    keeps_phrases_out: whether completions without phrases can be drawn, and sent without them.
    """
    if reward.of_shares:
        return [f"temperature:{HIGHER:g}", "asked-shares", "drawn-label"], []
    if isinstance(labels, OpenLabels):
        if labels.spec == CALLS_TOOL:
            return [f"prompt:{CALL_OR_ANSWER}"], []
        return [], [NO_INSTRUCTION.format("opening")]
    if labels is not None:
        return _for_labels(takes_messages, has_training)
    specs = []
    notices = []
    if reward.by_length:
        specs.append(f"prompt:{BRIEF}")
    elif isinstance(reward, AvoidList):
        specs += _against_words(reward, keeps_phrases_out=keeps_phrases_out)
    elif (form := reward.name.partition(":")[0]) in INSTRUCTIONS:
        specs.append(f"prompt:{INSTRUCTIONS[form]}")
    else:
        notices.append(NO_INSTRUCTION.format("reward"))
    if max(setting.temperature for setting in settings) > LOWER:
        specs.append(f"temperature:{LOWER:g}")
    return specs, notices


def _against_words(reward: AvoidList, *, keeps_phrases_out: bool) -> Iterator[str]:
    """An instruction that names what is to be avoided, and the list kept out by stepping back."""
    entries = [line.entry for line in reward.phrases.lines if not line.is_pattern]
    if entries:
        named = ", ".join(f'"{entry}"' for entry in entries[:MOST_NAMED])
        yield f"prompt:Do not use these words and phrases: {named}."
    if keeps_phrases_out:
        yield f"phrases:{reward.name.partition(':')[2]}"


NO_INSTRUCTION = (
    "``rivals`` knows no instruction for this {}; give yours with ``rival=prompt:TEXT``"
)


def _for_labels(takes_messages: bool, has_training: bool) -> tuple[list[str], list[str]]:
    specs = ["labels-only", "calibrate:batch"]
    if not has_training:
        return specs, [NO_TRAINING]
    notices = []
    if takes_messages:
        specs.append(f"few-shot:{SHOTS}")
    else:
        notices.append("``rivals`` leaves out examples, which need ``endpoint=chat``")
    if find_spec("sklearn") is None:
        notices.append(
            "``rivals`` leaves out the classifier, which needs scikit-learn (extra clusters)"
        )
    else:
        specs.append("classifier:tfidf")
    return specs, notices
