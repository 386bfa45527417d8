"""Learning a decision between an opening and everything else: one number on the opening's tokens.

The first lists give the log odds of the opening at every prompt; a shift of all its tokens adds to
them. The likeliest shift of the given answers is a logistic regression with a single intercept, and
the goal then chooses the point on the curve.

Index letters: ``p`` prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from blackbox_lb.errors import NoLogprobs
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.choice.goal import Goal
from blackbox_lb.estimate.decisions.prediction import FirstLists, margins, roc_area
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.jobs.fitting.choosing.decision_goals import label_weights
from blackbox_lb.jobs.fitting.choosing.operating import LabelledLists, PointChoice
from blackbox_lb.rollouts.answers.given_answers import first_lists, has_list, lists_with
from blackbox_lb.rollouts.answers.openings import Opening, opening_log_odds
from blackbox_lb.rollouts.columns import columns
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.training import Training
from blackbox_lb.tasks.sets.labels import OPENING, OTHER, OpenLabels
from blackbox_lb.types import Completion, Example

SPREAD = 5.0
"""Nats, the standard deviation of a shift beforehand: it keeps the shift of separated prompts
finite, and weighs as much as a quarter of a prompt.
"""
FARTHEST = 40.0
"""Nats beyond which no shift is looked for."""


@dataclass(frozen=True, slots=True, eq=False)
class OpeningLists:
    """Prompts with their first lists, of those that came with one.

    completions: of one token each. numbers: (p,) of the wanted label.
    """

    completions: tuple[Completion, ...]
    numbers: Ids

    @classmethod
    async def of(
        cls,
        trials: Trials,
        examples: Sequence[Example],
        title: str,
        listed: int | None,
        labels: OpenLabels,
    ) -> OpeningLists:
        """The lists of ``examples``, drawn unless they are in the store.

        listed: alternatives of each list; None for as many as help. Raises NoLogprobs: no prompt
        came with a list; ProviderError: the API failed.
        """
        completions, width = await first_lists(trials, examples, title, listed)
        hidden = sum(bool(answer.tool_calls) and not len(answer.top_ids) for answer in completions)
        if hidden:
            raise NoLogprobs(
                f"{hidden} of {len(examples)} {title} prompts were answered by a call whose tokens"
                f" {trials.session.profile.name} does not list, so that nothing tells how likely a"
                " call was; use vllm, sglang, llamacpp or local"
            )
        rows = [
            (completion, labels.of(example))
            for example, completion in zip(examples, completions, strict=True)
            if has_list(completion)
        ]
        if not rows:
            raise NoLogprobs(
                f"none of {len(examples)} first tokens came with a list of alternatives; use a"
                " provider that returns logprobs"
            )
        trials.report.notice(
            f"{len(rows)} of {len(examples)} {title} prompts came with a first list of up to"
            f" {width:,} tokens"
        )
        numbers = np.array([number for _, number in rows], np.int64)
        return cls(tuple(completion for completion, _ in rows), numbers)

    @property
    def is_wanted(self) -> Bools:
        """(p,) whether the opening is wanted."""
        return np.asarray(self.numbers == OPENING)

    @property
    def labelled_completions(self) -> list[tuple[int, Completion]]:
        """The number of the wanted label of each prompt, and its completion."""
        return list(zip(self.numbers.tolist(), self.completions, strict=True))

    def lists(self, tokens: Ids) -> FirstLists:
        """The lists, with each of ``tokens``."""
        return lists_with(self.completions, tokens)

    def labelled(self, tokens: Ids) -> LabelledLists:
        """The lists with ``tokens``, as a curve is made of them."""
        return LabelledLists(self.lists(tokens), self.is_wanted, self.numbers)


def training_of(trials: Trials, lists: OpeningLists, opening: Opening) -> Training:
    """The first positions as training data, with the opening's tokens in every list."""
    rows = {str(number): completion for number, completion in enumerate(lists.completions)}
    rollouts = columns(rows, range(len(rows)), [0.0] * len(rows), trials.end_tokens)
    table = NextToken.of(rollouts).with_tokens(opening.tokens)
    return Training(rollouts.without_lists(), table, 0, 0)


def likeliest_shift(log_odds: Vector, is_wanted: Bools, weights: Vector | None) -> float:
    """The shift in nats with the likeliest answers, log-likelihood less ``shift^2 / (2 SPREAD^2)``.

    log_odds: (p,) of the opening without a bias. is_wanted: (p,). weights: (p,), None for 1 each.
    """
    from scipy import optimize  # a quarter of a second, where a command starts

    prompt_weights = np.ones(len(log_odds)) if weights is None else weights

    def slope(shift: float) -> float:
        missing = is_wanted - expit(log_odds + shift)
        return float((prompt_weights * missing).sum() - shift / SPREAD**2)

    return float(optimize.brentq(slope, -FARTHEST, FARTHEST, xtol=1e-10))


def shifted_candidate(
    labels: OpenLabels,
    opening: Opening,
    lists: OpeningLists,
    table: NextToken,
    limits: CompileLimits,
    goal: Goal,
) -> Candidate:
    """The likeliest shift of the opening's tokens as a candidate."""
    weights = label_weights(goal, labels, lists.numbers)
    log_odds = opening_log_odds(lists.lists(opening.tokens), opening.tokens)
    shift = likeliest_shift(log_odds, lists.is_wanted, weights)
    sent = np.clip(
        table.align(opening.tokens, np.full(len(opening.tokens), shift)), limits.low, limits.high
    )
    return Candidate.of_vector(
        sent,
        table,
        limits,
        estimator="opening",
        settings={"decide": labels.spec, "likeliest": round(shift, 4)},
        origin=f"the likeliest shift of the opening ({shift:+.2f} nats)",
    )


def opening_point(
    goal: Goal,
    labels: OpenLabels,
    opening: Opening,
    training: OpeningLists,
    validation: OpeningLists,
) -> PointChoice:
    """The decision whose point the goal chooses."""
    learned = training.labelled(opening.tokens)
    chosen_by = validation.labelled(opening.tokens)
    scores = [margins(part.lists, {}, opening.tokens) for part in (learned, chosen_by)]
    is_wanted = np.concatenate([learned.is_positive, chosen_by.is_positive])
    return PointChoice(
        goal=goal,
        labels=labels,
        positive=OPENING,
        label_tokens=(opening.tokens, np.zeros(0, np.int64)),
        training=learned,
        validation=chosen_by,
        area=roc_area(np.concatenate(scores), is_wanted),
        otherwise=OTHER,
        learns_shift_alone=True,
    )
