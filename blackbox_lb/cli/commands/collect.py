"""``blb collect``: sample completions into the store, at once or by batch, and learn nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import TrialOptions
from blackbox_lb.cli.resources import load, open_trials, run
from blackbox_lb.cli.terminal import command_with_same
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.plan.setting import HelpGroup, setting
from blackbox_lb.jobs.plan.shared import CollectionSettings, TaskSettings
from blackbox_lb.jobs.runs.names import COLLECTING

if TYPE_CHECKING:
    from blackbox_lb.api.limits.budget import SpendLimit
    from blackbox_lb.api.session import Session
    from blackbox_lb.extras.batches.plan import Shard
    from blackbox_lb.extras.batches.run import Pending
    from blackbox_lb.jobs.forecast import Forecast
    from blackbox_lb.rollouts.judging.trials import Trials
    from blackbox_lb.tasks import Reward, Task
    from blackbox_lb.types import Example

    Summary = tuple[dict[str, Any], list[str]]


class CollectOptions(TaskSettings, CollectionSettings, TrialOptions):
    shard: str | None = setting(
        None,
        HelpGroup.SAMPLING,
        "Part I of N of the prompts, from 1/N to N/N: a machine each.",
        metavar="I/N",
    )
    batch: bool = setting(
        False, HelpGroup.BATCHES, "Ask in files, by the provider's batch API or vllm run-batch."
    )
    batch_requests: int | None = setting(
        None, HelpGroup.BATCHES, "Most requests in one file. [default: the provider's]", ge=1
    )
    no_wait: bool = setting(
        False, HelpGroup.BATCHES, "With --batch: one look at each job, and no waiting for its end."
    )
    cancel: bool = setting(
        False, HelpGroup.BATCHES, "With --batch: end the open jobs, and keep what they answered."
    )


@command(
    "collect",
    CollectOptions,
    example="blb collect --provider vllm --data train.jsonl --reward length --out runs/train",
)
def collect_command(options: CollectOptions) -> None:
    """Sample completions of the training prompts into the store of --out, and nothing else.

    Stored completions are not asked for again, so a run that was cut off goes on where it stopped;
    blb fit with the same --out uses these completions as its own.

    With --batch the requests go out in files, at the provider's price for batches. The command
    waits for the answers, which may take a day; stopped at any moment, the same command goes on.
    """
    from blackbox_lb.extras.batches.plan import Shard
    from blackbox_lb.extras.batches.run import Pending

    shard = None if options.shard is None else Shard.parse(options.shard)
    session_type = None
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
        (summary, notices), _ = run(
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


def _prepared(options: CollectOptions) -> tuple[CollectOptions, type[Session] | None]:
    """Refuse a provider without batches before anything starts; a program of the user's own needs
    no server.
    """
    from blackbox_lb.extras.batches.plan import OfflineSession, no_batch, tokenizer_beside
    from blackbox_lb.providers.profile import load_profile

    profile = load_profile(options.provider)
    if profile.batch is None:
        raise no_batch(profile.name, [])
    if profile.batch.command is None:
        return options, None
    return (
        options.replacing(tokenizer=options.tokenizer or tokenizer_beside(options.model)),
        OfflineSession,
    )


async def _run(
    options: CollectOptions,
    task: Task,
    reward: Reward,
    shard: Shard | None,
    session_type: type[Session] | None,
    budget: SpendLimit,
) -> Summary:
    """Collect; return the result for a program and in sentences."""
    from blackbox_lb.jobs.forecast import RequestSettings, forecast
    from blackbox_lb.jobs.plan.check import check_logprobs
    from blackbox_lb.rollouts.judging.trials import stage_part
    from blackbox_lb.rollouts.judging.verdict import SAMPLED

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
    from blackbox_lb.extras.batches.run import cancel_batches, collect_batches

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
    from blackbox_lb.estimate.reweighting import censoring_of
    from blackbox_lb.rollouts.judging.trials import stage_part
    from blackbox_lb.rollouts.judging.verdict import SAMPLED
    from blackbox_lb.rollouts.positions import training_set
    from blackbox_lb.rollouts.reading import FILTERED, INCOMPLETE

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
    names = set(type(options).model_fields) - {"no_wait", "cancel"}
    again = command_with_same(["blb", "collect"], names=names)
    commands = [job.command for job in pending.states if job.command]
    if options.as_json:
        jobs = [{name: getattr(job, name) for name in job.__slots__} for job in pending.states]
        print_json({"missing": pending.missing, "jobs": jobs, "next": [*commands, again]})
        return
    echo(f"{pending.missing:,} completions are still to come:")
    for state in pending.states:
        echo(f"  {state}")
    echo(f"Then go on with: {again}")
