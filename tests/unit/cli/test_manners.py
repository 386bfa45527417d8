"""Terminal manners: pipes, colours, encodings, narrow screens, Ctrl-C, completion and
``blb init``.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.cli import main
from blackbox_lb.cli.commands import COMMANDS, load_command
from blackbox_lb.cli.settings import find_settings
from blackbox_lb.errors import BiasError
from blackbox_lb.safety.files import explained
from tests.support.commands import blb, refused
from tests.support.questions import write_questions

BLB = [sys.executable, "-m", "blackbox_lb"]
WITHOUT_JSON = {
    "completion": "prints a script",
    "export": "prints code; --format json is the numbers",
    "init": "writes a file",
    "store": "each of its commands has it",
    "report": "writes a page; its numbers are evaluation.json and analysis.json",
}
WITHOUT_QUIET = {
    **WITHOUT_JSON,
    "providers": "prints what was asked for and nothing else",
    "show": "prints what was asked for and nothing else",
}


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own, both outputs piped."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")
    }
    return subprocess.run(
        [*BLB, *map(str, arguments)],
        capture_output=True,
        env=plain | environment,
        check=False,
        timeout=60,
    )


@pytest.fixture
def bias_file(tmp_path: Path) -> Path:
    """A bias with a token that ASCII lacks."""
    entries = (Entry(id=1, text=" é漢", bias=1.25), Entry(id=2, text=" a", bias=-0.5))
    bias = Bias(
        provider="vllm",
        model="modèle",
        tokenizer="t",
        reward="length",
        estimator="ips",
        entries=entries,
    )
    bias.save(tmp_path / "bias.json")
    return tmp_path / "bias.json"


def test_every_command_has_json_and_quiet() -> None:
    """All but those for which a reason is stated."""
    for name in COMMANDS:
        opts = {opt for param in load_command(name).params for opt in param.opts}
        assert ("--json" in opts) is (name not in WITHOUT_JSON), name
        assert ("--quiet" in opts) is (name not in WITHOUT_QUIET), name


def test_a_terminal_that_knows_no_unicode(bias_file: Path) -> None:
    """Tables and JSON arrive on it, unknown characters as escapes, and the JSON says the same."""
    latin = run("show", bias_file, PYTHONIOENCODING="latin-1")
    assert latin.returncode == 0, latin.stderr
    assert "modèle" in latin.stdout.decode("latin-1")
    assert "é\\u6f22" in latin.stdout.decode("latin-1")
    ascii_only = run("show", bias_file, "--json", PYTHONIOENCODING="ascii")
    assert json.loads(ascii_only.stdout.decode("ascii"))["model"] == "modèle"


def test_colours_only_where_they_are_wanted(bias_file: Path) -> None:
    """None in a pipe, some with FORCE_COLOR, and NO_COLOR wins; a pipe's rows stay whole either
    way.
    """
    plain, forced = run("show", bias_file).stdout, run("show", bias_file, FORCE_COLOR="1").stdout
    assert b"\x1b[" not in plain
    assert b"\x1b[" in forced
    assert re.sub(rb"\x1b\[[\d;]*m", b"", forced) == plain
    both = run("show", bias_file, FORCE_COLOR="1", NO_COLOR="1").stdout
    assert not re.search(rb"\x1b\[(?:\d+;)*(?:3|4|9)\d", both), "weight may stay, colours may not"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Thirty questions."""
    return write_questions(tmp_path / "data.jsonl", 30)


def test_a_question_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at a question ends with 130 like anywhere else, an end of input with 1; neither writes
    anything.
    """
    monkeypatch.chdir(tmp_path)
    assert blb("init", input="").exit_code == 1

    def leave(*arguments: object, **more: object) -> str:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise click.Abort from None  # as click.prompt does

    monkeypatch.setattr(click, "prompt", leave)
    result = blb("init")
    assert result.exit_code == 130
    assert result.stderr.endswith("Interrupted\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("shell", "word"),
    [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --no-files")],
)
def test_completion_scripts(shell: str, word: str) -> None:
    """Each names the program, its variable and how that shell registers a function; bash accepts
    its syntax.
    """
    script = blb("completion", shell).stdout
    assert word in script
    assert "_BLB_COMPLETE=" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert blb("completion", "tcsh").exit_code == 2


def completions(*words: str) -> list[str]:
    """What is offered for the last word."""
    complete = ShellComplete(main, {}, "blb", "_BLB_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


def test_what_is_completed(bias_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, options, choices, providers, tasks, rewards, runs, and bias files here and in the
    runs below.
    """
    monkeypatch.chdir(bias_file.parent)
    run_folder = bias_file.parent / "runs" / "capitals"
    run_folder.mkdir(parents=True)
    for name in ("bias.json", "learned.json", "result.json"):
        (run_folder / name).write_text("{}")
    assert completions("comp") == ["compile", "completion"]
    assert "--top-logprobs" in completions("fit", "--top")
    assert completions("fit", "--estimator", "i") == ["ips"]
    assert completions("fit", "--provider", "az") == ["azure", "azure-classic"]
    assert completions("eval", "x.json", "--task", "cap") == ["capitals"]
    assert "correct-and-short" in completions("fit", "--reward", "c")
    assert completions("show", "") == [
        "bias.json",
        "runs/capitals",
        "runs/capitals/bias.json",
        "runs/capitals/learned.json",
    ]
    assert completions("proxy", "--bias", "runs/capitals/b") == ["runs/capitals/bias.json"]
    assert completions("store", "me") == ["merge"]
    assert completions("tr") == ["try"]
    assert completions("store", "check", "--") == ["--json", "--help"]
    assert "bias.json" not in completions("store", "check", "b")


def test_init_asks_and_writes(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong answer is said and asked for again; the file holds the answers, no key, and is what
    later commands read.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FIREWORKS_API_KEY", raising=False)
    answers = "nobody fireworks  accounts/x/models/y nowhere.jsonl data.jsonl shortness length"
    result = blb("init", input=answers.replace(" ", "\n") + "\n")
    assert result.exit_code == 0, result.output
    chosen = {"provider": "fireworks", "model": "accounts/x/models/y", "data": "data.jsonl"}
    assert find_settings().tables == {"defaults": {**chosen, "reward": "length"}}
    for part in ("unknown provider", "nowhere.jsonl", "unknown reward"):
        assert part in result.stderr
    assert "FIREWORKS_API_KEY is not set" in result.stdout
    assert "next: blb fit" in result.stdout
    assert "FIREWORKS_API_KEY" in refused("fit")


def test_init_without_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--yes takes defaults and options, names what has no default, and overwrites only with
    --force.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nobody-may-read-this")
    given = ("init", "--yes", "--provider", "openai")
    assert "give --data" in refused(*given)
    assert not list(tmp_path.iterdir())
    assert blb("init", "--yes").exit_code == 0
    assert find_settings().tables == {
        "defaults": {"provider": "local", "task": "capitals", "reward": "correct-and-short"}
    }
    assert "--force" in refused(*given, "--task", "capitals")
    assert blb(*given, "--task", "capitals", "--force").exit_code == 0
    assert find_settings().tables["defaults"]["model"] == "gpt-4o-mini"
    assert blb(*given, "--task", "capitals", "--max-tokens", 9, "--force").exit_code == 0
    assert find_settings().tables["defaults"]["max_tokens"] == 9
    columns = ("--task", "capitals", "--prompt-column", "text", "--force")
    assert "--prompt-column is about the columns of a file" in refused(*given, *columns)
    assert "sk-nobody" not in (tmp_path / "blb.toml").read_text()


TICKETS = {"Technical": 26, "Billing": 15, "billing": 1, "Account": 5, "Tehcnical": 1, "": 2}


def write_tickets(path: Path) -> None:
    """A table as Excel saves it, with so many rows of each team."""
    teams = [team for team, count in TICKETS.items() for _ in range(count)]
    lines = [
        f"{number};Das Gerät Nummer {number} ist stumm;{team};2026-03-{number % 28 + 1:02}"
        for number, team in enumerate(teams, start=1)
    ]
    text = "\n".join(["ticket_nr;ticket_text;team;eingang", *lines])
    path.write_bytes(text.encode("cp1252"))


LEARNED = {
    "provider": "local",
    "data": "tickets.csv",
    "prompt_column": "ticket_text",
    "answer_column": "team",
    "prompt_template": "{ticket_text} Answer with Technical, Billing or Account.",
    "reward": "accuracy",
    "max_tokens": 7,
}


@pytest.mark.parametrize(
    "answers",
    [None, ["", "", "", "", "", "", "", ""], ["", "", "ticket.csv", "", "txt", "", "team"]],
)
def test_init_learns_the_columns_of_own_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str] | None
) -> None:
    """The only data file of the folder, its columns, a template with the labels, the reward and the
    token limit are found, with --yes, by Enter alone, and where answers were misspelt; blb fit then
    needs no options.
    """
    monkeypatch.chdir(tmp_path)
    write_tickets(tmp_path / "tickets.csv")
    if answers is None:
        result = blb("init", "--yes")
    else:
        result = blb("init", input="\n".join([*answers, *[""] * 5]))
    assert result.exit_code == 0, result.output
    assert find_settings().tables == {"defaults": LEARNED}
    if answers and "txt" in answers:
        assert "did you mean tickets.csv?" in result.stderr
        assert "no column 'txt'" in result.stderr
    assert "next: blb check" in result.stdout
    fit = blb("fit", "--dry-run")
    assert fit.exit_code == 0, fit.output
    assert "Technical 26, Billing 16, Account 5" in fit.stdout
    assert "no prompt names the labels" not in fit.stdout


def test_what_init_takes_for_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text has no answers, so a reward without any is offered; of several files none is; columns
    by option are checked.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n".join(f"Write, at once, {n} lines" for n in range(40)))
    assert blb("init", "--yes").exit_code == 0
    expected = {"provider": "local", "data": "a.txt", "reward": "length"}
    assert find_settings().tables == {"defaults": expected}
    (tmp_path / "blb.toml").unlink()
    write_tickets(tmp_path / "b.csv")
    assert "a.txt, b.csv" in refused("init", "--yes")
    misspelt = refused("init", "--yes", "--data", "b.csv", "--prompt-column", "tiket_text")
    assert "Did you mean ticket_text?" in misspelt
    words = ["--data", "b.csv", "--prompt-template", "{ticket_text}: {eingang}", "--max-tokens", 9]
    assert blb("init", "--yes", *words).exit_code == 0
    written = find_settings().tables["defaults"]
    assert written["prompt_template"] == "{ticket_text}: {eingang}"
    assert written["max_tokens"] == 9
    (tmp_path / "blb.toml").unlink()
    assert blb("init", "--yes", "--data", "b.csv", "--reward", "length").exit_code == 0
    assert not {"max_tokens", "prompt_template"} & set(find_settings().tables["defaults"])
    (tmp_path / "blb.toml").unlink()
    assert "Did you mean capitals?" in refused("init", "--yes", "--task", "capital")


def test_brackets_of_the_user_are_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pattern or an instruction with brackets stands in tables and bars as it was given."""
    from blackbox_lb.cli.terminal import Terminal, print_table

    print_table("[/a] table", ("regex:[/a-z]+$",), [("[b]cell",)])
    out = capsys.readouterr().out
    assert all(text in out for text in ("[/a] table", "regex:[/a-z]+$", "[b]cell"))
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Terminal()._bar("test, prompt + [/ANSWER]", 2):
        pass
    assert "[/ANSWER]" in capsys.readouterr().err


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="the system has no device that is always full")
@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("words", [["show"], ["--help"]])
def test_an_output_that_takes_no_more(words: list[str], buffered: str, bias_file: Path) -> None:
    """One sentence and exit code 2, also for what Python writes at its end; where errors cannot be
    written either, the exit code is left to tell of them.
    """
    arguments = [*words, *([str(bias_file)] if "show" in words else [])]
    environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
    with FULL.open("wb") as output:
        done = subprocess.run(
            [*BLB, *arguments], stdout=output, stderr=subprocess.PIPE, env=environment, timeout=60
        )
        silent = subprocess.run([*BLB, "show", "none.json"], stderr=output, timeout=60)
    message = done.stderr.decode()
    assert (done.returncode, message.count("\n"), silent.returncode) == (2, 1, 2)
    assert message.startswith("Error: cannot write the output: No space left on device")


def test_the_remedy_for_too_many_open_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bias_file: Path
) -> None:
    """It is the same wherever the limit was met, and no room on the disk. Another error of the system
    is a fault of this package, and stays visible.
    """

    def failing(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "file")

    def translated(*_: object) -> None:
        try:
            failing()
        except OSError:
            raise BiasError("file: cannot be read; choose a folder; make room") from None

    def explaining(*_: object) -> None:
        with explained("write file", "make room"):
            failing()

    for load in (failing, translated, explaining):
        monkeypatch.setattr(Bias, "load", load)
        result = blb("show", bias_file)
        assert result.exit_code == 2
        assert result.stderr.count("ulimit -n") == 1
        assert "room" not in result.stderr

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "file")

    monkeypatch.setattr(Bias, "load", full)
    assert isinstance(blb("show", bias_file).exception, OSError)


def test_a_size_of_the_screen_that_is_none(
    bias_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are as whole as without it, and help is written for 40 columns at least."""
    plain = blb("show", bias_file)
    for size in ("0", "00", "-5", "\u00b2", "\u0663", "wide", ""):
        monkeypatch.setenv("COLUMNS", size)
        monkeypatch.setenv("LINES", size)
        sized = blb("show", bias_file)
        assert (sized.exit_code, sized.stdout) == (0, plain.stdout), size
    narrow = set()
    for columns in ("1", "39", "40"):
        monkeypatch.setenv("COLUMNS", columns)
        narrow.add(blb("fit", "--help").stdout)
    assert len(narrow) == 1
