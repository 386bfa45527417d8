"""``python -m bench.gallery.writing``: what the completions of an evaluation of generated prose are
like, beside its reward.

It takes the words of ``blb eval``, and reads the completions of that evaluation from the store. For
each policy it counts words and repetition, and averages the logprobs that the model without a bias
gives the texts. It prints its table as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from bench.gallery.results import BASE
from bench.gallery.texts import Evaluated, Tables, Texts, difference, reading_program
from blackbox_lb import Completion

# The numbers that ``blb eval`` tells.
from blackbox_lb.jobs.evaluation.texts import repeated_share
from blackbox_lb.rollouts.judging.verdict import Array
from blackbox_lb.tasks.rewards.forms.avoid import count_words

__all__ = ["main"]

OPENING = 6
"""Tokens that may hold a decision with which a text begins."""
MARKED = (
    "Repeated 3-grams as a share of a text's 3-grams of words. * beyond chance against the base,"
    " without adjustment for several comparisons."
)
LIKELIHOOD = (
    "Logprob a token, in nats, by the model without a bias at temperature 1; of answers to another"
    " prompt it is not told."
)


def _later_logprob(completion: Completion) -> float:
    """The mean behind the first ``OPENING`` tokens; 0 where there are no more."""
    later = completion.logprobs[OPENING:]
    return float(later.mean()) if len(later) else 0.0


LOGPROB = f"logprob a token behind the first {OPENING}"
MEASURES: Mapping[str, Callable[[Completion], float]] = {
    "words": lambda completion: float(count_words(completion.text)),
    "repeated 3-grams": lambda completion: repeated_share(completion.text),
    LOGPROB: _later_logprob,
}


def _measured(texts: Texts, measure: str) -> Array:
    """(n,) the mean of a measure over the texts of each prompt."""
    return np.array([np.mean([MEASURES[measure](text) for text in row]) for row in texts])


async def texts_tables(evaluated: Evaluated) -> Tables:
    """Means over prompts, marked where the paired difference from the base is beyond chance."""
    measures = list(MEASURES)
    notes = [MARKED, LIKELIHOOD]
    if not evaluated.trials.session.tells_base_logprobs:
        measures.remove(LOGPROB)
        notes.remove(LIKELIHOOD)
    base = evaluated.policies[BASE]
    rows = []
    for name, texts in evaluated.policies.items():
        cells = [name]
        for measure in measures:
            if measure == LOGPROB and name in evaluated.instructed:
                cells.append("")
                continue
            values = _measured(texts, measure)
            cell = f"{values.mean():.2f}"
            _, low, high = difference(values, _measured(base, measure))
            if low > 0 or high < 0:
                cell += " *"
            cells.append(cell)
        rows.append(cells)
    title = f"The texts, {sum(map(len, base))} of each policy on {len(base)} test prompts"
    return [{"title": title, "head": ["policy", *measures], "rows": rows, "notes": notes}]


main = reading_program(__doc__, texts_tables)

if __name__ == "__main__":
    main()
