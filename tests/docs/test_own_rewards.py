"""The page on rewards of one's own names every field that a function gets."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from blackbox_lb import Completion, Example
from blackbox_lb.jobs.runs.conclusion import HELP_PAGE

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "kind"), [("example", Example), ("completion", Completion)])
def test_every_field_is_named(name: str, kind: type) -> None:
    """And no other: each is a field or a property of the class."""
    page = (ROOT / "docs" / "own-rewards.md").read_text(encoding="utf-8")
    named = set(re.findall(rf"`{name}\.(\w+)`", page))
    assert {field.name for field in fields(kind)} <= named
    assert all(hasattr(kind, attribute) for attribute in named)


def test_the_page_that_a_fit_names_is_there() -> None:
    """The end of a fit without evidence names it."""
    assert (ROOT / HELP_PAGE).is_file()


def test_the_file_of_the_tests_is_that_of_the_page() -> None:
    """The lines of the page run with the page's own function."""
    page = (ROOT / "docs" / "own-rewards.md").read_text(encoding="utf-8")
    file = (ROOT / "tests" / "docs" / "rewards_of_a_page.py").read_text(encoding="utf-8")
    (function,) = re.findall(r"^def polite.*?(?=^```)", page, flags=re.MULTILINE | re.DOTALL)
    assert function.strip() in file
