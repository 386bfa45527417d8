"""Labels of a decision: found in the data or named, spelled in several ways, read off a
completion.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Literal

import pytest

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.tasks import Task, load_examples, load_task, parse_reward
from blackbox_lb.tasks.rewards.normalising import normalise
from blackbox_lb.tasks.sets.labels import Labels, OpenLabels, labels_of_task
from blackbox_lb.types import Completion, Example, Prompt, ToolCall, with_calls
from tests.support.commands import blb, options, refused
from tests.support.errors import names as named_in
from tests.support.errors import raises_naming
from tests.support.questions import write_rows

pytestmark = pytest.mark.quick


def rows(*answers: tuple[str, ...] | str) -> list[Example]:
    """An example for each answer, or tuple of accepted answers."""
    return [
        Example(
            str(n), Prompt.user(f"question {n}"), (answer,) if isinstance(answer, str) else answer
        )
        for n, answer in enumerate(answers)
    ]


def found_in(examples: list[Example]) -> Labels:
    """The labels that the examples have."""
    labels = Labels.found_in(examples)
    assert labels is not None
    return labels


# Which texts are labels


def test_texts_are_not_read_as_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long answers of many rows are normalised no more often than there may be labels: of 100,000
    rows it would take minutes.
    """
    read = list[str]()

    def counting(text: str) -> str:
        read.append(text)
        return normalise(text)

    for module in ("sets.labels", "records.shares"):
        monkeypatch.setattr(f"blackbox_lb.tasks.{module}.normalise", counting)
    data = [{"prompt": f"p{n}", "answer": f"a text of row {n}"} for n in range(300)]
    load_task(data=write_rows(tmp_path / "d.jsonl", data))
    assert len(read) <= 51


def test_labels_are_the_few_answers_of_the_rows() -> None:
    """Case, width and the form of composition make no label, and the commonest spelling names it;
    too many answers, too few rows of each, one label or a row without an answer are no decision.
    """
    data = rows(
        *["Billing"] * 5, "billing", " BILLING", *["Caf\u00e9"] * 3, "Cafe\u0301", "ｃａｆ\u00e9"
    )
    labels = found_in(data)
    assert labels.counts(data) == {"Billing": 7, "Caf\u00e9": 5}
    many = [f"label {number}" for number in range(51) for _ in range(3)]
    assert len(found_in(rows(*many[:-3])).names) == 50
    for examples in (
        rows(*many),
        rows("yes", "no"),
        rows(*["yes"] * 9),
        [*rows(*["yes"] * 9, *["no"] * 9), Example("x", Prompt.user("?"))],
    ):
        assert Labels.found_in(examples) is None


def test_rows_to_choose_on_count() -> None:
    """Four rows to learn from are too few for two labels, nine with those to choose on are not."""
    examples = tuple(rows(*"yyynyynnn", *"yn" * 5))
    task = Task("few", examples[:4], examples[4:9], examples[9:])
    assert Labels.found_in(task.train) is None
    labels = labels_of_task(None, None, task)
    assert labels is not None
    assert sorted(labels.names) == ["n", "y"]


def test_answers_beside_a_label_count_as_it(tmp_path: Path) -> None:
    """A row's list of accepted answers says which texts are one label; answers of another row of
    the same prompt are labels of their own.
    """
    labels = Labels.named(["yes", "no"], rows(("yes", "correct"), "no", ("true", "Yes")))
    texts = ("Correct!", "TRUE.", "No, it is not true", "maybe", "yesterday")
    assert [labels.said(text) for text in texts] == [0, 0, 1, None, None]
    assert labels.of(rows("correct")[0]) == 0
    assert labels.of(rows("perhaps")[0]) is None
    data = [{"prompt": f"p{n}", "answer": ["yes", "yep"]} for n in range(4)]
    data += [{"prompt": f"n{n}", "answer": "no"} for n in range(4)]
    data += [{"prompt": "p0", "answer": "no"}, {"prompt": "p0", "answer": "maybe"}]
    joined = found_in(load_examples(write_rows(tmp_path / "a.jsonl", data)))
    assert joined.names == ("maybe", "no", "yes")
    assert joined.accepted[2] == frozenset({"yes", "yep"})


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
    where = options(provider="vllm", base_url="http://127.0.0.1:9/v1", data=data)
    plan = options(reward="accuracy", max_tokens=4, out=tmp_path / "run")
    fit = ("fit", *where, *plan, "--dry-run")
    for labels in ((), ("--labels", "C,C++,C#,Java")):
        result = blb(*fit, *labels)
        assert result.exit_code == 0, result.output
        assert all(f"{name} 15" in result.output for name in names)
    assert named_in(refused(*fit, "--labels", "C,C++,C#,Java,java"), "'Java'", "'java'")


# Which label a text names

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
    ["bør", "bor"],
    ["șes", "ses"],
]
"""Labels that differ in a sign or in a mark alone."""
FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")
SENTENCES = ["{}.", "**{}**", "“{}”, of course", "The answer is {}.", "Answer: *{}*\nI say so."]


@pytest.mark.parametrize("names", ALIKE, ids="/".join)
def test_signs_and_marks_tell_labels_apart(names: list[str]) -> None:
    """Found or named they stay as many, and a completion names the one that it holds, in either
    form of composition.
    """
    data = rows(*names * 3)
    assert set(found_in(data).names) == set(names)
    for labels in (found_in(data), Labels.named(names, data), Labels.named(names, [])):
        assert labels.counts(data) == dict.fromkeys(labels.names, 3)
        for number, name in enumerate(labels.names):
            [example] = rows(name)
            assert labels.of(example) == number
            for form in FORMS:
                assert labels.begun(unicodedata.normalize(form, f"{name}, that is")) == number
                for sentence in SENTENCES:
                    text = unicodedata.normalize(form, sentence.format(name))
                    assert labels.said(text) == number, text
                    assert labels.matcher(example, text)


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
        # The first label counts; a model that repeats the list names the first of the list.
        (["sport", "world", "not sport"], "Is it sport, world or not sport?", "sport"),
        (["sport", "world", "not sport"], "It is not sport.", "not sport"),
        (["sport", "world", "not sport"], "None of these", None),
        # A letter is named in its case; articles, pronouns and letters inside of words are none.
        (list("ABCI"), "A good answer is B", "B"),
        (list("ABCI"), "Sure! A safe guess: C", "C"),
        (list("ABCI"), "A is right, not B", "A"),
        (list("ABCI"), "Option A fits", "A"),
        (list("ABCI"), "**C**, a clear case", "C"),
        (list("ABCI"), "(b)", None),
        (list("ABCI"), "I'm for B", "B"),
        (list("ABCI"), "I, because A and B are wrong", "I"),
        (list("ABCI"), "vitamin-C or e.g. a T-shirt: B", "B"),
        (list("ABCI"), "A. first\nB. second\nC. third", "A"),
    ],
)
def test_the_first_and_longest_label_is_named(
    names: list[str], text: str, expected: str | None
) -> None:
    """A sign that belongs to a word makes it another; an accent counts only where labels differ in
    it alone.
    """
    labels = Labels.named(names, rows(*names))
    number = labels.said(text)
    assert (None if number is None else names[number]) == expected
    for name in names:
        assert labels.matcher(rows(name)[0], text) == (name == expected)


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


def test_a_row_that_accepts_two_labels_is_right_for_both() -> None:
    """They stay two labels; an answer that is no label counts as one more."""
    examples = rows(("sport", "world"), "sport", "world")
    labels = Labels.named(["sport", "world"], examples)
    assert labels.said("world") == 1
    right = [labels.matcher(examples[0], text) for text in ("World.", "sport", "none")]
    assert right == [True, True, False]
    [unseen] = rows("business")
    assert labels.matcher(unseen, "Business, or world")
    assert not labels.matcher(unseen, "World, or business")


@pytest.mark.parametrize(
    ("labels", "is_refused"),
    [(("A+", "A-"), False), (("かき", "かぎ"), False), (("yes", "Yes "), True), (("yes", "yes."), True)],
)  # fmt: skip
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
        (CALLS, with_calls("", [ToolCall("weather", "{}")]), 0),
        (CALLS, '{"name": "weather"', 0),
        (CALLS, " ```json\n{", 0),
        (CALLS, "It rains.", 1),
        (CALLS, "", 1),
        (SORRY, "Sorry, no.", 0),
        (SORRY, "\nI cannot say.", 0),
        (SORRY, "I can. Sorry!", 1),
    ],
)
def test_every_text_has_one_of_both_labels(labels: OpenLabels, text: str, expected: int) -> None:
    """The beginning decides, and everything else is the other label."""
    assert labels.said(text) == expected
    assert labels.right([labels.names[expected]], text)
    assert not labels.right([labels.names[1 - expected]], text)


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
    """Every row wants one of both labels, an opening has no labels of the user's, and a decision
    names its opening.
    """
    path = rows_with(tmp_path / "a.jsonl", "want", "call", want)
    task = load_task(data=path, decide="calls-tool")
    with pytest.raises(InputError):
        labels_of_task("calls-tool", names, task)
    for spec in ("calls", "begins-with:", "begins-with:a,,b", "begins-with", ""):
        with pytest.raises(InputError):
            OpenLabels.parse(spec)
