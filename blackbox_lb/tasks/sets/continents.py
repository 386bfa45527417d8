"""A built-in task: which of five continents is a country in? A decision between fixed labels.

A small chat model knows more than it says: it begins a sentence, or names its favourite continent whatever the country, by margins
that countries share. A logit bias on the labels' first tokens takes those margins away.

The states are the members and observers of the United Nations in 2026, less those for which the question is no question:

- the state lies in two continents, or sources disagree on its continent (Armenia, Azerbaijan, Cyprus, East Timor, Egypt, Georgia,
  Indonesia, Kazakhstan, Russia, Turkey); territories apart from the rest of a state do not count (Ceuta, Hawaii, Socotra);
- its name contains the answer (Central African Republic, South Africa).

America is one label, north and south: sources disagree on the border between them, and every label is now one word.
"""

from __future__ import annotations

from blackbox_lb.tasks.sets.countries import country_task
from blackbox_lb.tasks.sets.task import Task

QUESTION = "Africa, America, Asia, Europe or Oceania: which continent is {country} in? Answer with one word."
CORRECT = r"regex:(?i)^\W*{answer}\b"
"""A completion is right where it begins with the label: one that lists all five names the first."""
MAX_TOKENS = 4
"""Room for a label of several tokens (Ocean-ia)."""


def load() -> Task:
    """The task, right where a completion begins with the label: 80 countries to train, 24 to validate and 79 to test."""
    return country_task("continents", "continent", QUESTION, correct=CORRECT, max_tokens=MAX_TOKENS)
