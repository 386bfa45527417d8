"""Decisions with calibrated probabilities, from the model's own first lists; nothing is sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blackbox_lb.bias.decisions import MendedQuestion
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Calibration
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.decisions.prediction import expected_calibration_error
from blackbox_lb.literals import Split
from blackbox_lb.rollouts.judging.verdict import bootstrap
from blackbox_lb.rollouts.stored import settings_by_request
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Task
from blackbox_lb.tasks.rewards.normalising import normalise
from blackbox_lb.types import Example, Prompt


@dataclass(frozen=True, slots=True)
class LabelDecision:
    """The decision of one prompt.

    Attributes:
        prompt: its text.
        label: the likeliest one, None where the list holds no label.
        probability: of that label, calibrated.
        probabilities: label -> its calibrated probability.
        abstains: whether the probability is too small to act on.
        with_bias: the label that greedy decoding with the bias begins with, None for another token;
            at an operating point it differs from the likeliest one on purpose. None where
            probabilities are mended.
    """

    prompt: str
    label: str | None
    probability: float
    probabilities: Mapping[str, float]
    abstains: bool
    with_bias: str | None = None


def check_share(name: str, value: float) -> None:
    """Raise InputError: ``value`` of the parameter ``name`` is no probability."""
    if not 0 <= value <= 1:
        raise InputError(f"``{name}={value:g}`` is no probability; give a number from 0 to 1")


def calibration_of_bias(bias: Bias, abstain_below: float) -> Calibration:
    """The calibration in a bias file.

    Raises InputError: there is none, or ``abstain_below`` is no share.
    """
    check_share("abstain_below", abstain_below)
    if bias.calibration is None:
        raise InputError(
            "the bias file holds no calibrated labels; a fit of greedy decisions from answers"
            " writes them (``learn_from=answers``, from one token a prompt): run it again"
        )
    return bias.calibration


def label_decision(
    bias: Bias, calibration: Calibration, prompt: Prompt, listed: Mapping[int, float], below: float
) -> LabelDecision:
    """The decision of one prompt from its first list (token id -> nats) without a bias."""
    probabilities = calibration.probabilities(listed)
    if probabilities is None:
        return LabelDecision(prompt.text, None, 0.0, {}, True, _label_with(bias, listed))
    label = max(probabilities, key=lambda name: probabilities[name])
    probability = probabilities[label]
    return LabelDecision(
        prompt=prompt.text,
        label=label,
        probability=probability,
        probabilities=probabilities,
        abstains=probability < below,
        with_bias=_label_with(bias, listed),
    )


def mended_decision(
    mended: MendedQuestion, prompt: Prompt, logprobs: Sequence[float] | None, below: float | None
) -> LabelDecision:
    """The decision of one prompt from its options' log-probabilities in nats, None where they could
    not be read. ``below``: the probability below which it abstains; None for the cut of the promise
    in the file, if there is one.
    """
    if logprobs is None:
        return LabelDecision(prompt.text, None, 0.0, {}, True)
    decision = mended.decide(logprobs)
    names = mended.question.names
    probability = decision.probabilities[decision.place]
    return LabelDecision(
        prompt=prompt.text,
        label=names[decision.place],
        probability=probability,
        probabilities=dict(zip(names, decision.probabilities, strict=True)),
        abstains=decision.abstains if below is None else probability < below,
    )


def _label_with(bias: Bias, listed: Mapping[int, float]) -> str | None:
    """The label that begins with the likeliest token under the bias; None for another token, and
    where the bias is not the same for all prompts.
    """
    if not listed or bias.scopes or bias.calibration is None:
        return None
    sent = bias.logit_bias
    best = max(listed, key=lambda token: listed[token] + sent.get(token, 0.0))
    return bias.calibration.label_begun_by(best)


@dataclass(frozen=True, slots=True)
class DecidedSplit:
    """The stored prompts of one split, decided.

    Attributes:
        split: of the task.
        examples: those with a stored first list, with their ``decisions``.
        missing: prompts of the split without a stored list of the model without a bias.
    """

    split: Split
    examples: tuple[Example, ...]
    decisions: tuple[LabelDecision, ...]
    missing: int

    @property
    def is_right(self) -> list[bool | None]:
        """Whether each decision is an accepted answer; None without an answer."""
        return [
            None if not example.answers else _accepts(example, decision.label)
            for example, decision in zip(self.examples, self.decisions, strict=True)
        ]

    def accuracy(self, *, acted_on: bool = False) -> tuple[float, float, float] | None:
        """The share of right decisions with its 95 % interval, of all or of those that do not
        abstain; None of nothing.
        """
        import numpy as np

        values = [
            float(is_right)
            for is_right, decision in zip(self.is_right, self.decisions, strict=True)
            if is_right is not None and not (acted_on and decision.abstains)
        ]
        if not values:
            return None
        interval = bootstrap(np.array(values))
        return float(np.mean(values)), interval.low, interval.high

    @property
    def calibration_error(self) -> float | None:
        """The mean difference between probability and accuracy; None without an answer."""
        rows = [
            (decision.probability, is_right)
            for is_right, decision in zip(self.is_right, self.decisions, strict=True)
            if is_right is not None
        ]
        if not rows:
            return None
        return expected_calibration_error([row[0] for row in rows], [row[1] for row in rows])

    @property
    def abstained(self) -> float:
        """The share of decisions that abstain; 0 of nothing."""
        if not self.decisions:
            return 0.0
        return sum(decision.abstains for decision in self.decisions) / len(self.decisions)

    def rows(self) -> list[dict[str, Any]]:
        """A row a prompt, for JSON."""
        return [
            {"split": self.split, "id": example.id, "correct": is_right, **asdict(decision)}
            for example, decision, is_right in zip(
                self.examples, self.decisions, self.is_right, strict=True
            )
        ]

    def as_json(self) -> dict[str, Any]:
        """The split for JSON."""
        return {
            "split": self.split,
            "prompts": len(self.decisions),
            "missing": self.missing,
            "accuracy": _interval(self.accuracy()),
            "calibration_error": self.calibration_error,
            "abstained": self.abstained,
            "accuracy_acted_on": _interval(self.accuracy(acted_on=True)),
            "decisions": self.rows(),
        }


def _interval(value: tuple[float, float, float] | None) -> dict[str, float] | None:
    if value is None:
        return None
    return dict(zip(("mean", "low", "high"), value, strict=True))


def _accepts(example: Example, label: str | None) -> bool:
    """Whether the label is one of the example's answers, in any case."""
    if label is None:
        return False
    return normalise(label) in {normalise(answer) for answer in example.answers}


def stored_decisions(
    store: RolloutStore,
    task: Task,
    bias: Bias,
    splits: Sequence[Split],
    abstain_below: float,
) -> list[DecidedSplit]:
    """The decisions of the task's prompts whose first list of the model without a bias is stored.

    Raises InputError: the bias holds no calibration, or no prompt has a stored list.
    """
    calibration = calibration_of_bias(bias, abstain_below)
    lists = _stored_lists(store)
    decided = []
    for split in splits:
        examples = [example for example in task.split(split) if example.prompt in lists]
        decisions = [
            label_decision(bias, calibration, example.prompt, lists[example.prompt], abstain_below)
            for example in examples
        ]
        missing = len(task.split(split)) - len(examples)
        decided.append(DecidedSplit(split, tuple(examples), tuple(decisions), missing))
    if not any(part.decisions for part in decided):
        raise InputError(
            f"{store.path} holds no list of next tokens of a prompt of {task.name} without a bias;"
            " give the task that was collected"
        )
    return decided


def _stored_lists(store: RolloutStore) -> dict[Prompt, dict[int, float]]:
    """The longest first list of each prompt, token id -> nats, without a bias; one drawn at
    temperature 1 goes before any other.
    """
    lists: dict[Prompt, dict[int, float]] = {}
    ranks: dict[Prompt, tuple[bool, int]] = {}
    for request, settings in settings_by_request(store).items():
        if settings["bias"] or "prefix" in settings:
            continue
        is_neutral = settings["sampling"]["temperature"] == 1
        keys = store.prompts(request)
        completions = list(store.completions(keys))
        mappings = FirstLists.of(completions).mappings()
        for prompt, completion, listed in zip(keys.values(), completions, mappings, strict=True):
            rank = (is_neutral, len(listed))
            if listed and not completion.broken_off and rank > ranks.get(prompt, (False, 0)):
                lists[prompt] = listed
                ranks[prompt] = rank
    return lists
