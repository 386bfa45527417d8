"""The functions that a model may call, as data hold them: OpenAI's ``tools``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blackbox_lb.errors import DataError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.safety.untrusted import parse_json, read_bounded

MOST_BYTES = 2**20
EXAMPLE = '[{"type": "function", "function": {"name": "weather", "parameters": {...}}}]'


def tools_text(value: Any) -> str:
    """``tools`` as JSON in one spelling; "" for none.

    Raises ValueError: it is no list of functions with names, each name once.
    """
    if value is None or value == []:
        return ""
    if not isinstance(value, list):
        raise ValueError(  # noqa: TRY004  (what was given is data, not a wrong call)
            f"{shorten(value)} is no list; write tools as {EXAMPLE}"
        )
    names = []
    for tool in value:
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"{shorten(tool)} is no function with a name; write tools as {EXAMPLE}"
            )
        names.append(name)
    if len(set(names)) < len(names):
        raise ValueError(f"two functions have one name ({shorten(', '.join(names))}); rename one")
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def read_tools(path: Path) -> str:
    """The tools in a JSON file, see ``tools_text``.

    Raises DataError: it cannot be read, or holds no tools.
    """
    try:
        text = tools_text(parse_json(read_bounded(path, MOST_BYTES)))
    except OSError as error:
        raise DataError(
            f"{path}: the tools cannot be read ({error.strerror}); give a JSON file as {EXAMPLE}"
        ) from None
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    if not text:
        raise DataError(f"{path} holds no tools; write them as {EXAMPLE}")
    return text
