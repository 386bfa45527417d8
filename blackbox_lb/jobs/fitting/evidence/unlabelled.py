"""Evidence without any answer: a decision calibrated by the model's mean answer over prompts.

Batch calibration (Zhou et al. 2023): every label is shifted by minus the log of its mean
probability. It needs one list a prompt and no answer, and one lift that all labels share: the
smallest with which greedy decoding begins nearly every prompt's answer with a label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from blackbox_lb.errors import InputError, NoLogprobs
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits, compiled
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import Prior
from blackbox_lb.jobs.fitting.choosing.proposing import (
    BATCH,
    batch_calibration,
    calibrations,
)
from blackbox_lb.jobs.fitting.choosing.scorers import Choice
from blackbox_lb.jobs.fitting.document import Measured
from blackbox_lb.jobs.fitting.evidence.selection import Selected
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.plan.check import check_unlabelled_plan
from blackbox_lb.rollouts.answers.given_answers import first_completions
from blackbox_lb.rollouts.columns import columns
from blackbox_lb.rollouts.judging.decisions import own_label_tokens
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.tasks.sets.labels import Labels

MOSTLY = 0.95
"""Share of the prompts whose answer must begin with a label under the chosen lift."""


@dataclass(frozen=True, slots=True, eq=False)
class Unlabelled:
    """The lists of prompts whose answers nobody knows.

    Attributes:
        positions: the first position of each prompt, as training data.
        calibration: batch calibration.
    """

    positions: Positions
    calibration: Prior

    async def choose(self, job: FitJob) -> Selected:
        """See ``FitEvidence``: the calibration itself, since there is no answer to choose by."""
        candidate = _lifted(self.calibration, self.positions.next_token, job.limits)
        sentence = (
            f"{candidate.origin}, from {len(self.positions.rollouts.keys):,} prompts without"
            f" answers; {candidate.sparse.entries} entries"
        )
        choice = Choice(candidate, (), Measured(), sentence=sentence)
        return Selected(choice, self.positions, has_errors=False)


async def collect(job: FitJob) -> Unlabelled:
    """Read the lists at the place of the answer unless they are in the store.

    Raises:
        InputError: the plan is impossible, or two labels begin with the same tokens. NoLogprobs: no
        list holds the labels. ProviderError: the API failed.
    """
    check_unlabelled_plan(job)
    job.announce(())
    trials = job.trials
    labels = cast(Labels, job.plan.decision_labels)  # ``check_unlabelled_plan`` refuses none
    tokens = await own_label_tokens(trials, labels)
    if tokens is None:
        raise InputError(
            "two of the labels begin with the same tokens, so that the first one does not tell them"
            " apart; rename one in the prompts and in ``labels``"
        )
    examples = (*job.examples, *job.task.unlabelled)
    completions, width = await first_completions(
        trials, examples, "training", job.plan.top_logprobs
    )
    rows = {
        f"{example.id}\0{number}": completion
        for number, (example, completion) in enumerate(zip(examples, completions, strict=True))
        if len(completion.token_ids) and len(completion.top_ids)
    }
    calibration = batch_calibration([FirstLists.of(list(rows.values()))], tokens)
    if calibration is None:
        raise NoLogprobs(
            f"none of {len(completions)} first tokens came with a list that holds a label; use a"
            " provider that returns more alternatives, or prompts that ask for the labels"
        )
    rollouts = columns(rows, range(len(rows)), [0.0] * len(rows), trials.end_tokens)
    positions = Positions.of(rollouts).with_tokens(calibration.every_id)
    trials.report.detail(
        f"{len(rows):,} prompts without their answers, from lists of up to {width:,} tokens"
    )
    return Unlabelled(positions, calibration)


def _lifted(prior: Prior, table: NextToken, limits: CompileLimits) -> Candidate:
    """The calibration with the smallest lift that makes nearly all answers begin with a label."""
    candidates = [
        compiled(proposal, table, limits)
        for proposal in calibrations([prior])
        if proposal.settings["calibration"] == BATCH
    ]
    is_label = np.isin(table.token_ids, prior.lifted).astype(np.float64)
    for candidate in candidates:
        sent = table.align(candidate.sparse.token_ids, candidate.sparse.values)
        if table.mean(is_label, sent).mean() >= MOSTLY:
            return candidate
    return candidates[-1]
