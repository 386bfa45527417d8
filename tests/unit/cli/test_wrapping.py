"""What the command line prints is broken between words, at every width."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from tests.support.commands import blb

WIDTHS = (60, 80)
DATA = ("fit", "--reward", "accuracy", "--data")
ERRORS = {
    "no command": ("fot",),
    "no option": ("fit", "--promt-column", "x"),
    "broken JSON": (*DATA, "broken.jsonl"),
    "no column": (*DATA, "rows.csv", "--prompt-column", "tiket_text"),
    "no bias": ("show", "runs/a run with a long name/bias.json"),
    "settings": ("--config", "unknown key.toml", "fit"),
}
"""Commands that end with an error of click, of the data, of a bias and of a settings file; all go
through one door."""
NOTICES = {
    "dry run": (*DATA, "tickets.csv", "--prompt-column", "ticket_text", "--answer-column", "team", "--dry-run"),
    "show": ("show", "bias.json"),
    "providers": ("providers", "vllm"),
    "help": ("help",),
}  # fmt: skip
"""Commands that end well."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with good and bad files."""
    monkeypatch.chdir(tmp_path)
    teams = [("Technical", "Billing", "Shipping")[number % 3] for number in range(40)]
    tickets = [
        f"{number};The device number {number} says nothing — at all;{team}"
        for number, team in enumerate(teams)
    ]
    tickets[3] = "3;The device number three says nothing;Tehcnical"
    tickets[5] = "5;The device number five says nothing;"
    table = "\n".join(["ticket_nr;ticket_text;team", *tickets])
    files = {
        "tickets.csv": table.encode("cp1252"),
        "rows.csv": table.replace(";", ",").encode(),
        "broken.jsonl": b'{"prompt": "What is the capital of a country", "answer: }\n',
        "unknown key.toml": b'[defaults]\npromt_column = "ticket_text"\n',
    }
    for name, content in files.items():
        Path(name).write_bytes(content)
    entries = (Entry(id=1, text=" one", bias=1.25), Entry(id=2, text=" two", bias=-0.5))
    bias = Bias(
        provider="llamacpp",
        model="a model with a name",
        tokenizer="t",
        reward="length",
        estimator="ips",
        entries=entries,
    )
    bias.save(Path("bias.json"))


def printed(monkeypatch: pytest.MonkeyPatch, width: int, words: tuple[str, ...]) -> str:
    """What the command prints on a screen of this width."""
    monkeypatch.setenv("COLUMNS", str(width))
    result = blb(*words)
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.output


def too_long(text: str, width: int) -> list[str]:
    """Lines beyond the width that could have been broken at a space."""
    return [line for line in text.splitlines() if len(line) > width and " " in line.strip()]


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_broken_between_words(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, one message in the same words at every width, no line too long, and what was
    probably meant as its last line.
    """
    words = ERRORS[case]
    whole = printed(monkeypatch, 10_000, words)
    assert "Error: " in whole
    for width in WIDTHS:
        narrow = printed(monkeypatch, width, words)
        assert narrow.split() == whole.split()
        assert not too_long(narrow, width)
    if "id you mean" in whole:
        assert whole.splitlines()[-1].startswith("Did you mean ")


@pytest.mark.parametrize("case", NOTICES)
def test_notices_are_broken_between_words(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is too long, and every word is whole, whatever the tables do."""
    whole = printed(monkeypatch, 10_000, NOTICES[case])
    for width in WIDTHS:
        narrow = printed(monkeypatch, width, NOTICES[case])
        assert not too_long(narrow, width)
        assert {word for word in narrow.split() if "─" not in word} <= set(whole.split())


def test_a_pipe_has_no_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message stays one line for other programs."""
    monkeypatch.delenv("COLUMNS", raising=False)
    result = blb(*ERRORS["no column"])
    assert len(result.stderr.splitlines()) == 2
