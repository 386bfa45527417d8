"""A reward for form: whether a completion is JSON that a JSON Schema accepts."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.safety.untrusted import parse_json, read_settings
from blackbox_lb.types import Completion, Example

FENCE = re.compile(
    r"^[ \t]*```(?:json|JSON)[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE
)
"""A block that Markdown marks as JSON."""
NOTHING = object()
"""The result for a text without JSON; null is a value."""


def json_schema(file: str) -> Callable[[Example, Completion], float]:
    """Make the reward that is 1 where a completion is JSON that the schema in ``file`` accepts,
    else 0.

    The whole completion must be JSON, or hold a block that is fenced as ```` ```json ````; of
    several the first counts. The draft is the one that ``$schema`` names, else 2020-12. ``format``
    is an annotation, as the specification has it by default, and not checked.

    Raises InputError: jsonschema is not installed, or the file holds no schema; at a call, a
    reference that leaves the file.
    """
    validator = _validator(Path(file))

    def scored(example: Example, completion: Completion) -> float:
        found = json_in(completion.text)
        if found is NOTHING:
            return 0.0
        try:
            return float(validator.is_valid(found))
        except Exception as error:
            raise InputError(
                f"the schema {file} cannot be applied to the completion of example {example.id!r}:"
                f" {type(error).__name__}: {shorten(str(error))}; references must stay inside the"
                " file, under $defs"
            ) from error

    return scored


def json_in(text: str) -> object:
    """The JSON value of a text, or of its first block fenced as JSON; ``NOTHING`` where there is
    none.
    """
    for candidate in (text, *(match.group(1) for match in FENCE.finditer(text))):
        try:
            return json.loads(candidate, parse_constant=_refuse)
        except (ValueError, RecursionError):
            if candidate is not text:
                break
    return NOTHING


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")  # which json reads all the same


def _validator(path: Path) -> Any:
    try:
        from jsonschema import SchemaError
        from jsonschema.validators import Draft202012Validator, validator_for
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
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        where = "/".join(map(str, error.absolute_path)) or "the top"
        raise InputError(
            f"the schema {path} is not valid at {where}: {shorten(error.message)}; correct it"
        ) from error
    return kind(schema, registry=Registry())  # an empty registry fetches nothing from the network
