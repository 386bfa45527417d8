"""Each setting is declared once: what an option sets exists, has the option's default, and gets the
value that the command line gives.
"""

from __future__ import annotations

import inspect
import pkgutil
from dataclasses import fields
from typing import Any, get_args

import click
import pytest

from blackbox_lb.cli import main
from blackbox_lb.cli.actions.fit import _plan
from blackbox_lb.cli.commands.learning.check import CheckOptions
from blackbox_lb.cli.commands.learning.collect import CollectOptions
from blackbox_lb.cli.commands.learning.compile import CompileOptions
from blackbox_lb.cli.commands.learning.eval import EvalOptions
from blackbox_lb.cli.commands.learning.fit import FitOptions, fit_command
from blackbox_lb.cli.commands.learning.score import ScoreOptions
from blackbox_lb.cli.commands.setup.doctor import DoctorOptions
from blackbox_lb.cli.commands.using.proxy import ProxyOptions
from blackbox_lb.cli.echo import OPTIONS
from blackbox_lb.cli.found import FLAGS, PATHS, TEXTS
from blackbox_lb.cli.grouped import (
    MOST_USED,
    PARAM,
    SETS,
    arguments_for,
    literal,
    option,
    options,
    recorded_options,
    values_of,
)
from blackbox_lb.cli.resources import load
from blackbox_lb.cli.settings import EITHER_OR, OF_THE_PROVIDER, PER_COMMAND
from blackbox_lb.estimate.inputs.recipe import ANSWERS_L2
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.types import Endpoint

KINDS = (
    CheckOptions,
    CollectOptions,
    CompileOptions,
    DoctorOptions,
    EvalOptions,
    FitOptions,
    ProxyOptions,
    ScoreOptions,
)
SETTINGS = [
    (kind, declared, target, parameter or declared.name)
    for kind in KINDS
    for declared in fields(kind)
    for target, parameter in declared.metadata.get(SETS, {}).items()
]
ENOUGH = ["--task", "capitals", "--reward", "correct-and-short"]
"""What a fit is at least told."""

ARRIVALS: list[tuple[list[str], str | None, str, object]] = [
    (["--samples-per-prompt", "3"], None, "samples", 3),
    (["--limit", "4"], None, "limit", 4),
    (["--only-stored"], None, "only_stored", True),
    (["--go-on"], None, "go_on", True),
    (["--integers"], None, "integers", True),
    (["--search", "thorough"], None, "search", "thorough"),
    (["--validation-samples", "5"], None, "validation_samples", 5),
    (["--test-samples", "7"], None, "test_samples", 7),
    (["--top-logprobs", "8"], None, "listed", 8),
    (["--learn-from", "answers"], None, "learn_from", "answers"),
    (["--estimator", "ips", "--estimator", "ips"], "sweep", "estimators", ("ips",)),
    (["--tau", "0.25", "--tau", "2"], "sweep", "tau", (0.25, 2.0)),
    (["--l2", "cv", "--l2", "7"], "sweep", "l2", ("cv", 7.0)),
    (["--weights", "prompt"], "sweep", "weights", "prompt"),
    (["--alpha", "0.5"], "sweep", "alpha", (0.5,)),
    (["--alpha-scale", "absolute"], "sweep", "alpha_scale", "absolute"),
    (["--positions", "11"], "sweep", "positions", 11),
    (["--clip", "12"], "sweep", "clip", 12.0),
    (["--unobserved", "drop"], "sweep", "unobserved", "drop"),
    (["--seed", "13"], "sweep", "seed", 13),
    (["--objective", "pareto"], "goal", "objective", "pareto"),
    (["--positive", "Rome", "--objective", "accuracy"], "goal", "positive", "Rome"),
]
"""Arguments of a fit, the part of the plan that they set (None: the plan itself), its field and
value.
"""


def plan_of(*arguments: str) -> FitPlan:
    """The plan of ``blb fit`` with these arguments."""
    program = click.Context(main, **main.context_settings)
    context = fit_command.make_context("fit", [*ENOUGH, *arguments], parent=program)
    given = FitOptions(**context.params)
    return _plan(given, *load(given))


@pytest.mark.parametrize(
    ("kind", "declared", "target", "parameter"),
    SETTINGS,
    ids=[f"{kind.__name__}.{declared.name}-{target}" for kind, declared, target, _ in SETTINGS],
)
def test_what_an_option_sets_has_its_default(
    kind: type, declared: Any, target: str, parameter: str
) -> None:
    """An option that is None when it is not given leaves the parameter at its default; any other
    default is the parameter's.
    """
    default = inspect.signature(pkgutil.resolve_name(target)).parameters[parameter].default
    param = declared.metadata[PARAM](declared.name, declared.type)
    chosen = param.get_default(click.Context(click.Command(kind.__name__)))
    if default is inspect.Parameter.empty:
        assert (target, parameter) == ("blackbox_lb.api.connect:connect", "provider")
    elif param.is_flag:
        assert default is False
    elif chosen is not None and not str(declared.type).endswith("| None"):
        assert chosen == default
    else:
        assert declared.type.endswith("| None")


def test_the_plan_of_a_fit_without_options_is_the_default_plan() -> None:
    """But for the notices on the data."""
    plan = plan_of()
    assert plan == FitPlan(notices=plan.notices, labels=plan.labels)
    assert plan_of("--entries", "all").entries is None
    assert (plan.entries, plan.few) == (300, True)
    assert not plan_of("--entries", "300").few


@pytest.mark.parametrize(("arguments", "owner", "name", "value"), ARRIVALS)
def test_every_option_of_a_fit_arrives_in_its_plan(
    arguments: list[str], owner: str | None, name: str, value: object
) -> None:
    """Under its own name or the plan's."""
    plan = plan_of(*arguments)
    holder = plan if owner is None else getattr(plan, owner)
    assert getattr(holder, name) == value


def test_no_option_of_a_fit_is_left_out_above() -> None:
    """The cases name each option that sets a part of the plan."""
    named = {arguments[0].removeprefix("--").replace("-", "_") for arguments, _, _, _ in ARRIVALS}
    parts = ("FitPlan", "Sweep", "parse_goal")
    declared = {
        setting.name
        for kind, setting, target, _ in SETTINGS
        if kind is FitOptions and target.endswith(parts)
    }
    assert declared <= named


def test_help_that_names_values_of_the_plan_names_all_of_them() -> None:
    """The strengths for given answers, and the settings to deploy with."""
    texts = {param.name: getattr(param, "help", "") for param in fit_command.params}
    *strengths, last = [str(value) for value in ANSWERS_L2]
    assert f"{', '.join(strengths)} and {last}".replace(".0", "") in texts["l2"]
    settings = " and ".join(
        "greedy" if setting.deterministic else f"temperature={setting.temperature:g}"
        for setting in FitPlan().settings
    )
    assert f"[default: {settings};" in texts["deploy"]


def test_what_is_said_of_options_by_name_is_said_of_options() -> None:
    """Rules of settings files and of the help name no option that is gone."""
    keys = {*PER_COMMAND, *OF_THE_PROVIDER, *TEXTS, *FLAGS, *PATHS}
    keys = keys.union(MOST_USED, *EITHER_OR)
    assert keys <= OPTIONS


def scale(*, size: int = 3, unit: str = "m") -> None:
    """What the options below set."""


HERE = f"{__name__}:scale"


@options
class Lengths:
    """Two options that set parameters, and one that sets none."""

    length: int | None = option(None, "", sets=(HERE, "elsewhere:any"), parameter="size")
    unit: str = option(None, "", sets=HERE, recorded=True)
    color: str | None = option(None, "")


def test_options_are_handed_over_under_their_parameters_names() -> None:
    """One that was not given leaves its parameter out; the record says what it is to say."""
    given = Lengths(length=5, unit="km", color="red")
    assert arguments_for(scale, given) == {"size": 5, "unit": "km"}
    assert arguments_for(scale, Lengths(length=None, unit="m", color="red")) == {"unit": "m"}
    assert recorded_options(given) == {"unit": "km"}
    with pytest.raises(TypeError):
        arguments_for(plan_of, given)


def test_values_are_those_of_the_literal() -> None:
    """Of the parameter, or of a name; a parameter of another kind has none."""
    assert values_of("blackbox_lb.estimate.inputs.recipe:Sweep", "alpha_scale") == (
        "relative",
        "absolute",
    )
    endpoints = get_args(Endpoint)
    assert values_of("blackbox_lb.api.connect:connect", "endpoint") == endpoints
    assert literal("blackbox_lb.types:Endpoint").choices == endpoints
    with pytest.raises(TypeError):
        values_of("blackbox_lb.estimate.inputs.recipe:Sweep", "tau")
