"""Rivals that decide by the list of a prompt's first token: ``threshold`` and ``calibrate``.

The base model's probability of each label is read from the list, and offsets are added to the
logprobs in this program. A bias on the label tokens with everything else forbidden would decide
alike, where labels are one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.label_fit import label_fit
from blackbox_lb.extras.rivals.case import Case, right
from blackbox_lb.jobs.evaluation.policies import Decided, Decides, Policy
from blackbox_lb.rollouts.answers.given_answers import first_completions, listed_places
from blackbox_lb.rollouts.judging.decisions import unshared_tokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example


@dataclass(frozen=True, slots=True, eq=False)
class LabelLists:
    """The base model's probability of each label at the first position of prompts.

    logprobs: (p, l) nats, of all tokens that begin each label; NaN rows where no list came.
    prompt_tokens: mean length of the prompts.
    """

    logprobs: Vector
    prompt_tokens: float

    @property
    def shares(self) -> Vector:
        """(p, l) the probability of each label among the labels."""
        totals = np.logaddexp.reduce(self.logprobs, axis=1, keepdims=True)
        return np.asarray(np.exp(self.logprobs - totals))

    def decided(self, offsets: Vector) -> Decided:
        """The label with the highest logprob plus its offset, for each prompt.

        offsets: (l,) nats.
        """
        has_list = ~np.isnan(self.logprobs).any(axis=1)
        best = np.full(len(self.logprobs), -1)
        best[has_list] = (self.logprobs[has_list] + offsets).argmax(axis=1)
        return Decided(tuple(best.tolist()), self.prompt_tokens, 1.0)


async def label_lists(
    trials: Trials, examples: Sequence[Example], title: str, case: Case, labels: Labels
) -> LabelLists:
    """Read the first list of each of ``examples``, drawn unless it is in the store.

    A prompt without a list has no decision. A label that a list misses gets the smallest listed
    probability, or its part of the unlisted mass, whichever is less. A notice counts both.

    Args:
        trials: draws the lists.
        examples: the prompts.
        title: name of the prompts in messages.
        case: the number of listed alternatives.
        labels: of the decision.

    Raises:
        InputError: no token begins a label and no other label.
        NoLogprobs: no list came.
        ProviderError: the API failed.
    """
    tokens = await distinctive_tokens(trials, labels)
    completions, width = await first_completions(trials, examples, title, case.listed)
    lists = FirstLists.of(completions)
    without_list = len(examples) - len(listed_places(lists))
    shares = lists.shares(tokens)[:, :-1]
    is_missing = lists.has_list[:, None] & (shares == 0)
    bounds = lists.bounds(is_missing.sum(axis=1))[:, None]
    rows = np.where(is_missing, bounds, np.log(np.where(shares == 0, 1.0, shares)))
    rows[~lists.has_list] = np.nan
    if without_list:
        trials.report.notice(
            f"{title}: {without_list} of {len(rows)} prompts came without a list, and have no"
            " decision: a content filter stopped them, or the token that was drawn ends the answer"
            " and is not listed"
        )
    bounded = int(is_missing.sum())
    if bounded:
        trials.report.notice(
            f"{title}: {bounded} of {rows.size} label probabilities are not in the lists of"
            f" {width:,} tokens and are bounded by their least one"
        )
    return LabelLists(
        rows, float(np.mean([completion.prompt_tokens for completion in completions]))
    )


async def distinctive_tokens(trials: Trials, labels: Labels) -> list[Ids]:
    """For each label, the tokens that begin a spelling of it and of no other label.

    Raises:
        InputError: a label has no such token.
    """
    tokens = await unshared_tokens(trials, labels)
    for name, ids in zip(labels.names, tokens, strict=True):
        if not ids.size:
            raise InputError(
                f"no token of {trials.session.model} begins the label {name!r} and no other, so"
                " that one token cannot tell it from them; drop ``rival=threshold`` and"
                " ``rival=calibrate``, or rename the labels"
            )
    return tokens


# --- threshold


def threshold(case: Case, _value: str) -> Policy:
    """``threshold``: an offset for each label, learned from the training answers.

    Raises:
        InputError: all training rows have the same label.
    """
    labels = case.decision("threshold")
    case.check_training("threshold")
    right(case.task, labels)
    rows = len(case.task.train)
    prompts = len(case.task.test)
    return Decides(
        rival="thresholds",
        decision=Thresholds(case, labels),
        tokens=1,
        cost=(
            f"1 token a test prompt ({prompts:,}), and once 1 token a training row ({rows:,}) for"
            " learning"
        ),
    )


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The decision argmax of log p(label | prompt) + offset of the label."""

    case: Case
    labels: Labels

    def lists(self) -> Sequence[Example]:
        return (*self.case.task.train, *self.case.task.test)

    async def decide(self, trials: Trials) -> Decided:
        case = self.case
        training = await label_lists(trials, case.task.train, "training", case, self.labels)
        test = await label_lists(trials, case.task.test, "test", case, self.labels)
        return test.decided(offsets(training.logprobs, right(case.task, self.labels)))


def offsets(logprobs: npt.ArrayLike, right: npt.ArrayLike) -> Vector:
    """The offsets that make the right labels most likely.

    They maximise ``sum_i log softmax(logprobs_i + offset)[right_i]``, which is concave. Rows with
    NaN, or with -1, are left out.

    Args:
        logprobs: (n, l) nats.
        right: (n,) numbers of labels, -1 for none.

    Returns:
        (l,) nats with mean 0; -inf for a label without a row.
    """
    table = np.asarray(logprobs, np.float64)
    truth = np.asarray(right, np.int64)
    usable = ~np.isnan(table).any(axis=1) & (truth >= 0)
    occurs = np.bincount(truth[usable], minlength=table.shape[1]) > 0
    result = np.full(len(occurs), -np.inf)
    if usable.any():
        columns = (np.cumsum(occurs) - 1)[truth[usable]]
        _, best = label_fit(table[usable][:, occurs], columns, l2=0.0)
        result[occurs] = best - best.mean()
    return result


# --- calibrate

CONTENT_FREE = ("N/A", "[MASK]", "")
"""The content-free inputs of Zhao et al. 2021."""


def calibrated(case: Case, value: str) -> Policy:
    """``calibrate``: label probabilities divided by a prior.

    contextual: the prior is that of prompts without content (Zhao et al. 2021, "Calibrate Before
    Use"). batch: it is the mean over the test prompts (Zhou et al. 2023, "Batch Calibration").

    Raises:
        InputError: ``value`` is neither "contextual" nor "batch".
    """
    labels = case.decision("calibrate")
    prompts = len(case.task.test)
    prior: Literal["contextual", "batch"]
    if value == "contextual":
        prior = "contextual"
        free = len(content_free(case.task.test))
        cost = f", and once 1 token for each of {free} inputs without content"
    elif value == "batch":
        prior = "batch"
        cost = "; it reads all test prompts, without their answers, before it decides on one"
    else:
        raise InputError(f"``rival=calibrate:{value}`` is not known; give contextual or batch")
    return Decides(
        rival=f"{prior} calibration",
        decision=Calibrated(case, labels, prior),
        tokens=1,
        cost=f"1 token a test prompt ({prompts:,}){cost}",
    )


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The decision argmax of p(label | prompt) / prior of the label."""

    case: Case
    labels: Labels
    prior: Literal["contextual", "batch"]

    def lists(self) -> Sequence[Example]:
        """The test prompts, and where the prior is contextual those without content."""
        test = self.case.task.test
        if self.prior == "contextual":
            return (*test, *content_free(test))
        return test

    async def decide(self, trials: Trials) -> Decided:
        """The prior is the mean share of each label, over the prompts that ``prior`` names."""
        test = await label_lists(trials, self.case.task.test, "test", self.case, self.labels)
        shares = test.shares
        if self.prior == "contextual":
            examples = content_free(self.case.task.test)
            lists = await label_lists(trials, examples, "without content", self.case, self.labels)
            shares = lists.shares
        return test.decided(-np.log(np.nanmean(shares, axis=0)))


def content_free(examples: Sequence[Example]) -> tuple[Example, ...]:
    """Prompts without content: "N/A", "[MASK]" or nothing where the prompts of ``examples`` differ.

    The common beginning and end of all last user messages stay, up to the border of a word. The
    other messages are those of the first prompt. An input without any text is left out.
    """
    if not examples:
        return ()
    first = examples[0]
    place = _last_user_place(first)
    messages = first.prompt.messages
    before, after = _around(
        [example.prompt.messages[_last_user_place(example)].content for example in examples]
    )
    texts = [f"{before}{content}{after}" for content in CONTENT_FREE]
    inputs: list[Example] = []
    for text in texts:
        if text.strip():
            changed = replace(messages[place], content=text)
            chat = (*messages[:place], changed, *messages[place + 1 :])
            prompt = replace(first.prompt, messages=chat)
            name = f"content-free {len(inputs)}"
            inputs.append(replace(first, id=name, prompt=prompt, answers=()))
    return tuple(inputs)


def _last_user_place(example: Example) -> int:
    """The place of the last user message; of the last message where none is a user's."""
    messages = example.prompt.messages
    for place in reversed(range(len(messages))):
        if messages[place].role == "user":
            return place
    return len(messages) - 1


def _around(texts: Sequence[str]) -> tuple[str, str]:
    """The common beginning and end of all of ``texts``, in whole words; "" where all are equal."""
    if len(set(texts)) < 2:
        return "", ""
    before = _common(texts)
    after = _common([text[len(before) :][::-1] for text in texts])
    return before, after[::-1]


def _common(texts: Sequence[str]) -> str:
    """The longest beginning of all of ``texts`` that does not end in a word."""
    # All texts lie between these two in the order of letters, and so share their beginning.
    length = 0
    for first, last in zip(min(texts), max(texts), strict=False):
        if first != last:
            break
        length += 1
    common = texts[0][:length]
    while common and common[-1].isalnum():
        common = common[:-1]
    return common
