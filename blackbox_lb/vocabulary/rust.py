"""Libraries in Rust: what they cannot do they say by an error of no certain class, or by a panic,
which Python sees as a BaseException and of which a report goes to stderr.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from blackbox_lb.errors import BlbError, InputError
from blackbox_lb.safety.printable import first_line

STDERR = 2
"""Its number, under which the libraries write."""


@contextmanager
def rust_errors(said: str, remedy: str = "") -> Iterator[None]:
    """Raise InputError where the block fails: ``said``, the library's reason, ``remedy``."""
    try:
        yield
    except (BlbError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise InputError(f"{said}: {first_line(error)}{remedy}") from error


@contextmanager
def without_reports() -> Iterator[None]:
    """Inside, nothing is written to stderr: the report of a panic, whose words are in the error."""
    try:
        kept = os.dup(STDERR)
        nowhere = os.open(os.devnull, os.O_WRONLY)
    except OSError:  # no stderr, or no more files: then a report is shown
        yield
        return
    try:
        os.dup2(nowhere, STDERR)
        yield
    finally:
        os.dup2(kept, STDERR)
        for number in (kept, nowhere):
            with suppress(OSError):
                os.close(number)
