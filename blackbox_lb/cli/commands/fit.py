"""``blb fit``: the main job."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from blackbox_lb.cli.echo import echo, preset_options, print_json, with_option_names
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import TrialOptions, VerboseOptions
from blackbox_lb.cli.resources import (
    known_prices,
    load,
    note_old_report,
    open_trials,
    run,
)
from blackbox_lb.cli.tables import print_curve, print_report
from blackbox_lb.cli.terminal import (
    command_with_same,
    print_conclusion,
    reporter,
)
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.jobs.plan.setting import HelpGroup, setting
from blackbox_lb.jobs.runs.names import (
    BIAS,
    FIT_FILES,
    RUNS,
    SAMPLING_WITH_A_BIAS,
    TOP_LOGPROBS,
)
from blackbox_lb.literals import Endpoint
from blackbox_lb.safety.printable import shell_line

if TYPE_CHECKING:
    from blackbox_lb.api.limits.budget import SpendLimit
    from blackbox_lb.jobs.fitting.result import Fitted
    from blackbox_lb.jobs.runs.answers import AnswerPair
    from blackbox_lb.rollouts.judging.trials import Trials
    from blackbox_lb.rollouts.positions import FitEngine
    from blackbox_lb.tasks import Reward, Task


class FitOptions(Plan, TrialOptions, VerboseOptions):
    """The plan of a fit, and how the command runs it."""

    dry_run: bool = setting(
        False,
        HelpGroup.FIRST,
        "Print splits, smallest effect that shows, time, requests and dollars; ask nothing.",
    )
    engine: Literal["here", "ray"] = setting(
        "here",
        HelpGroup.LEARNING,
        "Who reads and sums the training rollouts: this process, or the workers of a Ray cluster"
        " (RAY_ADDRESS, else workers on this machine).",
    )
    workers: int | None = setting(
        None, HelpGroup.LEARNING, "Workers of --engine ray. [default: one a core]", ge=1
    )


@command(
    "fit",
    FitOptions,
    example="blb fit --provider vllm --data train.jsonl --reward accuracy --out runs/train",
)
def fit_command(options: FitOptions) -> None:
    """Learn a bias and prove on unseen prompts whether it helps.

    Collects completions of the training prompts, scores them, estimates one bias for each setting
    of the sweep, chooses on the validation prompts by the mean over the settings that you deploy
    with, and compares base and biased completions of the test prompts at each of those. Writes
    bias.json, result.json, the rollouts, and learned.json (the whole learned vector, for blb
    compile) into --out; a second run resumes there.
    """
    from blackbox_lb.jobs.plan.by_data import completed, pooled
    from blackbox_lb.jobs.records.run_record import work_in
    from blackbox_lb.jobs.runs.opening import run_folder

    task, reward = load(options)
    plan = completed(options, task, reward, needs_samples=options.engine != "here")
    task = pooled(plan, task, reward)
    options = options.replacing(endpoint=plan.endpoint)
    if options.dry_run:
        _dry_run(options, task, reward, plan)
        return
    folder = run_folder(options, task)
    with work_in(folder):
        _fit(options.replacing(out=folder), task, reward, plan, folder)


def _dry_run(options: FitOptions, task: Task, reward: Reward, plan: Plan) -> None:
    """Print what the fit would ask for at most; no server is asked, and nothing is written."""
    from blackbox_lb.api.transport.channel import address_of
    from blackbox_lb.jobs.fitting.demand import fit_forecast, shorter_plan
    from blackbox_lb.jobs.forecast import RequestSettings, likely_seconds
    from blackbox_lb.jobs.records.run_record import earlier_pace
    from blackbox_lb.jobs.runs.conclusion import understood
    from blackbox_lb.jobs.runs.loading import naming_advice
    from blackbox_lb.providers.profile import load_profile
    from blackbox_lb.rollouts.progress import LONG, duration

    profile = load_profile(options.provider)
    endpoint: Endpoint = options.endpoint or profile.first_endpoint
    if endpoint != "decisions":
        profile.check_model(options.model)
    profile.endpoint(endpoint)
    profile.require(_needs(plan), "the run", options.model)
    if options.base_url is not None:
        address_of(profile, options.base_url)
    listed = TOP_LOGPROBS if options.top_logprobs is None else options.top_logprobs
    settings = RequestSettings(
        profile, endpoint, reward.max_tokens, listed, options.seed, task.stop
    )
    total = fit_forecast(settings, task, plan, reward)
    prices = known_prices(profile, options.model, options)
    summary = understood(task, reward, plan.decision_labels, limit=plan.limit)
    folder = options.folder or Path(RUNS) / task.name
    pace = earlier_pace(folder, profile.name)
    seconds = None
    share = 1.0
    if pace is not None:
        seconds, share = likely_seconds(total, pace)
    if options.as_json:
        dollars = None
        if prices is not None:
            dollars = prices.dollars(total.most_prompt_tokens, total.most_completion_tokens)
        heading = {"understood": summary, "note": task.note}
        print_json({**heading, **asdict(total), "most_dollars": dollars, "seconds": seconds})
        return
    echo(summary)
    for advice in naming_advice(plan, task, plan.decision_labels):
        echo(advice)
    if task.note:
        echo(task.note)
    settings_judged = ", ".join(setting.name for setting in plan.settings)
    echo(f"learns from {plan.learn_from}; judges at {settings_judged}")
    if pace is None or seconds is None:
        echo("how long it takes shows once a server answers: blb fit says so in half a minute")
    else:
        text = f"about {duration(seconds)}, as fast as the earlier run in {folder}"
        if seconds > LONG:
            text += shorter_plan(settings, task, plan, reward, pace[0], share)
        echo(with_option_names(text))
    echo(total.sentence(prices, stored=0, mean=0.0))
    if prices is None and profile.connection.api_key_required:
        echo("the price is not known; give it with ``price=PROMPT,COMPLETION``")


def _fit(options: FitOptions, task: Task, reward: Reward, plan: Plan, folder: Path) -> None:
    """Learn, write and print, while nobody else works in the folder."""
    from blackbox_lb.extras.report.data import RunDocuments
    from blackbox_lb.jobs.records.run_record import provenance
    from blackbox_lb.jobs.runs.conclusion import (
        NextStep,
        decision_steps,
        fit_conclusion,
        understood,
    )
    from blackbox_lb.jobs.runs.loading import naming_advice
    from blackbox_lb.jobs.runs.opening import check_written, whole_result, write_result
    from blackbox_lb.rollouts.judging.verdict import GREEDY

    summary = understood(task, reward, plan.decision_labels, limit=plan.limit)
    notice = reporter(quiet=options.quiet).notice
    notice(summary)
    for advice in naming_advice(plan, task, plan.decision_labels):
        notice(advice)
    (fitted, pairs, notices), spent = run(
        options, lambda budget: _fitted(options, task, reward, plan, budget)
    )
    bias = fitted.bias
    origin = provenance(notices, settings=preset_options())
    result = whole_result(fitted, pairs, folder, origin)
    unwritten = write_result(fitted, result, folder)
    if options.as_json:
        print_json(result.model_dump(mode="json"))
    else:
        if bias.operating is not None:
            print_curve(bias.operating)
        if options.verbose:
            print_report(RunDocuments(folder, bias, result))
        more = ["--rivals"]
        if plan.settings == (GREEDY,) and not options.deploy:
            more = ["--deploy", "greedy", "--rivals"]
        rivals = command_with_same(["blb", "eval", folder / BIAS], more)
        steps = [
            NextStep(shell_line("blb", "report", folder), "look at every answer"),
            NextStep(rivals, "compare with what else one could do"),
        ]
        if bias.decisions:
            steps = decision_steps(folder)
        again = set(FitOptions.model_fields) - {"restart"}
        by_words = command_with_same(["blb", "fit"], ["--depends-on", "words"], names=again)
        conclusion = fit_conclusion(
            bias, result, reward.label, pairs, folder, spent, steps, by_words
        )
        if unwritten:
            conclusion = replace(conclusion, saved=f"{folder}/  without {', '.join(unwritten)}")
        print_conclusion(conclusion)
        note_old_report(folder)
    check_written(unwritten)


def _needs(plan: Plan) -> tuple[str, ...]:
    """The rows of the profile that a fit must know."""
    return () if plan.question is not None else SAMPLING_WITH_A_BIAS


async def _fitted(
    options: FitOptions, task: Task, reward: Reward, plan: Plan, budget: SpendLimit
) -> tuple[Fitted, tuple[AnswerPair, ...], list[str]]:
    """Learn and judge. Two answers to each test prompt are for the screen, the remarks for the
    record.
    """
    from blackbox_lb.bias.request_bias import to_vector
    from blackbox_lb.jobs.fitting.demand import fit_forecast, shorter_plan
    from blackbox_lb.jobs.fitting.fit import fit
    from blackbox_lb.jobs.forecast import RequestSettings
    from blackbox_lb.jobs.records.run_record import Remembering
    from blackbox_lb.jobs.runs.answers import answer_pairs
    from blackbox_lb.jobs.runs.opening import results_of

    def shorter(trials: Trials, second: float, share: float) -> str:
        return shorter_plan(RequestSettings.of(trials), task, plan, reward, second, share)

    async with open_trials(
        options,
        task,
        reward,
        budget,
        needs=_needs(plan),
        expected=lambda trials: fit_forecast(RequestSettings.of(trials), task, plan, reward),
        elsewhere=options.rollouts,
        results=results_of(options, reward, FIT_FILES),
        shorter=shorter,
    ) as trials:
        report = Remembering(trials.report)
        with _engine(options) as engine:
            fitted = await fit(replace(trials, report=report, engine=engine), task, plan)
        if not fitted.tests:
            return fitted, (), report.notices
        sent = to_vector(fitted.bias)
        pairs = answer_pairs(trials, fitted.tests[-1:], sent, samples=1)
        return fitted, pairs, report.notices


def _engine(options: FitOptions) -> AbstractContextManager[FitEngine | None]:
    if options.engine == "here":
        if options.workers:
            raise InputError(
                f"--workers {options.workers} are those of --engine ray; give both, or neither"
            )
        return nullcontext()
    from blackbox_lb.extras.ray.engine import Cluster

    return Cluster(options.workers)
