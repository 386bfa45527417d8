"""A race of given candidates on given prompts, without what a whole fit adds to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.choice.goal import Goal
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.jobs.fitting.choosing.scorers import Choice, FromSamples
from blackbox_lb.jobs.fitting.choosing.select import Search, select
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED, Setting
from blackbox_lb.types import Example

ANY = CompileLimits(None, -np.inf, np.inf, integers=False)
"""No limit on a bias."""


async def choose(
    trials: Trials,
    examples: Sequence[Example],
    candidates: Iterable[Candidate],
    next_token: NextToken,
    *,
    samples: int,
    budget: float | None = None,
    goal: Goal | None = None,
    settings: Sequence[Setting] = (SAMPLED,),
) -> Choice:
    """The best of ``candidates`` alone.

    budget: completions a prompt of all candidates; ``samples`` of each if None.
    """
    field = list(candidates)
    wanted = goal or Goal()
    search = Search(samples, budget)
    scorer = FromSamples(trials, examples, wanted, settings)
    return await select(
        field, scorer, wanted, search, next_token, ANY, trials.report, trials.reward.label
    )
