"""Learning without any answer: a decision calibrated by the model's mean answer over prompts.

Batch calibration (Zhou et al. 2023): every label is shifted by minus the log of its mean
probability. It needs one list a prompt and no answer, and one lift that all labels share: the
smallest with which greedy decoding begins nearly every prompt's answer with a label.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blackbox_lb.errors import InputError, NoLogprobs
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits, compiled
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import Prior
from blackbox_lb.jobs.fitting.choosing.proposing import (
    BATCH,
    batch_calibration,
    calibrations,
)
from blackbox_lb.rollouts.answers.given_answers import first_completions
from blackbox_lb.rollouts.columns import columns
from blackbox_lb.rollouts.judging.decisions import own_label_tokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example

MOSTLY = 0.95
"""Share of the prompts whose answer must begin with a label under the chosen lift."""


async def calibrated(
    trials: Trials,
    examples: Sequence[Example],
    labels: Labels | None,
    listed: int | None,
    limits: CompileLimits,
) -> tuple[Positions, Candidate]:
    """The lists of ``examples`` as training data, and the calibrated bias.

    listed: alternatives of each list; None for as many as help.

    Raises:
        InputError: two labels begin with the same tokens. NoLogprobs: no list holds the labels.
    """
    tokens = None
    if labels is not None:
        tokens = await own_label_tokens(trials, labels)
    if tokens is None:
        raise InputError(
            "two of the labels begin with the same tokens, so that the first one does not tell them"
            " apart; rename one in the prompts and in ``labels``"
        )
    completions, width = await first_completions(trials, examples, "training", listed)
    rows = {
        f"{example.id}\0{number}": completion
        for number, (example, completion) in enumerate(zip(examples, completions, strict=True))
        if len(completion.token_ids) and len(completion.top_ids)
    }
    prior = batch_calibration([FirstLists.of(list(rows.values()))], tokens)
    if prior is None:
        raise NoLogprobs(
            f"none of {len(completions)} first tokens came with a list that holds a label; use a"
            " provider that returns more alternatives, or prompts that ask for the labels"
        )
    rollouts = columns(rows, range(len(rows)), [0.0] * len(rows), trials.end_tokens)
    positions = Positions.of(rollouts).with_tokens(prior.every_id)
    trials.report.notice(
        f"{len(rows):,} prompts without their answers, from lists of up to {width:,} tokens"
    )
    return positions, _lifted(prior, positions.next_token, limits)


def _lifted(prior: Prior, table: NextToken, limits: CompileLimits) -> Candidate:
    """The calibration with the smallest lift that makes nearly all answers begin with a label."""
    candidates = [
        compiled(proposal, table, limits)
        for proposal in calibrations([prior])
        if proposal.settings["calibration"] == BATCH
    ]
    for candidate in candidates:
        if _share_of_labels(candidate, prior.lifted, table) >= MOSTLY:
            return candidate
    return candidates[-1]


def _share_of_labels(candidate: Candidate, labels: Ids, table: NextToken) -> float:
    """The mean probability that the first token is one of a label."""
    sent = table.align(candidate.sparse.token_ids, candidate.sparse.values)
    is_label = np.isin(table.token_ids, labels).astype(np.float64)
    return float(table.mean(is_label, sent).mean())
