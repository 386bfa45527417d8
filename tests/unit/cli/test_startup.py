"""What a command that only answers must not load: told by the modules, since times depend on the
machine.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from blackbox_lb.cli.commands import COMMANDS

HEAVY = (
    "aiohttp",
    "asyncio",
    "httpx2",
    "matplotlib",
    "msgspec",
    "numpy",
    "openai",
    "pyarrow",
    "pydantic",
    "ray",
    "rich",
    "scipy",
    "sqlite3",
    "tenacity",
    "tiktoken",
)
DEFAULTS = {"numpy", "pydantic"}
"""What a command may load for its help: choices and defaults are those of the package, and some of
them stand beside arrays.
"""
CLI = "from blackbox_lb.cli import main; main({!r}, standalone_mode=False)"
COMPLETION = """
from blackbox_lb.cli import COMMANDS, main
from click.shell_completion import ShellComplete
shell = ShellComplete(main, {}, 'blb', '_BLB_COMPLETE')
assert all(shell.get_completions([name], '--') for name in COMMANDS)
assert shell.get_completions(['fit', '--provider'], '')
"""


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import blackbox_lb", HEAVY),
        ("import blackbox_lb; dir(blackbox_lb)", HEAVY),
        (CLI.format(["--help"]), HEAVY),
        (CLI.format(["--version"]), HEAVY),
        (COMPLETION, ("numpy", "scipy", "openai", "rich")),
        ("import blackbox_lb; blackbox_lb.BlbError", ("numpy", "openai", "pydantic")),
        ("import blackbox_lb, numpy; blackbox_lb.Completion", ("openai",)),
    ],
    ids=["import", "dir", "help", "version", "completion", "an error", "a type"],
)
def test_what_only_answers_loads_nothing_heavy(code: str, heavy: tuple[str, ...]) -> None:
    """Help, version and the package itself need no numbers, no network and no models of data; a key
    press waits for no estimator, whatever the command, and a name of the package loads what it
    needs alone.
    """
    script = f"import sys\n{code}\nprint([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


EVERY = """
import contextlib, io, json, sys
import click
from blackbox_lb.cli import COMMANDS, main
loaded = {}
for name in COMMANDS:
    for words in (["--help"], ["--no-such-option"]):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            try:
                main([name, *words], standalone_mode=False)
            except click.UsageError as error:
                said.write(error.format_message())
        loaded[f"{name} {words[0]}"] = said.getvalue(), [each for each in HEAVY if each in sys.modules]
print(json.dumps(loaded))
"""


def test_the_help_of_a_command_loads_nothing_that_runs_it() -> None:
    """Nor does a mistake in its options: one process asks every command for both, in turn."""
    heavy = sorted({*HEAVY} - DEFAULTS)
    script = f"HEAVY = {heavy}\n{EVERY}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = json.loads(done.stdout)
    assert len(loaded) == 2 * len(COMMANDS)
    for call, (said, found) in loaded.items():
        assert ("Usage:" if call.endswith("--help") else "--no-such-option") in said
        assert found == [], call
