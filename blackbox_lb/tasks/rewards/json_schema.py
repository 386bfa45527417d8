"""A reward for form: whether a completion is JSON that a JSON Schema accepts."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import printable, shorten
from blackbox_lb.safety.untrusted import parse_json, read_settings
from blackbox_lb.types import Completion, Example

OPENING = re.compile(r"(?:[-*+]|\d+[.)])?[ \t]*```[ \t]*([\w+-]*)[ \t]*")
"""The line before a fenced block, behind the mark of a list's item if it has one, with the block's
language.
"""
JSON_LANGUAGES = frozenset({"json", "jsonc", "json5"})
CLOSING = "```"
INLINE = re.compile(r"```[ \t]*(?:json)?[ \t]+(\S.*\S)[ \t]*```", re.IGNORECASE)
"""A block that begins and ends on one line."""
KEYWORDS = frozenset(
    {
        *("$ref", "$dynamicRef", "type", "enum", "const", "allOf", "anyOf", "oneOf", "not"),
        *("if", "then", "else", "properties", "patternProperties", "additionalProperties"),
        *("propertyNames", "required", "dependentRequired", "dependentSchemas", "dependencies"),
        *("minProperties", "maxProperties", "unevaluatedProperties", "items", "prefixItems"),
        *("additionalItems", "contains", "minContains", "maxContains", "minItems", "maxItems"),
        *("uniqueItems", "unevaluatedItems", "minimum", "maximum", "exclusiveMinimum"),
        *("exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "extends"),
        *("disallow", "divisibleBy"),
    }
)
"""Keywords that can refuse a value, of every draft (https://json-schema.org/specification)."""
WRAPPERS = (
    ("json_schema", "schema"),
    ("function", "parameters"),
    ("format", "schema"),
    ("schema",),
)
"""Where APIs put the schema in an object of their own: OpenAI's ``response_format`` and tools, the
Responses API's ``text``, and what is inside of these.
"""
NOTHING = object()
"""The result for a text without JSON; null is a value."""


def json_schema(file: str) -> Callable[[Example, Completion], float]:
    """Make the reward that is 1 where a completion is JSON that the schema in ``file`` accepts,
    else 0.

    The whole completion must be JSON, or hold a fenced block of JSON: the first that Markdown marks
    as ``json``, else the first without a mark. The draft is the one that ``$schema`` names, else
    2020-12. ``format`` is an annotation, as the specification has it by default, and not checked.
    A completion that the validator cannot work through (a number beyond float64, lists nested
    beyond Python's stack) is not accepted.

    Raises InputError: jsonschema is not installed, or the file holds no schema; at a call, a
    reference that leaves the file, or a pattern that is no regular expression.
    """
    validator = _validator(Path(file))
    from referencing.exceptions import Unresolvable

    def scored(example: Example, completion: Completion) -> float:
        found = json_in(completion.text)
        if found is NOTHING:
            return 0.0
        try:
            return float(validator.is_valid(found))
        except (Unresolvable, re.error) as error:
            raise InputError(
                f"the schema {file} cannot be applied to the completion of example {example.id!r}:"
                f" {printable(_reason(error)[:200])}; references must stay inside the file, under"
                " $defs, and patterns must be regular expressions"
            ) from error
        except (ArithmeticError, RecursionError, ValueError, TypeError):
            return 0.0

    return scored


def _reason(error: Exception) -> str:
    reference = getattr(error, "ref", None)
    return f"nothing is at the reference {reference!r}" if reference else str(error)


def json_in(text: str) -> object:
    """The JSON value of a text, or of its first fenced block of JSON; ``NOTHING`` where there is
    none. A byte order mark before it is no part of it.
    """
    bare = text.removeprefix("\ufeff")
    value = _loaded(bare)
    if value is not NOTHING or "```" not in bare:
        return value
    marked, unmarked = _fenced(bare)
    block = marked if marked is not None else unmarked
    return NOTHING if block is None else _loaded(block)


def _loaded(text: str) -> object:
    try:
        value: object = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return NOTHING
    return value


def _fenced(text: str) -> tuple[str | None, str | None]:
    """The first fenced block that is marked as JSON, and the first without a mark, each None where
    there is none. A block that is not closed goes to the end. Each line is looked at once.
    """
    first: dict[str, str] = {}
    lines: list[str] | None = None
    language = ""
    for line in text.splitlines():
        stripped = line.strip()
        if lines is not None:
            if stripped == CLOSING:
                first.setdefault(language, "\n".join(lines))
                lines = None
            else:
                lines.append(line)
        elif (opening := OPENING.fullmatch(stripped)) is not None:
            lines = []
            language = "json" if opening[1].lower() in JSON_LANGUAGES else opening[1]
        elif (inline := INLINE.fullmatch(stripped)) is not None:
            first.setdefault("json", inline[1])
    if lines is not None:
        first.setdefault(language, "\n".join(lines))
    return first.get("json"), first.get("")


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")  # which json reads all the same


def _validator(path: Path) -> Any:
    try:
        from jsonschema import SchemaError
        from jsonschema.validators import Draft202012Validator, extend, validator_for
        from referencing import Registry
    except ImportError as error:
        raise InputError(
            "the reward json-schema needs jsonschema, which is not installed: pip install"
            " 'blackbox-lb[tasks]'"
        ) from error
    schema = read_settings(path, "the schema", "give json-schema:FILE", parse=parse_json)
    if not isinstance(schema, dict | bool):
        raise InputError(
            f"the schema {path} is {shorten(schema)}; a schema is an object, true or false"
        )
    if isinstance(schema, dict):
        schema = _unwrapped(schema, path)
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        where = "/".join(map(str, error.absolute_path)) or "the top"
        raise InputError(
            f"the schema {path} is not valid at {where}: {shorten(error.message)}; correct it"
        ) from error
    kind = extend(kind, {"uniqueItems": _unique_items})
    return kind(schema, registry=Registry())  # an empty registry fetches nothing from the network


def _unwrapped(schema: dict[str, Any], path: Path) -> dict[str, Any]:
    """The schema, or the one inside an object in which an API takes schemas.

    Raises InputError: an object without any keyword of JSON Schema, which would accept everything.
    """
    for names in WRAPPERS:
        inner: Any = schema
        for name in names:
            inner = inner.get(name) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and KEYWORDS.isdisjoint(schema.keys() - {"type"}):
            return _unwrapped(inner, path)
    if schema and KEYWORDS.isdisjoint(schema):
        raise InputError(
            f"the schema {path} holds no keyword of JSON Schema, only"
            f" {shorten(', '.join(sorted(schema)))}, so that it would accept everything; describe"
            ' the values, as in {"type": "object", "properties": {...}}, or write {} to'
            " accept any JSON"
        )
    return schema


def _unique_items(validator: Any, unique: bool, instance: Any, schema: Any) -> Iterator[Any]:
    """``uniqueItems`` in time linear in the list's length: jsonschema compares each pair where
    items are objects.
    """
    from jsonschema import ValidationError

    if unique and validator.is_type(instance, "array"):
        items = [_hashable(item) for item in instance]
        if len(set(items)) < len(items):
            yield ValidationError("the list has non-unique elements")


def _hashable(value: Any) -> Any:
    """``value`` as something that is equal where JSON Schema says so: 1 and 1.0 are, 1 and true are
    not.
    """
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return ("array", *(_hashable(item) for item in value))
    if isinstance(value, dict):
        return frozenset((name, _hashable(item)) for name, item in value.items())
    return value
