"""Operating points on a model whose every probability is known: the curve, the promises over many
draws of the labels, and an AUC that is planted.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from blackbox_lb.bias.operating import (
    DecisionCounts,
    OperatingCurve,
    OperatingPoint,
    PromptCounts,
    promised,
)
from blackbox_lb.binomial import lower_bound, upper_bound
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.estimate.choice.candidates import CompileLimits
from blackbox_lb.estimate.choice.goal import Goal, Objective
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.decisions.prediction import RocArea, roc_area
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.jobs.fitting.choosing.operating import LabelledLists, PointChoice
from blackbox_lb.tasks.sets.labels import Labels
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel

PROMPTS = 3000
MODEL = ExactModel(8, 1, seed=5, prompts=PROMPTS, sharpness=1.2)
"""Tokens 1 and 2 are the labels "yes" and "no"."""
LABELS = Labels(("no", "yes"), (frozenset({"no"}), frozenset({"yes"})))
YES = np.array([1])
NO = np.array([2])
BIAS = {1: 20.0, 2: 20.3}
ANY = CompileLimits(None, -100.0, 100.0, integers=False)
SEEDS = 100
LEAST = 93
"""Seeds of a hundred in which a promise with 95 % confidence holds, at least: fewer come by chance
in one of four hundred runs."""


def lists_of(prompts: Ids) -> FirstLists:
    """The whole next-token distributions of these prompts."""
    logprobs = MODEL.next_logprobs(np.zeros((len(prompts), 0), np.int64), prompts)
    ids = np.broadcast_to(np.arange(8), logprobs.shape)
    return FirstLists(ids, logprobs)


EVERY = lists_of(np.arange(PROMPTS))
MARGINS = EVERY.margins(YES, BIAS)
SLOPE = 3.0
CENTRE = 1.0
CHANCES = 1 / (1 + np.exp(-SLOPE * (MARGINS + CENTRE)))
"""The true probability of "yes" at each prompt, which its margin tells."""


def drawn(rng: np.random.Generator, count: int, chances: Vector) -> LabelledLists:
    """``count`` prompts at random, with labels drawn from their probabilities."""
    prompts = rng.integers(0, PROMPTS, count)
    is_positive: Bools = rng.random(count) < chances[prompts]
    return LabelledLists(lists_of(prompts), is_positive.astype(np.int64))


def point_choice(goal: Goal, seed: int, count: int = 400, chances: Vector = CHANCES) -> PointChoice:
    """A decision with so many training and validation prompts."""
    rng = np.random.default_rng(seed)
    training = drawn(rng, count, chances)
    validation = drawn(rng, count, chances)
    return PointChoice(goal, LABELS, 1, (NO, YES), training, validation, RocArea(0.9, 0.8, 1.0))


def true_share(measure: str, shift: float) -> float:
    """Precision, recall or rate of a shift over all prompts."""
    is_decided = MARGINS + shift > 0
    if measure == "rate":
        return float(is_decided.mean())
    right = float(CHANCES[is_decided].sum())
    if measure == "precision":
        return right / float(is_decided.sum())
    return right / float(CHANCES.sum())


def chosen_share(goal: Goal, measure: str, seed: int) -> float | None:
    """The true share of the chosen point; None where no point was shown to keep the promise."""
    try:
        curve = point_choice(goal, seed).curve(BIAS, ANY)
    except BiasError:
        return None
    return true_share(measure, curve.shift)


@pytest.mark.parametrize(
    ("objective", "level", "measure"),
    [
        ("recall@precision", 0.85, "precision"),
        ("precision@recall", 0.8, "recall"),
        ("rate", 0.3, "rate"),
    ],
)
def test_a_promise_holds_on_fresh_prompts(objective: Objective, level: float, measure: str) -> None:
    """In 93 of 100 draws of the labels the true share keeps the level, although one of a hundred
    points was chosen by the same validation prompts. Nearly all draws find a point, and it is no
    coward: the share is near the level.
    """
    goal = Goal(objective, level=level, positive="yes")
    draws = [chosen_share(goal, measure, seed) for seed in range(SEEDS)]
    shares = np.array([share for share in draws if share is not None])
    broken = shares > level if measure == "rate" else shares < level
    assert SEEDS - broken.sum() >= LEAST
    assert len(shares) >= LEAST
    assert abs(shares.mean() - level) < 0.1


def test_the_curve_is_the_truth() -> None:
    """With the true probabilities as weights in place of drawn labels, precision, recall and rate
    of every point are those of the model; its counts are those of greedy decoding under the bias
    that the point sends.
    """
    goal = Goal("precision@recall", level=0.5, positive="yes")
    choice = point_choice(goal, 0, count=10_000)
    curve = choice.curve(BIAS, ANY)
    for point in curve.points:
        precision, recall, rate = curve.measured(point)
        assert rate.value == pytest.approx(true_share("rate", point.shift), abs=0.02)
        assert recall.value == pytest.approx(true_share("recall", point.shift), abs=0.03)
        if point.validation.decided > 500:
            assert precision.value == pytest.approx(true_share("precision", point.shift), abs=0.05)
        sent = {**BIAS, 1: BIAS[1] + point.shift}
        tokens = choice.validation.lists.greedy(sent)
        assert point.validation.decided == (tokens == 1).sum()
        assert point.validation.right == ((tokens == 1) & (choice.validation.labels == 1)).sum()


def test_accuracy_balance_and_cost_choose_the_best_point() -> None:
    """None of the curve's points is better on the validation prompts, and with much data the point
    is where the truth has it: at a probability of one half, or where both errors cost the same.
    """
    costs = {"yes": {"no": 5.0}, "no": {"yes": 1.0}}
    for goal, odds in (
        (Goal("accuracy", positive="yes"), 1.0),
        (Goal("cost", positive="yes", costs=costs), 1 / 5),
    ):
        curve = point_choice(goal, 1, count=10_000).curve(BIAS, ANY)
        chance = odds / (1 + odds)
        threshold = np.log(chance / (1 - chance)) / SLOPE - CENTRE
        assert -curve.shift == pytest.approx(threshold, abs=0.35)
    goal = Goal("balanced", positive="yes")
    choice = point_choice(goal, 1)
    curve = choice.curve(BIAS, ANY)

    def balanced(shift: float) -> float:
        is_decided = choice.validation.lists.margins(YES, BIAS) + shift > 0
        is_positive = choice.validation.labels == 1
        return float((is_decided[is_positive].mean() + (~is_decided)[~is_positive].mean()) / 2)

    assert balanced(curve.shift) == pytest.approx(
        max(balanced(point.shift) for point in curve.points)
    )


def test_a_point_keeps_to_the_limits_of_a_provider() -> None:
    """Whole numbers where the provider takes no others, and no value outside its range."""
    goal = Goal("precision@recall", level=0.5, positive="yes")
    limits = CompileLimits(None, -1.0, 21.0, integers=True)
    curve = point_choice(goal, 2).curve(BIAS, limits)
    assert all(point.shift == int(point.shift) for point in curve.points)
    assert all(-1 <= BIAS[1] + point.shift <= 21 for point in curve.points)


def test_a_planted_auc_of_one_half_is_declined() -> None:
    """Labels that the model knows nothing of are declined in nearly all draws; those that it knows
    are accepted in all; asked to go on, the fit goes on.
    """
    goal = Goal("rate", level=0.2, positive="yes")
    declined = 0
    for seed in range(SEEDS):
        choice = point_choice(goal, seed, count=100, chances=np.full(PROMPTS, 0.5))
        scores = choice.training.lists.margins(YES)
        area = roc_area(scores, choice.training.labels == 1)
        planted = PointChoice(goal, LABELS, 1, (NO, YES), choice.training, choice.validation, area)
        try:
            planted.check_ranking()
        except InputError:
            declined += 1
            assert "AUC" in planted.check_ranking(go_on=True)
    assert declined >= LEAST
    informed = point_choice(goal, 0)
    scores = informed.training.lists.margins(YES)
    assert roc_area(scores, informed.training.labels == 1).separates


def test_the_area_is_scikit_learns_and_its_interval_covers_it() -> None:
    """The area is that of scikit-learn, with ties; the interval holds the true area in 93 of 100
    draws, and is no point where all prompts are separated.
    """
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    scores = rng.integers(0, 5, 60).astype(np.float64)
    is_positive = rng.random(60) < 0.4
    assert roc_area(scores, is_positive).value == pytest.approx(roc_auc_score(is_positive, scores))
    true = float(stats.norm.cdf(1 / np.sqrt(2)))
    covered = 0
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        is_positive = np.arange(90) < 30
        area = roc_area(rng.normal(size=90) + is_positive, is_positive)
        covered += area.low <= true <= area.high
    assert covered >= LEAST
    separated = roc_area(np.arange(8.0), np.arange(8) >= 5)
    assert (separated.value, separated.high) == (1.0, 1.0)
    assert separated.low < 0.9
    assert not roc_area(np.arange(3.0), np.ones(3, np.bool_)).separates


def test_bounds_are_clopper_and_pearsons() -> None:
    """The quantiles of the beta distribution, and 0 and 1 where there is nothing."""
    for part, whole in ((0, 10), (3, 10), (10, 10), (57, 60), (250, 1000)):
        low = stats.beta.ppf(0.05, part, whole - part + 1) if part else 0.0
        high = stats.beta.ppf(0.95, part + 1, whole - part) if part < whole else 1.0
        assert lower_bound(part, whole) == pytest.approx(low, abs=1e-9)
        assert upper_bound(part, whole) == pytest.approx(high, abs=1e-9)
    assert (lower_bound(0, 0), upper_bound(0, 0)) == (0.0, 1.0)


def test_what_too_few_prompts_cannot_show_is_said() -> None:
    """Fifty-eight right decisions do not show a precision of .95 and fifty-nine do; so says the
    file, with what it would take.
    """
    counts = PromptCounts(prompts=100, positives=59)

    def curve(right: int) -> OperatingCurve:
        decisions = DecisionCounts(decided=right, right=right)
        return OperatingCurve(
            positive="yes",
            token_ids=(1,),
            goal="accuracy",
            shift=0.0,
            auc=0.9,
            auc_low=0.8,
            auc_high=1.0,
            training=counts,
            validation=counts,
            points=(OperatingPoint(shift=0.0, training=decisions, validation=decisions),),
        )

    assert curve(59).at("precision", 0.95).shift == 0
    with raises_naming(BiasError, "59"):
        curve(58).at("precision", 0.95)
    assert promised(curve(59).points, "recall", 0.95, counts, counts)
