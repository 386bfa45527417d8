"""The action of ``blb fit``: plan, collect, learn, choose, judge, write, print."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from blackbox_lb.api.limits.budget import SpendLimit, Spent
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import settings_text
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.cli.actions.eval_output import print_curve, shares_table
from blackbox_lb.cli.commands.learning.fit import FitOptions
from blackbox_lb.cli.echo import echo, preset_options, print_json
from blackbox_lb.cli.resources import (
    load,
    note_old_report,
    open_trials,
    run,
)
from blackbox_lb.cli.terminal import (
    command_with_same,
    findings_list,
    print_conclusion,
    print_table,
    reporter,
    verdict_table,
)
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.fitting.demand import fit_forecast
from blackbox_lb.jobs.fitting.document import FitResult
from blackbox_lb.jobs.fitting.fit import fit
from blackbox_lb.jobs.fitting.result import Fitted
from blackbox_lb.jobs.forecast import RequestSettings
from blackbox_lb.jobs.plan.by_data import completed, pooled
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.jobs.records.run_record import Remembering, provenance, work_in
from blackbox_lb.jobs.runs.answers import AnswerPair, answer_pairs
from blackbox_lb.jobs.runs.conclusion import NextStep, fit_conclusion, spent_words, understood
from blackbox_lb.jobs.runs.names import BIAS, FIT_FILES, TOP_LOGPROBS
from blackbox_lb.jobs.runs.opening import (
    check_written,
    results_of,
    run_folder,
    whole_result,
    write_result,
)
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.prices import find_prices, parse_prices
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.records import Decisions
from blackbox_lb.rollouts.positions import FitEngine
from blackbox_lb.safety.printable import printable, shell_line
from blackbox_lb.tasks import Reward, Task


def execute(options: FitOptions) -> None:
    """Run the command."""
    task, reward = load(options)
    plan = completed(options, task, reward, needs_samples=options.engine != "here")
    command = _FitCommand(options, pooled(plan, task, reward), reward, plan)
    if options.dry_run:
        command.dry_run()
        return
    folder = run_folder(options, task)
    with work_in(folder):
        replace(command, options=options.replacing(out=folder)).run(folder)


@dataclass(frozen=True, slots=True)
class _FitCommand:
    """The command with its data, its reward and the plan that its options ask for."""

    options: FitOptions
    task: Task
    reward: Reward
    plan: Plan

    def dry_run(self) -> None:
        """Print what the fit would ask for at most; no server is asked, and nothing is written."""
        options = self.options
        profile = load_profile(options.provider)
        profile.check_model(options.model)
        first: Endpoint = next(iter(profile.endpoints))
        endpoint = options.endpoint or first
        profile.endpoint(endpoint)
        listed = TOP_LOGPROBS if options.top_logprobs is None else options.top_logprobs
        settings = RequestSettings(
            profile, endpoint, self.reward.max_tokens, listed, options.seed, self.task.stop
        )
        total = fit_forecast(settings, self.task, self.plan, self.reward)
        prices = parse_prices(options.price) if options.price is not None else None
        if prices is None and options.model is not None:
            prices = find_prices(profile.name, options.model, options.price_table)
        summary = understood(
            self.task, self.reward, self.plan.decision_labels, limit=self.plan.limit
        )
        if options.as_json:
            dollars = None
            if prices is not None:
                dollars = prices.dollars(total.most_prompt_tokens, total.most_completion_tokens)
            print_json(
                {
                    "understood": summary,
                    "note": self.task.note,
                    **asdict(total),
                    "most_dollars": dollars,
                }
            )
            return
        echo(summary)
        if self.task.note:
            echo(self.task.note)
        settings_judged = ", ".join(setting.name for setting in self.plan.settings)
        echo(f"learns from {self.plan.learn_from}; judges at {settings_judged}")
        echo(total.sentence(prices, stored=0, mean=0.0))
        if prices is None and profile.connection.api_key_required:
            echo("the price is not known; give it with ``price=PROMPT,COMPLETION``")

    def run(self, folder: Path) -> None:
        """Learn, write and print, while nobody else works in the folder."""
        started = time.monotonic()
        announce = reporter(quiet=self.options.quiet)
        announce.notice(
            understood(self.task, self.reward, self.plan.decision_labels, limit=self.plan.limit)
        )
        fitted = run(self.options, self._fitted)
        learned = fitted.learned
        bias = learned.bias
        origin = provenance(fitted.notices, settings=preset_options())
        result = whole_result(learned, fitted.pairs, folder, origin)
        unwritten = write_result(learned, result, folder)
        if self.options.as_json:
            print_json(result.model_dump(mode="json"))
        else:
            if bias.operating is not None:
                print_curve(bias.operating)
            if self.options.verbose:
                _print_everything(bias, result, folder, unwritten)
            spent = spent_words(fitted.spent, time.monotonic() - started, fitted.priced)
            conclusion = fit_conclusion(
                bias, result, self.reward.label, fitted.pairs, folder, spent, _next_steps(folder)
            )
            if unwritten:
                conclusion = replace(conclusion, saved=f"{folder}/  without {', '.join(unwritten)}")
            print_conclusion(conclusion)
            note_old_report(folder)
        check_written(unwritten)

    async def _fitted(self, budget: SpendLimit) -> _Fitted:
        """Learn and judge; two answers to each test prompt are for the screen."""
        async with open_trials(
            self.options,
            self.task,
            self.reward,
            budget,
            expected=lambda trials: fit_forecast(
                RequestSettings.of(trials), self.task, self.plan, self.reward
            ),
            elsewhere=self.options.rollouts,
            results=results_of(self.options, self.reward, FIT_FILES),
        ) as trials:
            report = Remembering(trials.report)
            with _engine(self.options) as engine:
                learned = await fit(
                    replace(trials, report=report, engine=engine), self.task, self.plan
                )
            sent = to_request_bias(learned.bias)
            pairs = answer_pairs(trials, learned.tests[-1:], sent, samples=1)
            return _Fitted(learned, pairs, report.notices, budget.spent, budget.prices is not None)


def _next_steps(folder: Path) -> list[NextStep]:
    """What to do with a bias that helps."""
    rivals = command_with_same(["blb", "eval", folder / BIAS], ["--rivals"])
    return [
        NextStep(shell_line("blb", "report", folder), "look at every answer"),
        NextStep(rivals, "compare with what else one could do"),
    ]


@dataclass(frozen=True, slots=True)
class _Fitted:
    """What the fit left for the screen. priced: whether the price of a token is known."""

    learned: Fitted
    pairs: tuple[AnswerPair, ...]
    notices: list[str]
    spent: Spent
    priced: bool


def _engine(options: FitOptions) -> AbstractContextManager[FitEngine | None]:
    if options.engine == "here":
        if options.workers:
            raise InputError(
                f"--workers {options.workers} are those of --engine ray; give both, or neither"
            )
        return nullcontext()
    from blackbox_lb.extras.ray.engine import Cluster

    return Cluster(options.workers)


def _print_everything(
    bias: Bias, result: FitResult, folder: Path, unwritten: Collection[str]
) -> None:
    verdict_table(bias.verdict)
    for setting, decisions in result.decisions.items():
        print_decisions(setting, decisions.base, decisions.biased)
    for setting, shares in result.shares.items():
        shares_table(setting, shares.base, {"base": shares.base, "biased": shares.biased})
    if result.beside:
        print_table(
            f"This bias (depends on {bias.depends_on or 'nothing'}) against what else decides, same"
            " test prompts",
            (
                "setting",
                "against",
                result.beside[0].metric,
                "this bias",
                "diff",
                "95 % interval",
                "p",
            ),
            (
                (
                    row.setting,
                    row.against,
                    f"{row.base:.3f}",
                    f"{row.biased:.3f}",
                    f"{row.difference:+.3f}",
                    f"{row.low:+.3f} to {row.high:+.3f}",
                    f"{row.p:.3f}",
                )
                for row in result.beside
            ),
        )
    echo(
        f"{bias.estimator} ({printable(settings_text(bias.settings))}), {len(bias.entries)}"
        f" entries, learned from {bias.rollouts} rollouts, {result.kl_sentence}"
    )
    if bias.compiled:
        echo(f"compiled: {bias.compiled.sentence}")
    if bias.censoring and bias.sampling:
        echo(bias.censoring.sentence(bias.sampling.top_logprobs))
    findings_list(bias.findings)
    if "bias.json" not in unwritten:
        bias_file = folder / "bias.json"
        echo(f"wrote {bias_file}; look into it with: {shell_line('blb', 'show', bias_file)}")
    if "learned.json" not in unwritten:
        echo(
            f"wrote {folder / 'learned.json'}: all {result.uncompiled_entries:,} learned"
            " values, for blb compile"
        )


def print_decisions(setting: str, base: Decisions, biased: Decisions) -> None:
    """Print the scores of the decisions and a row for each label: without and with the bias.

    The report has the whole table of which label was said for which.
    """
    scores = []
    for name, before, after in (
        ("accuracy", base.accuracy, biased.accuracy),
        ("macro-F1", base.macro_f1, biased.macro_f1),
        ("no label", base.no_label, biased.no_label),
        ("calibration error", base.calibration_error, biased.calibration_error),
    ):
        if before is not None and after is not None:
            scores.append(f"{name} {before:.3f} -> {after:.3f}")
    rows = []
    for place, (label, label_biased) in enumerate(zip(base.labels, biased.labels, strict=True)):
        rows.append(
            (
                label.label,
                str(label.count),
                f"{base.confusion[place][place]} -> {biased.confusion[place][place]}",
                f"{rate(label.precision)} -> {rate(label_biased.precision)}",
                f"{rate(label.f1)} -> {rate(label_biased.f1)}",
            )
        )
    print_table(
        f"Decisions at {setting}, base -> biased: {'; '.join(scores)}; always saying"
        f" {printable(base.commonest.label)}: accuracy {rate(base.majority)}",
        ("label", "prompts", "right", "precision", "F1"),
        rows,
    )


def rate(value: float | None) -> str:
    """A share for display; a dash where no decision was for the label, or no prompt has it."""
    if value is None:
        return "-"
    return f"{value:.2f}"
