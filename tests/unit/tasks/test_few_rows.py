"""A decision between few labels is recognised from all rows that are not test rows."""

from __future__ import annotations

from blackbox_lb.jobs.runs.conclusion import understood
from blackbox_lb.tasks import Task, parse_reward
from blackbox_lb.tasks.sets.labels import labels_of_task
from blackbox_lb.types import Example, Prompt


def rows(first: int, *answers: str) -> tuple[Example, ...]:
    """Rows with these answers, numbered from ``first``."""
    return tuple(
        Example(str(number), Prompt.user(f"question {number}"), (answer,))
        for number, answer in enumerate(answers, start=first)
    )


def test_rows_to_choose_on_count() -> None:
    """Four rows to learn from are too few for two labels, nine with those to choose on are not."""
    task = Task("few", rows(0, *"yyyn"), rows(4, *"yynnn"), rows(9, *"yn" * 5), max_tokens=4)
    labels = labels_of_task(None, None, task)
    assert labels is not None
    assert sorted(labels.names) == ["n", "y"]


def test_answers_that_are_no_labels_are_told() -> None:
    """The first line of a fit says how the answers were taken."""
    task = Task("texts", rows(0, "a", "b"), rows(2, "c"), rows(3, "d"), max_tokens=4)
    reward = parse_reward("contains", max_tokens=4)
    assert labels_of_task(None, None, task) is None
    assert "answers: 4 different ones, taken as texts" in understood(task, reward, None)
