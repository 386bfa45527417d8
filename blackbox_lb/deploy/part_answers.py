"""The answers to the parts of a request: read, added up, and written as a stream or as a whole."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from blackbox_lb.bias.stepping import AnswerPiece

ID_IN_TOKEN = "token_id:"  # noqa: S105 - how vLLM writes an id in the place of a token's text
THOUGHTS = ("reasoning_content", "reasoning")
"""The fields in which servers list thoughts apart from an answer."""


def text_of(choice: Mapping[str, Any]) -> str:
    """The text of a choice, of chat or of completions, whole or as an event of a stream."""
    message = choice.get("message") or choice.get("delta") or choice
    return message.get("content") or message.get("text") or ""


class MessageFields:
    """What a message has beside its text, collected from whole messages or from pieces of them."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls of functions that the server read from its text."""
        return [self._calls[place] for place in sorted(self._calls)]

    @property
    def has_thoughts(self) -> bool:
        return any(self._fields.get(name) for name in THOUGHTS)

    def add(self, message: Mapping[str, Any]) -> bool:
        """Whether thoughts or calls are in it."""
        has_more = False
        for name, value in message.items():
            if name == "tool_calls" and value:
                has_more = True
                for place, piece in enumerate(value):
                    self._add_call(int(piece.get("index") or place), piece)
            elif name in THOUGHTS and value:
                has_more = True
                self._fields[name] = (self._fields.get(name) or "") + value
            elif name != "content":
                self._fields.setdefault(name, value)
        return has_more

    def _add_call(self, place: int, piece: Mapping[str, Any]) -> None:
        call = self._calls.setdefault(place, {"function": {}})
        function = call["function"]
        for name, value in (piece.get("function") or {}).items():
            is_text = name == "arguments" and name in function
            function[name] = function[name] + value if is_text else value
        call |= {name: value for name, value in piece.items() if name not in ("index", "function")}

    def with_text(self, text: str) -> dict[str, Any]:
        """The message with its text."""
        message = {"role": "assistant", **self._fields, "content": text}
        if self._calls:
            message |= {"content": text or None, "tool_calls": self.calls}
        return message


def with_calls(choice: Mapping[str, Any]) -> dict[str, Any]:
    """The message and the finish reason of a choice. A call at the beginning of its text becomes
    ``tool_calls``, because no server saw the whole text to read it; other text stays.
    """
    from blackbox_lb.types import CALL_MARKS, calls_in  # numpy, which no other answer needs

    message = dict(choice["message"])
    unchanged = {"message": message, "finish_reason": choice.get("finish_reason")}
    text = message["content"].lstrip()
    if not text.startswith(CALL_MARKS) or unchanged["finish_reason"] == "length":
        return unchanged
    calls = calls_in(text)
    if not calls:
        return unchanged
    written = [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]
    message |= {"content": None, "tool_calls": written}
    return {"message": message, "finish_reason": "tool_calls"}


def server_sent(document: Mapping[str, Any]) -> bytes:
    """As a stream sends it: https://html.spec.whatwg.org/multipage/server-sent-events.html."""
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def summed(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of two usage objects, field by field, nested objects included."""
    total = dict(first)
    for name, value in second.items():
        if isinstance(value, dict):
            total[name] = summed(total.get(name) or {}, value)
        else:
            total[name] = (
                total.get(name, 0) + value
                if isinstance(value, int | float) and isinstance(total.get(name, 0), int | float)
                else value
            )
    return total


def joined_logprobs(choices: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The lists of logprobs of several choices behind each other, by their names; None where none
    has any.
    """
    lists = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    if not lists:
        return None
    return {name: [row for listed in lists for row in listed.get(name) or ()] for name in lists[-1]}


class TextPiece(NamedTuple):
    """A piece of an event, with the choice that says only this piece. ids: of all its tokens, empty
    where they are not told.
    """

    piece: AnswerPiece
    choice: dict[str, Any]
    ids: tuple[int, ...]


def pieces_of(choice: Mapping[str, Any]) -> list[TextPiece]:
    """The tokens of a choice of a stream, one by one where their texts are told; else in one piece.

    Read are ``token_ids`` (vLLM), lists of ``logprobs.content`` with ids (llama.cpp, Fireworks),
    and the older lists side by side.
    """
    text = text_of(choice)
    logprobs = choice.get("logprobs") or {}
    rows = logprobs.get("content") or logprobs.get("tokens") or []
    ids = _ids(choice, logprobs, rows)
    count = max(len(rows), len(ids), 1)
    texts = _texts(rows, text) if len(rows) == count > 1 else None
    if texts is None:
        first = ids[0] if ids else None
        return [TextPiece(AnswerPiece(text, first, count), dict(choice), ids)]
    pieces = []
    start = 0
    for part, tokens in texts:
        end = start + tokens
        token_choice = with_text(choice, part)
        if "content" in logprobs:
            token_choice["logprobs"] = {**logprobs, "content": rows[start:end]}
        else:
            token_choice["logprobs"] = {
                name: row[start:end] for name, row in logprobs.items() if row
            }
        if choice.get("token_ids"):
            token_choice["token_ids"] = list(ids[start:end])
        part_ids = ids[start:end]
        first = part_ids[0] if part_ids else None
        pieces.append(TextPiece(AnswerPiece(part, first, tokens), token_choice, part_ids))
        start = end
    return pieces


def with_text(choice: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The choice of a stream with another text."""
    if "delta" in choice:
        return {**choice, "delta": {**choice["delta"], "content": text}}
    return {**choice, "text": text}


def _ids(
    choice: Mapping[str, Any], logprobs: Mapping[str, Any], rows: Sequence[Any]
) -> tuple[int, ...]:
    """The ids of the tokens of a choice, empty where they are not told."""
    ids = choice.get("token_ids") or logprobs.get("token_ids")
    if ids is None:
        ids = [_id(row) for row in rows]
    return tuple(ids) if all(isinstance(token, int) for token in ids) else ()


def _id(row: Any) -> int | None:
    """The id in an entry of a list."""
    if isinstance(row, dict):
        for name in ("id", "token_id"):
            if isinstance(row.get(name), int):
                return int(row[name])
        row = row.get("token")
    if isinstance(row, str) and row.startswith(ID_IN_TOKEN):
        number = row.removeprefix(ID_IN_TOKEN)
        if number.isdecimal():
            return int(number)
    return None


def _texts(rows: Sequence[Any], text: str) -> list[tuple[str, int]] | None:
    """The text of each token of an event, or of several that end inside a character, with their
    number; None where they do not make up ``text``.
    """
    texts = list[tuple[str, int]]()
    raw = b""
    count = 0
    for row in rows:
        if isinstance(row, dict) and isinstance(row.get("bytes"), list):
            raw += bytes(row["bytes"])
        else:
            raw += str(row.get("token") if isinstance(row, dict) else row).encode()
        count += 1
        with suppress(UnicodeDecodeError):
            texts.append((raw.decode(), count))
            raw = b""
            count = 0
    if raw or "".join(part for part, _ in texts) != text:
        return None
    return texts
