"""Rewards of calls: whether a completion calls a function, and whether the arguments are valid."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from blackbox_lb.errors import InputError
from blackbox_lb.types import Completion, Example

Scored: TypeAlias = Callable[[Example, Completion], float]
VALID = "arguments-valid"


def calls_reward(name: str) -> Scored:
    """The reward that is 1 where a completion calls the function ``name``, or any for "", else
    0.
    """

    def scored(example: Example, completion: Completion) -> float:
        del example
        names = [call.name for call in completion.tool_calls]
        if not name:
            return float(bool(names))
        return float(name in names)

    return scored


def arguments_valid() -> Scored:
    """The reward that is 1 where a completion calls something, and each call names a function that
    its prompt offers and has arguments that the JSON Schema of that function accepts, else 0.

    A function without ``parameters`` takes any object. The draft is the one that ``$schema`` names,
    else 2020-12.

    Raises InputError: jsonschema is not installed.
    """
    try:
        import jsonschema  # noqa: F401  (each fit would find out only at its first score)
    except ImportError as error:
        raise InputError(
            f"the reward {VALID} needs jsonschema, which is not installed: pip install"
            " '.[tasks]' in the checkout"
        ) from error

    def scored(example: Example, completion: Completion) -> float:
        calls = completion.tool_calls
        validators = _validators(example.prompt.tools)
        valid = [
            call.name in validators and _accepts(validators[call.name], call.parsed_arguments)
            for call in calls
        ]
        return float(bool(calls) and all(valid))

    return scored


@lru_cache(maxsize=4096)
def _validators(tools: str) -> dict[str, Any]:
    """A validator of the arguments of each function in the JSON text ``tools``.

    Raises InputError: the parameters of a function are no JSON Schema.
    """
    from jsonschema import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    validators = {}
    if not tools:
        return {}
    for tool in json.loads(tools):
        function = tool["function"]
        schema = function.get("parameters") or {"type": "object"}
        draft = validator_for(schema, default=Draft202012Validator)
        try:
            draft.check_schema(schema)
        except SchemaError as error:
            raise InputError(
                f"the parameters of the function {function['name']!r} are no JSON Schema"
                f" ({error.message}); correct the tools in the data"
            ) from error
        # An empty registry fetches nothing from the network.
        validators[function["name"]] = draft(schema, registry=Registry())
    return validators


def _accepts(validator: Any, arguments: object) -> bool:
    """Whether the schema accepts ``arguments``; what cannot be computed with is not accepted."""
    from referencing.exceptions import Unresolvable

    try:
        return isinstance(arguments, dict) and bool(validator.is_valid(arguments))
    except (ArithmeticError, RecursionError, Unresolvable, re.error):
        return False
