"""Every number in README's table of results stands in the results that its row links to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.gallery.results import Evaluation, PageResults, Policy
from tests.docs.test_docs import ROOT, anchors

README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?: ?%)?|\.\d+")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table. page, anchor: of its first link, "" for none."""

    use: str
    before: str
    after: str
    instead: str
    page: str = ""
    anchor: str = ""


def table_rows(text: str) -> list[Row]:
    """The rows of the table under "## Results"."""
    section = text.partition("\n## Results\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    found = []
    for line in lines[2:]:
        page, anchor = "", ""
        link = re.search(r"\]\((docs/[^)#]+)#?([^)]*)\)", line)
        if link:
            page, anchor = link.groups()
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line)
        use, before, after, instead = (cell.strip() for cell in plain.strip("|").split("|"))
        found.append(Row(use, before, after, instead, page, anchor))
    return found


def is_rounded(shown: str, value: float) -> bool:
    """Whether a number as shown is the value rounded to its digits; signs are left to words."""
    digits = shown.rstrip(" %")
    if shown.endswith("%"):
        value = 100 * value
    decimals = len(digits.partition(".")[2])
    half_a_digit: float = 0.5 * 10.0**-decimals
    return abs(abs(value) - float(digits)) <= half_a_digit + 1e-9


def missing(cell: str, values: Iterable[float], words: str = "") -> list[str]:
    """The numbers of a cell that are neither a rounded value nor among the numbers in ``words``."""
    known = list(values)
    named = set(NUMBER.findall(words))
    return [
        shown
        for shown in NUMBER.findall(cell)
        if shown not in named and not any(is_rounded(shown, value) for value in known)
    ]


def missing_in_gallery(row: Row, results: PageResults) -> list[str]:
    """The numbers of a row that the results of a page do not have: before of a base, after of a
    learned bias, the others of any policy or of a name.
    """

    def values(*kinds: str) -> list[float]:
        return [
            value
            for evaluation in results.evaluations
            for policy in evaluation.policies
            if not kinds or policy.kind in kinds
            for value in (policy.mean, policy.right, policy.tokens)
            if value is not None
        ]

    words = " ".join(
        f"{evaluation.title} {evaluation.model} {evaluation.labels} {evaluation.prompts}"
        f" {policy.name}"
        for evaluation in results.evaluations
        for policy in evaluation.policies
    )
    return [
        *missing(row.use, (), words),
        *missing(row.before, values("base")),
        *missing(row.after, values("bias")),
        *missing(row.instead, values(), words),
    ]


def section_of(text: str, anchor: str) -> str:
    """The section of a page behind an anchor, with its subsections."""
    heading = ""
    for found in re.findall(r"^#+ .+$", text, re.MULTILINE):
        if anchors(found) == {anchor}:
            heading = found
    level = len(heading) - len(heading.lstrip("#"))
    after = text.partition(f"{heading}\n")[2]
    return re.split(rf"^#{{1,{level}}} ", after, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("row", table_rows(README), ids=lambda row: row.use)
def test_every_number_of_the_readme_was_measured(row: Row) -> None:
    """Its row links to a page of the gallery, or to a section of a page in docs/."""
    path = ROOT / row.page
    assert row.page, f"{row.use!r} links to no results"
    assert path.is_file()
    if path.parent.name == "gallery":
        stored = path.with_suffix(".json").read_text(encoding="utf-8")
        if isinstance(json.loads(stored), list):
            pytest.skip(f"{path.name} was made before its results held every policy")
        assert missing_in_gallery(row, PageResults.model_validate_json(stored)) == []
        return
    text = path.read_text(encoding="utf-8")
    assert row.anchor in anchors(text)
    section = section_of(text, row.anchor)
    numbers = [float(number.rstrip(" %")) for number in NUMBER.findall(section)]
    for cell in (row.use, row.before, row.after, row.instead):
        assert missing(cell, numbers, section) == []


def test_a_number_that_was_not_measured_is_found() -> None:
    """Each cell is compared with the policies that it speaks of, to the digits that it shows."""
    policies = (
        Policy(setting="greedy", name="base", kind="base", mean=0.076),
        Policy(setting="greedy", name="bias", kind="bias", mean=0.8228),
        Policy(setting="greedy", name="4 examples", kind="rival", mean=-2.454),
    )
    evaluation = Evaluation(
        title="Continents, 80 labels", model="m", reward="r", prompts=79, policies=policies
    )
    results = PageResults.model_validate(
        {
            "use": "decisions",
            "title": "Decisions",
            "run": {"date": "2026-11-25", "cores": 2, "minutes": 1.0, "small": False},
            "evaluations": [evaluation],
        }
    )
    good = Row("learned from 80", "8 % right", "82 %", "4 examples 2.5")
    assert missing_in_gallery(good, results) == []
    bad = Row("learned from 81", "82 %", "8 %", "5 examples 2.4")
    assert missing_in_gallery(bad, results) == ["81", "82 %", "8 %", "5", "2.4"]


PAGES = sorted((ROOT / "docs" / "gallery").glob("*.json"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_of_the_gallery_has_at_most_two_screens(path: Path) -> None:
    """55 lines each, those longer than 120 characters wrapped."""
    PageResults.model_validate_json(path.read_text(encoding="utf-8"))
    lines = path.with_suffix(".md").read_text(encoding="utf-8").splitlines()
    assert sum(max(1, -(-len(line) // 120)) for line in lines) <= 110


def test_the_counts_of_the_first_screen_are_those_of_the_gallery() -> None:
    """How often a bias won, was equal or open, and lost stands in the README as the gallery counts
    it.
    """
    page = (ROOT / "docs" / "gallery" / "index.md").read_text(encoding="utf-8")
    row = re.search(r"^\| \*\*all\*\* \|(.+)\|$", page, flags=re.MULTILINE)
    assert row is not None
    counts = [int(cell) for cell in row[1].split("|")]
    won = r"won (\d+), equal (\d+), open (\d+), lost\s+(\d+)"
    said = re.findall(won, README)
    assert [int(number) for numbers in said for number in numbers] == counts
