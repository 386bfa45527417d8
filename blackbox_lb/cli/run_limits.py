"""The accounts of a command: its limits and prices, the forecast before its first request, its
record at the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from blackbox_lb.api.limits.budget import SpendingLimits, SpendLimit
from blackbox_lb.api.limits.interrupts import run_interruptible
from blackbox_lb.api.session import Session
from blackbox_lb.cli.echo import is_terminal
from blackbox_lb.cli.grouped import arguments_for
from blackbox_lb.cli.options import LimitOptions, SpendingOptions, TrialOptions
from blackbox_lb.cli.terminal import Terminal
from blackbox_lb.jobs.forecast import Forecast, ForecastStage, RequestSettings, forecast
from blackbox_lb.jobs.records.run_record import Manifest, RunResults, settings_of_run
from blackbox_lb.jobs.runs.opening import price_judge, price_model, recorded
from blackbox_lb.providers.prices import parse_prices
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.safety.network import is_loopback
from blackbox_lb.tasks import Task

T = TypeVar("T")


def run(options: SpendingOptions, main: Callable[[SpendLimit], Coroutine[Any, Any, T]]) -> T:
    """Run ``main``, with a budget from the limits in ``options``; Ctrl-C ends it in good order."""
    if isinstance(options, LimitOptions) and options.price is not None:
        parse_prices(options.price)  # a bad price is an error before anything is opened
    budget = SpendLimit(SpendingLimits(**arguments_for(SpendingLimits, options)))
    return run_interruptible(main(budget), budget)


@asynccontextmanager
async def accounted(
    trials: Trials,
    options: LimitOptions,
    record: Manifest,
    stages: Callable[[Trials], Iterable[ForecastStage | Forecast]],
) -> AsyncIterator[None]:
    """Inside, the trials' budget has its prices, changes are watched for, and the run is recorded
    in run.json.

    Raises InputError: a limit on the cost of a model whose price is not known; or a run that is
    resumed under other settings.
    """
    budget = trials.budget
    price_model(budget, trials.session, options.price, options.prices)
    price_judge(budget, trials.reward, options.prices)
    trials.drift.policy = options.on_drift
    opened = budget.spent.requests > 0  # trials opened several times ask once

    def opening() -> None:
        if not opened:
            _announce(trials, options, stages)

    async with recorded(trials, record, opening):
        yield


def record_of(
    trials: Trials,
    options: TrialOptions,
    task: Task,
    part: str | None,
    more: Mapping[str, str | None],
    results: RunResults | None,
) -> Manifest:
    """The record of the running command, or of a ``part`` of it; ``more``: settings beyond those of
    every run; ``results``: see ``Manifest``.
    """
    ctx = click.get_current_context(silent=True)
    name = " ".join(filter(None, [(ctx.info_name if ctx else None) or "run", part]))
    prompts = [
        example.prompt for split in (task.train, task.validation, task.test) for example in split
    ]
    settings = {**settings_of_run(trials, prompts), **more}
    folder = options.out or trials.store.path.parent
    return Manifest(folder, name, settings, results=results, restart=options.restart)


def _announce(
    trials: Trials,
    options: LimitOptions,
    stages: Callable[[Trials], Iterable[ForecastStage | Forecast]],
) -> None:
    """Print the forecast, and ask where it costs money and somebody is there to answer.
    click.Abort: the answer is no.
    """
    session = trials.session
    size = trials.store.size()
    total = forecast(RequestSettings.of(trials), stages(trials))
    if not total.requests:
        return
    host = urlsplit(session.base_url).hostname or ""
    mean = size.tokens / size.completions if size.completions else 0.0
    hosted = _is_hosted(session, host)
    key = session.profile.connection.api_key_env
    owner = ""
    if hosted and key:
        owner = f", with the key in {key}"
    sentence = (
        f"{session.model} at {host}{owner}:"
        f" {total.sentence(trials.budget.prices, size.completions, mean)}"
    )
    if hosted and trials.budget.prices is None:
        sentence += "; the price is not known (--price PROMPT,COMPLETION)"
    asks = hosted and not options.yes and is_terminal()
    if not asks:
        trials.report.notice(sentence)
        return
    terminal = trials.report if isinstance(trials.report, Terminal) else Terminal()
    terminal.notice(sentence)
    terminal.confirm("Go on?")


def _is_hosted(session: Session, host: str) -> bool:
    return session.profile.connection.api_key_required and not is_loopback(host)
