"""Fields of JSON objects that strangers wrote, each fault with its place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pydantic import JsonValue

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import printable, shorten

Json: TypeAlias = JsonValue
Loc: TypeAlias = tuple[str | int, ...]


class RequestFault(InputError):
    """A question, or a request with questions, that cannot be read.

    loc: the keys and places that lead to the fault. msg: what is wrong and what to write instead.
    type: a word for programs, as pydantic has them.
    """

    def __init__(self, loc: Loc, msg: str, type: str = "value_error") -> None:
        super().__init__(f"{dotted(loc)}: {msg}" if loc else msg)
        self.loc = loc
        self.msg = msg
        self.type = type


def dotted(loc: Loc) -> str:
    """A place in a document, as "questions.team.criteria" or "questions[2].choices"."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{printable(part)[:80]}" for part in loc)
    return "".join(parts).lstrip(".")


def fields_of(raw: object, loc: Loc, known: Sequence[str] | None = None) -> dict[str, Json]:
    """A JSON object; ``known``: the only fields that it may have, None for any.

    Raises:
        RequestFault: something else, or an unknown field.
    """
    if not isinstance(raw, dict):
        raise RequestFault(loc, f"it is {kind_of(raw)}; give an object", "dict_type")
    for name in raw:
        if known is not None and name not in known:
            raise RequestFault(
                (*loc, name),
                f"unknown field; a question of this type has {', '.join(known)}",
                "extra_forbidden",
            )
    return raw


def field(fields: Mapping[str, Json], name: str, loc: Loc) -> Json:
    """A field that must be there.

    Raises:
        RequestFault: it is not.
    """
    if name not in fields:
        raise RequestFault((*loc, name), "the field is missing; give it", "missing")
    return fields[name]


def text_field(fields: Mapping[str, Json], name: str, loc: Loc) -> str:
    """A field that must be a text that is not empty.

    Raises:
        RequestFault: it is not there, or something else.
    """
    value = field(fields, name, loc)
    if not isinstance(value, str) or not value:
        description = "empty" if value == "" else kind_of(value)
        raise RequestFault((*loc, name), f"it is {description}; give a text", "string_type")
    return value


def list_field(fields: Mapping[str, Json], name: str, loc: Loc) -> list[Json]:
    """A field that must be a list.

    Raises:
        RequestFault: it is not there, or something else.
    """
    value = field(fields, name, loc)
    if not isinstance(value, list):
        raise RequestFault((*loc, name), f"it is {kind_of(value)}; give a list", "list_type")
    return value


def prose(value: Json, loc: Loc) -> Json:
    """Instructions or a description: a text, an object, a list, or null for none.

    Raises:
        RequestFault: a number, or true or false.
    """
    if isinstance(value, str | dict | list) or value is None:
        return value
    raise RequestFault(loc, f"it is {kind_of(value)}; give a text, an object or a list")


def needed_prose(value: Json, loc: Loc) -> Json:
    """Prose that must be there, as the text of a score's level.

    Raises:
        RequestFault: it is null, empty, or something else.
    """
    if value is None or value == "":
        raise RequestFault(loc, "it has no text; give one")
    return prose(value, loc)


def kind_of(value: object) -> str:
    """What a JSON value is, in words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"


def unknown_type(raw_type: Json, types: Sequence[str], loc: Loc) -> RequestFault:
    description = shorten(raw_type) if isinstance(raw_type, str) else kind_of(raw_type)
    return RequestFault(
        (*loc, "type"),
        f"it is {description}; give one of {', '.join(types)}",
        "literal_error",
    )
