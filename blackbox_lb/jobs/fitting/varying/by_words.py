"""Whether a bias that depends on the words of the prompt would decide more prompts right than the
fixed bias that a fit chose. The lists of the fit tell: nothing is asked for, and what is learned
stays as it is.

Each prompt counts for a bias that was learned without it, at a strength that the other prompts
chose: the best of several strengths, on the prompts that chose it, is better by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from blackbox_lb.bias.features import Words
from blackbox_lb.bias.records import Comparison
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.jobs.fitting.choosing.from_lists import FromLists, surely_right
from blackbox_lb.jobs.fitting.choosing.scorers import Choice
from blackbox_lb.jobs.fitting.evidence.answers_to_learn import AnswersToLearn
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.scored_policies import FIXED
from blackbox_lb.jobs.fitting.varying.by_lists import ByLists, LeftOut, StrengthSearch
from blackbox_lb.jobs.fitting.varying.feature_matrix import PromptFeatures
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.rollouts.answers.given_answers import AnswerStarts
from blackbox_lb.rollouts.judging.trials import NamedBias
from blackbox_lb.rollouts.judging.verdict import GREEDY, paired_comparison

FEWEST_ROWS = 100
"""Labelled rows below which words are not tried: with fewer, most words stand in one prompt alone.
"""
MOST_WORK = 6_000
"""Training prompts, drawn at random, times tokens that begin a label: about 3 s. With so many
tokens that fewer than ``FEWEST_ROWS`` prompts are left, words are not tried.
"""
STRENGTHS = (3.0, 0.3, 0.03)
"""Pulls of each vector to 0, in weighted positions: every other one that ``depends_on`` tries."""
MODEL_WEIGHTS = (1.0, 0.2)
"""Weights of the model's own logits: the largest and the least that ``depends_on`` tries."""
BY_WORDS = "depends on words"
"""The name of the policy in the comparison."""


async def compared_by_words(job: FitJob, lists: FromLists, choice: Choice) -> Comparison | None:
    """See ``words_beside``, of the bias that a fit chose; None where words are not tried: the plan
    says what the bias depends on or has another goal than right decisions, labels begin alike, or
    there are fewer than ``FEWEST_ROWS`` labelled rows.

    lists: those that chose.
    """
    answers = lists.given
    validation = lists.first
    if lists.folds is not None:  # the prompts of training chose: there are no others
        validation = lists.first.only(np.zeros(lists.prompts, np.bool_))
    if not _are_tried(job.plan, answers, validation):
        return None
    candidate = choice.candidate
    bias = RequestBias(candidate.logit_bias)
    is_right, _ = surely_right(answers.first, bias)
    also_right, _ = surely_right(validation, bias)
    if lists.folds is not None:
        biases = tuple(part.logit_bias for part in candidate.left_out)
        [scored] = await lists.score([NamedBias(FIXED, bias, biases)], 1)
        if scored.sure is not None:
            is_right = scored.sure > 0
    standing = choice.uncut or candidate
    return words_beside(
        (is_right, also_right),
        answers,
        validation,
        standing.learned_from or standing,
        job.limits,
        job.plan.sweep.seed,
    )


def words_sentence(compared: Comparison) -> str:
    """What was predicted, in words."""
    return (
        "a bias that depends on the words of the prompt is predicted to decide"
        f" {compared.biased:.3f} of {compared.n_prompts} prompts right, each by what is learned"
        f" without it, and the fixed bias {compared.base:.3f} (95 % interval of the difference:"
        f" {compared.low:+.3f} to {compared.high:+.3f})"
    )


def _are_tried(plan: Plan, answers: AnswersToLearn, validation: AnswerStarts) -> bool:
    """Whether words are tried beside the fixed bias; see ``compared_by_words``."""
    labels = plan.decision_labels
    if labels is None or answers.label_tokens is None:
        return False
    if plan.depends_on or plan.phases or plan.phrases is not None:
        return False
    if plan.goal.objective not in ("reward", "accuracy") or plan.goal.positive is not None:
        return False
    numbers = [first.labels_of(labels) for first in (answers.first, validation)]
    return int((np.concatenate(numbers) >= 0).sum()) >= FEWEST_ROWS


def words_beside(
    fixed: tuple[Bools, Bools],
    answers: AnswersToLearn,
    validation: AnswerStarts,
    standing: Candidate,
    limits: CompileLimits,
    seed: int = 0,
) -> Comparison | None:
    """The share of right decisions of a bias that depends on the words, less that of the fixed
    bias, on prompts that the former was not learned from: those of training, fold by fold, and
    those of validation. None where no two training prompts share a word that others lack, or too
    many tokens begin a label.

    Where the same learning without words decides more right than the fixed bias, it stands in its
    place, so that what is left of the difference is due to words.

    Args:
        fixed: whether the fixed bias decides each prompt of training and of validation right. It
            may have been learned from them, which is to its advantage.
        answers: the answers of the training prompts.
        validation: the first positions of the validation prompts.
        standing: the fixed bias, whose settings the other one has.
        limits: the provider's.
        seed: of the folds, and of the rows where they are more than ``MOST_WORK`` lets in.
    """
    tokens = answers.begins
    if limits.highest_id is not None:
        tokens = tokens[tokens <= limits.highest_id]
    if not 0 < len(tokens) <= MOST_WORK // FEWEST_ROWS:
        return None
    order = np.random.default_rng(seed).permutation(len(fixed[0]))
    chosen = np.zeros(len(fixed[0]), np.bool_)
    chosen[order[: MOST_WORK // len(tokens)]] = True
    learned = standing.projected
    if learned is not None and learned.shares is not None:
        # What each spelling of an answer weighs stays as the fixed bias found it.
        weighed = replace(answers.rollouts, shares=learned.shares)
        answers = replace(answers, rollouts=weighed)
        standing = replace(standing, projected=replace(learned, shares=None))
    part = _renumbered(answers.only(chosen))
    features = PromptFeatures.of(Words(), part.first.examples)
    if not features.table.shape[1]:
        return None
    source = ByLists(features, part, validation, limits, seed)
    search = StrengthSearch(source, standing)
    without, by_words = search.without_and_with(MODEL_WEIGHTS, STRENGTHS, tokens)
    ours = _chosen_elsewhere(by_words, search.parts)
    theirs = np.concatenate([fixed[0][chosen], fixed[1]]).astype(np.float64)
    alike = _chosen_elsewhere(without, search.parts)
    if alike.mean() > theirs.mean():
        theirs = alike
    names = (FIXED, BY_WORDS)
    return paired_comparison(GREEDY, "accuracy", "higher", theirs, ours, ours - theirs, names)


def _renumbered(answers: AnswersToLearn) -> AnswersToLearn:
    """The first tokens of the answers and what follows them, with prompts numbered from 0."""
    places = answers.first.places
    return replace(
        answers,
        first=replace(answers.first, places=np.arange(len(places))),
        rollouts=replace(
            answers.rollouts, prompts=np.searchsorted(places, answers.rollouts.prompts)
        ),
        rest=None,
    )


def _chosen_elsewhere(settings: Sequence[LeftOut], parts: Ids) -> Vector:
    """(p,) whether each prompt is surely decided right, at the one of ``settings`` that is best on
    the prompts of all other ``parts`` (p,).
    """
    is_right = np.zeros(len(parts))
    for part in np.unique(parts).tolist():
        inside = parts == part
        best = max(settings, key=lambda setting: setting.rank(~inside))
        is_right[inside] = best.sure[inside]
    return is_right
