"""The functions that a model may call, earlier calls and their results, as data hold them: OpenAI's
``tools``, ``tool_calls`` and messages of the role ``tool``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blackbox_lb.errors import DataError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.safety.untrusted import parse_json, read_bounded
from blackbox_lb.types import Message

MOST_BYTES = 2**20
EXAMPLE = '[{"type": "function", "function": {"name": "weather", "parameters": {...}}}]'
EXAMPLE_CALL = (
    '{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments":'
    ' "{\\"city\\": \\"Oslo\\"}"}}'
)


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
    return _in_one_spelling(value)


def _in_one_spelling(value: Any) -> str:
    """The JSON text of a value. Raises ValueError: it holds a date, say, which JSON has not."""
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"{error}; write it as a text") from error


def calls_text(value: Any) -> str:
    """``tool_calls`` of a message as JSON in one spelling; "" for none.

    Raises ValueError: it is no list of calls, each with an id, a name and the JSON text of its
    arguments, or two calls have one id.
    """
    if value is None:
        return ""
    if not isinstance(value, list):
        raise ValueError(  # noqa: TRY004  (what was given is data, not a wrong call)
            f"tool_calls is {shorten(value)}; write a list of calls as {EXAMPLE_CALL}"
        )
    identities: list[str] = []
    for call in value:
        function: Any = call.get("function") if isinstance(call, dict) else None
        is_call = isinstance(function, dict) and call.get("type", "function") == "function"
        texts: tuple[Any, ...] = ()
        if is_call:
            texts = (call.get("id"), function.get("name"))
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise ValueError(
                f"tool_calls holds {shorten(call)}, which is no call; write it as {EXAMPLE_CALL}"
            )
        if not isinstance(function.get("arguments"), str):
            raise ValueError(  # noqa: TRY004  (data, not a wrong call)
                f"the call {call['id']} has the arguments {shorten(function.get('arguments'))};"
                f" they must be a string of JSON, as in {EXAMPLE_CALL}"
            )
        identities.append(call["id"])
    repeated = [name for name in identities if identities.count(name) > 1]
    if repeated:
        raise ValueError(f"two calls of one message have the id {shorten(repeated[0])}; rename one")
    return _in_one_spelling(value)


def check_results(messages: Sequence[Message]) -> None:
    """Raise ValueError: a result of a tool answers no call before it, or a call has no result, as
    servers refuse it. A last turn may end with calls.
    """
    open_calls: list[str] = []
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                wanted = ", ".join(map(shorten, open_calls)) or "none is open"
                raise ValueError(
                    f"a message of the role tool has the tool_call_id"
                    f" {shorten(message.tool_call_id or 'none')}, which is no call that awaits its"
                    f" result ({wanted}); it follows the turn of the assistant whose tool_calls"
                    " have that id, once"
                )
            open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            raise ValueError(
                f"the call {shorten(open_calls[0])} has no result before the next message of the"
                f" role {message.role}; add a message of the role tool with its tool_call_id"
            )
        if message.tool_calls:
            open_calls = [call["id"] for call in json.loads(message.tool_calls)]
    if open_calls and messages[-1].role == "tool":
        raise ValueError(
            f"the call {shorten(open_calls[0])} has no result at the end; add a message of the role"
            " tool with its tool_call_id"
        )


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
