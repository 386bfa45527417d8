"""Chat messages of a row: OpenAI's format, also as files for fine-tuning and dumped answers have
it, and ShareGPT's (``from`` and ``value``).

A message may say more than a request can: the ``weight`` of a turn in fine-tuning and the reasoning
behind an answer are left out, which the row's remarks say.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.records.records import Record
from blackbox_lb.tasks.records.tools import EXAMPLE_CALL, calls_text, check_results
from blackbox_lb.types import Message, Prompt

CONVERSATIONS = "conversations"
"""ShareGPT's column of messages."""
_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "assistant": ("tool_calls", "name"),
        "developer": ("name",),
        "system": ("name",),
        "tool": ("tool_call_id", "name"),
        "user": ("name",),
    }
)
"""Role -> the fields that its messages may have beside role and content."""
_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
}
_REASONING = ("reasoning_content", "reasoning", "thinking")
_TEXT_PARTS = ("text", "input_text", "output_text")


def raw_messages(record: Record, column: str) -> list[Any]:
    """The messages in a column, as a list or as JSON text. Raises DataError: neither."""
    messages = record.get(column)
    if isinstance(messages, str):
        messages = record.parsed_json(column)
    if not isinstance(messages, list) or not messages:
        raise record.error(
            f"{column} is {shorten(record.get(column))}; it must be a list such as"
            ' [{"role": "user", "content": "Hi"}]'
        )
    return messages


def read_chat(record: Record, column: str) -> Prompt:
    """The messages in a column as a prompt. DataError names what is wrong in them."""
    messages = raw_messages(record, column)
    prompt = Prompt(tuple(_message(record, column, message) for message in messages))
    if not any(message.content.strip() for message in prompt.messages):
        raise record.error(f"{column} has only empty contents; write a prompt or delete the row")
    try:
        check_results(prompt.messages)
    except ValueError as error:
        raise record.error(f"{column}: {error}") from error
    return prompt


def _message(record: Record, column: str, message: object) -> Message:
    if not isinstance(message, dict):
        raise record.error(f"{column} holds {shorten(message)}, which is no message")
    present = {field: value for field, value in message.items() if value not in (None, [])}
    if "from" in present and "role" not in present:
        present = _of_sharegpt(record, column, present)
    role = present.pop("role", None)
    if role == "function" or "function_call" in present:
        raise record.error(
            f"{column} has a function_call or a message of the role function, the old form of"
            f" calls; write the call into tool_calls, as {EXAMPLE_CALL}, and its result as a"
            " message of the role tool with that id as tool_call_id"
        )
    if not isinstance(role, str) or role not in _FIELDS:
        raise record.error(
            f"{column} has the unknown role {shorten(role)}; the roles are {', '.join(_FIELDS)}"
        )
    content = present.pop("content", None)
    if content is None and role == "assistant" and "tool_calls" in present:
        content = ""
    content = _text(record, column, content)
    if role == "assistant":
        _leave_out(record, column, present)
    unknown = sorted(set(present) - set(_FIELDS[role]))
    if unknown:
        known = ", ".join(("role", "content", *_FIELDS[role]))
        raise record.error(
            f"{column} has the field {shorten(unknown[0])} in a message of the role {role}; such a"
            f" message has {known}; take the field out of the file"
        )
    try:
        calls = calls_text(present.get("tool_calls"))
    except ValueError as error:
        raise record.error(f"{column}: {error}") from error
    texts = {}
    for field in ("tool_call_id", "name"):
        texts[field] = present.get(field, "")
        if not isinstance(texts[field], str):
            raise record.error(
                f"{column} has the {field} {shorten(texts[field])}; it must be a string"
            )
    return Message(role, content, calls, **texts)


def _of_sharegpt(record: Record, column: str, message: dict[str, Any]) -> dict[str, Any]:
    """ShareGPT's ``from`` and ``value`` as ``role`` and ``content``."""
    speaker = message.pop("from")
    role = None
    if isinstance(speaker, str):
        role = _SHAREGPT_ROLES.get(speaker)
    if role is None:
        raise record.error(
            f"{column} has a turn from {shorten(speaker)}; turns are from"
            f" {', '.join(_SHAREGPT_ROLES)}; write calls and their results as messages of OpenAI's"
            " chat format, with tool_calls and the role tool"
        )
    return {"role": role, "content": message.pop("value", None), **message}


def _text(record: Record, column: str, content: object) -> str:
    """The content of a message; of several text parts, their texts joined by line breaks."""
    parts = [content]
    if isinstance(content, list):
        parts = content
    texts: list[str] = []
    for part in parts:
        text = part
        if isinstance(part, dict) and part.get("type", "text") in _TEXT_PARTS:
            text = part.get("text")
        if not isinstance(text, str):
            shown = shorten(part)
            if isinstance(part, dict) and part.get("type") is not None:
                shown = f"of the type {shorten(part['type'])}"
            raise record.error(
                f"{column} has the content {shown}; it must be a string or a list of text parts,"
                " because texts alone are sent: delete the row, or write it as text"
            )
        texts.append(text)
    if len(texts) > 1:
        record.remark("with contents of several text parts, which are joined by line breaks")
    return "\n".join(texts)


def _leave_out(record: Record, column: str, turn: dict[str, Any]) -> None:
    """Take the weight and the reasoning out of a turn of the assistant, and note it."""
    weight = turn.pop("weight", None)
    if weight is not None:
        if weight not in (0, 1):
            raise record.error(
                f"{column} has the weight {shorten(weight)}; write 1 for a turn that is to be"
                " learned and 0 for one that is not, or take the weights out of the file"
            )
        record.remark("with the weight of a turn, which is not sent")
    for field in _REASONING:
        if turn.pop(field, None):
            record.remark(
                f"with the {field} of a turn, which is neither sent nor part of an answer"
            )
