"""A decision whose prompts do not name the labels gets the options that name them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.jobs.runs.loading import labels_of, load, naming_advice
from tests.support.commands import blb

COUNTS = {"Technical": 12, "Billing": 9, "{Other}": 9, "Tehcnical": 1}


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Rows of these labels, with the text under another name."""
    monkeypatch.chdir(tmp_path)
    labels = [label for label, count in COUNTS.items() for _ in range(count)]
    return [
        {"ticket": f"My device {number} is broken", "answer": label}
        for number, label in enumerate(labels)
    ]


def advice(rows: list[dict[str, object]], **settings: Any) -> list[str]:
    """What is said to these rows."""
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    plan = Plan(data="rows.jsonl", reward="accuracy", **({"prompt_column": "ticket"} | settings))
    task, _ = load(plan)
    return naming_advice(plan, task, labels_of(plan, task))


def test_the_line_to_copy_names_all_labels_and_room_for_the_longest(
    rows: list[dict[str, object]],
) -> None:
    """It is said once, leaves a misspelt label out, and what it names silences it."""
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ["fit", "--data", "rows.jsonl", "--reward", "accuracy", "--prompt-column", "ticket"]
    said = blb(*words, "--dry-run").stdout
    assert said.count("no prompt names the labels") == 1
    line = said.partition("naming them may help: ")[2].partition("\n")[0]
    assert shlex.split(line) == [
        "--prompt-template",
        "{ticket} Answer with Technical, Billing or {{Other}}.",
        "--max-tokens",
        "7",
    ]
    again = blb(*words, *shlex.split(line), "--dry-run")
    assert again.exit_code == 0, again.output
    assert "no prompt names the labels" not in again.stdout


def test_a_template_and_a_limit_of_the_user_stay(rows: list[dict[str, object]]) -> None:
    """The sentence goes to the end of the template, and a given limit is not proposed again."""
    (sentence,) = advice(rows, prompt_template="Team? {ticket}", max_tokens=3)
    assert "'Team? {ticket} Answer with" in sentence
    assert "max_tokens" not in sentence


def test_one_prompt_that_names_them_is_enough(rows: list[dict[str, object]]) -> None:
    """Two labels and half of them are named by intention; one may stand there by chance."""
    assert advice(rows)
    rows[0]["ticket"] = "Is my billing wrong?"
    assert advice(rows)
    rows[0]["ticket"] = "Billing or technical?"
    assert not advice(rows)


def test_chats_get_a_system_message(rows: list[dict[str, object]]) -> None:
    """A template would replace the chat."""
    for row in rows:
        text = row.pop("ticket")
        turns = [("user", "Hello"), ("assistant", "Hello"), ("user", text)]
        row["messages"] = [{"role": role, "content": words} for role, words in turns]
    (sentence,) = advice(rows)
    assert "``system='Answer with Technical, Billing or {Other}.'``" in sentence
