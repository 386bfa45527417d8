"""Code that is not this package's: a function of the user's own, and the reward of an installed
package. Each of its answers is checked before it counts.
"""

from __future__ import annotations

import importlib
import inspect
import math
import numbers
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.rewards.reward import Credit, Form, Reward, Score
from blackbox_lb.tasks.rewards.spans import checked_spans
from blackbox_lb.types import Completion, Example, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnReward(Reward):
    """What somebody else's code gives.

    Attributes:
        function: called with (example, completion); returns a number of nats, or a pair of that and
            the spans that add up to it, rows of (start, end, amount); spans of None are none.
        rule: an object with ``token_costs`` (see ``Reward.token_costs``); None without one.
        tally: answers so far, by whether they had spans.
    """

    label: str = field()
    needs_answer: bool = field(default=False)
    function: Callable[..., Any] = field(repr=False, compare=False)
    rule: Any = field(default=None, repr=False, compare=False)
    tally: Counter[bool] = field(default_factory=Counter, repr=False, compare=False)

    @property
    def credit(self) -> Credit:
        """See ``Reward``: by all answers so far."""
        if not self.tally:
            return "open"
        return "whole" if self.tally[False] else "places"

    @property
    def has_token_costs(self) -> bool:
        """See ``Reward``."""
        return self.rule is not None

    def token_costs(self, texts: Sequence[str], typical: Sequence[str]) -> FloatArray:
        """See ``Reward``.

        Raises:
            InputError: the rule raises, or gives anything but a finite number for each text.
        """
        remedy = "correct its method token_costs(texts, typical)"
        try:
            costs = np.asarray(self.rule.token_costs(texts, typical), dtype=np.float32)
        except Exception as error:
            raise InputError(
                f"the rule of reward {self.name} raised {type(error).__name__}: {error}; {remedy}"
            ) from error
        if costs.shape != (len(texts),) or not np.isfinite(costs).all():
            raise InputError(
                f"the rule of reward {self.name} gave {shorten(costs.tolist())} for {len(texts)}"
                f" texts, where a finite number of nats for each is needed; {remedy}"
            )
        return costs

    def remembering(self) -> OwnReward:
        """See ``Reward``."""
        scores: dict[tuple[str, str, str, int, bytes], Score] = {}

        def remembered(example: Example, completion: Completion) -> Score:
            listed = completion.token_ids.tobytes() + completion.logprobs.tobytes()
            tokens = blake2b(listed).digest()
            place = (example.id, completion.text, completion.finish_reason)
            key = (*place, completion.n_tokens, tokens)
            if key not in scores:
                scores[key] = self.score(example, completion)
            return scores[key]

        return replace(self, function=remembered)

    def score(self, example: Example, completion: Completion) -> Score:
        """See ``Reward``.

        Raises:
            InputError: the function raises, or returns anything but a finite number, or spans that
                lie outside the text or add up to another number; the message names the example.
        """
        try:
            result = self.function(example, completion)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"reward {self.name} raised {type(error).__name__} on {example.place}: {error};"
                " correct the function"
            ) from error
        number = result
        spans = None
        if isinstance(result, tuple) and len(result) == 2:
            number, spans = result
        value = _checked(number, self.name, example)
        if spans is not None:
            source = f"reward {self.name} for {example.place}"
            spans = checked_spans(spans, value, completion.text, source)
        self.tally[spans is not None] += 1
        return Score(value, spans)


def load_function(name: str) -> OwnReward:
    """The reward function ``module:attribute``.

    It may have an attribute ``rule``: an object with ``token_costs``. The working directory is
    searched before installed packages, during the import only.

    Raises:
        InputError: the module or the attribute is missing, the import fails, it is not callable
            with (example, completion), it is asynchronous, or its rule has no ``token_costs``.
    """
    module, _, attribute = name.partition(":")
    return of_function(_attribute(_module(module, name), attribute, name), name, name)


def of_function(function: Callable[..., object], name: str, label: str) -> OwnReward:
    """The reward that ``function`` gives, called with (example, completion).

    Raises:
        InputError: see :func:`load_function`.
    """
    _check_callable(function, name)
    rule = getattr(function, "rule", None)
    if rule is not None and not callable(getattr(rule, "token_costs", None)):
        raise InputError(
            f"reward {name} has the rule {shorten(rule)}, which has no method token_costs(texts,"
            " typical) that gives the nats of each text; write it, or leave out the rule"
        )
    return OwnReward(name=name, function=function, label=label, rule=rule)


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
    if value == -math.inf:
        raise InputError(
            f"the reward {name} is minus infinity for {example.place}, and policies are compared by"
            " their mean reward; give a finite number: with 20 times ``tau`` below the others a"
            " completion is as good as never imitated"
        )
    if not math.isfinite(value):
        raise InputError(f"reward {name} returned {value} for {example.place}; {rule}")
    return value


FORMS = (
    Form(
        "module:function",
        "your own: function(example, completion) -> nats, or (nats, spans), from the working"
        " directory or an installed package",
        load_function,
        reaches="code",
    ),
)
