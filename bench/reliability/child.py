"""What a forked process of the bench does: one ``blb`` command, as if it had been started by
itself.

The fork server imports the program once, so that a real process with a real store costs a fork and
not an import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from blackbox_lb.cli import main

__all__ = ["PRELOADED", "command"]

PRELOADED = ["bench.reliability.child", "bench.reliability.writers", "bench.reliability.soak"]


def command(arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
    """``blb`` with these arguments and environment variables; stdout and stderr are added to
    ``log``.
    """
    os.environ.update(variables)
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = ["blb", *arguments]
    main()
