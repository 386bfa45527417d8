"""``blackbox_lb.fit`` and ``fit_async``: from a file of prompts to a judged bias, in one call.

Their parameters are the fields of :class:`Plan`, which ``blb fit`` and blb.toml read, too.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, ParamSpec, Protocol, TypeVar, get_type_hints

from blackbox_lb.api.connect import connect
from blackbox_lb.api.limits.budget import SpendingLimits
from blackbox_lb.bias.request_bias import to_vector
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.fitting.demand import fit_forecast, shorter_plan
from blackbox_lb.jobs.fitting.fit import fit as fit_plan
from blackbox_lb.jobs.forecast import RequestSettings, announcement
from blackbox_lb.jobs.plan.by_data import completed, pooled
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.jobs.plan.setting import place_in_help
from blackbox_lb.jobs.plan.shared import DataSource
from blackbox_lb.jobs.records.run_record import Remembering, provenance, work_in
from blackbox_lb.jobs.runs.answers import AnswerPair, answer_pairs
from blackbox_lb.jobs.runs.conclusion import (
    NextStep,
    decision_steps,
    fit_conclusion,
    spent_words,
    understood,
)
from blackbox_lb.jobs.runs.loading import load, naming_advice
from blackbox_lb.jobs.runs.names import FIT_FILES, SAMPLING_WITH_A_BIAS
from blackbox_lb.jobs.runs.opening import (
    check_written,
    open_run,
    results_of,
    run_folder,
    whole_result,
    write_result,
)
from blackbox_lb.jobs.runs.run import Run, blocking, running_budget
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.progress import Calling, Printing, Reporter, Silent
from blackbox_lb.safety.printable import did_you_mean, legible, shell_line
from blackbox_lb.safety.secrets import redacted

HELP_WIDTH = 88
"""Columns of the help of a parameter."""
IN_PYTHON = {
    "data": "a file, a folder, hf:OWNER/NAME[/CONFIG][@SPLIT], a list of rows, such as"
    ' {"prompt": ..., "answer": ...}, a DataFrame of pandas, or a Task of load_task.',
    "reward": "a name such as accuracy, contains, length or avoid:FILE (``blb rewards`` lists"
    " all), or a function of (example, completion) that returns a finite number, in nats.",
    "tools": "the functions that the model may call, as OpenAI's ``tools``, or a JSON file of them,"
    " for each prompt. [default: the column tools]",
    "on_progress": "called with a Progress after each completion; without it, lines go to stderr.",
    "quiet": "neither lines nor sentences.",
    "entries": "most tokens in the bias; None for as many as the provider takes; few for the"
    " smallest number, up to 300, that earns as much as the best bias.",
}
"""The help of the parameters that Python takes in more forms than the command line, or alone."""
RAISES = """Raises:
    InputError: an argument or the data are wrong, or nothing can be learned.
    ProviderError: the API failed; what was received is kept."""

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class TakesPlan(Protocol[P, R_co]):
    """A function whose parameters are the fields of a plan; the data may come first, without a
    name.
    """

    def __call__(self, data: DataSource = None, /, *args: P.args, **settings: P.kwargs) -> R_co:
        """Call it with these settings."""


def _taking(plan: Callable[P, Plan], run: Callable[[Plan], R], name: str) -> TakesPlan[P, R]:
    """``run`` as the function ``name`` of the fields of a plan."""

    @functools.wraps(run)
    def called(data: DataSource = None, /, *args: P.args, **settings: P.kwargs) -> R:
        fields: dict[str, Any] = dict(settings)
        _check_call(name, len(args), data, fields)
        if data is not None:
            fields["data"] = data
        return run(Plan(**fields))

    called.__name__ = name
    called.__qualname__ = name
    called.__doc__ = f"{inspect.getdoc(run)}\n\n{_arguments()}\n\n{RAISES}"
    called.__signature__ = _signature()  # type: ignore[attr-defined]  # what help() shows
    return called


def _check_call(name: str, more: int, data: DataSource, fields: Mapping[str, Any]) -> None:
    """Raise InputError: a call of the function ``name`` gives a value without a name, a parameter
    that it does not have, the data twice, or no reward.
    """
    if more:
        raise InputError(
            f"{name}() takes the data alone without a name; name the rest, as in"
            f' {name}(rows, reward="accuracy")'
        )
    for field in fields:
        if field not in Plan.model_fields:
            hint = did_you_mean(field, Plan.model_fields)
            raise InputError(
                f"{name}() has no parameter ``{field}``{hint}; help(blackbox_lb.{name}) lists all"
            )
    if data is not None and "data" in fields:
        raise InputError(f"{name}() got ``data`` twice, first without a name; give it once")
    if "reward" not in fields:
        raise InputError(
            f'{name}() needs ``reward``: a name, as in reward="accuracy", or a function of'
            " (example, completion); ``blb rewards`` lists the names"
        )


def _arguments() -> str:
    """The parameters with their help, as a docstring has them."""
    lines = ["Args:"]
    for name in _signature().parameters:
        text = IN_PYTHON.get(name) or _in_python(Plan.model_fields[name].description or "")
        lines += textwrap.wrap(
            f"{name}: {text}",
            HELP_WIDTH,
            initial_indent="    ",
            subsequent_indent="        ",
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _in_python(description: str) -> str:
    """The help of an option in the words of Python."""
    text = re.sub(
        r"--([a-z][a-z0-9-]*)",
        lambda option: f"``{option[1].replace('-', '_')}``",
        description,
    )
    return text.replace("Repeatable", "One or several").replace("repeatable", "one or several")


def _signature() -> inspect.Signature:
    """The fields of a plan: the data first, then those that most people need."""
    fields = Plan.model_fields
    annotations = {name: described.annotation for name, described in fields.items()}
    kinds = get_type_hints(SimpleNamespace(__annotations__=annotations))  # without pydantic's notes
    own_first = [name for base in Plan.__mro__ for name in inspect.get_annotations(base)]
    names = [name for name in dict.fromkeys(own_first) if name in fields]
    names.sort(key=lambda name: (name != "data", place_in_help(fields[name])))
    described = inspect.signature(Plan).parameters
    parameters = [described[name].replace(annotation=kinds[name]) for name in names]
    parameters[0] = parameters[0].replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature(parameters)


async def _fit(plan: Plan) -> Run:
    """Learn a bias and judge it on unseen prompts. The same call again goes on where it stopped,
    and asks for nothing that was received.
    """
    task, reward = load(plan)
    folder = run_folder(plan, task)
    plan = completed(plan.replacing(out=folder), task, reward)
    task = pooled(plan, task, reward)
    report = Remembering(_reporter(plan))
    report.notice(understood(task, reward, plan.decision_labels, limit=plan.limit))
    for advice in naming_advice(plan, task, plan.decision_labels):
        report.notice(advice)
    budget = running_budget()
    budget.limits = SpendingLimits(plan.max_requests, plan.max_tokens_total, plan.max_cost)
    started = time.monotonic()

    def announce(trials: Trials) -> None:
        settings = RequestSettings.of(trials)
        total = fit_forecast(settings, task, plan, reward)
        if total.requests:
            shorter = partial(shorter_plan, settings, task, plan, reward)
            trials.report.notice(announcement(trials, total, shorter))

    with work_in(folder):
        async with (
            connect(
                **plan.server,
                max_tokens=reward.max_tokens,
                longest_prompt=task.longest_prompt,
                needs=() if plan.question is not None else SAMPLING_WITH_A_BIAS,
                budget=budget,
            ) as session,
            open_run(
                plan,
                session,
                task,
                reward,
                command="fit",
                report=report,
                budget=budget,
                elsewhere=tuple(plan.rollouts),
                results=results_of(plan, reward, FIT_FILES),
                announce=announce,
            ) as trials,
        ):
            fitted = await fit_plan(trials, task, plan)
            pairs: tuple[AnswerPair, ...] = ()
            if fitted.tests:
                pairs = answer_pairs(trials, fitted.tests, to_vector(fitted.bias))
        origin = provenance(report.notices, command="blackbox_lb.fit(...)")
        result = whole_result(fitted, pairs, folder, origin)
        check_written(write_result(fitted, result, folder))
    spent = spent_words(budget.spent, time.monotonic() - started, budget.prices is not None)
    steps = [NextStep(shell_line("blb", "report", folder), "look at every answer")]
    if fitted.bias.decisions:
        steps = decision_steps(folder)
    conclusion = fit_conclusion(fitted.bias, result, reward.label, pairs, folder, spent, steps)
    notices = tuple(report.notices)
    return Run(folder, fitted.bias, result, task, reward, pairs, notices, conclusion, plan.server)


fit_async = _taking(Plan, _fit, "fit_async")
fit = _taking(Plan, blocking(_fit), "fit")


def _reporter(plan: Plan) -> Reporter:
    if plan.on_progress is not None:
        return Calling(plan.on_progress, (lambda text: None) if plan.quiet else _say)
    if plan.quiet:
        return Silent()
    return Printing(_say)


def _say(text: str) -> None:
    sys.stderr.write(f"{legible(redacted(text))}\n")
