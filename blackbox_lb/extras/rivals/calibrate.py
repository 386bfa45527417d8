"""``calibrate``: label probabilities divided by those without content, or by their average.

contextual: Zhao et al. 2021, "Calibrate Before Use". batch: Zhou et al. 2023, "Batch Calibration".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.extras.rivals.label_lists import label_lists
from blackbox_lb.jobs.evaluation.arms import Alternative, Decided
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.types import Example, Message

CONTENT_FREE = ("N/A", "[MASK]", "")
"""The content-free inputs of Zhao et al. 2021."""


def calibrated(case: Case, given: object) -> Alternative:
    """``contextual`` or ``batch``. InputError: another name."""
    prompts = len(case.task.test)
    if given == "contextual":
        free = len(content_free(case.task.test))
        cost = (
            f"1 token a test prompt ({prompts:,}), and once 1 token for each of {free} inputs"
            " without content"
        )
        return Alternative(
            "contextual calibration",
            decision=Calibrated(case, "contextual"),
            max_tokens=1,
            cost=cost,
        )
    if given == "batch":
        cost = (
            f"1 token a test prompt ({prompts:,}); it reads all test prompts, without their"
            " answers, before it decides on one"
        )
        return Alternative(
            "batch calibration", decision=Calibrated(case, "batch"), max_tokens=1, cost=cost
        )
    raise InputError(f"``calibrate={given}`` is not known; give contextual or batch")


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The decision argmax of p(label | prompt) / prior of the label."""

    case: Case
    prior: Literal["contextual", "batch"]

    def lists(self) -> Sequence[Example]:
        """The test prompts, and where the prior is contextual those without content."""
        test = self.case.task.test
        return (*test, *content_free(test)) if self.prior == "contextual" else test

    async def decide(self, trials: Trials) -> Decided:
        """The prior is the mean share of each label, over inputs without content or over the test
        prompts themselves.
        """
        test = await label_lists(trials, self.case.task.test, "test", self.case)
        seen = test
        if self.prior == "contextual":
            seen = await label_lists(
                trials, content_free(self.case.task.test), "without content", self.case
            )
        return test.decided(-np.log(np.nanmean(seen.shares, axis=0)))


def content_free(examples: Sequence[Example]) -> tuple[Example, ...]:
    """Prompts without content: those of ``examples`` with "N/A", "[MASK]" and nothing in the place
    where they differ.

    The common beginning and end of all last user messages, up to the border of a word, stay; the
    other messages are those of the first prompt. An input without any text is left out.
    """
    if not examples:
        return ()
    messages = list(examples[0].prompt.messages)
    users = [place for place, message in enumerate(messages) if message.role == "user"]
    place = users[-1] if users else len(messages) - 1
    before, after = _around([_asked(example) for example in examples])
    texts = [text for content in CONTENT_FREE if (text := f"{before}{content}{after}").strip()]
    return tuple(
        replace(
            examples[0],
            id=f"content-free {number}",
            prompt=replace(
                examples[0].prompt,
                messages=(
                    *messages[:place],
                    Message(messages[place].role, text),
                    *messages[place + 1 :],
                ),
            ),
            answers=(),
        )
        for number, text in enumerate(texts)
    )


def _asked(example: Example) -> str:
    """The last user message, or the last one where there is none."""
    messages = example.prompt.messages
    return next(
        (message.content for message in reversed(messages) if message.role == "user"),
        messages[-1].content,
    )


def _around(texts: Sequence[str]) -> tuple[str, str]:
    """The common beginning and end of all of ``texts``, in whole words; nothing where all are the
    same.
    """
    if len(set(texts)) < 2:
        return "", ""
    before = _common(texts)
    after = _common([text[len(before) :][::-1] for text in texts])
    return before, after[::-1]


def _common(texts: Sequence[str]) -> str:
    """The longest beginning of all of ``texts`` that does not end in a word."""
    ends = zip(
        min(texts), max(texts), strict=False
    )  # all texts between these two share their beginning
    found = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], ends))
    while found and found[-1].isalnum():
        found = found[:-1]
    return found
