"""``Run.decide``: calibrated labels of new prompts, from one token a prompt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from blackbox_lb.api.connect import connect
from blackbox_lb.jobs.deciding import (
    ABSTAIN_BELOW,
    LabelDecision,
    calibration_of_bias,
    label_decision,
)
from blackbox_lb.jobs.runs.blocking import running_budget
from blackbox_lb.jobs.runs.names import STORE
from blackbox_lb.jobs.runs.opening import checked_tokenizer, trials_in
from blackbox_lb.rollouts.answers.given_answers import first_lists, listed_tokens
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.types import Example, Prompt

if TYPE_CHECKING:
    from blackbox_lb.jobs.runs.run import Run

NEEDS = ("tokens.id", "neutral")
"""Rows of a profile that lists of next tokens need."""


async def decide_async(
    run: Run, prompts: Iterable[str | Prompt], *, abstain_below: float = ABSTAIN_BELOW
) -> tuple[LabelDecision, ...]:
    """See ``Run.decide``."""
    calibration = calibration_of_bias(run.bias, abstain_below)
    asked = [Prompt.user(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    if not asked:
        return ()
    distinct = [_example(prompt) for prompt in dict.fromkeys(asked)]
    budget = running_budget()
    longest = max(len(prompt.text) for prompt in asked)
    async with connect(
        **run.server, max_tokens=1, longest_prompt=longest, needs=NEEDS, budget=budget
    ) as session:
        tokenizer = await checked_tokenizer(session)
        run.bias.check_tokenizer(tokenizer.fingerprint)
        with trials_in(
            run.folder,
            run.folder / STORE,
            session,
            tokenizer,
            run.task,
            run.reward,
            report=Silent(),
            budget=budget,
        ) as trials:
            silent = replace(trials, used=set())
            completions, _ = await first_lists(silent, distinct, "decide", None)
    lists = {
        example.prompt: listed_tokens(completion)
        for example, completion in zip(distinct, completions, strict=True)
    }
    return tuple(
        label_decision(run.bias, calibration, prompt, lists[prompt], abstain_below)
        for prompt in asked
    )


def _example(prompt: Prompt) -> Example:
    """The prompt as a row without an answer."""
    text = "\0".join(f"{message.role}\0{message.content}" for message in prompt.messages)
    text += prompt.tools
    return Example(sha256(text.encode()).hexdigest()[:16], prompt)
