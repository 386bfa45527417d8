"""A process of its own that compares mathematical expressions, so that an endless one can be ended
from any thread.

Run as a script: each line on stdin is JSON, [[accepted answers], text]; each line on stdout is
true, false, or the answer that is no mathematics. A comparison that takes more than 10 seconds of
processor time ends the process. math-verify's own time limit is off: it uses signals that only a
main thread gets and that do not interrupt a long multiplication
(https://github.com/huggingface/Math-Verify).
"""

import importlib
import json
import logging
import signal
import sys
from functools import lru_cache
from typing import Any

SECONDS = 10
"""Of processor time, so that a busy machine changes no verdict. Comparing homework answers takes
milliseconds.
"""


@lru_cache(maxsize=4096)
def _accepted(answer: str) -> tuple[Any, ...]:
    """Parse an accepted answer: as LaTeX where nothing in it marks it so, and as it stands."""
    parse = importlib.import_module("math_verify").parse
    marked = any(mark in answer for mark in ("$", r"\(", r"\[", r"\boxed"))
    forms = [answer] if marked else [f"${answer}$", answer]
    parsed = [item for form in forms for item in parse(form, parsing_timeout=0)]
    return tuple(item for item in parsed if not isinstance(item, str))


def _correct(answers: list[str], text: str) -> bool | str:
    library = importlib.import_module("math_verify")
    for answer in answers:
        if not _accepted(answer):
            return answer
    found = library.parse(text, parsing_timeout=0)
    return any(
        library.verify(list(_accepted(answer)), found, timeout_seconds=0) for answer in answers
    )


def main() -> None:
    """Answer until stdin ends."""
    logging.disable(logging.CRITICAL)
    importlib.import_module("math_verify")
    timer = getattr(signal, "setitimer", None)  # Windows has none: no limit there
    for line in sys.stdin:
        if timer is not None:
            timer(signal.ITIMER_VIRTUAL, SECONDS)
        answers, text = json.loads(line)
        sys.stdout.write(json.dumps(_correct(answers, text)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
