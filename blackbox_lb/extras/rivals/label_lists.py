"""The base model's probability of each label at the first position of prompts, from one list of one
token each.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blackbox_lb.errors import InputError, NoLogprobs
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.jobs.evaluation.arms import Decided
from blackbox_lb.rollouts.answers.given_answers import bound_of, first_lists
from blackbox_lb.rollouts.judging.decisions import label_tokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import NO_TOKEN, Completion, Example


@dataclass(frozen=True, slots=True, eq=False)
class LabelLists:
    """logprobs: (p, l) nats, of all tokens that begin each label; NaN rows where no list came.
    prompt_tokens: mean over prompts.
    """

    logprobs: Vector
    prompt_tokens: float

    @property
    def shares(self) -> Vector:
        """(p, l) the probability of each label among the labels."""
        whole = np.logaddexp.reduce(self.logprobs, axis=1, keepdims=True)
        return np.asarray(np.exp(self.logprobs - whole))

    def decided(self, offsets: Vector) -> Decided:
        """The label with the highest logprob plus its offset (l,), in nats."""
        known = np.asarray(~np.isnan(self.logprobs).any(axis=1))
        best = np.where(
            known, np.where(known[:, None], self.logprobs + offsets, 0.0).argmax(axis=1), -1
        )
        return Decided(tuple(best.tolist()), self.prompt_tokens, 1.0)


async def label_lists(
    trials: Trials, examples: Sequence[Example], title: str, case: Case
) -> LabelLists:
    """Read the first list of each of ``examples``, drawn unless it is in the store.

    A prompt without a list has no decision. A label that a list misses gets the list's least
    probability, or its part of the unlisted mass, whichever is less. A remark counts both.

    Raises InputError: a label begins with no token of its own. NoLogprobs: no list came.
    ProviderError: the API failed.
    """
    tokens = await own_tokens(trials, case.labels)
    completions, width = await first_lists(trials, examples, title, case.listed)
    found = [_row(completion, tokens) for completion in completions]
    rows = np.array([row for row, _ in found], np.float64).reshape(-1, len(tokens))
    if np.isnan(rows).all():
        raise NoLogprobs(
            f"none of {len(rows)} first tokens came with a list of alternatives; use a provider"
            " that returns logprobs"
        )
    if silent := int(np.isnan(rows[:, 0]).sum()):
        trials.report.notice(
            f"{title}: {silent} of {len(rows)} prompts came without a list, and have no decision: a"
            " content filter stopped them, or the token that was drawn ends the answer and is not"
            " listed"
        )
    if missing := sum(count for _, count in found):
        trials.report.notice(
            f"{title}: {missing} of {rows.size} label probabilities are not in the lists of"
            f" {width:,} tokens and are bounded by their least one"
        )
    return LabelLists(
        rows, float(np.mean([completion.prompt_tokens for completion in completions]))
    )


async def own_tokens(trials: Trials, labels: Labels) -> list[Ids]:
    """(l,) the tokens that begin a spelling of each label and of no other. Raises InputError: a
    label has none.
    """
    found = await label_tokens(trials, labels)
    counts = Counter(token for ids in found for token in ids.tolist())
    own = [
        np.array([token for token in ids.tolist() if counts[token] == 1], np.int64) for ids in found
    ]
    for name, ids in zip(labels.names, own, strict=True):
        if not ids.size:
            raise InputError(
                f"no token of {trials.session.model} begins the label {name!r} and no other, so"
                " that one token cannot tell it from them; drop ``threshold`` and ``calibrate``, or"
                " rename the labels"
            )
    return own


def _row(completion: Completion, tokens: Sequence[Ids]) -> tuple[Vector, int]:
    """(l,) nats, and the number of bounds among them."""
    ids = completion.top_ids[0] if len(completion.top_ids) else np.zeros(0, np.int32)
    if not (ids >= 0).any():
        return np.full(len(tokens), np.nan), 0
    logprobs = completion.top_logprobs[0].astype(np.float64)
    listed = logprobs[ids != NO_TOKEN]
    row = np.array(
        [np.logaddexp.reduce(logprobs[np.isin(ids, token)], initial=-np.inf) for token in tokens]
    )
    missing = int(np.isneginf(row).sum())
    return np.where(np.isneginf(row), bound_of(listed, missing), row), missing
