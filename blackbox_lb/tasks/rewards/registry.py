"""The forms of a reward, by what stands before the first colon: those of this package, those of
installed packages, and functions of the user's own.

An installed package adds one as an entry point::

    [project.entry-points."blackbox_lb.rewards"]
    polite = "polite_rewards:Polite"

``--reward polite`` and ``--reward polite:WORD`` then call ``Polite("")`` and ``Polite("WORD")``,
which returns an object with ``name``, ``needs_answer`` and ``score(example, completion)``. It is
imported when it is named, and not before.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeAlias

from blackbox_lb.errors import BlbError, InputError
from blackbox_lb.safety.printable import near_or_listed, shorten
from blackbox_lb.tasks.rewards import forms
from blackbox_lb.tasks.rewards.forms.function import OwnReward, of_function
from blackbox_lb.tasks.rewards.matching import Matcher, parse_matcher
from blackbox_lb.tasks.rewards.reward import Form, Reward
from blackbox_lb.tasks.rewards.thinking import Thinking
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Completion, Example

RewardFunction: TypeAlias = Callable[[Example, Completion], Any]
"""A reward of the user's own, in nats."""
ENTRY_POINTS = "blackbox_lb.rewards"
"""The group of entry points of other packages' rewards."""


def _forms() -> dict[str, Form]:
    """Those of every module of ``forms``."""
    modules = [
        importlib.import_module(f"{forms.__name__}.{module.name}")
        for module in pkgutil.iter_modules(forms.__path__)
    ]
    by_name = {form.name: form for module in modules for form in module.FORMS}
    return {name: by_name[name] for name in sorted(by_name)}


FORMS: Mapping[str, Form] = _forms()
"""Name -> form, in the order of the names."""
ADDRESS = FORMS["https"]
FUNCTION = FORMS["module:function"]


def find(spec: str) -> tuple[Form, str] | None:
    """The form that a spec names, and what stands behind its colon; None where it names none. The
    one place where the forms are told apart.

    A form of this package goes before an installed one of its name, and that before a module of the
    user's, which must then be wrapped in one of another name. No code is loaded here.
    """
    head, colon, rest = spec.partition(":")
    argument = rest if colon else None
    if colon and head.strip().lower() in ("http", "https"):
        return ADDRESS, spec
    form = FORMS.get(head)
    if form is not None and form.takes_only(argument):
        return form, rest
    points = [point for point in entry_points(group=ENTRY_POINTS) if point.name == head]
    if points and form is None:
        return _installed(points, spec), rest
    if colon and _is_dotted(head) and _is_dotted(rest):
        return FUNCTION, spec
    return None


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _installed(points: list[EntryPoint], spec: str) -> Form:
    """The form that an installed package adds."""
    packages = ", ".join(sorted(_package(point) for point in points))
    return Form(
        points[0].name,
        f"a reward of the installed package {packages}",
        partial(_load, points, spec),
        takes="[ARGUMENT]",
        reaches="code",
    )


def _package(point: EntryPoint) -> str:
    return "of no name" if point.dist is None else point.dist.name


def _load(points: list[EntryPoint], spec: str, argument: str) -> OwnReward:
    """The reward of an installed package.

    Raises:
        InputError: several packages have one of this name, it cannot be imported or made, or it is
            no reward.
    """
    packages = sorted(_package(point) for point in points)
    if len(points) > 1:
        raise InputError(
            f"reward {spec}: the installed packages {', '.join(packages)} all have the name"
            f" {points[0].name}; uninstall all but one of them"
        )
    origin = f"reward {spec} of the installed package {packages[0]} ({points[0].value})"
    try:
        made = points[0].load()(argument)
    except BlbError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{origin} cannot be loaded: {type(error).__name__}: {error}; correct what stands"
            " behind the colon, or the package"
        ) from error
    name = getattr(made, "name", None)
    needs_answer = getattr(made, "needs_answer", None)
    function = getattr(made, "score", None)
    if not isinstance(name, str) or not isinstance(needs_answer, bool) or not callable(function):
        raise InputError(
            f"{origin} is {shorten(made)}, and no reward: one has a text ``name``,"
            " ``needs_answer`` (True or False) and a method ``score(example, completion)``; correct"
            " the package"
        )
    reward = of_function(function, spec, name)
    rule = made if callable(getattr(made, "token_costs", None)) else None
    return replace(reward, needs_answer=needs_answer, rule=rule)


def parse_reward(
    spec: str | RewardFunction,
    *,
    max_tokens: int,
    correct: str | Matcher | None = None,
    thinking: str | None = None,
    count: str = "all",
    labels: Labels | None = None,
) -> Reward:
    """Make the reward ``spec``.

    Args:
        spec: a name of one of the forms, or a function, which is recorded under its module and
            name. The ``name`` of the result holds no user and password of an address.
        max_tokens: most tokens of a completion, T.
        correct: the test of correctness where the reward has none itself: exact-match, contains,
            math, regex:PATTERN, or a matcher, such as a task's own; by default whether the first
            label named is right where the answers are ``labels``, else contains.
        thinking: the stretch to measure; see ``Thinking``.
        count: rewards by length count "all" tokens, or those of the "thinking" or the "answer".
        labels: of the answers.

    Raises:
        InputError: unknown name, broken pattern, schema, judge or address, a function that cannot
            be imported or called with two arguments.
    """
    limit: object = max_tokens
    if not isinstance(limit, int) or limit < 1:
        raise InputError(
            f"``max_tokens={max_tokens!r}``: rewards compare lengths with it; give a whole number"
            " from 1"
        )
    right = correct if isinstance(correct, Matcher) else parse_matcher(correct or "contains")
    measured = None if thinking is None else Thinking.parse(thinking, count)
    if isinstance(spec, str):
        named = find(spec)
        if named is None:
            raise _unknown(spec)
        form, argument = named
        reward = form.make(argument)
    else:
        reward = _of_callable(spec)
    if count != "all" and (measured is None or not reward.by_length):
        raise InputError(
            f"``count={count}`` needs ``thinking``, as in ``thinking='inside:<think>..</think>'``,"
            " and a reward by length, such as length or correct-and-short; leave it out, or name"
            " them"
        )
    reward = replace(
        reward,
        name=reward.name or str(spec),
        max_tokens=max_tokens,
        right=right,
        thinking=measured,
    )
    if labels is not None and correct is None:
        return replace(reward, right=labels.matcher)
    return replace(reward, right=reward.matcher)


def judges_answers(spec: str) -> bool:
    """Whether a reward by its name compares completions with right answers."""
    named = find(spec)
    return named is not None and named[0].judges(named[1])


def _of_callable(function: RewardFunction) -> OwnReward:
    """The reward that a function of the user's gives. Raises InputError: it is none, or takes other
    arguments than (example, completion).
    """
    if not callable(function):
        raise InputError(
            f"``reward`` is {shorten(function)}; give a function of (example, completion), or the"
            f" name of a reward: {spellings()}"
        )
    module = getattr(function, "__module__", None) or type(function).__module__
    attribute = getattr(function, "__qualname__", None) or type(function).__qualname__
    return of_function(function, f"{module}:{attribute}", attribute.rpartition(".")[2])


def _unknown(spec: str) -> InputError:
    # A mistyped address may hold a password.
    quoted = spec
    if "//" in spec and "@" in spec:
        quoted = f"...{spec.rpartition('@')[2]}"
    names = [form.spelling for form in FORMS.values()]
    names += [point.name for point in entry_points(group=ENTRY_POINTS)]
    hint = near_or_listed(quoted, names, "the rewards are")
    return InputError(f"unknown reward {shorten(quoted)}{hint}; blb rewards says what each does")


def spellings() -> str:
    """All forms, as one line of the help."""
    return ", ".join(form.spelling for form in FORMS.values())


def meanings_of_forms() -> dict[str, str]:
    """Each form of a reward with what a completion is worth by it; installed ones last."""
    meanings = {form.spelling: form.meaning for form in FORMS.values()}
    for point in entry_points(group=ENTRY_POINTS):
        if point.name not in FORMS:
            form = _installed([point], point.name)
            meanings[form.spelling] = form.meaning
    return meanings
