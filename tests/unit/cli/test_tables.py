"""Tables on narrow terminals: every label and every number stays whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from blackbox_lb.cli import main
from blackbox_lb.cli.terminal import WHOLE, print_table
from blackbox_lb.estimate.decisions.prediction import decisions_of
from blackbox_lb.jobs.evaluation.conclusion import LONGEST_NAME, short_names
from blackbox_lb.jobs.evaluation.document import Evaluation
from blackbox_lb.records import Decisions
from tests.support.exact import ExactServer
from tests.support.labelled import DECIDER, labelled_rows
from tests.support.report_runs import evaluation

WIDTHS = (60, 110)
LABELS = ("account access", "billing", "technical problem", "other")


def decisions(seed: int) -> Decisions:
    """60 decisions between four labels."""
    right = [number % 4 for number in range(60)]
    said = [(number * seed) % 5 - 1 for number in range(60)]
    return decisions_of(LABELS, right, said)


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
    print_table(
        "Title",
        ["row", "claim", "evidence"],
        [["tokens.id", "claimed", prose]],
        text_columns=range(3),
    )
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert set(prose.split()) <= set(out.split())


@dataclass(frozen=True)
class Folder:
    """A finished fit from answers, its evaluation, and the options that both were given."""

    path: Path
    data: tuple[str, ...]
    server: tuple[str, ...]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """Two labels, learned and evaluated once: every later command finds its completions stored."""
    path = tmp_path_factory.mktemp("tables")
    rows = path / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in labelled_rows(DECIDER)))
    with ExactServer(DECIDER) as running:
        server = ("--provider", "llamacpp", "--base-url", running.base_url)
        data = ("--data", str(rows), "--reward", "accuracy", "--max-tokens", "2")
        folder = Folder(path / "run", data, server)
        for words in (COMMANDS["fit"], COMMANDS["eval"]):
            result = CliRunner().invoke(main, spelled(words, folder))
            assert result.exit_code == 0, result.output
        yield folder


COMMANDS = {
    "fit": "fit DATA SERVER --out RUN --verbose",
    "check": "check DATA SERVER --out RUN",
    "eval": "eval RUN/bias.json DATA SERVER --out RUN --rivals --verbose --deploy greedy",
    "score": "score RUN DATA --examples 2",
    "show": "show RUN/bias.json",
    "runs": "runs RUN RUN",
    "doctor": "doctor SERVER",
    "providers": "providers",
    "models": "providers openrouter --models",
}
"""Every command that prints a table, by its name."""


def spelled(words: str, folder: Folder) -> list[str]:
    """The words of a command with the options of ``folder`` in place."""
    several = {"DATA": folder.data, "SERVER": folder.server}
    return [
        part
        for word in words.split()
        for part in several.get(word, (word.replace("RUN", str(folder.path)),))
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_table_of_a_command(
    name: str, fitted: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every number and every label of up to ``WHOLE`` columns is whole, and no word of a longer
    text is broken; a row of a table keeps to the screen.
    """
    monkeypatch.setenv("COLUMNS", str(WIDTHS[0]))
    cells: list[str] = []
    add_row = Table.add_row

    def record(table: Table, *row: Text, **options: Any) -> None:
        cells.extend(cell.plain for cell in row)
        add_row(table, *row, **options)

    monkeypatch.setattr(Table, "add_row", record)
    result = CliRunner().invoke(main, spelled(COMMANDS[name], fitted))
    assert result.exit_code == 0, result.output
    if name != "check":
        assert cells
    for cell in cells:
        if cell_len(cell) <= WHOLE:
            assert cell in result.stdout, cell
        for word in cell.split():
            assert word in result.stdout or cell_len(word) > WHOLE, word
    rows = [line for line in result.stdout.splitlines() if "\u2500" in line]
    assert all(cell_len(row) <= WIDTHS[0] for row in rows)


def test_policies_have_names_that_a_reader_can_resolve() -> None:
    """An instruction has a number, an alternative beside a bias keeps its own name, and a single
    bias of a long name is called "bias" there.
    """
    base, bias, instruction, both, cooler = Evaluation.model_validate(evaluation()).policies
    short = short_names([base, bias, instruction, both, cooler])
    assert list(short.values()) == ["base", "bias", "prompt 1", "prompt 1 + bias", "T = 0.5"]
    name = "continents-of-the-world"
    long = [
        bias.model_copy(update={"name": name, "bias": name}),
        both.model_copy(update={"bias": name}),
        both.model_copy(
            update={"name": f"4 examples and {name}", "bias": name, "instruction": None}
        ),
    ]
    assert list(short_names([base, *long]).values())[2:] == ["prompt 1 + bias", "4 examples + bias"]
    several = [*long, bias.model_copy(update={"name": "other", "bias": "other"})]
    assert "+ bias" not in " ".join(short_names([base, *several]).values())
    assert all(len(text) <= LONGEST_NAME for text in short_names([base, *several]).values())
