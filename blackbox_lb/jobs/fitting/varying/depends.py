"""``depends_on``: learning a bias that depends on the prompt, and declining it where a fixed one
does as well.

Strength and weight of the model are chosen on validation prompts and on training prompts that were
left out, fold by fold; then the winner must decide more of the validation prompts right than the
fixed bias. All of it is known from lists: nothing is drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import log_softmax

from blackbox_lb.bias.records import Verdict
from blackbox_lb.bias.request_bias import DIGITS, MOST_NUMBERS, WIDEST, RequestBias, SentRange
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.decisions.prediction import FirstLists, begins_right
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.weightings import weighting
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.prompt_dependent import (
    FeatureTable,
    PromptFit,
    PromptPositions,
    fit_prompts,
    standard_errors,
)
from blackbox_lb.jobs.fitting.given_answers import AnswersToLearn
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.jobs.fitting.varying.prompt_features import PromptFeatures
from blackbox_lb.rollouts.answers.given_answers import FirstTokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import compare
from blackbox_lb.tasks import Task
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import AnyBias, Example

SLOPE_L2 = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
"""Strengths of the pull of each feature's vector to 0, in weighted positions; the strongest first.
"""
MODEL_WEIGHTS = (1.0, 0.5, 0.2)
"""Weights of the model's own logits: 1 is the likelihood of what is sampled at temperature 1,
towards 0 a classifier.
"""
FOLDS = 5
STANDARD_ERRORS = 2.0
"""Standard errors by which it must decide more right than a fixed bias, over left-out training and
validation prompts together. It is the best of 18 settings on them; with 2, noise passed in 3 of 100
draws."""
DRAWS = 20
"""Draws of the bootstrap for standard errors, each a fit that begins at the solution."""
MOST_WORK = 50_000_000
"""Numbers in the table of features x tokens, above which there are no standard errors: a minute of
fits.
"""
NO_FEATURE = "no two training prompts have a feature that others lack"
COMPARED = 32
"""Tokens on which strengths are compared, the most used first: all of them would take minutes and
change no choice.
"""


@dataclass(frozen=True, slots=True, eq=False)
class DependentCandidate:
    """A bias that depends on the prompt.

    bias: as it is sent. settings: those it was learned with. features: of the training prompts.
    found, fixed: what it and the fixed bias are worth on the validation prompts; measure: in what,
    as words. errors: (s,) standard errors of what prompts have in common, in nats, NaN where not
    known.
    """

    bias: RequestBias
    settings: dict[str, float | int | str | None]
    features: PromptFeatures
    found: float
    fixed: float
    measure: str
    errors: Vector

    @property
    def sentence(self) -> str:
        """What was chosen, and by what."""
        weight = (
            f", the model's logits weighing {self.settings['model_weight']:g}"
            if "model_weight" in self.settings
            else ""
        )
        return (
            f"depends on {self.features.feature.spec}: {self.features.table.shape[1]:,} features,"
            f" slope_l2 {self.settings['slope_l2']:g}{weight}; on the validation prompts,"
            f" {self.measure} {self.found:.3f} (fixed bias {self.fixed:.3f})"
        )

    def common(self, fixed: Candidate) -> Candidate:
        """``fixed`` with what all prompts have in common in the place of its values."""
        ids = np.array(self.bias.token_ids, np.int64)
        values = np.array(list(self.bias.common.values()))
        return replace(
            fixed,
            settings=self.settings,
            sparse=replace(fixed.sparse, token_ids=ids, values=values),
        )


@dataclass(frozen=True, slots=True)
class _HeldOut:
    """One setting on prompts that were left out: of training, then those of validation.

    likelihood: mean log-probability in nats that the answer begins as an accepted one, given that
    it begins as any answer does. hits: (p,) whether greedy decoding begins each prompt's answer
    right.
    """

    model_weight: float
    slope_l2: float
    likelihood: float
    hits: Vector

    @property
    def right(self) -> float:
        """The share that is begun right."""
        return float(self.hits.mean())


def dependent_candidate(
    features: PromptFeatures,
    examples: Sequence[Example],
    validation: FirstTokens,
    given: AnswersToLearn,
    fixed: Candidate,
    limits: CompileLimits,
    seed: int = 0,
    draws: int = DRAWS,
) -> DependentCandidate | str:
    """The best bias of this kind, or the sentence why the ``fixed`` one is kept.

    validation: the first positions of the validation prompts. given: the answers of ``examples``.
    draws: for standard errors.
    """
    name = features.feature.spec
    if not features.table.shape[1]:
        return f"{name}: {NO_FEATURE}"
    tokens = np.union1d(fixed.sparse.token_ids, given.begins)
    if limits.highest_id is not None:
        tokens = tokens[tokens <= limits.highest_id]
    search = _Search(features, given, validation, fixed, tokens, len(examples), seed)
    won = search.best()
    if won is None:
        return (
            f"{name}: on validation and left-out training prompts it decides no more right than"
            " the fixed bias"
        )
    best, without = won
    bias, errors = search.learned(best, limits, draws)
    (right, unsure), (before, others) = (
        surely_right(validation, each) for each in (bias, fixed.logit_bias)
    )
    guessed = (
        f", less {unsure.sum()} and {others.sum()} where a token outside the lists might win"
        if unsure.any()
        else ""
    )
    left_out = slice(None, len(given.first.examples))
    gains = np.concatenate(
        [(best.hits - without.hits)[left_out], right.astype(np.float64) - before]
    )
    if right.sum() <= before.sum() or gains.mean() < STANDARD_ERRORS * gains.std() / np.sqrt(
        len(gains)
    ):
        return (
            f"{name}: on {len(right)} validation prompts it is predicted to decide"
            f" {right.mean():.3f} right, and the fixed bias {before.mean():.3f}{guessed}; with"
            f" training prompts that were left out, {gains.mean():+.3f}, which may be chance"
        )
    settings = {
        **fixed.settings,
        "depends_on": name,
        "slope_l2": best.slope_l2,
        "model_weight": best.model_weight,
    }
    measure = f"predicted without drawing{guessed}, right first tokens"
    return DependentCandidate(
        bias, settings, features, float(right.mean()), float(before.mean()), measure, errors
    )


async def against_others(
    trials: Trials,
    task: Task,
    fixed: Mapping[int, float],
    sent: AnyBias,
    features_of: Sequence[PromptFeatures],
    plan: FitPlan,
) -> tuple[tuple[str, Verdict], ...]:
    """The chosen bias against what else decides on the test prompts, drawn unless stored.

    That is the ``fixed`` bias, where another is ``sent``, and for each of ``features_of`` a
    classifier on them alone.
    """
    rows = []
    rivals = []
    for features in features_of:
        if plan.labels is not None and features.table.shape[1]:
            right = classified(features, task.train[: plan.limit], task.test, plan.labels)
            rivals.append((f"classifier on {features.feature.kind}", tuple(right[:, None])))
    for setting in plan.settings:
        count = 1 if setting.deterministic else plan.test_samples
        ours = await trials.scores(
            f"test at {setting.name}, biased", task.test, setting, count, sent
        )
        if sent is not fixed:
            theirs = await trials.scores(
                f"test at {setting.name}, fixed bias", task.test, setting, count, fixed
            )
            rows.append(("fixed bias", compare(setting, theirs, ours, trials.reward)[0]))
        if ours.correct is not None:
            correct = replace(ours, reward=ours.correct)
            rows += [
                (name, compare(setting, replace(ours, reward=alone), correct, trials.reward)[0])
                for name, alone in rivals
            ]
    return tuple(rows)


def classified(
    features: PromptFeatures, train: Sequence[Example], test: Sequence[Example], labels: Labels
) -> Vector:
    """(p,) whether a logistic regression on these features, without the model, gives each of
    ``test`` its label.

    It is the same objective with a model that knows nothing. Its strength is chosen on training
    prompts that are left out.
    """
    numbers = [labels.of(example) for example in train]
    known = np.array(
        [place for place, number in enumerate(numbers) if number is not None], np.int64
    )
    right = np.array([number for number in numbers if number is not None], np.int64)
    size = len(labels.names)
    rows = np.arange(len(known))
    even = sparse.csr_array(np.full((len(known), size), 1 / size))
    counts = sparse.csr_array((np.ones(len(known)), (rows, right)), shape=(len(known), size))
    nothing = np.zeros(len(known))
    whole = PromptPositions(
        np.arange(size), even, nothing, np.zeros(size), rows, np.ones(len(known)), counts
    )
    table = features.table[known]
    folds = np.random.default_rng(0).permutation(len(known)) % FOLDS
    gains = []
    for slope_l2 in SLOPE_L2:
        held = np.zeros(len(known))
        for fold in range(FOLDS):
            fit = fit_prompts(whole.only(folds != fold), table, l2=0.1, slope_l2=slope_l2)
            held[folds == fold] = whole.log_likelihood(fit.bias(table))[folds == fold]
        gains.append(held.sum())
    fit = fit_prompts(whole, table, l2=0.1, slope_l2=SLOPE_L2[int(np.argmax(gains))])
    said = fit.bias(features.of_examples(test)).argmax(axis=1)
    return np.array(
        [labels.of(example) == number for example, number in zip(test, said.tolist(), strict=True)],
        np.float64,
    )


class _Search:
    """Compares strengths on validation and left-out training prompts, and learns with those that
    win.
    """

    def __init__(
        self,
        features: PromptFeatures,
        given: AnswersToLearn,
        validation: FirstTokens,
        fixed: Candidate,
        tokens: Ids,
        size: int,
        seed: int,
    ) -> None:
        self.features = features
        self.tokens = tokens
        self.size = size
        self.l2 = float(fixed.settings.get("l2") or 1.0)
        self.folds = np.random.default_rng(seed).permutation(size) % FOLDS
        self.training = _Decided(given.first, features.table[given.first.places], given.begins)
        self.validation = _Decided(
            validation, features.of_examples(validation.examples), given.begins
        )
        made = fixed.projected
        self.rollouts = (
            given.rollouts if made is None else replace(given.rollouts, shares=made.shares)
        )
        rule = weighting(float(fixed.settings.get("tau") or 1.0)) if made is None else made.rule
        self.weights = rule.weights(self.rollouts)
        self._tables: dict[float, NextToken] = {}

    def positions(self, model_weight: float, tokens: Ids) -> PromptPositions:
        """The given answers with the model's logits times ``model_weight``."""
        if model_weight not in self._tables:
            self._tables[model_weight] = NextToken.of(
                self.rollouts if model_weight == 1 else tempered(self.rollouts, model_weight)
            )
        table = self._tables[model_weight]
        return PromptPositions.of(table, self.rollouts, self.weights, tokens, self.size)

    def best(self) -> tuple[_HeldOut, _HeldOut] | None:
        """The strengths that decide most of the left-out prompts right, and no dependence; None
        where that decides as many.
        """
        rows = list[_HeldOut]()
        nothing = list[_HeldOut]()
        for weight in MODEL_WEIGHTS:
            whole = self.positions(weight, self.tokens)
            used = np.argsort(-whole.occurrence)[:COMPARED]
            found = self._held_out(weight, self.positions(weight, np.sort(whole.token_ids[used])))
            nothing.append(found[0])
            rows += found[1:]
        best, fixed = (
            max(each, key=lambda row: (round(row.right, 9), row.likelihood))
            for each in (rows, nothing)
        )
        return (best, fixed) if best.right > fixed.right else None

    def _held_out(self, weight: float, positions: PromptPositions) -> list[_HeldOut]:
        """No dependence at all, then each strength."""
        strengths = (1e9, *SLOPE_L2)
        table = self.features.table
        folds = self.folds[self.training.first.places]
        found = np.zeros((len(strengths), 2, len(folds) + len(self.validation.first.examples)))
        for fold in range(FOLDS + 1):  # in the last one, none is left out
            train = positions.only(self.folds != fold)
            start = None
            for row, slope_l2 in enumerate(strengths):
                start = fit_prompts(train, table, l2=self.l2, slope_l2=slope_l2, start=start)
                if fold < FOLDS:
                    found[row, :, : len(folds)][:, folds == fold] = self.training.by(start, weight)[
                        :, folds == fold
                    ]
                else:
                    found[row, :, len(folds) :] = self.validation.by(start, weight)
        return [
            _HeldOut(weight, slope_l2, float(likelihood.mean()), hits)
            for slope_l2, (likelihood, hits) in zip(strengths, found, strict=True)
        ]

    def learned(
        self, best: _HeldOut, limits: CompileLimits, draws: int
    ) -> tuple[RequestBias, Vector]:
        """``learned_bias`` with the strengths that won."""
        weight = best.model_weight
        made = partial(self.positions, weight)
        return learned_bias(
            self.features,
            made,
            self.tokens,
            limits,
            l2=self.l2,
            slope_l2=best.slope_l2,
            model_weight=weight,
            draws=draws,
        )


class _Decided:
    """The decisions on prompts with lists.

    first: those prompts. table: (p, f) their features. begins: the tokens that begin an answer.
    """

    def __init__(self, first: FirstTokens, table: FeatureTable, begins: Ids) -> None:
        self.first = first
        self.table = table
        self.wanted = np.stack(
            [np.isin(row, ids) for row, ids in zip(first.ids, first.accepted, strict=True)]
        )
        self.begins = np.isin(first.ids, begins) | self.wanted

    def by(self, fit: PromptFit, weight: float) -> npt.NDArray[np.float64]:
        """(2, p) the log-probability of ``_HeldOut`` of each prompt, and whether greedy decoding
        begins its answer right.
        """
        lists = FirstLists(self.first.ids, self.first.logprobs * weight)
        tilted = lists.tilted_by(fit.token_ids, fit.bias(self.table))
        whole = np.logaddexp.reduce(np.where(self.begins, tilted, -np.inf), axis=1)
        right = np.logaddexp.reduce(np.where(self.wanted, tilted, -np.inf), axis=1)
        likelihood = np.where(self.wanted.any(axis=1), right - whole, 0.0)
        return np.stack(
            [likelihood, begins_right(lists.taken(tilted), self.first.accepted).astype(np.float64)]
        )


def learned_bias(
    features: PromptFeatures,
    positions: Callable[[Ids], PromptPositions],
    tokens: Ids,
    limits: CompileLimits,
    *,
    l2: float,
    slope_l2: float,
    model_weight: float = 1.0,
    draws: int = DRAWS,
) -> tuple[RequestBias, Vector]:
    """Learned with all training prompts, on the tokens that move most where the provider or a file
    takes fewer; and (s,) the standard errors of the common vector, NaN without ``draws`` of them
    and where all of them would take minutes.

    positions: of tokens that may be biased.
    """
    whole = positions(tokens)
    most = MOST_NUMBERS // max(features.table.shape[1], 1)
    most = most if limits.entries is None else min(limits.entries, most)
    fit = fit_prompts(whole, features.table, l2=l2, slope_l2=slope_l2)
    if len(fit.token_ids) > most:
        kept = np.argsort(-fit.impact(features.table, whole.usage))[:most]
        whole = positions(np.sort(fit.token_ids[kept]))
        fit = fit_prompts(whole, features.table, l2=l2, slope_l2=slope_l2)
    common = fit.common / model_weight
    slopes = fit.slopes / model_weight
    errors = np.full(len(common), np.nan), np.full(slopes.shape, np.nan)
    if draws and features.table.nnz * len(common) <= MOST_WORK:
        errors = standard_errors(whole, features.table, fit, l2=l2, slope_l2=slope_l2, draws=draws)
    rows = (slopes.round(DIGITS)).tolist()
    row_errors = [] if np.isnan(errors[1]).any() else (errors[1] / model_weight).round(3).tolist()
    feature = features.feature.with_values(rows, row_errors)
    sent = SentRange(
        low=max(limits.low, -WIDEST), high=min(limits.high, WIDEST), integers=limits.integers
    )
    values = dict(zip(fit.token_ids.tolist(), common.round(DIGITS).tolist(), strict=True))
    bias = RequestBias(values, (feature,), sent)
    bias.vectors = features.vectors
    return bias, errors[0] / model_weight


def tempered(rollouts: Rollouts, weight: float) -> Rollouts:
    """The same answers where the logits of the listed tokens count ``weight`` times, and no token
    is unlisted.

    The argmax of ``l + delta / weight`` is that of ``weight l + delta``: what is learned here
    decides greedily as it would there.
    """
    lists = rollouts.top_logprobs.astype(np.float64) * weight
    scaled = log_softmax(np.where(rollouts.top_ids >= 0, lists, -np.inf), axis=1).astype(np.float32)
    at = (rollouts.top_ids == rollouts.token_ids[:, None]).argmax(axis=1)
    return replace(rollouts, top_logprobs=scaled, logprobs=scaled[np.arange(len(at)), at])


def surely_right(first: FirstTokens, bias: AnyBias) -> tuple[Bools, Bools]:
    """(p,) whether greedy decoding begins the answer of each prompt right where no token outside
    its list might win, and (p,) where one might."""
    lists = FirstLists(first.ids, first.logprobs)
    if isinstance(bias, Mapping):
        said = lists.greedy(bias)
        unsure = lists.unsure(bias)
    else:
        bias.prepare([example.prompt for example in first.examples])
        rows = [bias.at(example.prompt) for example in first.examples]
        tokens = sorted({token for row in rows for token in row})
        ids = np.array(tokens, np.int64)
        own = np.array([[row.get(token, 0.0) for token in tokens] for row in rows], np.float64)
        said = lists.taken(lists.tilted_by(ids, own))
        unsure = lists.unsure_by(ids, own)
    return begins_right(said, first.accepted) & ~unsure, unsure
