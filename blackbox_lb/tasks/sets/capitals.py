"""A built-in task: what is the capital of a country? A prompt has one right answer.

The states are the members and observers of the United Nations in 2026, less those for which the question is no question:

- an accepted answer, normalised, occurs in the prompt, or the country in an accepted answer (Singapore, Mexico City, Tunis);
- the capital is in dispute between states (Israel, Palestine), or there is no official one (Nauru);
- another place of that name has a capital of its own (Georgia).

Accepted are the capital in English, in other common spellings, in the country's language where a model may answer in it, and
under a former name of the same city (Nur-Sultan). More than one city is accepted where the constitution or the government calls
more than one a capital, or where it lies in one city and the government in another: Benin, Bolivia, Eswatini, Ivory Coast, South
Africa, Sri Lanka; and Equatorial Guinea, which declared Ciudad de la Paz (Djibloho, Oyala) its capital in January 2026 and gave its
institutions a year to move from Malabo.
"""

from __future__ import annotations

from blackbox_lb.tasks.sets.countries import country_task
from blackbox_lb.tasks.sets.task import Task

QUESTION = "What is the capital of {country}?"
MAX_TOKENS = 48
"""Small chat models answer this question in 10 to 40 tokens."""


def load() -> Task:
    """The task, its answers accepted by ``contains``: 80 countries to train, 24 to validate and 73 to test."""
    return country_task("capitals", "capitals", QUESTION, correct="contains", max_tokens=MAX_TOKENS)
