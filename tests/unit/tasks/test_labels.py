"""Labels of a decision: found in the data or named, spelled in several ways, read off a
completion.
"""

from __future__ import annotations

import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.tasks.sets.labels import MOST_LABELS, Labels, spellings
from blackbox_lb.types import Example, Prompt
from tests.support.errors import raises_naming

pytestmark = pytest.mark.quick


def rows(*answers: tuple[str, ...] | str) -> list[Example]:
    """An example for each answer, or tuple of accepted answers."""
    return [
        Example(
            str(number),
            Prompt.user(f"question {number}"),
            (each,) if isinstance(each, str) else each,
        )
        for number, each in enumerate(answers)
    ]


def test_spellings_differ_in_case_and_leading_space_alone() -> None:
    """Every spelling is the answer but for case and one space before it, and none stands twice."""
    found = spellings(["yes", "New York"])
    assert {"yes", " yes", "Yes", " YES", "New York", " new york"} <= set(found)
    assert len(set(found)) == len(found)
    assert {each.strip().casefold() for each in found} == {"yes", "new york"}
    assert spellings([" "]) == ()


def test_labels_are_the_few_answers_of_the_training_rows() -> None:
    """Case makes no label; too many answers, too few rows of each, one label or a row without an
    answer are no decision.
    """
    labels = Labels.found_in(rows(*["yes"] * 3, *["No"] * 2, "no"))
    assert labels is not None
    assert labels.names == ("No", "yes")
    assert Labels.found_in(rows("yes", "no")) is None
    assert Labels.found_in(rows(*["yes"] * 9)) is None
    assert (
        Labels.found_in([*rows(*["yes"] * 9, *["no"] * 9), Example("x", Prompt.user("?"))]) is None
    )
    many = [f"label {number}" for number in range(MOST_LABELS + 1) for _ in range(3)]
    assert Labels.found_in(rows(*many)) is None
    assert Labels.found_in(rows(*many[:-3])) is not None


def test_answers_beside_a_label_count_as_it() -> None:
    """A row's list of accepted answers says which texts are one label."""
    labels = Labels.named(["yes", "no"], rows(("yes", "correct"), "no", ("true", "Yes")))
    assert [
        labels.said(text)
        for text in ("Correct!", "TRUE.", "No, it is not true", "maybe", "yesterday")
    ] == [
        1 - 1,
        0,
        1,
        None,
        None,
    ]
    assert labels.of(rows("correct")[0]) == 0
    assert labels.of(rows("perhaps")[0]) is None
    assert labels.counts(rows("yes", "no", "no")) == {"no": 2, "yes": 1}


def test_the_label_that_a_text_begins_with_is_the_longest_one() -> None:
    """At word boundaries, whatever its case and signs; a label further on does not count."""
    labels = Labels.named(["not", "not sure", "2"], rows("not", "not sure", "2"))
    texts = {
        "Not sure, really": 1,
        " **not** today": 0,
        "nothing": None,
        "2, or 3": 2,
        "20": None,
        "It is 2": None,
        "": None,
    }
    assert {text: labels.begun(text) for text in texts} == texts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A good answer is B", "B"),
        ("Sure! A safe guess: C", "C"),
        ("A is right, not B", "A"),
        ("The answer is A.", "A"),
        ("Option A fits", "A"),
        ("A", "A"),
        ("**C**, a clear case", "C"),
        ("(b)", None),
        ("a matter of taste", None),
        ("I think it is C", "C"),
        ("I'm for B", "B"),
        ("I, because A and B are wrong", "I"),
        ("vitamin-C or e.g. a T-shirt: B", "B"),
        ("A. first\nB. second\nC. third", "A"),
        ("Word", None),
    ],
)
def test_a_letter_is_named_in_its_case_and_is_no_article(text: str, said: str | None) -> None:
    """The article "A" and the pronoun "I" name no label, nor do letters inside of words."""
    labels = Labels.named("ABCI", rows("A", "B", "C", "I"))
    number = labels.said(text)
    assert (None if number is None else labels.names[number]) == said
    for name in labels.names:
        assert labels.matcher(rows(name)[0], text) == (name == said)


def test_letters_keep_the_case_of_the_data() -> None:
    """What is learned is what counts as right; --labels may write them in another case."""
    assert spellings(["A"]) == ("A", " A")
    labels = Labels.named(["a", "b"], rows("A", "B"))
    assert labels.accepted == (frozenset("A"), frozenset("B"))
    assert labels.said("B, not A") == 1
    assert labels.of(rows("b")[0]) == 1


def test_right_is_the_first_label_named() -> None:
    """A model that repeats the list of labels names the first of the list and nothing else."""
    labels = Labels.named(["sport", "world", "not sport"], rows("sport", "world", "not sport"))
    parrot = "Is it sport, world or not sport?"
    assert [labels.matcher(rows(name)[0], parrot) for name in labels.names] == [True, False, False]
    assert labels.matcher(rows("not sport")[0], "It is not sport.")
    assert not labels.matcher(rows("sport")[0], "It is not sport.")
    assert not labels.matcher(rows("sport")[0], "None of these")


def test_a_row_that_accepts_two_labels_is_right_for_both() -> None:
    """They stay two labels; an answer that is no label counts as one more."""
    both = rows(("sport", "world"), "sport", "world")
    labels = Labels.named(["sport", "world"], both)
    assert labels.said("world") == 1
    assert [labels.matcher(both[0], text) for text in ("World.", "sport", "none")] == [
        True,
        True,
        False,
    ]
    (unseen,) = rows("business")
    assert labels.matcher(unseen, "Business, or world")
    assert not labels.matcher(unseen, "World, or business")


@pytest.mark.parametrize(
    ("names", "answers", "facts"),
    [
        (["yes"], ["yes"], ("'yes'", "``labels``")),
        (["yes", "YES "], ["yes"], ("'yes'", "``labels``")),
        (["yes", ""], ["yes"], ("'yes, '", "``labels``")),
        (["yes", "no"], ["yes", "maybe"], ("'1'", "'maybe'", "'yes, no'")),
    ],
)
def test_wrong_labels_are_refused(
    names: list[str], answers: list[str], facts: tuple[str, ...]
) -> None:
    """One label is no decision, and a row without a label is named."""
    with raises_naming(InputError, *facts):
        Labels.named(names, rows(*answers))
