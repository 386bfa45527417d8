"""Whether a completion gives an accepted answer of a mathematics problem: math-verify, in a process
of its own, for what is no text.
"""

import atexit
import importlib.util
import json
import signal
import subprocess
import sys
import threading
import warnings
from functools import lru_cache
from pathlib import Path
from typing import IO, cast

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.rewards._math_process import SECONDS
from blackbox_lb.tasks.rewards.math_texts import gives_text, is_only_text, is_sentence, text_of

_WORKER = Path(__file__).with_name("_math_process.py")


def check_installed() -> None:
    """Raise InputError where math-verify is missing."""
    if importlib.util.find_spec("math_verify") is None:
        raise InputError(
            "the matcher 'math' needs math-verify: pip install '.[tasks]' in the checkout, or"
            " choose another"
        )


@lru_cache(maxsize=65_536)
def mathematically_equal(answers: tuple[str, ...], text: str) -> bool:
    """True where ``text`` gives one of ``answers``.

    An accepted answer is a text or a letter, which is compared as text; else LaTeX, all of it; else
    a number, with or without a unit, or an arithmetic expression. Of the text, the last expression
    counts (the boxed one, if any).

    Unparsable text is False; so is, with a warning, a comparison of more than 10 seconds of
    processor time. DataError: an accepted answer is none of these.
    """
    if any(text_of(answer) is not None and gives_text(answer, text) for answer in answers):
        return True
    expressions = [answer for answer in answers if not is_only_text(answer)]
    while expressions:
        verdict = _process.ask(tuple(expressions), text)
        if verdict is None:
            warnings.warn(
                f"math-verify did not compare {shorten(text[-50:])} within {SECONDS} s; it counts"
                " as incorrect",
                stacklevel=2,
            )
            return False
        if isinstance(verdict, bool):
            return verdict
        if not is_sentence(verdict):
            raise DataError(
                f"the accepted answer {shorten(verdict)} is no mathematical expression; correct it,"
                " or choose another matcher"
            )
        if gives_text(verdict, text):
            return True
        expressions.remove(verdict)
    return False


class _Process:
    """The worker, started at the first question and again after one that took too long."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None

    def ask(self, answers: tuple[str, ...], text: str) -> bool | str | None:
        """The worker's answer, or None where it takes too long."""
        with self.lock:
            process = self.process = self.process or _start()
            stdin = cast(IO[str], process.stdin)
            stdout = cast(IO[str], process.stdout)
            try:
                stdin.write(json.dumps([answers, text]) + "\n")
                stdin.flush()
                line = stdout.readline()
            except BrokenPipeError:
                line = ""
            except BaseException:  # its verdict would be read as that of the next question
                process.kill()
                self._end()
                raise
            if line:
                return cast("bool | str", json.loads(line))
            code = self._end()
            if code == -getattr(signal, "SIGVTALRM", 0):
                return None
            raise InputError(
                f"math-verify ended with exit code {code} instead of comparing"
                f" {shorten(text[-50:])}; see what is wrong with {sys.executable} -c 'import"
                " math_verify'"
            )

    def _end(self) -> int | None:
        process = self.process
        self.process = None
        if process is None:
            return None
        for pipe in (process.stdin, process.stdout):
            cast(IO[str], pipe).close()
        return process.wait()

    def close(self) -> None:
        with self.lock:
            if self.process is not None:
                self.process.kill()
            self._end()


def _start() -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-P",
        str(_WORKER),
    ]  # -P: no module beside the script is taken for one of Python's own
    pipe = subprocess.PIPE
    none = subprocess.DEVNULL
    return subprocess.Popen(  # noqa: S603  # our own interpreter and script
        command, stdin=pipe, stdout=pipe, stderr=none, text=True, encoding="utf-8"
    )


_process = _Process()
atexit.register(_process.close)
