"""What a command that only answers must not load: told by the modules, since times depend on the machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
CLI = "from blackbox_lb.cli import main; main({!r}, standalone_mode=False)"


@pytest.mark.parametrize(
    "code",
    ["import blackbox_lb", "import blackbox_lb; dir(blackbox_lb)", CLI.format(["--help"]), CLI.format(["--version"])],
)
def test_what_only_answers_loads_nothing_heavy(code: str) -> None:
    """Help, version and the package itself need no numbers, no network and no models of data."""
    script = f"import sys\n{code}\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_name_of_the_package_loads_what_it_needs_and_no_more() -> None:
    """An error class comes without numpy or openai; a completion needs numpy."""
    script = (
        "import sys, blackbox_lb\nblackbox_lb.BlbError\nprint([m for m in ('numpy', 'openai', 'pydantic') if m in sys.modules])\n"
        "blackbox_lb.Completion\nprint('numpy' in sys.modules, 'openai' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "True False"]
