"""Whether a completion calls functions, and whether its calls are valid."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

from blackbox_lb.errors import InputError
from blackbox_lb.tasks.rewards.forms.json_schema import check_installed, draft_of, fault_of
from blackbox_lb.tasks.rewards.reward import Form, Reward, Score
from blackbox_lb.types import Completion, Example

VALID = "arguments-valid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls(Reward):
    """1 where a completion calls the function ``function``, or any for "", else 0."""

    label: str = field()
    function: str

    def score(self, example: Example, completion: Completion) -> Score:
        """See ``Reward``."""
        del example
        names = [call.name for call in completion.tool_calls]
        if not self.function:
            return Score(float(bool(names)))
        return Score(float(self.function in names))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentsValid(Reward):
    """1 where a completion calls something, and each call names a function that its prompt offers
    and has arguments that the JSON Schema of that function accepts, else 0.

    A function without ``parameters`` takes any object. The draft is the one that ``$schema`` names,
    else 2020-12.
    """

    label: ClassVar[str] = "valid call"

    @classmethod
    def installed(cls, argument: str) -> ArgumentsValid:
        """The reward. Raises InputError: jsonschema is not installed."""
        del argument
        check_installed(VALID)
        return cls()

    def problem(self, example: Example) -> str | None:
        """See ``Reward``."""
        return problem_of_tools(example.prompt.tools) or Reward.problem(self, example)

    def score(self, example: Example, completion: Completion) -> Score:
        """See ``Reward``."""
        calls = completion.tool_calls
        validators = _validators(example.prompt.tools)
        valid = [
            call.name in validators and _accepts(validators[call.name], call.parsed_arguments)
            for call in calls
        ]
        return Score(float(bool(calls) and all(valid)))


@lru_cache(maxsize=4096)
def _validators(tools: str) -> dict[str, Any]:
    """A validator of the arguments of each function in the JSON text ``tools``.

    Raises InputError: the parameters of a function are no JSON Schema.
    """
    from referencing import Registry

    problem = problem_of_tools(tools)
    if problem is not None:
        raise InputError(f"{problem}; correct the tools in the data")
    # An empty registry fetches nothing from the network.
    return {
        name: draft_of(schema)(schema, registry=Registry())
        for name, schema in _parameters(tools).items()
    }


def _parameters(tools: str) -> dict[str, Any]:
    """The schema of the arguments of each function."""
    if not tools:
        return {}
    functions = [tool["function"] for tool in json.loads(tools)]
    return {
        function["name"]: function.get("parameters") or {"type": "object"} for function in functions
    }


@lru_cache(maxsize=4096)
def problem_of_tools(tools: str) -> str | None:
    """What keeps ``arguments-valid`` from using the JSON text ``tools``; None: nothing does."""
    for name, schema in _parameters(tools).items():
        fault = fault_of(schema)
        if fault is not None:
            return f"the parameters of the function {name!r} are no JSON Schema ({fault})"
    return None


def _accepts(validator: Any, arguments: object) -> bool:
    """Whether the schema accepts ``arguments``; what cannot be computed with is not accepted."""
    from referencing.exceptions import Unresolvable

    try:
        return isinstance(arguments, dict) and bool(validator.is_valid(arguments))
    except (ArithmeticError, RecursionError, Unresolvable, re.error):
        return False


FORMS = (
    Form(
        "calls",
        "1 if the completion calls a function, or the one of that name, else 0",
        lambda name: Calls(function=name, label=f"calls {name}".strip()),
        takes="[NAME]",
    ),
    Form(
        VALID,
        "1 if the completion calls functions that its prompt offers, with arguments that their JSON"
        " Schema accepts, else 0",
        ArgumentsValid.installed,
    ),
)
