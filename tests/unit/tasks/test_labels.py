"""Labels of a decision: found in the data or named, spelled in several ways, read off a
completion.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Literal

import pytest

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.jobs.runs.conclusion import understood
from blackbox_lb.tasks import Task, load_task, parse_reward
from blackbox_lb.tasks.sets.labels import (
    MOST_LABELS,
    OPENING,
    OTHER,
    Labels,
    OpenLabels,
    labels_of_task,
)
from blackbox_lb.types import Completion, Example, Prompt, ToolCall, with_calls
from tests.support.commands import blb
from tests.support.errors import raises_naming
from tests.support.questions import write_rows

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


def test_rows_to_choose_on_count() -> None:
    """Four rows to learn from are too few for two labels, nine with those to choose on are not; the
    first line of a fit says how other answers were taken.
    """
    examples = rows(*"yyynyynnn", *"yn" * 5)
    task = Task("few", tuple(examples[:4]), tuple(examples[4:9]), tuple(examples[9:]))
    labels = labels_of_task(None, None, task)
    assert labels is not None
    assert sorted(labels.names) == ["n", "y"]
    texts = Task("texts", tuple(rows("a", "b")), tuple(rows("c")), tuple(rows("d")), max_tokens=4)
    assert labels_of_task(None, None, texts) is None
    reward = parse_reward("contains", max_tokens=4)
    assert "answers: 4 different ones, taken as texts" in understood(texts, reward, None)


def test_answers_beside_a_label_count_as_it() -> None:
    """A row's list of accepted answers says which texts are one label."""
    labels = Labels.named(["yes", "no"], rows(("yes", "correct"), "no", ("true", "Yes")))
    assert [
        labels.said(text)
        for text in ("Correct!", "TRUE.", "No, it is not true", "maybe", "yesterday")
    ] == [0, 0, 1, None, None]
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
        ("Option A fits", "A"),
        ("**C**, a clear case", "C"),
        ("(b)", None),
        ("I think it is C", "C"),
        ("I'm for B", "B"),
        ("I, because A and B are wrong", "I"),
        ("vitamin-C or e.g. a T-shirt: B", "B"),
        ("A. first\nB. second\nC. third", "A"),
    ],
)
def test_a_letter_is_named_in_its_case_and_is_no_article(text: str, said: str | None) -> None:
    """The article "A" and the pronoun "I" name no label, nor do letters inside of words."""
    labels = Labels.named("ABCI", rows("A", "B", "C", "I"))
    number = labels.said(text)
    assert (None if number is None else labels.names[number]) == said
    for name in labels.names:
        assert labels.matcher(rows(name)[0], text) == (name == said)


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
        (["yes", "YES "], ["yes"], ("'yes'", "'YES '", "``labels``")),
        (["yes", "yes.", "no"], [], ("'yes'", "'yes.'", "``labels``")),
        (["yes", "...", "no"], [], ("'...'", "``labels``")),
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


ALIKE = [
    ["C", "C++", "C#", "Java"],
    ["A+", "A", "A-", "B"],
    ["A*", "A", "B"],
    ["AA", "AA-", "AA+", "BBB-", "BBB"],
    ["1", "+1", "-1", "2"],
    ["5", "5%", "$5"],
    ["1 2", "1/2"],
    ["R", "R&D"],
    ["+", "0", "="],
    ["👍", "👎"],
    ["かき", "かぎ"],
    ["เสื้อ", "เสือ", "แมว"],
    ["कर्म", "करम"],
    ["có", "cỏ", "co"],
    ["мой", "мои"],
    ["café", "cafe"],
    ["bør", "bor"],
    ["șes", "ses"],
]
"""Labels that differ in a sign or in a mark alone."""
FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")
SENTENCES = [
    "{}",
    "{}.",
    "**{}**",
    "“{}”, of course",
    "The answer is {}.",
    "Answer: *{}*\nBecause I say so.",
]


@pytest.mark.parametrize("names", ALIKE, ids="/".join)
def test_signs_and_marks_tell_labels_apart(names: list[str]) -> None:
    """Found or named they stay as many, and a completion names the one that it holds, in either
    form of composition.
    """
    data = rows(*names * 3)
    found = Labels.found_in(data)
    assert found is not None
    assert set(found.names) == set(names)
    for labels in (found, Labels.named(names, data), Labels.named(names, [])):
        assert labels.counts(data) == dict.fromkeys(labels.names, 3)
        for number, name in enumerate(labels.names):
            (example,) = rows(name)
            assert labels.of(example) == number
            for sentence in SENTENCES:
                for form in FORMS:
                    text = unicodedata.normalize(form, sentence.format(name))
                    assert labels.said(text) == number, text
                    assert labels.matcher(example, text)
            for form in FORMS:
                assert labels.begun(unicodedata.normalize(form, f"{name}, that is")) == number


@pytest.mark.parametrize(
    ("names", "text", "expected"),
    [
        (["C", "C++", "Java"], "C++17", "C++"),
        (["C", "Java"], "C++", None),
        (["C", "Java"], "C#, or Java", "Java"),
        (["A", "A-", "A+"], "A - the best", "A"),
        (["A", "B"], "A- Paris", "A"),
        (["+", "-"], "well-known", None),
        (["café", "thé"], "Cafe", "café"),
        (["cafe", "the"], "Café", "cafe"),
        (["có", "cỏ"], "co", None),
        (["72", "5"], "$72", "72"),
        (["72", "5"], "2*36=72", "72"),
    ],
)
def test_the_longest_label_is_named_and_an_accent_may_lack(
    names: list[str], text: str, expected: str | None
) -> None:
    """A sign that belongs to a word makes it another; an accent counts only where labels differ in
    it alone.
    """
    number = Labels.named(names, []).said(text)
    assert (None if number is None else names[number]) == expected


def test_a_label_is_spelled_as_most_rows_write_it() -> None:
    """Case, white space, width and the form of composition make no label."""
    data = rows(
        *["Billing"] * 5, "billing", " BILLING", *["Caf\u00e9"] * 3, "Cafe\u0301", "ｃａｆ\u00e9"
    )
    labels = Labels.found_in(data)
    assert labels is not None
    assert labels.names == ("Billing", "Caf\u00e9")
    assert labels.counts(data) == {"Billing": 7, "Caf\u00e9": 5}


@pytest.mark.parametrize(
    "names", [("Yes", "Yes."), ("1,000", "1000"), ("(b)", "b"), ("e-mail", "e mail")]
)
def test_answers_that_differ_in_punctuation_alone_are_refused(names: tuple[str, str]) -> None:
    """Both are named; named labels say which of them is meant."""
    data = rows(*names * 3, *["other"] * 3)
    with raises_naming(DataError, "'0'", "'1'", f"{names[0]!r}", f"{names[1]!r}"):
        Labels.found_in(data)
    labels = Labels.named([names[0], "other"], data)
    assert labels.counts(data) == {names[0]: 6, "other": 3}


def test_the_command_counts_the_labels_that_it_is_given(tmp_path: Path) -> None:
    """Found or named, the dry run counts each; two names of one label are refused."""
    names = ["C", "C++", "C#", "Java"]
    data = rows_with(tmp_path / "d.jsonl", "answer", *names)
    fit = ("fit", "--provider", "vllm", "--base-url", "http://127.0.0.1:9/v1", "--data", data)
    plan = ("--reward", "accuracy", "--max-tokens", 4, "--out", tmp_path / "run", "--dry-run")
    for more in ((), ("--labels", "C,C++,C#,Java")):
        result = blb(*fit, *plan, *more)
        assert result.exit_code == 0, result.output
        for name in names:
            assert f"{name} 15" in result.output
    result = blb(*fit, *plan, "--labels", "C,C++,C#,Java,java")
    assert result.exit_code == 2
    assert "'Java'" in result.output
    assert "'java'" in result.output


@pytest.mark.parametrize(
    ("labels", "is_refused"),
    [
        (("A+", "A-"), False),
        (("かき", "かぎ"), False),
        (("yes", "Yes "), True),
        (("yes", "yes."), True),
    ],
)
def test_wanted_shares_are_of_labels_as_they_are_written(
    tmp_path: Path, labels: tuple[str, str], is_refused: bool
) -> None:
    """Grades keep shares of their own; two spellings of one label are refused by both names, and
    neither share is lost.
    """
    shares = {labels[0]: 0.2, labels[1]: 0.3, "other": 0.5}
    data = rows_with(tmp_path / "d.jsonl", "answer", shares)
    if is_refused:
        with raises_naming(DataError, f"{labels[0]!r}", f"{labels[1]!r}"):
            load_task(data=data)
        return
    example = load_task(data=data).train[0]
    task_labels = Labels.of_shares([example])
    assert task_labels.names == tuple(shares)
    assert task_labels.shares(example) == pytest.approx(tuple(shares.values()))


# Open labels: an opening against everything else

CALLS = OpenLabels.parse("calls-tool")
SORRY = OpenLabels.parse("begins-with:Sorry,I cannot")


@pytest.mark.parametrize(
    ("labels", "text", "expected"),
    [
        (CALLS, with_calls("", [ToolCall("weather", "{}")]), OPENING),
        (CALLS, '{"name": "weather"', OPENING),
        (CALLS, " ```json\n{", OPENING),
        (CALLS, "It rains.", OTHER),
        (CALLS, "", OTHER),
        (SORRY, "Sorry, no.", OPENING),
        (SORRY, "\nI cannot say.", OPENING),
        (SORRY, "I can. Sorry!", OTHER),
    ],
)
def test_every_text_has_one_of_both_labels(labels: OpenLabels, text: str, expected: int) -> None:
    """The beginning decides, and everything else is the other label."""
    assert labels.said(text) == expected
    assert labels.right([labels.names[expected]], text)
    assert not labels.right([labels.names[1 - expected]], text)


@pytest.mark.parametrize("spec", ["calls", "begins-with:", "begins-with:a,,b", "begins-with", ""])
def test_another_form_is_refused(spec: str) -> None:
    """A decision names its opening."""
    with pytest.raises(InputError):
        OpenLabels.parse(spec)


def test_a_name_reads_as_it_was_given() -> None:
    """Both forms."""
    assert (CALLS.spec, SORRY.spec) == ("calls-tool", "begins-with:Sorry,I cannot")
    assert (CALLS.names, SORRY.names) == (("call", "answer"), ("begins", "other"))


def rows_with(path: Path, column: str, *wants: object) -> Path:
    """A data file of questions that want this in turn."""
    return write_rows(path, [{"prompt": f"Q{n}", column: wants[n % len(wants)]} for n in range(60)])


@pytest.mark.parametrize("column", ["want", "answer"])
def test_the_given_answer_stands_in_want_or_answer(tmp_path: Path, column: str) -> None:
    """Rows say what they want in either column."""
    path = rows_with(tmp_path / "a.jsonl", column, "call", "Answer")
    task = load_task(data=path, decide="calls-tool")
    labels = labels_of_task("calls-tool", None, task)
    assert isinstance(labels, OpenLabels)
    counts = labels.counts([*task.train, *task.validation, *task.test])
    assert counts == {"call": 30, "answer": 30}
    reward = parse_reward("accuracy", max_tokens=1, labels=labels)
    completion = Completion.empty("stop")
    assert reward.correct(Example("1", Prompt.user("Q"), ("answer",)), completion)
    assert not reward.correct(Example("1", Prompt.user("Q"), ("call",)), completion)


@pytest.mark.parametrize(
    ("want", "names"), [("wait", None), ("answer", ["yes", "no"])], ids=["another want", "labels"]
)
def test_what_is_neither_of_both_is_refused(
    tmp_path: Path, want: str, names: list[str] | None
) -> None:
    """Every row wants one of both labels, and an opening has no labels of the user's."""
    task = load_task(
        data=rows_with(tmp_path / "a.jsonl", "want", "call", want), decide="calls-tool"
    )
    with pytest.raises(InputError):
        labels_of_task("calls-tool", names, task)
