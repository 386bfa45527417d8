"""``python -m bench.gallery.writing``: what the completions of an evaluation of generated prose are
like, beside its reward.

It takes the words of ``blb eval``, and reads the completions of that evaluation from the store. For
each policy it counts words and repetition, and averages the logprobs that the model without a bias
gives the texts. It prints its table as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import numpy as np

from bench.gallery.results import BASE
from bench.gallery.texts import Evaluated, Texts, difference, reading_program
from blackbox_lb import Completion

# The numbers that ``blb eval`` tells.
from blackbox_lb.jobs.evaluation.texts import repeated_share
from blackbox_lb.tasks.rewards.forms.avoid import count_words

__all__ = ["MEASURES", "compared", "main"]

OPENING = 6
"""Tokens that may hold a decision with which a text begins."""
MARKED = (
    "Repeated 3-grams as a share of a text's 3-grams of words. * beyond chance against the base,"
    " without adjustment for several comparisons."
)
LIKELIHOOD = "Logprob a token, in nats, by the model without a bias at temperature 1."
INSTRUCTED = "† After a prompt with the instruction, so no likelihood under the plain one."


def _logprob(completion: Completion) -> float:
    return float(completion.logprobs.mean()) if len(completion.logprobs) else 0.0


def _later_logprob(completion: Completion) -> float:
    """The mean behind the first ``OPENING`` tokens; 0 where there are no more."""
    later = completion.logprobs[OPENING:]
    return float(later.mean()) if len(later) else 0.0


LOGPROB = "logprob a token"
LATER_LOGPROB = f"{LOGPROB} behind the first {OPENING}"
MEASURES: Mapping[str, Callable[[Completion], float]] = {
    "words": lambda completion: float(count_words(completion.text)),
    "repeated 3-grams": lambda completion: repeated_share(completion.text),
    LOGPROB: _logprob,
    LATER_LOGPROB: _later_logprob,
}
USUAL = tuple(measure for measure in MEASURES if measure != LATER_LOGPROB)


def compared(
    policies: Mapping[str, Texts], measures: Sequence[str], instructed: Sequence[str] = ()
) -> dict[str, Any]:
    """The table of measures: means over prompts, marked where the paired difference from the base
    is beyond chance.

    A policy of ``instructed`` has its logprobs marked: they are those of another prompt.
    """
    values = {
        name: {
            measure: [np.array([MEASURES[measure](text) for text in row]) for row in texts]
            for measure in measures
        }
        for name, texts in policies.items()
    }
    rows = []
    for name, by_measure in values.items():
        cells = [name]
        for measure, measured in by_measure.items():
            cell = f"{np.mean([value.mean() for value in measured]):.2f}"
            _, low, high = difference(measured, values[BASE][measure])
            if name != BASE and (low > 0 or high < 0):
                cell += " *"
            if measure in (LOGPROB, LATER_LOGPROB) and name in instructed:
                cell += " †"
            cells.append(cell)
        rows.append(cells)
    notes = [MARKED]
    if {LOGPROB, LATER_LOGPROB} & set(measures):
        notes.append(LIKELIHOOD)
        if instructed:
            notes.append(INSTRUCTED)
    texts = policies[BASE]
    title = f"The texts, {sum(map(len, texts))} of each policy on {len(texts)} test prompts"
    return {"title": title, "head": ["policy", *measures], "rows": rows, "notes": notes}


async def _tables(evaluated: Evaluated, measure: Sequence[str]) -> list[dict[str, Any]]:
    measures = list(measure)
    if not evaluated.trials.session.tells_base_logprobs:
        measures = [name for name in measures if name not in (LOGPROB, LATER_LOGPROB)]
    return [compared(evaluated.policies, measures, evaluated.instructed)]


main = reading_program(
    __doc__,
    _tables,
    click.Option(["--measure"], multiple=True, type=click.Choice(list(MEASURES)), default=USUAL),
)

if __name__ == "__main__":
    main()
