"""What newcomers do wrong at the first try: each ends with exit code 2 and the sentence that helps,
or simply works.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from tests.support.commands import blb, refused
from tests.support.errors import names

ROWS = [(f"question {number}", ("yes", "no")[number % 2]) for number in range(40)]
FIT = ("fit", "--reward", "accuracy", "--data", "rows.csv", "--dry-run")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with forty rows."""
    monkeypatch.chdir(tmp_path)
    write_rows("rows.csv", ("prompt", "answer"), ",")
    return tmp_path


def write_rows(name: str, columns: tuple[str, str], mark: str) -> None:
    """The rows as a table with these columns."""
    with Path(name).open("w", newline="") as file:
        csv.writer(file, delimiter=mark).writerows([columns, *ROWS])


def test_rows_without_an_answer_are_named() -> None:
    """The dry run says how many there are, and where."""
    lines = Path("rows.csv").read_text().splitlines()
    for line in (5, 9):
        lines[line - 1] = lines[line - 1].partition(",")[0] + ","
    Path("rows.csv").write_text("\n".join(lines))
    result = blb(*FIT, "--provider", "vllm")
    assert result.exit_code == 0, result.output
    assert names(" ".join(result.output.split()), "2 rows have no answer (lines 5, 9)")


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ((*FIT, "--provider", "vlm"), ("'vlm'", "Did you mean vllm?")),
        ((*FIT[:-1], "--provider", "openai"), ("--model gpt-4o-mini",)),
        (("fit", "--data", "rows.csv"), ("--reward", "correct-and-short", "module:function")),
        ((*FIT, "--reward", "acuracy"), ("Did you mean accuracy?", "blb rewards")),
        (("fit", "--reward", "accuracy", "--task", "continent"), ("Did you mean continents?",)),
        ((*FIT, "--labels", "yes,noo"), ("'no'", "line", "Did you mean noo?")),
        (("ft", "--data", "rows.csv"), ("Did you mean fit?",)),
    ],
)
def test_a_wrong_name_gets_the_right_one(words: tuple[str, ...], facts: tuple[str, ...]) -> None:
    """A provider, a missing model, a missing or misspelt reward, a task, a label, a command."""
    said = refused(*words)
    assert all(fact in said for fact in facts), said


LONG = "lamp, " * 100


@pytest.mark.parametrize(
    "words",
    [
        ("words", LONG, "--provider", "vllm", "--dry-run"),
        (*FIT, "--provider", "vllm", "--reward", f"avoid:{LONG}"),
        (*FIT, "--provider", "local", "--labels", "yes,no", "--question", LONG),
        ("--config", "above/blb.toml", *FIT, "--provider", "vllm"),
    ],
)
def test_a_text_too_long_for_a_file_name_is_none(words: tuple[str, ...]) -> None:
    """A list of words, a question, and a template that ends in the name of a file."""
    Path("above").mkdir()
    Path("above/blb.toml").write_text(
        f'[fit]\nprompt_template = "{{prompt}} {LONG} see notes.txt"\n'
    )
    result = blb(*words)
    assert result.exit_code == 0, result.output


def test_a_working_directory_that_is_gone_is_said(folder: Path) -> None:
    """Another program removed it."""
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    assert "the working directory is not there any more" in refused("show")


def test_columns_of_other_names_are_offered_as_options() -> None:
    """The option with the column that is probably meant, and all columns."""
    write_rows("rows.csv", ("text", "label"), ",")
    assert "--prompt-column text" in refused(*FIT)
    write_rows("rows.csv", ("prompt", "label"), ",")
    assert "--answer-column label" in refused(*FIT)


def test_help_is_a_command_too() -> None:
    """Of the program, of a command, of a command in a group; a misspelt one gets the right one."""
    assert blb("help").output == blb("--help").output
    assert blb("help", "fit").output == blb("fit", "--help").output
    assert blb("help", "store", "check").output == blb("store", "check", "--help").output
    assert "Did you mean fit?" in blb("help", "fitt").output
