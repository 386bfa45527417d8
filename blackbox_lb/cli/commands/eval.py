"""``blb eval``: judge biases on fresh completions, beside what one would do instead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from blackbox_lb.cli.completing import bias_files
from blackbox_lb.cli.echo import echo, preset_options, print_json
from blackbox_lb.cli.grouped import argument, command
from blackbox_lb.cli.options import TrialOptions, VerboseOptions
from blackbox_lb.cli.resources import (
    chosen_bias,
    load,
    load_bias,
    note_old_report,
    open_trials,
    run,
)
from blackbox_lb.cli.tables import print_page_table
from blackbox_lb.cli.terminal import command_with_same, print_conclusion, print_table, reporter
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.jobs.plan.setting import HelpGroup, setting
from blackbox_lb.jobs.plan.shared import DecisionSettings, JudgingSettings, TaskSettings
from blackbox_lb.jobs.runs.names import COLLECTING, EVALUATION, REPORT, SAMPLING_WITH_A_BIAS
from blackbox_lb.safety.files import exists, explained, write_whole
from blackbox_lb.safety.printable import printable, shell_line

if TYPE_CHECKING:
    from blackbox_lb.api.limits.budget import SpendLimit
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.bias.records import Verdict
    from blackbox_lb.jobs.evaluation.document import Evaluation, PolicyResult
    from blackbox_lb.jobs.evaluation.run import EvalPlan
    from blackbox_lb.jobs.forecast import Forecast
    from blackbox_lb.jobs.runs.conclusion import NextStep
    from blackbox_lb.rollouts.judging.trials import Trials
    from blackbox_lb.tasks import Reward, Task

GENERIC = "bias"
"""The file name that ``blb fit`` uses: the folder's name says more."""


class EvalOptions(TaskSettings, DecisionSettings, JudgingSettings, TrialOptions, VerboseOptions):
    biases: tuple[str, ...] = argument(
        metavar="[[NAME=]BIAS]...", nargs=-1, shell_complete=bias_files
    )
    save: bool = setting(False, HelpGroup.FIRST, "Write each bias's verdict into its file.")
    rivals: bool = setting(
        False,
        HelpGroup.FIRST,
        "Try what one would do instead of a bias, as it suits the task. Labels: labels only, batch"
        " calibration, 4 examples, a classifier by words. Calls of tools: an instruction."
        " Text: an instruction by the reward, and a lower temperature.",
    )
    go_on: bool = setting(
        False,
        HelpGroup.JUDGING,
        "Draw although so few prompts can show nothing among so many comparisons.",
    )
    deploy: tuple[str, ...] = setting(
        (),
        HelpGroup.JUDGING,
        "Judge at this setting, as in temperature=0.5 or greedy. Repeatable. [default: those at"
        " which BIAS was judged; without a verdict temperature=1 and greedy]",
    )
    rival: tuple[str, ...] = setting(
        (),
        HelpGroup.JUDGING,
        "Try this instead of a bias, alone and together with each BIAS. Repeatable. prompt:TEXT: an"
        " instruction, added to the prompt. temperature:T: a lower one (of wanted shares any)."
        " max-tokens:N: another limit of a completion. best-of:N: the likeliest of several"
        " completions (mean logprob under the base model). words:FILE:NATS: so many nats on every"
        " spelling that is one token of each line of FILE. phrases:FILE: the words, phrases and"
        " patterns of FILE are kept out by stepping back, as --phrases of blb fit does (vllm,"
        " llamacpp and local). close:NATS: on the first token of the"
        " text that ends --thinking. Of a decision: labels-only (all else forbidden by the"
        " provider's highest bias); threshold (the labels' logprobs, each with an offset learned"
        " from the training answers); calibrate:contextual or calibrate:batch (their probabilities"
        " divided by those without content, or by their mean over the test prompts); few-shot:K"
        " (training examples before the prompt); classifier:tfidf or"
        " classifier:embedding:NAME_OR_FOLDER (without the model, learned on the training rows;"
        " needs the extra clusters). Of wanted shares: asked-shares (in words, in the prompt);"
        " drawn-label (drawn here for each completion, and asked for in the prompt).",
        metavar="NAME[:VALUE]",
    )
    parts: bool = setting(
        False,
        HelpGroup.JUDGING,
        "Judge the vector alone and the phrases alone, too, of each BIAS that holds both.",
    )
    only: str | None = setting(
        None,
        HelpGroup.JUDGING,
        "Of a file that mends several questions: the id of the one to judge.",
        metavar="ID",
    )


@command(
    "eval",
    EvalOptions,
    example="blb eval runs/train/bias.json --data train.jsonl --reward accuracy --rivals",
)
def eval_command(options: EvalOptions) -> None:
    """Judge bias files on fresh completions of the test prompts, all on the same prompts as the
    base.

    What one would do instead goes into the same table, alone and together with each BIAS: --rival
    names it, --rivals tries what suits the task. Where the answers are few labels, the output
    counts which label was said for which; with --reward distribution it has the wanted and the
    drawn share of each label, by group, too. Without BIAS, the rivals are compared with the base,
    before a fit costs anything. NAME is the name of a bias
    in the tables, by default the file's, or the folder's of a bias.json. A bias may come from
    another server of the same model: only the tokenizer must be the same. Phrases in its file are
    kept out here, too, as its senders do. Writes evaluation.json into --out; a second run resumes
    there.

    BIAS may be one file that mends decisions: its test rows are read as the fit read them, and with
    --rivals they are also decided as they are by the mended layout, by a temperature, by the batch
    prior, by a classifier of words, and by ReAnchor's rule where dspy is installed.
    """
    from blackbox_lb.jobs.evaluation.compare import verdicts
    from blackbox_lb.jobs.records.run_record import work_in
    from blackbox_lb.jobs.runs.conclusion import HELP_PAGE, NextStep, understood
    from blackbox_lb.jobs.runs.opening import run_folder

    if options.save and not options.biases:
        raise InputError(
            "--save writes verdicts into bias files, and none was given; name one, or drop --save"
        )
    paths = _named(options.biases)
    mending = _mending(paths)
    if mending is None and options.only is not None:
        raise InputError(
            "``only`` names one of several questions of a file that mends decisions, and none is"
            " given; leave it out"
        )
    if mending is not None:
        _check_mending(options)
        _judge_mending(options, paths, *mending)
        return
    loaded = {name: load_bias(path, options) for name, path in paths.items()}
    task, reward = load(options, learns=False)
    plan = eval_plan(options, task, reward, tuple(loaded.values()))
    folder = run_folder(options, task)
    with work_in(folder):
        options = options.replacing(out=folder)
        reporter(quiet=options.quiet).notice(understood(task, reward, plan.labels))
        evaluation, spent = run(
            options, lambda budget: _run(loaded, options, task, reward, plan, budget)
        )
        if paths:
            bias_file = next(iter(paths.values()))
            use = shell_line("blb", "export", bias_file, "--format", "openai")
            if_helps = NextStep(use, "use it")
            otherwise = NextStep(HELP_PAGE, "what helps, by kind of task")
        else:
            otherwise = NextStep(command_with_same(["blb", "fit"]), "learn a bias")
            if_helps = otherwise
        before = next(iter(loaded.values())).verdict if loaded else ()
        by_words = ""
        if not any("prompt" in bias.scopes for bias in loaded.values()):
            by_words = command_with_same(["blb", "fit"], ["--depends-on", "words"])
        _tell(options, evaluation, folder, spent, if_helps, otherwise, before, by_words)
        if options.save:
            for name, bias in loaded.items():
                bias.verified(verdicts(evaluation, name)).save(paths[name])
    if not options.as_json:
        note_old_report(folder)


def _tell(
    options: EvalOptions,
    evaluation: Evaluation,
    folder: Path,
    spent: str,
    if_helps: NextStep,
    otherwise: NextStep,
    before: Sequence[Verdict] = (),
    by_words: str = "",
) -> None:
    """Print the evaluation, and write it into the folder; ``before``, ``by_words``: see
    ``eval_conclusion``.
    """
    from blackbox_lb.jobs.evaluation.conclusion import eval_conclusion
    from blackbox_lb.jobs.runs.conclusion import NextStep

    document = evaluation.model_dump(mode="json")
    path = folder / EVALUATION
    if options.as_json:
        print_json(document)
    else:
        _print(evaluation, everything=options.verbose)
        report = NextStep(shell_line("blb", "report", folder), "look at every answer")
        print_conclusion(
            eval_conclusion(
                evaluation, path, spent, [report, if_helps], [report, otherwise], before, by_words
            )
        )
    with explained(
        f"write {path}", "make room there, and the same command asks for no completion again"
    ):
        write_whole(path, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())


def _mending(paths: Mapping[str, Path]) -> tuple[str, Bias] | None:
    """The name and the file that mends decisions; None where no file does.

    Raises InputError: there are others beside it.
    """
    from blackbox_lb.bias.document import Bias

    for name, path in paths.items():
        bias = Bias.load(path)
        if not bias.decisions or bias.entries:
            continue
        if len(paths) > 1:
            raise InputError(
                f"{path} mends decisions, which are judged by themselves; give it alone, and the"
                f" {len(paths) - 1} other files in another command"
            )
        return name, bias
    return None


def _check_mending(options: EvalOptions) -> None:
    """Raise InputError where an option is about completions."""
    for name in ("save", "deploy", "rival", "parts"):
        if getattr(options, name):
            raise InputError(
                f"``{name}`` is about completions, and the file mends decisions, which are judged"
                f" by their test rows; leave out ``{name}``"
            )


def _judge_mending(options: EvalOptions, paths: Mapping[str, Path], name: str, bias: Bias) -> None:
    """Judge a file of mended decisions."""
    from blackbox_lb.jobs.decisions.applying import endpoint_of, question_of, with_system
    from blackbox_lb.jobs.records.run_record import work_in
    from blackbox_lb.jobs.runs.conclusion import NextStep
    from blackbox_lb.jobs.runs.opening import run_folder

    question_of(bias, options.only, "only")
    task, reward = load(options, learns=False, mends=True)
    task = with_system(bias, task)
    if options.endpoint is None:
        options = options.replacing(endpoint=endpoint_of(bias))
    folder = run_folder(options, task)
    with work_in(folder):
        options = options.replacing(out=folder)
        evaluation, spent = run(
            options, lambda budget: _run_mending(options, task, reward, name, bias, budget)
        )
        serve = shell_line("blb", "proxy", "--decide", paths[name].parent, "--upstream", "URL")
        otherwise = NextStep("docs/decisions.md", "what mending can do")
        _tell(options, evaluation, folder, spent, NextStep(serve, "use it"), otherwise)
    if not options.as_json:
        note_old_report(folder)


async def _run_mending(
    options: EvalOptions, task: Task, reward: Reward, name: str, bias: Bias, budget: SpendLimit
) -> Evaluation:
    from blackbox_lb.extras.rivals.mended import evaluate_mended, evaluation_parts
    from blackbox_lb.jobs.decisions.applying import question_of
    from blackbox_lb.jobs.forecast import RequestSettings, forecast
    from blackbox_lb.jobs.runs.opening import results_of

    mended = question_of(bias, options.only, "only")

    def expected(trials: Trials) -> Forecast:
        parts = evaluation_parts(trials, task, bias, mended, rivals=options.rivals)
        return forecast(RequestSettings.of(trials), parts)

    async with open_trials(
        options,
        task,
        reward,
        budget,
        needs=(),
        expected=expected,
        results=results_of(options, reward, (EVALUATION, REPORT)),
    ) as trials:
        return await evaluate_mended(trials, task, bias, mended, name, rivals=options.rivals)


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
    if equals and name and rest and "/" not in name and not exists(spec):
        return printable(name), chosen_bias(Path(rest))
    path = chosen_bias(Path(spec))
    folder = path.absolute().parent.name
    if path.stem == GENERIC and folder:
        return printable(folder), path
    return printable(path.stem), path


def eval_plan(options: EvalOptions, task: Task, reward: Reward, biases: Sequence[Bias]) -> EvalPlan:
    """What is judged; says which of the usual rivals do not suit the task."""
    from blackbox_lb.api.wire.request import takes_messages
    from blackbox_lb.extras.rivals.case import Case
    from blackbox_lb.extras.rivals.table import rivals, standard_rivals
    from blackbox_lb.jobs.evaluation.policies import WithoutPhrases
    from blackbox_lb.jobs.evaluation.run import EvalPlan, default_settings
    from blackbox_lb.jobs.runs.loading import labels_of
    from blackbox_lb.providers.profile import load_profile
    from blackbox_lb.providers.stepping_back import endpoints_that_step_back
    from blackbox_lb.rollouts.judging.decisions import check_wanted
    from blackbox_lb.rollouts.judging.verdict import parse_setting
    from blackbox_lb.rollouts.stepped import check_keeps_out

    profile = load_profile(options.provider)
    labels = labels_of(options, task)
    settings = tuple(dict.fromkeys(parse_setting(spec) for spec in options.deploy))
    if not settings:
        settings = default_settings(biases, reward)
    check_wanted(reward, (*task.train, *task.validation, *task.test), settings)
    specs: list[str] = []
    if options.rivals:
        steps_back = bool(endpoints_that_step_back(profile))
        specs, notices = standard_rivals(
            reward,
            labels,
            settings,
            takes_messages=takes_messages(options.endpoint or profile.first_endpoint),
            has_training=bool(task.train),
            keeps_phrases_out=steps_back and profile.follows_ids(options.tokenizer),
        )
        for sentence in notices:
            reporter(quiet=options.quiet).notice(sentence)
    specs += options.rival
    case = Case(task, reward, settings, labels, options.seed or 0, options.top_logprobs)
    policies = rivals(specs, case)
    keep_out = [isinstance(policy, WithoutPhrases) for policy in policies]
    keep_out += [bool(bias.phrases) for bias in biases]
    if any(keep_out):
        check_keeps_out(profile, options.tokenizer)
    return EvalPlan(
        settings=settings,
        rivals=policies,
        parts=options.parts,
        labels=labels,
        preset_options=preset_options(),
        samples=options.test_samples,
        go_on=options.go_on,
    )


async def _run(
    biases: dict[str, Bias],
    options: EvalOptions,
    task: Task,
    reward: Reward,
    plan: EvalPlan,
    budget: SpendLimit,
) -> Evaluation:
    from blackbox_lb.bias.request_bias import to_request_bias
    from blackbox_lb.jobs.evaluation.policies import HandBias, WithoutPhrases
    from blackbox_lb.jobs.evaluation.run import evaluate, parts_of
    from blackbox_lb.jobs.forecast import RequestSettings, eval_forecast
    from blackbox_lb.jobs.runs.opening import results_of

    needs: tuple[str, ...] = COLLECTING
    if biases or any(isinstance(policy, HandBias | WithoutPhrases) for policy in plan.rivals):
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
    if plan.parts:
        parts_of(values)
    async with open_trials(
        options,
        task,
        reward,
        budget,
        needs=needs,
        expected=lambda trials: eval_forecast(RequestSettings.of(trials), task, values, plan),
        longest_prompt=longest,
        longest_completion=max((policy.max_tokens or 0 for policy in plan.rivals), default=0),
        results=results_of(options, reward, (EVALUATION, REPORT)),
    ) as trials:
        _check(trials, biases)
        return await evaluate(trials, task, biases, replace(plan, prices=budget.prices))


def _check(trials: Trials, biases: dict[str, Bias]) -> None:
    """Refuse a bias that the model's tokenizer or the provider does not take, before anything costs
    money.
    """
    from blackbox_lb.bias.limits import check_bias

    for name, bias in biases.items():
        try:
            bias.check_tokenizer(trials.tokenizer.fingerprint)
            check_bias(bias, trials.session.profile, trials.session.highest_id)
        except BiasError as error:
            raise type(error)(f"{name}: {error}") from None


def _print(evaluation: Evaluation, *, everything: bool) -> None:
    """A table of the policies for each setting and a legend, their texts where phrases are
    concerned, and the shares of labels where they are the reward; with ``everything`` the other
    tables of the report, too.
    """
    from blackbox_lb.extras.report.contents import tables_of_evaluation
    from blackbox_lb.extras.report.page_table import shares_table
    from blackbox_lb.jobs.evaluation.conclusion import short_names

    names = short_names(evaluation.policies)
    by_setting: dict[str, list[PolicyResult]] = {}
    for row in evaluation.policies:
        by_setting.setdefault(row.setting, []).append(row)
    for name_of_setting, rows in by_setting.items():
        _print_policies(evaluation, name_of_setting, rows, names)
    for name, short in names.items():
        if short != printable(name) and " + " not in short:
            echo(f"{short}: {printable(name)}")
    sections = tables_of_evaluation(evaluation)
    tables = sections["texts"]
    if everything:
        tables = [table for section in sections.values() for table in section]
    for name_of_setting, rows in by_setting.items():
        shares = {names[row.name]: row.shares for row in rows if row.shares}
        if shares:
            tables.append(shares_table(name_of_setting, shares))
    for table in tables:
        print_page_table(table)


def _print_policies(
    evaluation: Evaluation,
    setting: str,
    rows: Sequence[PolicyResult],
    names: Mapping[str, str],
) -> None:
    """The policies at a setting, the one with the highest reward first."""
    from blackbox_lb.jobs.evaluation.conclusion import against, reference_of, with_interval

    reference = reference_of(evaluation)
    metric = evaluation.label
    priced = any(row.cost is not None for row in rows)
    cells = []
    for row in sorted(rows, key=lambda row: -row.metrics[metric].mean):
        reward = row.metrics[metric]
        line = [
            names[row.name],
            with_interval(metric, reward.mean, reward.low, reward.high),
            *against(evaluation, row, reference),
            f"{row.prompt_tokens:.0f} + {row.completion_tokens:.1f}",
        ]
        if priced:
            line.append("" if row.cost is None else f"{row.cost:.4f}")
        cells.append(line)
    header = [
        "policy",
        printable(metric),
        f"against {names[reference]}",
        "that is",
        "tokens",
    ]
    if priced:
        header.append("$ for 1,000")
    print_table(
        f"{setting.capitalize()}, {rows[0].prompts} test prompts, 95 % intervals; tokens: prompt +"
        " completion",
        header,
        cells,
    )
