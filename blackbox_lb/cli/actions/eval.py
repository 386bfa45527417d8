"""The action of ``blb eval``: draw every arm, compare, write evaluation.json, print."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from blackbox_lb.api.limits.budget import SpendLimit, Spent
from blackbox_lb.api.wire.request import takes_messages
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.limits import check_bias
from blackbox_lb.bias.records import Comparison
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.cli.actions.eval_output import eval_conclusion, print_policies, print_shares
from blackbox_lb.cli.commands.learning.eval import EvalOptions
from blackbox_lb.cli.echo import echo, preset_options, print_json
from blackbox_lb.cli.grouped import arguments_for
from blackbox_lb.cli.keys import tell_host_of_bias
from blackbox_lb.cli.resources import (
    COLLECTING,
    SAMPLING_WITH_A_BIAS,
    load,
    note_old_report,
    open_trials,
    run,
)
from blackbox_lb.cli.terminal import print_conclusion, print_table, reporter
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.extras.rivals.table import rivals, standard_rivals
from blackbox_lb.jobs.evaluation.compare import figure, verdicts
from blackbox_lb.jobs.evaluation.document import Evaluation, Mean
from blackbox_lb.jobs.evaluation.policies import HandBias
from blackbox_lb.jobs.evaluation.run import EvalPlan, default_settings, evaluate
from blackbox_lb.jobs.forecast import RequestSettings, eval_forecast
from blackbox_lb.jobs.records.run_record import work_in
from blackbox_lb.jobs.runs.conclusion import spent_words, understood
from blackbox_lb.jobs.runs.loading import labels_of
from blackbox_lb.jobs.runs.names import REPORT
from blackbox_lb.jobs.runs.opening import prices_of, results_of, run_folder
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.judging.decisions import check_wanted
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import Setting, parse_setting
from blackbox_lb.rollouts.progress import chance
from blackbox_lb.safety.files import explained, write_whole
from blackbox_lb.safety.printable import printable
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.sets.labels import Labels

FILE = "evaluation.json"
GENERIC = "bias"
"""The file name that ``blb fit`` uses: the folder's name says more."""


def execute(options: EvalOptions) -> None:
    if options.save and not options.biases:
        raise InputError(
            "--save writes verdicts into bias files, and none was given; name one, or drop --save"
        )
    paths = _named(options.biases)
    loaded = {name: Bias.load(path) for name, path in paths.items()}
    for name, bias in loaded.items():
        tell_host_of_bias(paths[name], bias, options)
    task, reward = load(options, learns=False, biases=tuple(loaded.values()))
    plan = _plan(options, task, reward, tuple(loaded.values()))
    folder = run_folder(options, task)
    with work_in(folder):
        options = options.replacing(out=folder)
        started = time.monotonic()
        reporter(quiet=options.quiet).notice(understood(task, reward, plan.labels))
        evaluation, spent, priced = run(
            options, lambda budget: _run(loaded, options, task, reward, plan, budget)
        )
        document = evaluation.model_dump(mode="json")
        path = folder / FILE
        if options.as_json:
            print_json(document)
        else:
            if options.verbose:
                _print_everything(evaluation)
            print_policies(evaluation)
            print_shares(evaluation)
            words = spent_words(spent, time.monotonic() - started, priced)
            print_conclusion(eval_conclusion(evaluation, paths, path, words))
        with explained(
            f"write {path}", "make room there, and the same command asks for no completion again"
        ):
            write_whole(path, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())
        if options.save:
            for name, bias in loaded.items():
                bias.verified(verdicts(evaluation, name)).save(paths[name])
    if not options.as_json:
        note_old_report(folder)


def _named(specs: Sequence[str]) -> dict[str, Path]:
    """Name -> file. Raises InputError where two have the same name."""
    named: dict[str, Path] = {}
    for spec in specs:
        name, path = _name(spec)
        if name in named:
            raise InputError(
                f"{named[name]} and {path} are both called {name!r} here; tell them apart with"
                f" NAME=FILE, as in other={path}"
            )
        named[name] = path
    return named


def _name(spec: str) -> tuple[str, Path]:
    name, equals, rest = spec.partition("=")
    if equals and name and rest and "/" not in name and not Path(spec).exists():
        return printable(name), Path(rest)
    path = Path(spec)
    folder = path.absolute().parent.name
    if path.stem == GENERIC and folder:
        return printable(folder), path
    return printable(path.stem), path


def _plan(options: EvalOptions, task: Task, reward: Reward, biases: Sequence[Bias]) -> EvalPlan:
    labels = labels_of(options, task)
    settings = tuple(dict.fromkeys(parse_setting(spec) for spec in options.deploy))
    if not settings:
        settings = default_settings(biases, reward)
    check_wanted(reward, (*task.train, *task.validation, *task.test), settings)
    specs: list[str] = []
    if options.rivals:
        specs = _standard_rivals(options, task, reward, labels, settings)
    specs += options.rival
    case = Case(task, reward, settings, labels, options.seed or 0, options.top_logprobs)
    return EvalPlan(
        settings=settings,
        rivals=rivals(specs, case),
        labels=labels,
        preset_options=preset_options(),
        **arguments_for(EvalPlan, options),
    )


def _standard_rivals(
    options: EvalOptions,
    task: Task,
    reward: Reward,
    labels: Labels | None,
    settings: tuple[Setting, ...],
) -> list[str]:
    """The rivals that suit the task; says which are left out."""
    profile = load_profile(options.provider)
    first: Endpoint = next(iter(profile.endpoints))
    specs, notices = standard_rivals(
        reward,
        labels,
        settings,
        takes_messages=takes_messages(options.endpoint or first),
        has_training=bool(task.train),
    )
    report = reporter(quiet=options.quiet)
    for sentence in notices:
        report.notice(sentence)
    return specs


async def _run(
    biases: dict[str, Bias],
    options: EvalOptions,
    task: Task,
    reward: Reward,
    plan: EvalPlan,
    budget: SpendLimit,
) -> tuple[Evaluation, Spent, bool]:
    """The evaluation, what was spent, and whether the price of a token is known."""
    needs: tuple[str, ...] = COLLECTING
    if biases or any(isinstance(policy, HandBias) for policy in plan.rivals):
        needs = SAMPLING_WITH_A_BIAS
    longest = max(
        (
            sum(map(len, draw.example.prompt.sent_texts))
            for policy in plan.rivals
            for example in task.test
            for draw in policy.requests(example, plan.samples)
        ),
        default=0,
    )
    values = {name: to_request_bias(bias) for name, bias in biases.items()}
    async with open_trials(
        options,
        task,
        reward,
        budget,
        needs=needs,
        expected=lambda trials: eval_forecast(RequestSettings.of(trials), task, values, plan),
        longest_prompt=longest,
        longest_completion=max((policy.max_tokens or 0 for policy in plan.rivals), default=0),
        results=results_of(options, reward, (FILE, REPORT)),
    ) as trials:
        _check(trials, biases)
        prices = prices_of(trials.session, options.price, options.price_table)
        evaluation = await evaluate(trials, task, biases, replace(plan, prices=prices))
        return evaluation, budget.spent, prices is not None


def _check(trials: Trials, biases: dict[str, Bias]) -> None:
    """Refuse a bias that the model's tokenizer or the provider does not take, before anything costs
    money.
    """
    for name, bias in biases.items():
        try:
            bias.check_tokenizer(trials.tokenizer.fingerprint)
            check_bias(bias, trials.session.profile, trials.session.highest_id)
        except BiasError as error:
            raise type(error)(f"{name}: {error}") from None


def _print_everything(evaluation: Evaluation) -> None:
    for sentence in evaluation.summary:
        echo(sentence)
    for setting in dict.fromkeys(row.setting for row in evaluation.policies):
        _policies(evaluation, setting)
        _decisions(evaluation, setting)
    if evaluation.comparisons:
        _comparisons(evaluation.comparisons)
    for note in evaluation.notes:
        echo(note)


def _policies(evaluation: Evaluation, setting: str) -> None:
    rows = [row for row in evaluation.policies if row.setting == setting]
    metrics = list(rows[0].metrics)
    priced = rows[0].cost is not None
    print_table(
        f"{setting.capitalize()}, {rows[0].prompts} test prompts: means (95 % intervals), and"
        " tokens that an answer pays for",
        (
            "policy",
            *map(printable, metrics),
            "prompt",
            "completion",
            *(["$ for 1,000"] if priced else []),
        ),
        (
            (
                printable(row.name),
                *(_with_interval(row.metrics.get(metric)) for metric in metrics),
                f"{row.prompt_tokens:.1f}",
                f"{row.completion_tokens:.1f}",
                *([f"{row.cost:.4f}"] if row.cost is not None else []),
            )
            for row in rows
        ),
    )


def _decisions(evaluation: Evaluation, setting: str) -> None:
    """Print each policy's table of labels with its scores; nothing where the task has no labels."""
    decisions = [
        (row.name, row.decisions)
        for row in evaluation.policies
        if row.setting == setting and row.decisions
    ]
    if not decisions:
        return
    print_table(
        f"{setting.capitalize()}: decisions",
        ("policy", "accuracy", "macro-F1", "no label"),
        (
            (
                printable(name),
                _share(decision.accuracy),
                _share(decision.macro_f1),
                _share(decision.no_label),
            )
            for name, decision in decisions
        ),
    )
    labels = [printable(row.label) for row in decisions[0][1].labels]
    print_table(
        f"{setting.capitalize()}: decisions by right label",
        (
            "policy",
            "label",
            "precision",
            "recall",
            *(f"said {name}" for name in labels),
            "said none",
        ),
        (
            (printable(name), label, _share(row.precision), _share(row.recall), *map(str, cells))
            for name, decision in decisions
            for label, row, cells in zip(labels, decision.labels, decision.confusion, strict=True)
        ),
        left_aligned=2,
    )


def _with_interval(mean: Mean | None) -> str:
    if mean is None:
        return ""
    return f"{figure(mean.mean)} ({figure(mean.low)} to {figure(mean.high)})"


def _share(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}"


def _comparisons(rows: Sequence[Comparison]) -> None:
    print_table(
        "Differences, paired by prompt",
        (
            "setting",
            "policy",
            "against",
            "metric",
            "diff",
            "95 % interval",
            "p",
            "sign p",
            "needed",
            "verdict",
        ),
        (
            (
                row.setting.replace("temperature ", "T = "),
                printable(row.policy),
                printable(row.against),
                printable(row.metric),
                figure(row.difference, sign=True),
                f"{figure(row.low, sign=True)} to {figure(row.high, sign=True)}",
                chance(row.p),
                chance(row.p_sign),
                "" if row.needed is None else f"{row.needed:,}",
                row.verdict,
            )
            for row in rows
        ),
        left_aligned=4,
    )
