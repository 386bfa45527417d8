"""The accounts of a command: its limits and prices, the forecast before its first request, its
record at the end.
"""

from __future__ import annotations

import asyncio
import sys
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
from blackbox_lb.errors import BlbError, BudgetExhausted, InputError, Interrupted
from blackbox_lb.jobs.forecast import Forecast, ForecastStage, forecast
from blackbox_lb.jobs.records.run_record import Manifest, RunResults, settings_of_run
from blackbox_lb.providers.names import profile_names
from blackbox_lb.providers.prices import Prices, find_prices, parse_prices
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.safety.hosts import is_loopback
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.rewards.judge import Judge

T = TypeVar("T")


def run(options: SpendingOptions, main: Callable[[SpendLimit], Coroutine[Any, Any, T]]) -> T:
    """Run ``main``, with a budget from the limits in ``options``; Ctrl-C ends it in good order."""
    if isinstance(options, LimitOptions) and options.price is not None:
        parse_prices(options.price)  # a bad price is an error before anything is opened
    budget = SpendLimit(SpendingLimits(**arguments_for(SpendingLimits, options)))
    return run_interruptible(main(budget), budget)


def prices_of(options: LimitOptions, session: Session) -> Prices | None:
    """The price of the session's model: --price, else a row of --prices, else of the packaged
    table.
    """
    if options.price is not None:
        return parse_prices(options.price)
    return find_prices(session.profile.name, session.model, options.prices)


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
    budget.prices = prices_of(options, trials.session)
    if budget.prices is None:
        _check_unpriced(options, trials.session.profile.name, trials.session.model)
    price_judge(budget, options, trials.reward)
    trials.drift.policy = options.on_drift
    record.expect(trials.drift)
    opened = budget.spent.requests > 0  # trials opened several times ask once

    def opening() -> None:
        if not opened:
            _announce(trials, options, stages)
        record.start()

    budget.opening = opening
    error: BaseException | None = None
    try:
        yield
    except (BudgetExhausted, Interrupted) as failure:
        error = _with_store(failure, trials)
        raise error from failure
    except asyncio.CancelledError as failure:
        if not budget.closed:
            raise
        error = _with_store(Interrupted("Interrupted"), trials)
        raise error from failure
    except (BlbError, click.Abort) as failure:
        error = failure
        raise
    finally:
        if sys.exc_info()[0] is None or error is not None:
            record.end(trials.drift, budget.spent, error)


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


def price_judge(budget: SpendLimit, options: SpendingOptions, reward: Reward) -> None:
    """Give the budget the prices of the reward's judge, if it has one. InputError: --max-cost, and
    its price is not known.
    """
    judge = reward.remote.file if isinstance(reward.remote, Judge) else None
    if judge is None:
        return
    budget.judge_prices = _judge_prices(judge.base_url, judge.model, options)
    if budget.judge_prices is None:
        _check_unpriced(options, urlsplit(judge.base_url).hostname or "", judge.model)


def _check_unpriced(options: SpendingOptions, provider: str, model: str) -> None:
    if options.max_cost is not None:
        price = (
            "--price PROMPT,COMPLETION in dollars for a million tokens (0,0 for what costs"
            " nothing), or "
        )
        other = price if isinstance(options, LimitOptions) else ""
        raise InputError(
            f"--max-cost needs the price of {model} on {provider}, which is not known: give"
            f" {other}--prices FILE with a row [[price]] whose provider is {provider!r};"
            " --max-tokens-total needs no price"
        )


def _judge_prices(base_url: str, model: str, options: SpendingOptions) -> Prices | None:
    """The prices of a judge: by the profile that has its host, or by the host itself."""
    host = urlsplit(base_url).hostname or ""
    known = (load_profile(name) for name in profile_names())
    names = [
        each.name for each in known if urlsplit(each.connection.base_url or "").hostname == host
    ]
    found = (find_prices(name, model, options.prices) for name in [host, *names])
    return next((each for each in found if each is not None), None)


def _announce(
    trials: Trials,
    options: LimitOptions,
    stages: Callable[[Trials], Iterable[ForecastStage | Forecast]],
) -> None:
    """Print the forecast, and ask where it costs money and somebody is there to answer.
    click.Abort: the answer is no.
    """
    session, size = trials.session, trials.store.size()
    total = forecast(trials, stages(trials))
    if not total.requests:
        return
    host = urlsplit(session.base_url).hostname or ""
    mean = size.tokens / size.completions if size.completions else 0.0
    hosted, key = _is_hosted(session, host), session.profile.connection.api_key_env
    owner = f", with the key in {key}" if hosted and key else ""
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


def _with_store(
    error: BudgetExhausted | Interrupted, trials: Trials
) -> BudgetExhausted | Interrupted:
    """The error, with a note on the kept data and its place."""
    kept = f"{trials.store.size().completions:,} completions are kept in {trials.store.path}"
    if isinstance(error, Interrupted):
        return Interrupted(
            f"{error} after {trials.budget.spent}: {kept}, and the same command goes on from there"
        )
    return BudgetExhausted(f"{error}; {kept}")
