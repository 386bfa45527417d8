"""A decision whose prompts do not name the labels gets the options that name them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.commands import blb, options
from tests.support.printed import ended_well
from tests.support.questions import write_rows

COUNTS = {"Technical": 12, "Billing": 9, "{Other}": 9, "Tehcnical": 1}
WORDS = ("fit", "--data", "rows.jsonl", "--reward", "accuracy", "--prompt-column", "ticket")


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Rows of these labels, with the text under another name."""
    monkeypatch.chdir(tmp_path)
    labels = [label for label, count in COUNTS.items() for _ in range(count)]
    return [
        {"ticket": f"My device {number} is broken", "answer": label}
        for number, label in enumerate(labels)
    ]


def advice(rows: list[dict[str, object]], *more: object) -> str:
    """The words to copy that a fit of these rows proposes, "" for none."""
    write_rows(Path("rows.jsonl"), rows)
    dry = ended_well(blb(*WORDS, *more, "--dry-run"))
    assert dry.stdout.count("naming them may help: ") <= 1
    return dry.stdout.partition("naming them may help: ")[2].partition("\n")[0]


def test_the_line_to_copy_names_all_labels_and_room_for_the_longest(
    rows: list[dict[str, object]],
) -> None:
    """It leaves a misspelt label out, and what it names silences it. A template and a limit of the
    user stay.
    """
    words = shlex.split(advice(rows))
    template = "{ticket} Answer with Technical, Billing or {{Other}}."
    assert words == ["--prompt-template", template, "--max-tokens", "7"]
    assert advice(rows, *words) == ""
    own = shlex.split(advice(rows, *options(prompt_template="Team? {ticket}", max_tokens=3)))
    assert own == ["--prompt-template", f"Team? {template}"]


def test_one_prompt_that_names_them_is_enough(rows: list[dict[str, object]]) -> None:
    """Two labels and half of them are named by intention; one may stand there by chance."""
    rows[0]["ticket"] = "Is my billing wrong?"
    assert advice(rows)
    rows[0]["ticket"] = "Billing or technical?"
    assert advice(rows) == ""


def test_chats_get_a_system_message(rows: list[dict[str, object]]) -> None:
    """A template would replace the chat."""
    for row in rows:
        text = row.pop("ticket")
        turns = [("user", "Hello"), ("assistant", "Hello"), ("user", text)]
        row["messages"] = [{"role": role, "content": words} for role, words in turns]
    assert "--system 'Answer with Technical, Billing or {Other}.'" in advice(rows)
