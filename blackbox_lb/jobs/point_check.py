"""``blb check BIAS``: whether the operating point of a bias file still holds on other prompts, from
one token each.

The first lists without the bias tell what greedy decoding with it decides. The curve in the file
has the decisions on the validation prompts at every shift, and so the distribution of the margins
that it was chosen on: a two-sample Kolmogorov-Smirnov test compares the margins of now with them.

Index letters: ``p`` prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.operating import (
    CheckedPoint,
    MeasuredShare,
    OperatingCurve,
    PromiseCheck,
)
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.decisions.prediction import RocArea, roc_area
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.jobs.fitting.choosing.operating import decision_counts, prompt_counts
from blackbox_lb.rollouts.answers.given_answers import first_completions, listed_places
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.tasks.rewards.normalising import normalise
from blackbox_lb.types import Example

LEVEL = 0.05
"""Chance of a false alarm."""


@dataclass(frozen=True, slots=True)
class PointCheck:
    """An operating point on other prompts than those that it was chosen on.

    Attributes:
        curve: of the file.
        prompts: those with a first list.
        rate_then, rate_now: share decided for the positive label, on the validation prompts of the
            fit and on these.
        distance: largest difference between the shares that any shift decides for the label, then
            and now, from 0 to 1 (Kolmogorov and Smirnov).
        p: chance of such a distance where nothing has changed.
        checked: the decisions on the prompts with an answer; None without one.
        area: under the ROC curve of these; None without answers of both kinds.
    """

    curve: OperatingCurve
    prompts: int
    rate_then: MeasuredShare
    rate_now: MeasuredShare
    distance: float
    p: float
    checked: CheckedPoint | None
    area: RocArea | None

    @property
    def has_drifted(self) -> bool:
        """Whether the margins are shown to be others than those of the fit."""
        return self.p < LEVEL

    @property
    def promise(self) -> PromiseCheck | None:
        """Whether these prompts bear the promise out; None without a promise or answers."""
        if self.curve.promise is None or self.checked is None:
            return None
        return PromiseCheck.of(self.curve.promise, self.checked)

    @property
    def verdict(self) -> str:
        """HOLDS, NOT SHOWN or BROKEN, of a promise; without one DRIFTED, or STEADY where no drift
        is shown.
        """
        if self.promise is not None:
            return self.promise.word
        if self.has_drifted:
            return "DRIFTED"
        return "STEADY"

    def as_json(self) -> dict[str, Any]:
        """The check for JSON; null for what the rows do not tell."""
        return {
            "verdict": self.verdict,
            "goal": self.curve.goal,
            "positive": self.curve.positive,
            "prompts": self.prompts,
            "rate_then": self.rate_then.as_json(),
            "rate_now": self.rate_now.as_json(),
            "distance": self.distance,
            "p": self.p,
            "drifted": self.has_drifted,
            "promise": None if self.promise is None else asdict(self.promise),
            "checked": None if self.checked is None else self.checked.model_dump(),
            "auc": None if self.area is None else asdict(self.area),
        }


def curve_of(bias: Bias) -> OperatingCurve:
    """The curve in a bias file.

    Raises InputError: there is none, or each prompt has its own bias.
    """
    if bias.operating is None or bias.scopes:
        raise InputError(
            "the bias file holds no operating point that is the same for all prompts; a fit with"
            " ``decide`` or ``positive`` chooses one"
        )
    return bias.operating


async def check_point(
    trials: Trials, examples: Sequence[Example], bias: Bias, listed: int | None
) -> PointCheck:
    """Read a first list of each of ``examples``, drawn unless stored, and compare.

    Raises InputError: see ``curve_of``. NoLogprobs: no list at all. ProviderError: the API failed.
    """
    curve = curve_of(bias)
    completions, _ = await first_completions(trials, examples, "check", listed)
    lists = FirstLists.of(completions)
    places = listed_places(lists)
    sent = bias.logit_bias
    tokens = np.array(sorted({*sent, *curve.token_ids}), np.int64)
    positive_tokens = np.array(sorted(curve.token_ids), np.int64)
    ahead = lists.only(places).with_tokens(tokens).margins(positive_tokens, sent)
    asked = [examples[place] for place in places.tolist()]
    distance, chance = margin_distance(curve, ahead)
    chosen = curve.chosen.validation
    return PointCheck(
        curve=curve,
        prompts=len(ahead),
        rate_then=MeasuredShare.of("rate", chosen.decided, curve.validation.prompts),
        rate_now=MeasuredShare.of("rate", int((ahead > 0).sum()), len(ahead)),
        distance=distance,
        p=chance,
        **_with_answers(curve, asked, ahead),
    )


def margin_distance(curve: OperatingCurve, ahead: Vector) -> tuple[float, float]:
    """The distance of Kolmogorov and Smirnov between the margins of the validation prompts and
    ``ahead`` (p,), at the shifts of the curve, and its p-value: thinned shifts make it smaller.
    """
    from scipy import stats  # a quarter of a second, where a command starts

    then = curve.validation.prompts
    differences = [
        abs(point.validation.decided / then - float((ahead + point.shift - curve.shift > 0).mean()))
        for point in curve.points
    ]
    distance = max(differences)
    size = max(round(then * len(ahead) / (then + len(ahead))), 1)
    return distance, float(stats.kstwo.sf(distance, size))


def _with_answers(
    curve: OperatingCurve, examples: Sequence[Example], ahead: Vector
) -> dict[str, Any]:
    """The decisions on the examples with an answer, and the area under their ROC curve."""
    positive = normalise(curve.positive)
    is_answered = np.array([bool(example.answers) for example in examples], np.bool_)
    if not is_answered.any():
        return {"checked": None, "area": None}
    is_positive = np.array(
        [
            positive in {normalise(answer) for answer in example.answers}
            for example in examples
            if example.answers
        ],
        np.bool_,
    )
    margins = ahead[is_answered]
    checked = CheckedPoint(
        prompts=prompt_counts(is_positive), decisions=decision_counts(margins, is_positive, 0.0)
    )
    area = None
    if 0 < is_positive.sum() < len(is_positive):
        area = roc_area(margins, is_positive)
    return {"checked": checked, "area": area}
