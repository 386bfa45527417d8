"""The built-in tasks, which all ask about countries, and the reading of their tables. None of them
needs a network.

A table has a row for each country: its name, the article that English wants before it, the accepted
answers (between them a |), and its split. The splits are not hand-picked: in the order of SHA-256
of "TASK:COUNTRY", the first 80 countries are train, the next 24 validation and the rest test. The
file records the result.
"""

import csv
from importlib.resources import files

from blackbox_lb.tasks.records.files import SPLIT_NAMES, SourcedExample
from blackbox_lb.tasks.sets.task import Task
from blackbox_lb.types import Example, Prompt, Split


def country_task(name: str, column: str, question: str, *, correct: str, max_tokens: int) -> Task:
    """Load the task of the table NAME.csv with answers in ``column``; ``question`` has {country} in
    the country's place.
    """
    splits: dict[Split, list[SourcedExample]] = {split: [] for split in SPLIT_NAMES.values()}
    text = files("blackbox_lb.tasks.sets").joinpath(f"{name}.csv").read_text("utf-8")
    for record in csv.DictReader(text.splitlines()):
        prompt = Prompt.user(
            question.format(country=f"{record['article']} {record['country']}".lstrip())
        )
        example = Example(f"{name}:{record['country']}", prompt, tuple(record[column].split("|")))
        splits[SPLIT_NAMES[record["split"]]].append(
            SourcedExample(example, f"{name}.csv, {record['country']}")
        )
    return Task.from_splits(name, splits, correct=correct, max_tokens=max_tokens)


def capitals() -> Task:
    """What is the capital of a country? 80 countries to train, 24 to validate and 73 to test; a
    prompt has one right answer.

    The states are the members and observers of the United Nations in 2026, less those for which the
    question is no question:

    - an accepted answer, normalised, occurs in the prompt, or the country in an accepted answer
    (Singapore, Mexico City, Tunis);
    - the capital is in dispute between states (Israel, Palestine), or there is no official one
    (Nauru);
    - another place of that name has a capital of its own (Georgia).

    Accepted are the capital in English, in other common spellings, in the country's language where
    a model may answer in it, and under a former name of the same city (Nur-Sultan). More than one
    city is accepted where the constitution or the government calls more than one a capital, or
    where it lies in one city and the government in another: Benin, Bolivia, Eswatini, Ivory Coast,
    South Africa, Sri Lanka; and Equatorial Guinea, which declared Ciudad de la Paz (Djibloho,
    Oyala) its capital in January 2026 and gave its institutions a year to move from Malabo. Small
    chat models answer the question in 10 to 40 tokens.
    """
    return country_task(
        "capitals",
        "capitals",
        "What is the capital of {country}?",
        correct="contains",
        max_tokens=48,
    )


def continents() -> Task:
    """Which of five continents is a country in? A decision between fixed labels; 80 countries to
    train, 24 to validate, 79 to test.

    A small chat model knows more than it says: it begins a sentence, or names its favourite
    continent whatever the country, by margins that countries share. A logit bias on the labels'
    first tokens takes those margins away. A completion is right where it begins with the label: one
    that lists all five names the first. It has room for a label of several tokens (Ocean-ia).

    The states are the members and observers of the United Nations in 2026, less those for which the
    question is no question:

    - the state lies in two continents, or sources disagree on its continent (Armenia, Azerbaijan,
    Cyprus, East Timor, Egypt,
      Georgia, Indonesia, Kazakhstan, Russia, Turkey); territories apart from the rest of one do not
      count (Ceuta, Hawaii, Socotra);
    - its name contains the answer (Central African Republic, South Africa).

    America is one label, north and south: sources disagree on the border between them, and every
    label is now one word.
    """
    question = (
        "Africa, America, Asia, Europe or Oceania: which continent is {country} in? Answer with one"
        " word."
    )
    return country_task(
        "continents", "continent", question, correct=r"regex:(?i)^\W*{answer}\b", max_tokens=4
    )
