"""Whether a completion is JSON that a JSON Schema accepts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.safety.untrusted import parse_json, read_settings
from blackbox_lb.tasks.rewards.reward import Form, Reward, Score
from blackbox_lb.types import Completion, Example

MARKS = ("json", "jsonc", "json5")
"""Words behind the opening fence of a Markdown block that mark it as JSON, in any case."""
WRAPPINGS = (("json_schema", "schema"), ("schema",), ("function", "parameters"), ("parameters",))
"""Paths to the schema in what APIs wrap around it: OpenAI's ``response_format`` for chat and for
responses, and tools of both.
"""
NOTHING = object()
"""The result for a text without JSON; null is a value."""
_OPENING = re.compile(r"[ \t]*(?:(?:[-*+>]|\d{1,9}[.)])[ \t]+)?`{3,}[ \t]*(\w*)[ \t]*(.*)")
_CLOSING = re.compile(r"`{3,}")
_SMALL: tuple[Any, ...] = (None, True, 0, 0.5, "", [], {})
"""Values so small that only a schema without end has no verdict on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSchema(Reward):
    """1 where a completion is JSON that the schema in a file accepts, else 0.

    The whole completion must be JSON, or hold a fenced block of it (see ``json_in``). The draft is
    the one that ``$schema`` names, else 2020-12. ``format`` is an annotation, as the specification
    has it by default, and not checked. A value that the validator cannot compute with, such as a
    number beyond all floats or lists nested deeper than Python's stack, is not accepted.
    """

    label: ClassVar[str] = "valid JSON"
    path: Path
    validator: Any = field(repr=False, compare=False)

    @classmethod
    def load(cls, file: str) -> JsonSchema:
        """Read the schema in ``file``.

        Raises:
            InputError: jsonschema is not installed; the file holds no schema, or one without a
                keyword that refuses anything; a reference leaves the file or leads nowhere; a
                pattern is no regular expression of Python's; references lead back to themselves
                without end.
        """
        return cls(path=Path(file), validator=_validator(Path(file)))

    def score(self, example: Example, completion: Completion) -> Score:
        """See ``Reward``."""
        del example
        value = json_in(completion.text)
        return Score(float(value is not NOTHING and self._accepts(value)))

    def _accepts(self, value: object) -> bool:
        from referencing.exceptions import Unresolvable

        try:
            return bool(self.validator.is_valid(value))
        except (ArithmeticError, RecursionError):
            return False
        except (Unresolvable, re.error) as error:  # one behind a $dynamicRef, which is not followed
            raise _unusable(self.path, error) from error


def json_in(text: str) -> object:
    """The JSON value of a text, or of its first fenced block; ``NOTHING`` where there is none.

    The first block that is marked as JSON counts, else the first one without a mark. A block ends
    at its closing fence, on the line of the opening one or a later one, or with the text.
    """
    text = text.removeprefix("\ufeff")
    value = _parsed(text)
    if value is not NOTHING:
        return value
    unmarked = None
    for mark, content in _blocks(text):
        if mark.lower() in MARKS:
            return _parsed(content)
        if not mark and unmarked is None:
            unmarked = content
    if unmarked is None:
        return NOTHING
    return _parsed(unmarked)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """The fenced blocks of a Markdown text, each with the word behind its opening fence."""
    mark: str | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        opening = _OPENING.match(line)
        if mark is not None and _CLOSING.fullmatch(line.strip()):
            yield mark, "\n".join(lines)
            mark = None
        elif mark is not None:
            lines.append(line)
        elif opening is not None:
            mark = opening[1]
            rest = opening[2].rstrip()
            lines = []
            if rest.endswith("```"):
                yield mark, rest.removesuffix("```")
                mark = None
    if mark is not None:
        yield mark, "\n".join(lines)


def _parsed(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return NOTHING


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")  # which json reads all the same


def check_installed(reward: str) -> None:
    """Raise InputError where jsonschema is missing, which a fit would find out only later."""
    try:
        import jsonschema  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"the reward {reward} needs jsonschema, which is not installed: pip install '.[tasks]'"
            " in the checkout"
        ) from error


def _validator(path: Path) -> Any:
    check_installed("json-schema")
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    schema = read_settings(path, "the schema", "give json-schema:FILE", parse=parse_json)
    _check_not_wrapped(path, schema)
    fault = fault_of(schema)
    if fault is not None:
        raise InputError(f"the schema {path} is none: {fault}; correct it")
    draft = draft_of(schema)
    keywords = draft.VALIDATORS.keys() - {"format"}
    if isinstance(schema, dict) and schema and not schema.keys() & keywords:
        raise InputError(
            f"the schema {path} has no keyword of JSON Schema but {shorten(', '.join(schema))}, so"
            " that it would accept any JSON; is it an example? Write its schema, as in"
            ' {"type": "object", "required": [...]}, or give true to accept any JSON'
        )
    registry = Registry()  # an empty registry fetches nothing from the network
    specification = specification_with(draft.META_SCHEMA.get("$schema", "").rstrip("#"))
    resource = specification.create_resource(schema)
    resolver = registry.with_resource(resource.id() or "", resource).resolver(resource.id() or "")
    validator = draft(schema, registry=registry)
    try:
        _check_references(resource, resolver)
        for value in _SMALL:
            validator.is_valid(value)
    except (Unresolvable, re.error, RecursionError) as error:
        raise _unusable(path, error) from error
    return validator


def fault_of(schema: Any) -> str | None:
    """Why a value is no JSON Schema; None where it is one."""
    from jsonschema import SchemaError

    if not isinstance(schema, dict | bool):
        return f"{shorten(schema)} is no object, true or false"
    if isinstance(schema, dict) and not isinstance(schema.get("$schema", ""), str):
        return f"$schema is {shorten(schema['$schema'])}, and no address of a draft"
    try:
        draft_of(schema).check_schema(schema)
    except SchemaError as error:
        where = "/".join(map(str, error.absolute_path)) or "the top"
        return f"at {where}: {shorten(error.message)}"
    return None


def _check_not_wrapped(path: Path, schema: Any) -> None:
    """Raise InputError where the file holds what an API wraps around a schema."""
    keywords = draft_of({}).VALIDATORS.keys() - {"format"}
    if not isinstance(schema, dict) or schema.keys() & (keywords - {"type"}):
        return
    for keys in WRAPPINGS:
        inner: Any = schema
        for key in keys:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and inner.keys() & keywords:
            raise InputError(
                f"{path} holds a schema inside what an API wraps around it, under"
                f" {'.'.join(keys)}; give a file with that inner schema alone"
            )


def _check_references(resource: Any, resolver: Any) -> None:
    """Look up every reference of a schema. Raises Unresolvable: one leads nowhere, or out of the
    file.
    """
    if isinstance(resource.contents, dict):
        reference = resource.contents.get("$ref")
        if isinstance(reference, str):
            resolver.lookup(reference)
    for inner in resource.subresources():
        _check_references(inner, resolver.in_subresource(inner))


def _unusable(path: Path, error: Exception) -> InputError:
    if isinstance(error, re.error):
        fault = f"its pattern {shorten(str(error.pattern))} is no regular expression: {error}"
        remedy = "write it in the syntax of Python's re module"
    elif isinstance(error, RecursionError):
        fault = "its references lead back to themselves without end"
        remedy = "let each of them lead to a smaller part of the value"
    else:
        fault = f"its reference {shorten(str(getattr(error, 'ref', error)))} cannot be resolved"
        remedy = "references must stay inside the file, under $defs"
    return InputError(f"the schema {path} cannot be applied, because {fault}; {remedy}")


def draft_of(schema: Any) -> Any:
    """The validator class of the draft that ``$schema`` names, else of 2020-12, with the keyword
    of this module.
    """
    from jsonschema.validators import Draft202012Validator, extend, validator_for

    draft = validator_for(schema, default=Draft202012Validator)
    return extend(draft, {"multipleOf": _multiple_of})


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """The keyword ``multipleOf`` on numbers as they are written: 19.99 is a multiple of 0.01.

    jsonschema divides in double precision, where it is not.
    """
    from jsonschema import ValidationError

    if not validator.is_type(instance, "number"):
        return
    if abs(instance) > sys.float_info.max:
        yield ValidationError("the number is beyond the range of a double")
    elif (Fraction(str(instance)) / Fraction(str(step))).denominator != 1:
        yield ValidationError(f"{instance} is not a multiple of {step}")


FORMS = (
    Form(
        "json-schema",
        "1 if the completion, or its first fenced block, is JSON that the schema in the file"
        " accepts, else 0",
        JsonSchema.load,
        takes="FILE",
        reaches="file",
    ),
)
