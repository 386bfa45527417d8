"""Tables on narrow terminals: every label and every number stays whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blackbox_lb.bias.records import Verdict
from blackbox_lb.cli.actions.fit import print_decisions
from blackbox_lb.cli.terminal import print_table, verdict_table
from blackbox_lb.estimate.decisions.scores import DecisionScores

WIDTHS = (60, 80, 110)
LABELS = ("account access", "billing", "technical problem", "other")
Rendered = Callable[[int], str]


def decisions(seed: int) -> DecisionScores:
    """60 decisions between four labels."""
    right = [number % 4 for number in range(60)]
    said = [(number * seed) % 5 - 1 for number in range(60)]
    return DecisionScores.of(LABELS, right, said)


def verdict(metric: str, setting: str) -> Verdict:
    """A row of the verdict."""
    return Verdict(
        setting=setting,
        metric=metric,
        base=0.081,
        biased=0.802,
        difference=0.721,
        low=0.621,
        high=0.823,
        p=0.0004,
        n_prompts=79,
        n_base=79,
        n_biased=79,
        better="higher",
        verdict="NO EVIDENCE",
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_decisions(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row a label, its name whole, right before and after, and nothing beyond the edge."""
    monkeypatch.setenv("COLUMNS", str(width))
    base, biased = decisions(2), decisions(3)
    print_decisions("greedy", base, biased)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    for place, label in enumerate(LABELS):
        assert label in out
        assert f"{base.confusion[place, place]}" in out
        assert f"{biased.confusion[place, place]}" in out


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_verdicts(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metric, setting, numbers, interval and verdict of each row."""
    monkeypatch.setenv("COLUMNS", str(width))
    verdict_table([verdict("correct x T/len", "greedy"), verdict("tokens", "temperature 0.7")])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    for whole in (
        "correct x T/len",
        "tokens",
        "T = 0.7",
        "0.08",
        "0.80",
        "+0.62 to +0.82",
        "NO EVIDENCE",
    ):
        assert whole in out


@pytest.mark.parametrize("width", WIDTHS)
def test_any_table(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels and numbers are whole in a table of any number of columns; prose breaks between
    words.
    """
    monkeypatch.setenv("COLUMNS", str(width))
    prose = "a sentence of evidence that is far longer than any terminal of a user is wide " * 2
    for columns in (2, 5, 9):
        header = ["label", *(f"column {number}" for number in range(columns)), "evidence"]
        row = ["needs a human", *(f"{number}.123 -> 4.567" for number in range(columns)), prose]
        print_table("Title", header, [row])
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= max(width, len(prose) + 10)
        for cell in row[:-1]:
            assert cell in out
    print_table("Title", ["row", "claim", "evidence"], [["tokens.id", "claimed", prose]], left=3)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert set(prose.split()) <= set(out.split())
