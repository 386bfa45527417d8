"""The action of ``blb collect``: fill the store, at once or by batch, and report its contents."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.session import Session
from blackbox_lb.cli.commands.learning.collect import CollectOptions
from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.resources import COLLECTING, load, open_trials, run
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.reweighting import censoring_of
from blackbox_lb.extras.batches import OfflineSession, Pending, cancel_batches, collect_batches
from blackbox_lb.extras.batches.plan import Shard, no_batch, tokenizer_beside
from blackbox_lb.jobs.forecast import Forecast, RequestSettings, forecast
from blackbox_lb.jobs.plan.check import check_logprobs
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.judging.trials import Trials, stage_part
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.rollouts.positions import training_set
from blackbox_lb.rollouts.reading import FILTERED, INCOMPLETE
from blackbox_lb.safety.printable import shell_line
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.types import Example

Summary = tuple[dict[str, Any], list[str]]


def execute(options: CollectOptions) -> None:
    shard = None if options.shard is None else Shard.parse(options.shard)
    session_type = Session
    if options.batch:
        options, session_type = _prepared(options)
    elif named := [
        name for name in ("no_wait", "cancel", "batch_requests") if getattr(options, name)
    ]:
        raise InputError(
            f"--{named[0].replace('_', '-')} says something of batches; give --batch, too, or leave"
            " it out"
        )
    task, reward = load(options)
    if reward.of_shares:
        raise InputError(
            f"{reward.name} learns from one token a prompt, which blb fit asks for itself, and no"
            " drawn completion alone has a reward; run blb fit, or collect with another --reward"
        )
    try:
        summary, notices = run(
            options, lambda budget: _run(options, task, reward, shard, session_type, budget)
        )
    except Pending as pending:
        _tell(options, pending)
        return
    if options.as_json:
        print_json(summary)
        return
    echo(_sentence(summary, reward))
    for notice in notices:
        echo(notice)


def _prepared(options: CollectOptions) -> tuple[CollectOptions, type[Session]]:
    """Refuse a provider without batches before anything starts; a program of the user's own needs
    no server.
    """
    profile = load_profile(options.provider)
    if profile.batch is None:
        raise no_batch(profile.name, [])
    if profile.batch.command is None:
        return options, Session
    return (
        options.replacing(tokenizer=options.tokenizer or tokenizer_beside(options.model)),
        OfflineSession,
    )


async def _run(
    options: CollectOptions,
    task: Task,
    reward: Reward,
    shard: Shard | None,
    session_type: type[Session],
    budget: SpendLimit,
) -> Summary:
    """Collect; return the result for a program and in sentences."""
    examples = task.train[: options.limit]
    if shard is not None:
        examples = shard.of(examples)

    def expected(trials: Trials) -> Forecast:
        part = stage_part(trials.draw, "training", examples, SAMPLED, options.samples_per_prompt)
        return forecast(RequestSettings.of(trials), [part])

    async with open_trials(
        options,
        task,
        reward,
        budget,
        needs=COLLECTING,
        expected=expected,
        recorded={"shard": None if shard is None else str(shard)},
        session_type=session_type,
    ) as trials:
        check_logprobs(trials)
        if task.note:
            trials.report.notice(task.note)
        if not examples:
            return {"store": str(trials.store.path), "completions": 0, "tokens": 0}, []
        if options.batch:
            outcome = await _by_batch(options, trials, examples)
            if outcome is not None:
                return outcome
        summary, notices = await _collected(trials, examples, options.samples_per_prompt, reward)
        if not options.batch:
            summary["in_flight"] = trials.pace.level
        return summary, notices


async def _by_batch(
    options: CollectOptions, trials: Trials, examples: tuple[Example, ...]
) -> Summary | None:
    """Collect by batch; return the message after a cancellation."""
    budget = trials.budget
    rules = trials.session.profile.batch
    if budget.prices is not None and rules is not None:
        budget.prices = budget.prices.in_batch(rules.price)
    if options.cancel:
        lines = await cancel_batches(trials, wait=not options.no_wait)
        return {"store": str(trials.store.path), "cancelled": dict(lines)}, []
    await collect_batches(
        trials,
        [example.prompt for example in examples],
        options.samples_per_prompt,
        wait=not options.no_wait,
        most=options.batch_requests,
    )
    return None


async def _collected(
    trials: Trials, examples: tuple[Example, ...], samples: int, reward: Reward
) -> Summary:
    part = stage_part(trials.draw, "training", examples, SAMPLED, samples)
    [keys] = await trials.collect_all(part.name, [part])
    training = training_set(trials.store, examples, keys, reward, trials.end_tokens)
    kept_back = censoring_of(training.rollouts, training.next_token)
    values = [reward.displayed(r) for r in training.rollouts.rewards]
    summary = {
        "store": str(trials.store.path),
        "completions": len(values),
        "incomplete": training.tally[INCOMPLETE],
        "filtered": training.tally[FILTERED],
        "tokens": len(training.rollouts.token_ids),
        "censoring": kept_back.model_dump(exclude={"unobserved"}),
        "mean": sum(values) / len(values),
    }
    return summary, [kept_back.sentence(trials.top_logprobs), *training.notices]


def _sentence(summary: dict[str, Any], reward: Reward) -> str:
    if "cancelled" in summary:
        states = ", ".join(
            f"{number:,} requests {state}" for state, number in summary["cancelled"].items()
        )
        ended = "No batch job is open any more"
        if states:
            ended += f": {states}"
        return f"{ended}; what was answered is in {summary['store']}"
    text = f"{summary['completions']} completions, {summary['tokens']} tokens in {summary['store']}"
    if "mean" in summary:
        return f"{text}; mean {reward.label} {summary['mean']:.3f}"
    return text


def _tell(options: CollectOptions, pending: Pending) -> None:
    """Print the open jobs, and how to go on."""
    again = _again("no_wait", "cancel")
    commands = [job.command for job in pending.states if job.command]
    if options.as_json:
        jobs = [{name: getattr(job, name) for name in job.__slots__} for job in pending.states]
        print_json({"missing": pending.missing, "jobs": jobs, "next": [*commands, again]})
        return
    echo(f"{pending.missing:,} completions are still to come:")
    for state in pending.states:
        echo(f"  {state}")
    echo(f"Then go on with: {again}")


def _again(*without: str) -> str:
    """The command line again, without these options."""
    context = click.get_current_context()
    words = ["blb", context.info_name or "collect"]
    for option in context.command.params:
        name = option.name or ""
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE or name in without:
            continue
        flag = isinstance(option, click.Option) and option.is_flag
        words.append(option.opts[0])
        if not flag:
            words.append(str(context.params[name]))
    return shell_line(*words)
