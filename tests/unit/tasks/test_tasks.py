"""Tasks: how rows are divided, what may not be in two splits, and the facts of the built-in
tasks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.tasks import Task, load_task
from blackbox_lb.tasks.records.files import ExampleRow
from blackbox_lb.tasks.rewards.matching import parse_matcher
from blackbox_lb.tasks.sets.labels import labels_of_task
from blackbox_lb.types import Example, Prompt
from tests.support.errors import names, raises_naming
from tests.support.questions import write_rows

Row = dict[str, object]
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a data file of rows."""
    return lambda name, *rows: write_rows(tmp_path / name, rows)


def splits_of(task: Task) -> tuple[tuple[Example, ...], ...]:
    """The examples of each split."""
    return task.train, task.validation, task.test


def prompts_of(task: Task) -> list[set[str]]:
    """The prompts of each split, white space aside."""
    return [{" ".join(e.prompt.text.split()) for e in split} for split in splits_of(task)]


def numbered(count: int, start: int = 0) -> list[Example]:
    return [
        Example(f"q{n}", Prompt.user(f"question {n}"), (str(n),))
        for n in range(start, start + count)
    ]


def divided(examples: Iterable[Example], **options: Any) -> Task:
    """A task of examples that are split three ways."""
    rows = [
        {"id": example.id, "prompt": example.prompt.text, "answer": example.answers[0]}
        for example in examples
    ]
    return load_task(data=rows, **options)


# Shares


@given(st.integers(30, 80), st.integers(1, 60), st.integers(0, 5))
def test_adding_rows_moves_no_other(count: int, more: int, seed: int) -> None:
    """A row's split depends on the seed and its id alone: rows added before or after leave it where
    it was.
    """
    examples = numbered(count, start=100)
    try:
        small = divided(examples, seed=seed)
    except DataError:
        return
    large = divided(numbered(more) + examples + numbered(more, start=1000), seed=seed)
    for few, many in zip(splits_of(small), splits_of(large), strict=True):
        ids = [example.id for example in few]
        assert [example.id for example in many if example.id in ids] == ids


def test_the_shares_are_the_fractions() -> None:
    """Of 20,000 examples half go to train, a fifth to validation and .3 to test, within four
    standard errors; other fractions are positive and have the sum 1.
    """
    task = divided(numbered(20_000))
    assert [len(split) for split in splits_of(task)] == [
        pytest.approx(10_000, abs=283),
        pytest.approx(4_000, abs=226),
        pytest.approx(6_000, abs=260),
    ]
    assert len(set().union(*prompts_of(task))) == 20_000
    for fractions in (
        (0.5, 0.5),
        (0.5, 0.5, 0.5),
        (1.0, 0.0, 0.0),
        (1.5, -0.2, -0.3),
        (float("nan"),) * 3,
    ):
        with raises_naming(InputError, "3", "1"):
            divided(numbered(50), fractions=fractions)


def test_too_few_rows_are_refused_with_the_number_needed() -> None:
    """Two rows cannot fill three splits; the message says how many rows do, with 99 %
    probability.
    """
    with raises_naming(DataError, "2", "26"):
        divided(numbered(2))
    assert 3 * 0.8**26 < 0.01 <= 3 * 0.8**25


def labelled(**counts: int) -> list[Row]:
    """So many rows of each label."""
    return [
        {"prompt": f"{label} ticket {number}", "answer": label}
        for label, count in counts.items()
        for number in range(count)
    ]


def test_each_split_has_its_share_of_each_label(write: Write) -> None:
    """Half of each label is learned from, as near as whole rows allow; a label with few rows is
    named with its counts, and two of its five rows teach, whatever the draw.
    """
    counts = {"Technical": 28, "Billing": 16, "Shipping": 12, "Account": 5, "Other": 3}
    path = write("t.jsonl", *labelled(**counts))
    for seed in range(20):
        task = load_task(data=path, seed=seed)
        for label, count in counts.items():
            sizes = [
                sum(example.answers == (label,) for example in split) for split in splits_of(task)
            ]
            assert sum(sizes) == count
            assert all(sizes)
            assert label != "Account" or sizes[0] >= 2, seed
            if seed == 0:
                for size, share in zip(sizes, (0.5, 0.2, 0.3), strict=True):
                    assert abs(size - share * count) < 1
    assert "Account has only 5 rows (lines 57, 58, 59, 60, 61)" in task.note
    assert "Technical has" not in task.note


@pytest.mark.parametrize(
    ("label", "near"), [("Tehcnical", True), ("technical 2", False), ("Shipping", False)]
)
def test_a_misspelt_label_gets_the_likely_one(write: Write, label: str, near: bool) -> None:
    """With its lines; another number is another label."""
    rows = [*labelled(Technical=28, Billing=16), {"prompt": "x", "answer": label}]
    note = load_task(data=write("t.jsonl", *rows)).note
    assert (f"{label} (1 row, line 45): Technical?" in note) == near
    assert (f"{label} has only 1 row (line 45)" in note) != near


def test_further_rows_of_a_label_move_only_those_at_a_cut(write: Write) -> None:
    """Of 200 rows at most one for each new row and each of the two cuts changes its split."""
    few = load_task(data=write("few.jsonl", *labelled(a=100, b=100)))
    more = load_task(data=write("more.jsonl", *labelled(a=105, b=100)))
    stayed = sum(
        len(before & after) for before, after in zip(prompts_of(few), prompts_of(more), strict=True)
    )
    assert stayed >= 200 - 2 * 5


# Splits of the user's own


def test_a_split_column_is_obeyed(write: Write) -> None:
    """Rows that name their split go there, in file order; rows that name none beside them are
    refused.
    """
    rows: list[Row] = [
        {"id": n, "prompt": f"Q{n}", "answer": n, "split": split}
        for n, split in enumerate(["test", "train", "validation", "train"])
    ]
    task = load_task(data=write("mine.jsonl", *rows))
    assert task.name == "mine"
    assert [[example.id for example in split] for split in splits_of(task)] == [
        ["1", "3"],
        ["2"],
        ["0"],
    ]
    with raises_naming(DataError, "line 5"):
        load_task(data=write("mine.jsonl", *rows, {"prompt": "P", "answer": 1}))
    with raises_naming(DataError, "validation"):
        load_task(data=write("mine.jsonl", *rows[:2]))


def test_files_given_for_a_split_are_used_whole(write: Write) -> None:
    """The data file is divided over what is left; a row of another split in such a file, or beside
    it, is a contradiction.
    """
    data = write("data.jsonl", *labelled(a=50, b=50))
    small, other = write("small.jsonl", *labelled(c=3)), write("other.jsonl", *labelled(d=2))
    files: Any
    for files, sizes in (
        ({"validation": small}, (62, 3, 38)),
        ({"test": small}, (72, 28, 3)),
        ({"test": small, "validation": other}, (100, 2, 3)),
    ):
        task = load_task(data=data, **files)
        assert [len(split) for split in splits_of(task)] == list(sizes)
    marked = write("m.jsonl", {"prompt": "Q", "answer": 1, "split": "test"})
    with raises_naming(DataError, "m.jsonl, line 1", "test"):
        load_task(data=marked, test=data)
    with raises_naming(DataError, "m.jsonl, line 1", "test", "validation"):
        load_task(data=data, validation=marked)


def test_to_judge_takes_test_rows_alone(write: Write) -> None:
    """Given as the test data, or by their split column; all are judged on, and labels come from
    them. A file without that column is divided as before. To learn takes more.
    """
    rows: list[Row] = [{"prompt": f"{n}?", "answer": ["yes", "no"][n % 2]} for n in range(40)]
    fresh = write("fresh.jsonl", *rows)
    marked = write("marked.jsonl", *({**row, "split": "test"} for row in rows))
    for task in (load_task(test=fresh, learns=False), load_task(data=marked, learns=False)):
        assert [len(split) for split in splits_of(task)] == [0, 0, 40]
        labels = labels_of_task(None, None, task)
        assert labels is not None
        assert labels.names == ("no", "yes")
    assert load_task(data=fresh, learns=False) == load_task(data=fresh)
    with raises_naming(DataError, "train and validation"):
        load_task(data=marked)
    with raises_naming(InputError, "learn from"):
        load_task(test=marked)
    with raises_naming(InputError, "judge on"):
        load_task(learns=False)
    unanswered = write("none.jsonl", {"prompt": "Q", "split": "test"})
    with raises_naming(DataError, "none.jsonl", "line 1"):
        load_task(data=unanswered, learns=False)


# What may not be in two splits


def test_a_prompt_in_two_splits_is_a_leak(write: Write) -> None:
    """A prompt of test is left out of the other splits and counted, even where white space and
    answers differ, and test keeps its own answer; splits that share one are refused.
    """
    rows: list[Row] = [{"prompt": f"a{n}", "answer": n} for n in range(40)]
    data = write("data.jsonl", *rows)
    leak = write("leak.jsonl", {"prompt": "b", "answer": 1}, {"prompt": " a7\n", "answer": "seven"})
    task = load_task(data=data, test=leak)
    assert [example.answers for example in task.test] == [("1",), ("seven",)]
    train, validation, _ = prompts_of(task)
    assert train | validation == {f"a{n}" for n in range(40) if n != 7}
    assert re.search(r"1 row left out of (train|validation), whose prompts are in test", task.note)
    first, second = (ExampleRow(example) for example in numbered(2))
    with raises_naming(DataError, "'q0' (validation", "'q0' (train"):
        Task.from_splits("t", {"train": [first], "validation": [first], "test": [second]})


def test_a_split_column_may_part_the_copies_of_a_prompt(write: Write) -> None:
    """Test keeps its own rows and answers, and those of train are left out and counted."""
    copy, *others = (
        {"prompt": "P", "answer": "wrong", "split": "train"},
        {"prompt": "P", "answer": "right", "split": "test"},
        {"prompt": "R", "answer": "1", "split": "validation"},
    )
    task = load_task(
        data=write("a.jsonl", copy, *others, {"prompt": "Q", "answer": "1", "split": "train"})
    )
    assert [example.answers for example in task.test] == [("right",)]
    assert [example.prompt.text for example in task.train] == ["Q"]
    assert names(task.note, "1 row", "train", "test")
    with raises_naming(DataError, "train"):
        load_task(data=write("b.jsonl", copy, *others))


@pytest.mark.parametrize("answers", ["ab", [str(n) for n in range(80)]], ids=["labels", "texts"])
def test_white_space_alone_does_not_part_copies(write: Write, answers: Sequence[str]) -> None:
    """Prompts that differ in white space are two prompts of one split, whatever the seed, also
    where labels are divided.
    """
    rows: list[Row] = [
        {"prompt": text, "answer": answers[number % len(answers)]}
        for number in range(40)
        for text in (f"ticket {number}", f"ticket  {number}\n")
    ]
    path = write("t.jsonl", *rows)
    for seed in range(8):
        task = load_task(data=path, seed=seed)
        assert sum(map(len, splits_of(task))) == 80
        assert sum(map(len, prompts_of(task))) == 40


def test_an_id_in_two_splits_is_refused(write: Write) -> None:
    """Two rows of one id cannot be told apart later, so they are refused across files as within
    one.
    """
    one, two = (write(f"{p}.jsonl", {"id": "x", "prompt": p, "answer": 1}) for p in ("one", "two"))
    three = write("three.jsonl", *labelled(c=1))
    with raises_naming(DataError, "two.jsonl, line 1", "'x'", "one.jsonl, line 1"):
        load_task(data=one, test=two, validation=three)


def test_the_data_hash_names_content_and_split() -> None:
    """Equal tasks have equal hashes whatever they are called; an example that is judged by and was
    not, or another answer, changes it. What is learned from and what chooses is one side of it.
    """
    a, b, c = numbered(3)
    task = Task("t", (a,), (b,), (c,))
    assert task.data_hash == Task("other", (a,), (b,), (c,)).data_hash
    assert task.data_hash == Task("t", (b,), (a,), (c,)).data_hash
    assert task.data_hash != Task("t", (a,), (c,), (b,)).data_hash
    assert task.data_hash != Task("t", (Example(a.id, a.prompt, ("-1",)),), (b,), (c,)).data_hash


def test_what_to_load_must_be_said_once(tmp_path: Path) -> None:
    """An unknown name lists the known ones; a name and a file, or neither, is refused."""
    with raises_naming(InputError, "'capital'", "capitals", "continents"):
        load_task("capital")
    with raises_naming(InputError, "'capitals'"):
        load_task("capitals", tmp_path / "a.jsonl")
    with raises_naming(InputError, "capitals", "continents"):
        load_task(test=tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt_column", None),
        ("answer_column", 5),
        ("prompt_template", 5),
        ("field", 5),
        ("decide", 5),
        ("validation_size", "5"),
        ("validation_size", -1),
        ("fractions", None),
        ("fractions", "abc"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: Any) -> None:
    """As in ``fit``, before anything is read."""
    with raises_naming(InputError, name, value):
        load_task(**{"data": [{"prompt": "P", "answer": "x"}], name: value})


# Built-in tasks

CAPITALS, CONTINENTS = load_task("capitals"), load_task("continents")


def by_country(task: Task) -> dict[str, tuple[str, ...]]:
    """The answers for each country."""
    examples = (example for split in splits_of(task) for example in split)
    return {example.id.partition(":")[2]: example.answers for example in examples}


COUNTRIES, STATES = by_country(CAPITALS), by_country(CONTINENTS)


def test_the_built_in_tasks_have_their_sizes() -> None:
    """No country twice, and every label in every split. Questions, answers and splits are those
    whose results are published, to the letter.
    """
    assert [len(split) for split in splits_of(CAPITALS)] == [80, 24, 73]
    assert (CAPITALS.name, CAPITALS.correct, CAPITALS.max_tokens) == ("capitals", "contains", 48)
    assert [len(split) for split in splits_of(CONTINENTS)] == [80, 24, 79]
    assert (CONTINENTS.name, CONTINENTS.max_tokens) == ("continents", 4)
    for task, size in ((CAPITALS, 177), (CONTINENTS, 183)):
        assert len(set().union(*prompts_of(task))) == size
    assert CAPITALS.data_hash.startswith("d0fcd616d9a1d831f50ea42fb27628ed")
    assert CONTINENTS.data_hash.startswith("239837a3c5d3f7093215e4666078802c")
    counts = {"Africa": 51, "America": 35, "Asia": 40, "Europe": 43, "Oceania": 14}
    assert Counter(answer for answers in STATES.values() for answer in answers) == counts
    for split in splits_of(CONTINENTS):
        assert {answer for example in split for answer in example.answers} == set(counts)


def test_what_has_no_certain_answer_is_not_asked() -> None:
    """A capital that is given away, in dispute, unofficial or shared in name with another place; a
    state on two continents, or whose name tells its own. All other 195 states have a continent.
    """
    given_away = {"Singapore", "Monaco", "Luxembourg", "Djibouti", "Tunisia"}
    given_away |= {"Israel", "Palestine", "Nauru", "Georgia"}
    assert not given_away & COUNTRIES.keys()
    two = {"Armenia", "Azerbaijan", "Cyprus", "East Timor", "Egypt", "Georgia"}
    two |= {"Indonesia", "Kazakhstan", "Russia", "Turkey"}
    two |= {"Central African Republic", "South Africa"}
    assert not two & STATES.keys()
    assert len(two | STATES.keys()) == 193 + 2
    assert COUNTRIES.keys() - STATES.keys() <= two


@pytest.mark.parametrize("text", ["Asia", "asia.", " **Asia**", "Asia, Africa"])
@pytest.mark.parametrize("is_right", [True, False])
def test_a_continent_is_right_where_the_completion_begins_with_it(
    text: str, is_right: bool
) -> None:
    """A program that reads the first word finds the label there; a list or a sentence that comes to
    it later is not right.
    """
    assert isinstance(CONTINENTS.correct, str)
    example = Example("x", Prompt.user("?"), ("Asia" if is_right else "Africa",))
    matcher = parse_matcher(CONTINENTS.correct)
    assert matcher(example, text) is is_right
    for later in ("Asian", "AsiaAsia", "The Maldives is in Asia", ""):
        assert not matcher(example, later)
