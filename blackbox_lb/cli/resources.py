"""The resources behind the options, opened: task and reward, the run's folder, a session with the
model, and all at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from blackbox_lb.api.connect import connect
from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.session import Session
from blackbox_lb.bias.document import Bias
from blackbox_lb.cli.echo import echo
from blackbox_lb.cli.grouped import arguments_for, recorded
from blackbox_lb.cli.keys import tell_keys_of_judge, tell_keys_of_profile
from blackbox_lb.cli.model_ends import tell_end_of_model
from blackbox_lb.cli.options import (
    ModelOptions,
    OutputOptions,
    TaskOptions,
    TrialOptions,
)
from blackbox_lb.cli.run_limits import accounted, record_of
from blackbox_lb.cli.terminal import reporter
from blackbox_lb.extras.harness import HarnessOptions
from blackbox_lb.jobs.forecast import Forecast, ForecastStage
from blackbox_lb.jobs.records.run_record import RunResults
from blackbox_lb.jobs.runs.names import REPORT, RUNS, STORE
from blackbox_lb.jobs.runs.opening import checked_tokenizer, trials_in
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.safety.files import explained
from blackbox_lb.tasks import Reward, Task, load_task, parse_reward
from blackbox_lb.tasks.records.tools import read_tools
from blackbox_lb.tasks.sets.labels import Labels, check_answers, labels_of_task

COLLECTING = ("tokens.id", "neutral")
"""Rows of a profile that completions need to be of use."""
SAMPLING_WITH_A_BIAS = (*COLLECTING, "bias")


def load(options: TaskOptions) -> tuple[Task, Reward]:
    """The task and the reward of the options; says which key a judge's file sends where."""
    judged = parse_reward(options.reward, max_tokens=1, correct=options.correct)
    needs_answers = getattr(options, "learn_from", None) != "unlabelled"
    harness = arguments_for(HarnessOptions, options)
    task = load_task(
        **arguments_for(load_task, options),
        require_answers=judged.needs_answer and needs_answers,
        harness=HarnessOptions(**harness) if harness else None,
    ).first(**arguments_for(Task.first, options))
    if options.system is not None:
        task = task.with_system(options.system)
    if options.tools is not None:
        task = task.with_tools(read_tools(options.tools))
    reward = reward_of(options, task, options.max_tokens or task.max_tokens)
    check_answers(task, labels_of(options, task))
    tell_keys_of_judge(reward, options)
    return task, reward


def reward_of(options: TaskOptions, task: Task, max_tokens: int) -> Reward:
    """The reward of the options for completions of at most ``max_tokens`` tokens of ``task``."""
    return parse_reward(
        options.reward,
        max_tokens=max_tokens,
        correct=options.correct or task.correct,
        **arguments_for(parse_reward, options),
        labels=labels_of(options, task),
    )


def labels_of(options: TaskOptions, task: Task) -> Labels | None:
    """The labels of --decide or --labels, where the command has these options, or those in the
    task's answers; see ``labels_of_task``.
    """
    names = getattr(options, "labels", None)
    decide = getattr(options, "decide", None)
    return labels_of_task(decide, None if names is None else names.split(","), task)


def run_folder(options: OutputOptions, task: Task) -> Path:
    """The folder that holds a run's bias and result, made if need be."""
    folder = options.out or Path(RUNS) / task.name
    with explained(f"make the folder {folder}", "give another with --out"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def results_of(options: TaskOptions, reward: Reward, *files: str) -> RunResults:
    """The results in ``files``, which are about the reward of the options."""
    return RunResults(files, {"reward": reward.spec, **recorded(options)})


def note_old_report(folder: Path) -> None:
    """Say that a page in the folder shows the result before the one that was just written."""
    page = folder / REPORT
    if page.exists():
        echo(f"old     {page}, which shows the results before these")


@asynccontextmanager
async def connect_to(options: ModelOptions, **more: Any) -> AsyncIterator[Session]:
    """A session with the model of the options; ``more`` goes to ``connect``. Says first which keys
    a profile of the user's own sends where, and then when the model is switched off.
    """
    tell_keys_of_profile(options.provider, options)
    async with connect(**arguments_for(connect, options) | more) as session:
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
    needs: Sequence[str] = SAMPLING_WITH_A_BIAS,
    stages: Callable[[Trials], Iterable[ForecastStage | Forecast]] = lambda trials: (),
    part: str | None = None,
    elsewhere: Sequence[str] = (),
    recorded: Mapping[str, str | None] | None = None,
    results: RunResults | None = None,
    session_type: type[Session] = Session,
    longest_prompt: int = 0,
) -> AsyncIterator[Trials]:
    """Everything for drawing and scoring completions, by the options; closed at the end.

    A ``bias`` that the model's tokenizer or the provider does not take is refused before any
    request.

    needs: rows of the profile that must be known.
    stages: most requests to come, printed before the first one.
    part: of the command, for its record.
    elsewhere: sources of rollouts to read beside the run's own store.
    recorded: more settings for the run's record.
    results: what the command writes into the run's folder.
    longest_prompt: characters of a prompt longer than the task's, where there will be one.
    """
    if reward.remote is not None:
        reward.remote.headers()  # a missing key is an error before anything costs money
    async with connect_to(
        options,
        max_tokens=reward.max_tokens,
        longest_prompt=max(task.longest_prompt, longest_prompt),
        needs=needs,
        budget=budget,
        session=session_type,
    ) as session:
        tokenizer = await checked_tokenizer(session, bias)
        if options.out:
            run_folder(options, task)  # the record of the run goes there, wherever the store is
        path = options.store or run_folder(options, task) / STORE
        with trials_in(
            options.out or path.parent,
            path,
            session,
            tokenizer,
            task,
            reward,
            report=reporter(quiet=options.quiet),
            budget=budget,
            top_logprobs=options.top_logprobs,
            elsewhere=elsewhere,
            **arguments_for(Trials, options),
        ) as trials:
            async with accounted(
                trials,
                options,
                record_of(trials, options, task, part, recorded or {}, results),
                stages,
            ):
                yield trials
            if session.profile.end_of(session.model) is None:
                tell_end_of_model(session.profile, session.model_behind)
