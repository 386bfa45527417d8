"""A user's own reward function: found by ``module:function``, called, and its answer checked before
it counts.
"""

import importlib
import inspect
import math
import numbers
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.rewards.spans import LocatedReward, TextRule, checked_spans
from blackbox_lb.types import Completion, Example


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A user's own reward function, checked at every call.

    Attributes:
        score: gives the reward of a completion, with its spans where the function says some.
        rule: its attribute ``rule``, which says what a token costs by itself; None without one.
    """

    score: Callable[[Example, Completion], LocatedReward]
    rule: TextRule | None


def load_function(module: str, attribute: str) -> UserFunction:
    """The checked reward function ``module:attribute``, in nats.

    It returns a number; or a pair of a number and the spans that add up to it, rows of (start, end,
    amount); or an object with these as ``reward`` and ``spans``. Spans of None are none. It may
    have an attribute ``rule``, a ``TextRule``.

    The working directory is searched before installed packages, during the import only. InputError,
    at once: the module or the attribute is missing, the import fails, it is not callable with
    (example, completion), it is asynchronous, or its rule has no ``token_costs``. InputError, at a
    call: it raises, or returns anything but a real number below plus infinity, or spans that lie
    outside the text or add up to another number; the message names the example.
    """
    name = f"{module}:{attribute}"
    return checked_function(_attribute(_module(module, name), attribute, name), name)


def checked_function(function: Callable[..., object], name: str) -> UserFunction:
    """``function`` with its arguments checked now and each of its answers when it is given.

    Args:
        function: called with (example, completion); returns what :func:`load_function` says.
        name: for messages.

    Raises:
        InputError: see :func:`load_function`.
    """
    _check_callable(function, name)

    def scored(example: Example, completion: Completion) -> LocatedReward:
        try:
            result = function(example, completion)
        except Exception as error:
            raise InputError(
                f"reward {name} raised {type(error).__name__} on {example.place}: {error};"
                " correct the function"
            ) from error
        number, spans = _parts(result)
        reward = _checked(number, name, example)
        if spans is None:
            return LocatedReward(reward)
        source = f"reward {name} for {example.place}"
        return LocatedReward(reward, checked_spans(spans, reward, completion.text, source))

    rule = getattr(function, "rule", None)
    if rule is not None and not callable(getattr(rule, "token_costs", None)):
        raise InputError(
            f"reward {name} has the rule {shorten(rule)}, which has no method token_costs(texts,"
            " typical) that gives the nats of each text; write it, or leave out the rule"
        )
    return UserFunction(scored, rule)


def _parts(result: Any) -> tuple[Any, Any]:
    """The number and the spans in what a function returned, unchecked; no spans are None."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    if hasattr(result, "reward") and hasattr(result, "spans"):
        return result.reward, result.spans
    return result, None


@contextmanager
def _working_directory_first() -> Iterator[None]:
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _module(module: str, name: str) -> object:
    importlib.invalidate_caches()
    try:
        with _working_directory_first():
            return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name
            and f"{module}.".startswith(f"{error.name}.")
        ):
            hint = "check the spelling"
            if module.endswith(".py"):
                hint = "write the module without .py"
            problem = (
                f"there is no module {error.name!r} in {Path.cwd()} or among the installed"
                f" packages; {hint}"
            )
            raise InputError(f"reward {name}: {problem}") from error
        raise InputError(
            f"reward {name}: importing {module!r} raised {type(error).__name__}: {error}; correct"
            " the module"
        ) from error


def _attribute(value: object, attribute: str, name: str) -> Callable[..., object]:
    for part in attribute.split("."):
        if not hasattr(value, part):
            where = getattr(value, "__file__", None) or getattr(value, "__name__", name)
            names = getattr(value, "__dict__", {})
            public = [key for key in names if key.isidentifier() and not key.startswith("_")]
            raise InputError(
                f"reward {name}: {where} has no {part!r}; it has"
                f" {shorten(', '.join(sorted(public)) or 'nothing')}"
            )
        value = getattr(value, part)
    if not callable(value):
        raise InputError(
            f"reward {name} is {shorten(value)}, not a function; it must take (example, completion)"
        )
    return value


def _check_callable(function: Callable[..., object], name: str) -> None:
    if inspect.iscoroutinefunction(function):
        raise InputError(
            f"reward {name} is asynchronous; it must be a plain function that returns a number"
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in callables have no readable signature
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise InputError(
            f"reward {name} takes {signature}; it is called with two arguments, (example,"
            " completion): write it so"
        ) from error


def _checked(result: Any, name: str, example: Example) -> float:
    rule = "it must return a finite number of nats, or a pair of that and its spans"
    if not isinstance(result, numbers.Real | np.bool_):
        raise InputError(f"reward {name} returned {shorten(result)} for {example.place}; {rule}")
    try:
        value = float(result)
    except OverflowError as error:
        raise InputError(
            f"reward {name} returned a number beyond 1e308 for {example.place}; {rule}"
        ) from error
    if math.isnan(value) or value == math.inf:
        raise InputError(f"reward {name} returned {value} for {example.place}; {rule}")
    return value
