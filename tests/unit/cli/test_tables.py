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
from blackbox_lb.cli.terminal import WHOLE
from blackbox_lb.jobs.evaluation.conclusion import short_names
from blackbox_lb.jobs.evaluation.document import Evaluation
from tests.support.exact import ExactServer
from tests.support.labelled import DECIDER, labelled_rows
from tests.support.report_runs import evaluation

WIDTH = 60


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
    monkeypatch.setenv("COLUMNS", str(WIDTH))
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
    assert all(cell_len(row) <= WIDTH for row in rows)


def test_policies_have_names_that_a_reader_can_resolve() -> None:
    """An instruction has a number, and an alternative beside a bias keeps its own name."""
    base, bias, instruction, both, cooler = Evaluation.model_validate(evaluation()).policies
    short = short_names([base, bias, instruction, both, cooler])
    assert list(short.values()) == ["base", "bias", "prompt 1", "prompt 1 + bias", "T = 0.5"]
