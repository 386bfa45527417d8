"""The resources behind the options, opened: task and reward, the run's folder, a session with the
model, and the accounts of a command: its limits, its forecast, its record.

What opens them is imported when it is called, so that the help of a command stays quick.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from blackbox_lb.cli.echo import echo, is_terminal
from blackbox_lb.cli.terminal import Terminal, reporter
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.runs.names import REPORT, SAMPLING_WITH_A_BIAS
from blackbox_lb.safety.files import exists

if TYPE_CHECKING:
    from blackbox_lb.api.limits.budget import SpendLimit
    from blackbox_lb.api.session import Session
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.cli.options import LimitOptions, TrialOptions
    from blackbox_lb.jobs.forecast import Forecast
    from blackbox_lb.jobs.plan.shared import ModelSettings, SpendingSettings, TaskSettings
    from blackbox_lb.jobs.records.run_record import RunResults
    from blackbox_lb.providers.prices import Prices
    from blackbox_lb.providers.profile import Profile
    from blackbox_lb.rollouts.judging.trials import Trials
    from blackbox_lb.rollouts.progress import Reporter
    from blackbox_lb.tasks import Reward, Task

T = TypeVar("T")


def run(
    options: SpendingSettings, main: Callable[[SpendLimit], Coroutine[Any, Any, T]]
) -> tuple[T, str]:
    """Run ``main``, with a budget from the limits in ``options``; Ctrl-C ends it in good order.

    Returns what ``main`` does, and in words what was spent.
    """
    from blackbox_lb.api.limits.budget import SpendingLimits, SpendLimit
    from blackbox_lb.api.limits.concurrency import run_interruptible
    from blackbox_lb.jobs.runs.conclusion import spent_words

    started = time.monotonic()
    limits = SpendingLimits(options.max_requests, options.max_tokens_total, options.max_cost)
    budget = SpendLimit(limits)
    outcome = run_interruptible(main(budget), budget)
    seconds = time.monotonic() - started
    return outcome, spent_words(budget.spent, seconds, budget.prices is not None)


def announce(session: Session, options: LimitOptions, report: Reporter, sentence: str) -> None:
    """Print what is going to be asked for. Ask where it costs money and somebody is there to
    answer. click.Abort: the answer is no.
    """
    from blackbox_lb.jobs.forecast import is_hosted

    asks = is_hosted(session) and not options.yes and is_terminal()
    if not asks:
        report.notice(sentence)
        return
    terminal = report if isinstance(report, Terminal) else Terminal()
    terminal.notice(sentence)
    terminal.confirm("Go on?")


def known_prices(profile: Profile, model: str | None, limits: LimitOptions) -> Prices | None:
    """The price of a model, before a server is asked."""
    from blackbox_lb.providers.prices import find_prices, parse_prices

    if limits.price is not None:
        return parse_prices(limits.price)
    if model is None:
        return None
    return find_prices(profile.name, model, limits.price_table)


def load(options: TaskSettings, *, learns: bool = True, mends: bool = False) -> tuple[Task, Reward]:
    """The task and the reward of the options; says which key a judge's file sends where.

    learns: whether the command learns from the task; see ``load_task``. Where it does not, rivals
    that learn get all rows that a fit of few rows learns from. mends: whether the rows are those of
    a question whose probabilities are mended.
    """
    from blackbox_lb.cli.keys import tell_keys_of_judge
    from blackbox_lb.jobs.plan.by_data import has_few_rows
    from blackbox_lb.jobs.runs import loading

    task, reward = loading.load(options, learns=learns, mends=mends)
    if not learns and has_few_rows(task, loading.labels_of(options, task)):
        task = task.pooled()
    tell_keys_of_judge(reward, options)
    return task, reward


def chosen_bias(given: Path | None) -> Path:
    """The bias file that a command's RUN or BIAS means: a file, or the one in a run's folder.

    Where none is given, it is the one of the newest run in ``runs``, which is said.

    Raises BiasError: there is nothing of that name. InputError: there is no finished run.
    """
    from blackbox_lb.bias.document import bias_path
    from blackbox_lb.errors import BiasError
    from blackbox_lb.jobs.runs.listing import newest_bias
    from blackbox_lb.jobs.runs.names import RUNS
    from blackbox_lb.safety.printable import did_you_mean, printable

    if given is None:
        file = newest_bias(Path(RUNS))
        echo(f"newest run: {printable(str(file.parent))}", err=True)
        return file
    if not exists(given) and "\0" not in str(given):
        near = [str(path) for path in Path(RUNS).glob("*")]
        if exists(given.parent):
            near += [str(path) for path in given.parent.glob("*")]
        raise BiasError(
            f"there is no bias file or run {printable(str(given))}"
            f"{did_you_mean(str(given), near)}; blb runs lists the runs"
        )
    return bias_path(given)


def load_bias(path: Path, options: object) -> Bias:
    """The bias in a file; says where its features send prompts.

    Raises BiasError: the file cannot be read, or holds no logit bias.
    """
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.cli.keys import tell_host_of_bias

    bias = Bias.load(path)
    bias.check_moves_tokens()
    tell_host_of_bias(path, bias, options)
    return bias


def check_folder(path: Path) -> None:
    """Raise InputError: the folder of the file ``path`` is not there."""
    if not path.parent.is_dir():
        raise InputError(
            f"there is no folder {path.parent} for {path.name}; make it, or give another --out"
        )


def note_old_report(folder: Path) -> None:
    """Say that a page in the folder shows the result before the one that was just written."""
    page = folder / REPORT
    if page.exists():
        echo(f"old     {page}, which shows the results before these")


@asynccontextmanager
async def connect_to(options: ModelSettings, **more: Any) -> AsyncIterator[Session]:
    """A session with the model of the options; ``more`` goes to ``connect``. Says first which keys
    a profile of the user's own sends where, and then when the model is switched off.
    """
    from blackbox_lb.api.connect import connect
    from blackbox_lb.cli.keys import tell_end_of_model, tell_keys_of_profile
    from blackbox_lb.safety.http.waits import heard_by

    tell_keys_of_profile(options.provider, options)
    notice = reporter(quiet=getattr(options, "quiet", False)).notice
    with heard_by(notice):
        async with connect(**options.server | more) as session:
            tell_end_of_model(session.profile, session.model)
            yield session


@asynccontextmanager
async def open_trials(
    options: TrialOptions,
    task: Task,
    reward: Reward,
    budget: SpendLimit,
    bias: Bias | None = None,
    *,
    expected: Callable[[Trials], Forecast],
    needs: Sequence[str] = SAMPLING_WITH_A_BIAS,
    elsewhere: Sequence[str] = (),
    recorded: Mapping[str, str | None] | None = None,
    results: RunResults | None = None,
    session_type: type[Session] | None = None,
    longest_prompt: int = 0,
    longest_completion: int = 0,
    shorter: Callable[[Trials, float, float], str] = lambda trials, second, share: "",
) -> AsyncIterator[Trials]:
    """Everything for drawing and scoring completions, by the options; closed at the end.

    A ``bias`` that the model's tokenizer or the provider does not take is refused before any
    request.

    expected: the forecast, printed before the first request.
    needs: rows of the profile that must be known.
    elsewhere: sources of rollouts to read beside the run's own store.
    recorded: more settings for the run's record.
    results: what the command writes into the run's folder.
    longest_prompt: characters of a prompt longer than the task's, where there will be one.
    longest_completion: tokens of a completion longer than the task's, where there will be one.
    shorter: seconds of a unit of work, and the share of the limit that completions have -> the end
        of a sentence on a plan that takes less time.
    """
    from blackbox_lb.cli.keys import tell_end_of_model
    from blackbox_lb.jobs.forecast import announcement
    from blackbox_lb.jobs.runs.opening import open_run

    more = {} if session_type is None else {"session": session_type}
    async with connect_to(
        options,
        max_tokens=max(reward.max_tokens, longest_completion),
        longest_prompt=max(task.longest_prompt, longest_prompt),
        needs=needs,
        budget=budget,
        **more,
    ) as session:
        context = click.get_current_context(silent=True)
        command = (context.info_name if context else None) or "run"

        def announce_all(trials: Trials) -> None:
            total = expected(trials)
            if total.requests:
                sentence = announcement(trials, total, partial(shorter, trials))
                announce(trials.session, options, trials.report, sentence)

        async with open_run(
            options,
            session,
            task,
            reward,
            command=command,
            report=reporter(quiet=options.quiet, verbose=getattr(options, "verbose", True)),
            budget=budget,
            bias=bias,
            elsewhere=elsewhere,
            more=recorded,
            results=results,
            announce=announce_all,
        ) as trials:
            yield trials
        if session.profile.end_of(session.model) is None:
            tell_end_of_model(session.profile, session.model_behind)
