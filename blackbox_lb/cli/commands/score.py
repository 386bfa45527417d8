"""``blb score``: the scores of stored completions under any reward."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import PATH, argument, command
from blackbox_lb.cli.options import PrintOptions
from blackbox_lb.cli.resources import load, run
from blackbox_lb.cli.terminal import print_table, reporter
from blackbox_lb.errors import InputError, StoreError
from blackbox_lb.jobs.plan.setting import HelpGroup
from blackbox_lb.jobs.plan.setting import setting as option
from blackbox_lb.jobs.plan.shared import OpeningSettings, SpendingSettings, TaskSettings
from blackbox_lb.jobs.runs.names import ABSTAIN_BELOW, BIAS, STORE
from blackbox_lb.literals import Split
from blackbox_lb.rollouts.progress import short
from blackbox_lb.safety.files import explained

if TYPE_CHECKING:
    from blackbox_lb.api.limits.budget import SpendLimit
    from blackbox_lb.jobs.deciding import DecidedSplit
    from blackbox_lb.jobs.scoring import Group, ScoredCompletion
    from blackbox_lb.jobs.scoring import Settings as StoredSettings
    from blackbox_lb.tasks import Task
    from blackbox_lb.types import Span

EXAMPLE_WIDTH = 200
"""Characters of a prompt and of a completion that are shown."""


class ScoreOptions(TaskSettings, OpeningSettings, SpendingSettings, PrintOptions):
    where: Path = argument(metavar="STORE_OR_RUN", type=PATH)
    max_tokens: int | None = option(
        None, HelpGroup.FIRST, "T of the reward. [default: the limit each was drawn with]", ge=1
    )
    split: tuple[Split, ...] = option((), HelpGroup.STORED, "Only this split; repeatable.")
    setting: tuple[str, ...] = option(
        (), HelpGroup.STORED, "Only this setting, as in temperature=0.5 or greedy; repeatable."
    )
    policy: str | None = option(
        None,
        HelpGroup.STORED,
        "Only completions without, or with, a bias.",
        type=click.Choice(["base", "biased"]),
    )
    examples: int | None = option(
        None,
        HelpGroup.FIRST,
        "Print the best and the worst N completions, for writing a reward.",
        ge=1,
        metavar="N",
    )
    decisions: bool = option(
        False,
        HelpGroup.STORED,
        "Calibrated probabilities of the labels instead, from the stored first lists of the model"
        " without a bias, by bias.json beside the store.",
    )
    abstain_below: float = option(
        ABSTAIN_BELOW,
        HelpGroup.STORED,
        "Of --decisions: the probability below which a decision abstains.",
        type=click.FloatRange(0, 1),
    )
    per_completion: Path | None = option(
        None,
        HelpGroup.OUTPUT,
        "Write every completion with its reward, and where it was earned, a JSON line each.",
    )


@command(
    "score",
    ScoreOptions,
    example="blb score runs/train --data train.jsonl --reward rewards:mine --examples 3",
)
def score_command(options: ScoreOptions) -> None:
    """Score the completions in STORE_OR_RUN, a rollout store or a run's folder, with --reward;
    nothing is sampled.

    Prints a row for each split and way of drawing. Means are over prompts, with a 95 % bootstrap
    interval; differences to the base are paired by prompt and not adjusted for their number: only
    blb eval gives a verdict.

    With --decisions, prints for each split how often the likeliest label is right, how far its
    calibrated probability is off, and how many decisions abstain; --json and --per-completion hold
    each prompt with the probability of every label.
    """
    from blackbox_lb.jobs.runs.opening import price_judge
    from blackbox_lb.jobs.scoring import rescore
    from blackbox_lb.store import RolloutStore
    from blackbox_lb.tasks.rewards.remote import Remote
    from blackbox_lb.tasks.sets.task import SPLITS

    _check_decisions(options)
    path, names = _store(options.where)
    task, reward = load(options)
    if options.decisions:
        _decisions(options, path, task)
        return
    fetches = isinstance(reward, Remote)  # such answers are stored
    with (
        RolloutStore(path, read_only=not fetches) as store,
        _lines(options.per_completion) as write_line,
    ):
        records: list[ScoredCompletion] = []

        def watch(record: ScoredCompletion) -> None:
            write_line(record)
            if options.examples is not None and record.value is not None:
                # The logprobs of all completions would fill the memory.
                records.append(replace(record, completion=record.completion.without_lists()))

        async def main(budget: SpendLimit) -> list[Group]:
            price_judge(budget, reward, options.price_table, takes_price=False)
            return await rescore(
                store,
                task,
                reward,
                reporter(quiet=options.quiet),
                max_tokens=options.max_tokens,
                splits=options.split or SPLITS,
                keep=_filter(options),
                watch=watch,
                budget=budget,
            )

        groups, _ = run(options, main)
    if options.as_json:
        rows = [_json(group, _base_of(group, groups), names) for group in groups]
        print_json(
            {"store": str(path), "task": task.name, "reward": groups[0].reward.name, "groups": rows}
        )
    else:
        _print(groups, names)
        if options.examples is not None:
            _print_examples(records, task, options.examples)


def _check_decisions(options: ScoreOptions) -> None:
    """Raise InputError: an option is of no use with, or without, ``decisions``."""
    if not options.decisions:
        if options.abstain_below != ABSTAIN_BELOW:
            raise InputError(
                "``abstain_below`` says something of decisions; give ``decisions``, too, or leave"
                " it out"
            )
        return
    for name in ("setting", "policy", "examples"):
        if getattr(options, name):
            raise InputError(
                f"``{name}`` is about completions, and ``decisions`` reads first lists; leave one"
                " of them out"
            )


def _decisions(options: ScoreOptions, path: Path, task: Task) -> None:
    """Decide the stored prompts, and print what the decisions are worth."""
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.jobs.deciding import stored_decisions
    from blackbox_lb.store import RolloutStore
    from blackbox_lb.tasks.sets.task import SPLITS

    chosen = path.with_name(BIAS)
    bias = Bias.load(chosen)
    with RolloutStore(path, read_only=True) as store:
        decided = stored_decisions(
            store,
            task,
            bias,
            options.split or SPLITS,
            abstain_below=options.abstain_below,
        )
    rows = [row for part in decided for row in part.rows()]
    if options.per_completion is not None:
        with explained(
            f"write {options.per_completion}", "give another path with --per-completion"
        ):
            lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
            options.per_completion.write_text(lines, encoding="utf-8")
    if options.as_json:
        parts = [part.as_json() for part in decided]
        print_json({"store": str(path), "bias": str(chosen), "task": task.name, "splits": parts})
        return
    print_table(
        f"Likeliest labels, calibrated; below {options.abstain_below:g} they abstain",
        (
            *("split", "prompts", "right", "calibration error", "abstain"),
            *("right of the rest", "without a list"),
        ),
        (_decided_cells(part) for part in decided if part.decisions),
    )


def _decided_cells(part: DecidedSplit) -> list[str]:
    error = part.calibration_error
    return [
        part.split,
        str(len(part.decisions)),
        _share_cell(part.accuracy()),
        "" if error is None else f"{error:.3f}",
        f"{part.abstained:.2f}",
        _share_cell(part.accuracy(acted_on=True)),
        str(part.missing),
    ]


def _share_cell(share: tuple[float, float, float] | None) -> str:
    """A share with its interval; empty of nothing."""
    if share is None:
        return ""
    mean, low, high = share
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


def _store(where: Path) -> tuple[Path, dict[str, str]]:
    """The store's path, and the name of its run's chosen bias by how the store names it: the whole,
    and where it keeps phrases out, its vector alone.
    """
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.bias.request_bias import to_request_bias, to_vector
    from blackbox_lb.store import canonical

    path = where
    if where.is_dir():
        path = where / STORE
    elif where.name == BIAS:
        path = where.with_name(STORE)
    if not path.is_file():
        raise StoreError(
            f"there is no rollout store {path}; give one, or a run's folder, as blb collect and blb"
            " fit make them"
        )
    chosen = path.with_name(BIAS)
    if not chosen.is_file():
        return path, {}
    bias = Bias.load(chosen)
    if bias.decisions:
        raise InputError(
            f"{path} holds probabilities of options, which have no reward: `blb report` shows what"
            " the decisions of this run are worth, and Run.decide decides other rows"
        )
    vector = f"{BIAS} vector" if bias.phrases else BIAS
    return path, {
        canonical(to_vector(bias).store_key): vector,
        canonical(to_request_bias(bias).store_key): BIAS,
    }


def _filter(options: ScoreOptions) -> Callable[[StoredSettings], bool]:
    from blackbox_lb.rollouts.judging.verdict import parse_setting

    temperatures = {parse_setting(spec).temperature for spec in options.setting}
    policy = options.policy

    def keep(settings: StoredSettings) -> bool:
        right = policy is None or bool(settings["bias"]) == (policy == "biased")
        return right and (not temperatures or settings["sampling"]["temperature"] in temperatures)

    return keep


@contextmanager
def _lines(path: Path | None) -> Iterator[Callable[[ScoredCompletion], None]]:
    """A watcher that writes each completion as one JSON line; it does nothing without a path."""
    if path is None:
        yield lambda _record: None
        return
    with explained(f"write {path}", "give another path with --per-completion"):
        file = path.open("w", encoding="utf-8")
    with file:
        yield lambda record: print(json.dumps(_line(record), ensure_ascii=False), file=file)


def _line(record: ScoredCompletion) -> dict[str, Any]:
    completion = record.completion
    nats, spans = record.score or (None, None)
    return {
        "split": record.split,
        "id": record.example,
        "key": record.key,
        "completion": completion.text,
        "finish_reason": completion.finish_reason,
        "tokens": completion.n_tokens,
        "nats": "-inf" if nats == -math.inf else nats,
        "value": record.value,
        "correct": record.correct,
        "spans": None if spans is None else _spans(spans, completion.text),
    }


def _spans(spans: Sequence[Span], text: str) -> list[dict[str, Any]]:
    """The places of a completion's reward, each with its passage."""
    return [{**asdict(span), "text": text[span.start : span.end]} for span in spans]


def _base_of(group: Group, groups: list[Group]) -> Group | None:
    """The base completions that differ only in the bias."""
    if not group.biased:
        return None
    alike = {**group.settings, "bias": []}
    return next(
        (
            candidate
            for candidate in groups
            if candidate.split == group.split and candidate.settings == alike
        ),
        None,
    )


def _policy(group: Group, names: dict[str, str]) -> str:
    from blackbox_lb.store import canonical

    if not group.biased:
        return "base"
    name = names.get(canonical(group.settings["bias"]), f"bias {group.request[:8]}")
    if group.entries is None:
        return name
    return f"{name}, {group.entries} entries"


def _json(group: Group, base: Group | None, names: dict[str, str]) -> dict[str, Any]:
    settings = group.settings
    mean = group.mean_reward
    difference = None if base is None else group.difference(base)
    return {
        "split": group.split,
        "policy": _policy(group, names),
        "request": group.request,
        **{name: settings[name] for name in ("provider", "model", "endpoint", "sampling")},
        "entries": group.entries,
        "examples": group.examples,
        "prompts": sum(bool(row.size) for row in group.scores.reward),
        "completions": group.completions,
        "left_out": group.scores.left_out,
        "reward": {"label": group.reward.label, **asdict(mean)},
        "accuracy": group.accuracy,
        "tokens": group.tokens,
        "difference": None if difference is None else asdict(difference),
    }


HEADER = (
    *("split", "policy", "setting", "limit", "prompts", "completions", "reward", "95 % interval"),
    *("to base", "95 % interval", "accuracy", "tokens"),
)


def _print(groups: list[Group], names: dict[str, str]) -> None:
    label = groups[0].reward.label
    print_table(
        f"Stored completions, scored: {label}",
        tuple(label if name == "reward" else name for name in HEADER),
        (_cells(group, _base_of(group, groups), names) for group in groups),
        text_columns=range(2),
    )


def _cells(group: Group, base: Group | None, names: dict[str, str]) -> list[str]:
    sampling = group.settings["sampling"]
    mean = group.mean_reward
    difference = None if base is None else group.difference(base)
    to_base = ["", ""]
    if difference is not None:
        interval = f"{short(difference.low, sign=True)} to {short(difference.high, sign=True)}"
        to_base = [short(difference.mean, sign=True), interval]
    return [
        group.split,
        _policy(group, names),
        f"T = {sampling['temperature']:g}" if sampling["temperature"] else "greedy",
        str(sampling["max_tokens"]),
        f"{sum(bool(row.size) for row in group.scores.reward)} of {group.examples}",
        str(group.completions),
        short(mean.mean),
        f"{short(mean.low)} to {short(mean.high)}",
        *to_base,
        "" if group.accuracy is None else f"{group.accuracy:.2f}",
        f"{group.tokens:.1f}",
    ]


def _print_examples(records: list[ScoredCompletion], task: Task, count: int) -> None:
    """The completions with the highest and with the lowest rewards, each prompt once on a side."""
    from blackbox_lb.jobs.runs.answers import cut, one_line
    from blackbox_lb.tasks.sets.task import SPLITS

    prompts = {
        (split, example.id): example.prompt.text
        for split in SPLITS
        for example in task.split(split)
    }
    ranked = sorted(records, key=lambda record: -(record.value or 0.0))
    best = _of_different_prompts(ranked, count)
    worst = _of_different_prompts(ranked[::-1], count)
    for title, rows in (("best", best), ("worst", worst)):
        for record in rows:
            prompt = prompts.get((record.split, record.example), record.example)
            echo(f"{title}  {short(record.value or 0.0)}, {record.completion.n_tokens} tokens")
            echo(f"  prompt      {cut(one_line(prompt), EXAMPLE_WIDTH)}")
            echo(f"  completion  {cut(one_line(record.completion.text), EXAMPLE_WIDTH)}")


def _of_different_prompts(ranked: list[ScoredCompletion], count: int) -> list[ScoredCompletion]:
    """The first ``count`` of different prompts."""
    first: dict[tuple[str, str], ScoredCompletion] = {}
    for record in ranked:
        first.setdefault((record.split, record.example), record)
    return list(first.values())[:count]
