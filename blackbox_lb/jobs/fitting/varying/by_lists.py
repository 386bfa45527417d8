"""A bias that depends on the prompt, learned from given answers and compared by lists alone.

Strength and weight of the model are chosen on validation prompts and on training prompts that were
left out, fold by fold. All of it is known from lists: nothing is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import log_softmax

from blackbox_lb.bias.phases import Phases
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.decisions.first_lists import FirstLists, begins_right
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.with_features import (
    FeatureFit,
    FeaturePositions,
    FeatureTable,
    fit_features,
)
from blackbox_lb.jobs.fitting.choosing.scorers import Challenger
from blackbox_lb.jobs.fitting.evidence.answers_to_learn import AnswersToLearn
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.varying.feature_matrix import (
    FOLDS,
    NO_FEATURE,
    NO_SLOPE,
    SLOPE_L2,
    FeatureMatrix,
    PromptFeatures,
    learned_challenger,
    weights_of,
)
from blackbox_lb.rollouts.answers.given_answers import AnswerStarts
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example

MODEL_WEIGHTS = (1.0, 0.5, 0.2)
"""Weights of the model's own logits: 1 is the likelihood of what is sampled at temperature 1,
towards 0 a classifier.
"""
COMPARED = 32
"""Tokens on which strengths are compared, the most used first: all of them would take minutes and
change no choice.
"""


@dataclass(frozen=True, slots=True, eq=False)
class LeftOut:
    """One setting on prompts that were left out: of training, then those of validation.

    likelihood: (p,) log-probability in nats that the answer begins as an accepted one, given that
    it begins as any answer does. hits: (p,) whether greedy decoding begins each prompt's answer
    right. sure: (p,) whether it does where no token outside the list might win.
    """

    model_weight: float
    slope_l2: float
    likelihood: Vector
    hits: Vector
    sure: Vector

    @property
    def right(self) -> float:
        """The share that is begun right."""
        return float(self.hits.mean())

    def rank(self, among: Bools | slice = slice(None)) -> tuple[float, float]:
        """How good the setting is on some of the prompts: the share that is begun right, then the
        mean likelihood.
        """
        return round(float(self.hits[among].mean()), 9), float(self.likelihood[among].mean())


@dataclass(frozen=True, slots=True, eq=False)
class ByLists:
    """Proposes a bias that depends on a feature of the prompt.

    features: of the training prompts. given: their answers. validation: the first positions of the
    validation prompts.
    """

    features: PromptFeatures
    given: AnswersToLearn
    validation: AnswerStarts
    limits: CompileLimits
    seed: int = 0

    @property
    def name(self) -> str:
        """See ``Challengers``."""
        return self.features.feature.spec

    async def challenge(self, standing: Candidate) -> list[Challenger] | str:
        """See ``Challengers``: the bias with the strengths that decide most of the left-out prompts
        right.
        """
        if not self.features.table.shape[1]:
            return NO_FEATURE
        tokens = np.union1d(standing.sparse.token_ids, self.given.begins)
        if self.limits.highest_id is not None:
            tokens = tokens[tokens <= self.limits.highest_id]
        search = StrengthSearch(self, standing)
        won = search.best(tokens)
        if won is None:
            return (
                "on validation and left-out training prompts it decides no more right than the"
                " fixed bias"
            )
        best, without = won
        training = slice(None, len(self.given.first.examples))
        challenger = learned_challenger(
            standing,
            search.matrix,
            lambda ids: search.positions(best.model_weight, ids),
            tokens,
            self.limits,
            slope_l2=best.slope_l2,
            model_weight=best.model_weight,
            left_out=(best.hits - without.hits)[training],
        )
        return [challenger]


async def challengers_by_lists(
    job: FitJob,
    positions: Positions,
    features: Sequence[PromptFeatures],
    answers: AnswersToLearn,
    validation: AnswerStarts,
) -> list[ByLists]:
    """What proposes a bias that depends on each of ``features``; the answers are learned from, and
    not ``positions``.
    """
    del positions
    seed = job.plan.sweep.seed
    return [ByLists(of_prompt, answers, validation, job.limits, seed) for of_prompt in features]


def classified(
    features: PromptFeatures, train: Sequence[Example], test: Sequence[Example], labels: Labels
) -> Vector:
    """(p,) whether a logistic regression on these features, without the model, gives each of
    ``test`` its label.

    It is the same objective with a model that knows nothing. Its strength is chosen on training
    prompts that are left out.
    """
    numbers = [labels.of(example) for example in train]
    places = np.array(
        [place for place, number in enumerate(numbers) if number is not None], np.int64
    )
    right = np.array([number for number in numbers if number is not None], np.int64)
    size = len(labels.names)
    rows = np.arange(len(places))
    even = sparse.csr_array(np.full((len(places), size), 1 / size))
    counts = sparse.csr_array((np.ones(len(places)), (rows, right)), shape=(len(places), size))
    nothing = np.zeros(len(places))
    positions = FeaturePositions(
        np.arange(size), even, nothing, np.zeros(size), rows, np.ones(len(places)), counts, nothing
    )
    table = features.table[places]
    folds = np.random.default_rng(0).permutation(len(places)) % FOLDS
    gains = []
    for slope_l2 in SLOPE_L2:
        log_likelihoods = np.zeros(len(places))
        for fold in range(FOLDS):
            fit = fit_features(positions.only(folds != fold), table, l2=0.1, slope_l2=slope_l2)
            log_likelihoods[folds == fold] = positions.log_likelihood(fit.bias(table))[
                folds == fold
            ]
        gains.append(log_likelihoods.sum())
    fit = fit_features(positions, table, l2=0.1, slope_l2=SLOPE_L2[int(np.argmax(gains))])
    decisions = fit.bias(features.of_examples(test)).argmax(axis=1)
    return np.array(
        [
            labels.of(example) == number
            for example, number in zip(test, decisions.tolist(), strict=True)
        ],
        np.float64,
    )


class StrengthSearch:
    """Compares strengths on validation and left-out training prompts, and learns with those that
    win.

    folds: (p,) the fold of each training prompt. parts: that of each prompt of ``LeftOut``,
    ``FOLDS`` of those of validation.
    """

    def __init__(self, source: ByLists, standing: Candidate) -> None:
        answers = source.given
        features = source.features
        self.features = features
        self.size = features.table.shape[0]
        self.l2 = float(standing.settings.get("l2") or 1.0)
        self.folds = np.random.default_rng(source.seed).permutation(self.size) % FOLDS
        validation = np.full(len(source.validation.examples), FOLDS)
        self.parts = np.append(self.folds[answers.first.places], validation)
        self.training = _Decided(
            answers.first, features.table[answers.first.places], answers.begins
        )
        self.validation = _Decided(
            source.validation, features.of_examples(source.validation.examples), answers.begins
        )
        self.rollouts = answers.rollouts
        self.weights = weights_of(standing, self.rollouts)
        prompt_of = self.rollouts.prompts[self.rollouts.rollout_of]
        everywhere = np.zeros_like(prompt_of)
        self.matrix = FeatureMatrix.of(features, Phases(), prompt_of, everywhere, self.size)
        self._tables: dict[float, NextToken] = {}

    def positions(self, model_weight: float, tokens: Ids) -> FeaturePositions:
        """The given answers with the model's logits times ``model_weight``."""
        if model_weight not in self._tables:
            rollouts = self.rollouts
            if model_weight != 1:
                rollouts = tempered(self.rollouts, model_weight)
            self._tables[model_weight] = NextToken.of(rollouts)
        table = self._tables[model_weight]
        return FeaturePositions.of(table, self.weights, tokens, self.matrix.contexts, self.size)

    def best(self, tokens: Ids) -> tuple[LeftOut, LeftOut] | None:
        """The strengths that decide most of the left-out prompts right, and no dependence; None
        where that decides as many. tokens: those that may be biased.
        """
        nothing, rows = self.without_and_with(MODEL_WEIGHTS, SLOPE_L2, tokens)
        best, fixed = (max(candidates, key=LeftOut.rank) for candidates in (rows, nothing))
        if best.right > fixed.right:
            return (best, fixed)
        return None

    def without_and_with(
        self, weights: Sequence[float], strengths: Sequence[float], tokens: Ids
    ) -> tuple[list[LeftOut], list[LeftOut]]:
        """No dependence, and a dependence of each strength; of each with every weight of the
        model's logits.
        """
        nothing = list[LeftOut]()
        rows = list[LeftOut]()
        for weight in weights:
            first, *others = self.held_out(weight, (NO_SLOPE, *strengths), tokens)
            nothing.append(first)
            rows += others
        return nothing, rows

    def held_out(self, weight: float, strengths: Sequence[float], tokens: Ids) -> list[LeftOut]:
        """Each strength, the strongest first, with the model's logits times ``weight`` and a bias
        on the ``COMPARED`` most used of ``tokens``.
        """
        everything = self.positions(weight, tokens)
        used = np.argsort(-everything.occurrence)[:COMPARED]
        positions = self.positions(weight, np.sort(everything.token_ids[used]))
        table = self.features.table
        size = len(self.training.first.examples)
        folds = self.parts[:size]
        scores = np.zeros((len(strengths), 3, len(self.parts)))
        for fold in np.unique(self.parts).tolist():  # of validation, none is left out
            train = positions.only(self.folds != fold)
            start = None
            for row, slope_l2 in enumerate(strengths):
                start = fit_features(train, table, l2=self.l2, slope_l2=slope_l2, start=start)
                if fold < FOLDS:
                    scores[row, :, :size][:, folds == fold] = self.training.by(start, weight)[
                        :, folds == fold
                    ]
                else:
                    scores[row, :, size:] = self.validation.by(start, weight)
        return [
            LeftOut(weight, slope_l2, *numbers)
            for slope_l2, numbers in zip(strengths, scores, strict=True)
        ]


class _Decided:
    """The decisions on prompts with lists.

    first: those prompts. table: (p, f) their features. begins: the tokens that begin an answer.
    """

    def __init__(self, first: AnswerStarts, table: FeatureTable, begins: Ids) -> None:
        self.first = first
        self.table = table
        self.wanted = first.lists.holds(first.accepted)
        self.begins = np.isin(first.lists.ids, begins) | self.wanted

    def by(self, fit: FeatureFit, weight: float) -> npt.NDArray[np.float64]:
        """(3, p) the likelihood, the hits and the sure ones of ``LeftOut`` of each prompt."""
        first = self.first.lists
        shifts = fit.bias(self.table)
        lists = FirstLists(first.ids, first.logprobs * weight)
        tilted = lists.tilted((fit.token_ids, shifts))
        log_total = np.logaddexp.reduce(np.where(self.begins, tilted, -np.inf), axis=1)
        right = np.logaddexp.reduce(np.where(self.wanted, tilted, -np.inf), axis=1)
        likelihood = np.where(self.wanted.any(axis=1), right - log_total, 0.0)
        hits = begins_right(lists.taken(tilted), self.first.accepted)
        sure = hits & ~first.unsure((fit.token_ids, shifts / weight))
        return np.stack([likelihood, hits.astype(np.float64), sure.astype(np.float64)])


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
