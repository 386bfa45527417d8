"""Open labels: an opening against everything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.tasks import load_task, parse_reward
from blackbox_lb.tasks.sets.labels import OPENING, OTHER, OpenLabels, labels_of_task
from blackbox_lb.types import Completion, Example, Prompt, ToolCall, with_calls

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


def rows_with(path: Path, column: str, *wants: str) -> Path:
    """A data file of questions that want this in turn."""
    rows = [{"prompt": f"Q{n}", column: wants[n % len(wants)]} for n in range(60)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


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


def test_rows_that_want_something_else_are_refused(tmp_path: Path) -> None:
    """Every row wants one of both labels."""
    task = load_task(
        data=rows_with(tmp_path / "a.jsonl", "want", "call", "wait"), decide="calls-tool"
    )
    with pytest.raises(InputError):
        labels_of_task("calls-tool", None, task)


def test_named_labels_and_an_opening_exclude_each_other(tmp_path: Path) -> None:
    """An opening has labels of its own."""
    task = load_task(
        data=rows_with(tmp_path / "a.jsonl", "want", "call", "answer"), decide="calls-tool"
    )
    with pytest.raises(InputError):
        labels_of_task("calls-tool", ["yes", "no"], task)
