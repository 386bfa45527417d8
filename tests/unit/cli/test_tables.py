"""Tables on narrow terminals: every label and every number stays whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from tests.support.commands import blb
from tests.support.exact import ExactServer
from tests.support.labelled import DECIDER, labelled_rows
from tests.support.questions import write_rows

WIDTH = 60
WHOLE = 24
"""Columns of a text up to which it is a label, which is never broken."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What stands for the words in capitals: two labels, learned and evaluated once, so that every
    later command finds its completions stored.
    """
    path = tmp_path_factory.mktemp("tables")
    rows = write_rows(path / "rows.jsonl", labelled_rows(DECIDER))
    with ExactServer(DECIDER) as running:
        options = {
            "DATA": f"--data {rows} --reward accuracy --max-tokens 2",
            "SERVER": f"--provider llamacpp --base-url {running.base_url}",
            "RUN": str(path / "run"),
        }
        for words in (COMMANDS["fit"], COMMANDS["eval"]):
            result = blb(*spelled(words, options))
            assert result.exit_code == 0, result.output
        yield options


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


def spelled(words: str, places: dict[str, str]) -> list[str]:
    """The words of a command with what stands for those in capitals."""
    for name, text in places.items():
        words = words.replace(name, text)
    return words.split()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_table_of_a_command(
    name: str, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
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
    result = blb(*spelled(COMMANDS[name], places))
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
