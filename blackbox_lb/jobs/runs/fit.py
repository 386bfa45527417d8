"""``blackbox_lb.fit`` and ``fit_async``: from a file of prompts to a judged bias, in one call.

The defaults are those of ``blb fit``; a test compares them name by name.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from blackbox_lb.api.connect import connect
from blackbox_lb.api.drift import OnDrift
from blackbox_lb.api.limits.budget import SpendingLimits, SpendLimit
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.features import PromptFeature, parse_feature
from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.goal import Goal
from blackbox_lb.estimate.inputs.recipe import L2, AlphaScale, Sweep, Unobserved
from blackbox_lb.estimate.inputs.rollouts import Scale
from blackbox_lb.jobs.fitting.document import FitResult
from blackbox_lb.jobs.fitting.fit import fit as fit_plan
from blackbox_lb.jobs.fitting.plan import MOST_ENTRIES, FitPlan, LearnFrom, SearchExtent
from blackbox_lb.jobs.fitting.result import Fitted
from blackbox_lb.jobs.records.run_record import (
    Manifest,
    Remembering,
    RunResults,
    provenance,
    settings_of_run,
    work_in,
)
from blackbox_lb.jobs.runs.answers import AnswerPair, answer_pairs
from blackbox_lb.jobs.runs.conclusion import NextStep, fit_conclusion, spent_words, understood
from blackbox_lb.jobs.runs.names import FEW, FIT_FILES, RUNS, STORE
from blackbox_lb.jobs.runs.opening import (
    check_written,
    checked_tokenizer,
    price_judge,
    price_model,
    recorded,
    trials_in,
    whole_result,
    write_result,
)
from blackbox_lb.jobs.runs.plan import completed_plan, parse_goal
from blackbox_lb.jobs.runs.run import Run, blocking, running_budget
from blackbox_lb.providers.prices import parse_prices
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.progress import Calling, Printing, Progress, Reporter, Silent
from blackbox_lb.safety.files import explained
from blackbox_lb.safety.printable import legible, shell_line
from blackbox_lb.safety.secrets import redacted
from blackbox_lb.tasks import Reward, Task, load_task, parse_reward
from blackbox_lb.tasks.records.tools import read_tools, tools_text
from blackbox_lb.tasks.rewards.reward import RewardFunction
from blackbox_lb.tasks.sets.labels import check_answers, labels_of_task
from blackbox_lb.types import Endpoint

NEEDS = ("tokens.id", "neutral", "bias")
"""Rows of a profile that a fit needs."""
_PLAN = FitPlan()
_SWEEP = Sweep()
_GOAL = Goal()


async def fit_async(
    data: str | Path | Task | None = None,
    *,
    reward: str | RewardFunction,
    task: str | None = None,
    provider: str = "local",
    model: str | None = None,
    base_url: str | None = None,
    out: str | Path | None = None,
    max_tokens: int | None = None,
    samples_per_prompt: int = _PLAN.samples,
    max_cost: float | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    quiet: bool = False,
    prompt_column: str = "prompt",
    answer_column: str = "answer",
    messages_column: str = "messages",
    prompt_template: str | None = None,
    system: str | None = None,
    tools: str | Path | Sequence[Mapping[str, Any]] | None = None,
    field: str | None = None,
    prefill: bool = False,
    validation_data: str | Path | None = None,
    test_data: str | Path | None = None,
    limit: int | None = None,
    validation_limit: int | None = None,
    test_limit: int | None = None,
    labels: Sequence[str] | None = None,
    decide: str | None = None,
    correct: str | None = None,
    thinking: str | None = None,
    count: str = "all",
    learn_from: LearnFrom | None = None,
    depends_on: Sequence[str] = (),
    phases: str | None = None,
    estimator: Sequence[str] = _SWEEP.estimators,
    tau: Sequence[float] = _SWEEP.tau,
    l2: Sequence[L2] = _SWEEP.l2,
    weights: Scale = _SWEEP.weights,
    alpha: Sequence[float] = _SWEEP.alpha,
    alpha_scale: AlphaScale = _SWEEP.alpha_scale,
    positions: int | None = None,
    clip: float | None = None,
    unobserved: Unobserved = _SWEEP.unobserved,
    entries: int | Literal["few"] | None = FEW,
    integers: bool = False,
    objective: str = _GOAL.objective,
    positive: str | None = None,
    search: SearchExtent | None = None,
    validation_samples: int = _PLAN.validation_samples,
    test_samples: int = _PLAN.test_samples,
    deploy: Sequence[str] = (),
    go_on: bool = False,
    only_stored: bool = False,
    rollouts: Sequence[str] = (),
    top_logprobs: int | None = None,
    seed: int | None = None,
    endpoint: Endpoint | None = None,
    tokenizer: str | None = None,
    concurrency: int | None = None,
    max_requests: int | None = None,
    max_tokens_total: int | None = None,
    price: str | None = None,
    prices: str | Path | None = None,
    on_drift: OnDrift | None = None,
    restart: bool = False,
) -> Run:
    """Learn a bias and judge it on unseen prompts. The same call again goes on where it stopped,
    and asks for nothing that was received.

    Every parameter means what the option of ``blb fit`` with its name does. Those that are given
    otherwise here:

    Args:
        data: a file, a folder, ``hf:OWNER/NAME``, or a :class:`Task`.
        reward: a name from the list of rewards, or a function of (example, completion) that returns
            nats, a finite number.
        tools: the functions that the model may call, as OpenAI's ``tools``, or a JSON file of them.
        out: folder of the run; None for runs/NAME.
        on_progress: called with a :class:`Progress` after each completion; without it, lines go to
            stderr.
        quiet: neither lines nor sentences.
        entries: most tokens in the bias; None for as many as the provider takes; "few" for the
            smallest number, up to 300, that earns as much as the best bias.

    Raises:
        InputError: an argument or the data are wrong, or nothing can be learned.
        ProviderError: the API failed; what was received is kept.
    """
    loaded = _task_of(
        data,
        task,
        validation_data,
        test_data,
        prompt_column=prompt_column,
        answer_column=answer_column,
        messages_column=messages_column,
        prompt_template=prompt_template,
        field=field,
        prefill=prefill,
        decide=decide,
        require_answers=(
            learn_from != "unlabelled"
            and parse_reward(reward, max_tokens=1, correct=correct).needs_answer
        ),
    ).first(validation=validation_limit, test=test_limit)
    if system is not None:
        loaded = loaded.with_system(system)
    if tools is not None:
        loaded = loaded.with_tools(_tools(tools))
    decision_labels = labels_of_task(decide, labels, loaded)
    check_answers(loaded, decision_labels)
    scored = parse_reward(
        reward,
        max_tokens=max_tokens or loaded.max_tokens,
        correct=correct or loaded.correct,
        thinking=thinking,
        count=count,
        labels=decision_labels,
    )
    scored.check(loaded, needs_answers=learn_from != "unlabelled")
    specification = FitPlan(
        samples=samples_per_prompt,
        limit=limit,
        validation_samples=validation_samples,
        test_samples=test_samples,
        sweep=Sweep(
            estimators=tuple(dict.fromkeys(estimator)),
            tau=tuple(tau),
            l2=tuple(l2),
            weights=weights,
            alpha=tuple(alpha),
            alpha_scale=alpha_scale,
            positions=positions,
            clip=clip,
            seed=seed or 0,
            unobserved=unobserved,
        ),
        goal=parse_goal(objective, positive, decision_labels),
        entries=MOST_ENTRIES if entries == FEW else entries,
        few=entries == FEW,
        search=search,
        integers=integers,
        go_on=go_on,
        only_stored=only_stored,
        listed=top_logprobs,
        labels=decision_labels,
        depends_on=_features(depends_on),
        phases=Phases.parse([phases]) if phases else None,
    )
    plan = completed_plan(
        specification,
        loaded,
        scored,
        learn_from=learn_from,
        deploy=deploy,
        labels_named=labels is not None or decide is not None,
        needs_samples=bool(rollouts or only_stored),
    )
    if price is not None:
        parse_prices(price)  # a bad price is an error before anything is opened
    if scored.remote is not None:
        scored.remote.headers()  # a missing key is an error before anything costs money
    report = Remembering(_reporter(on_progress, quiet))
    report.notice(understood(loaded, scored, decision_labels, limit=limit))
    budget = running_budget()
    budget.limits = SpendingLimits(max_requests, max_tokens_total, max_cost)
    price_file = None
    if prices is not None:
        price_file = Path(prices)
    job = _Job(
        task=loaded,
        reward=scored,
        plan=plan,
        folder=_folder(out, loaded),
        report=report,
        budget=budget,
        server={
            "provider": provider,
            "model": model,
            "base_url": base_url,
            "endpoint": endpoint,
            "tokenizer": tokenizer,
        },
        sampling={
            "top_logprobs": top_logprobs,
            "seed": seed,
            "concurrency": concurrency,
            "elsewhere": rollouts,
        },
        about={"reward": scored.spec, "correct": correct, "thinking": thinking, "count": count},
        price=price,
        prices=price_file,
        on_drift=on_drift,
        restart=restart,
    )
    return await job.run()


@dataclass(frozen=True, slots=True)
class _Job:
    """One call of ``fit``, read and checked.

    server: arguments of ``connect``. sampling: arguments of ``trials_in``. about: settings that the
    results are about. prices: a table of the user's own.
    """

    task: Task
    reward: Reward
    plan: FitPlan
    folder: Path
    report: Remembering
    budget: SpendLimit
    server: dict[str, Any]
    sampling: dict[str, Any]
    about: dict[str, str | None]
    price: str | None
    prices: Path | None
    on_drift: OnDrift | None
    restart: bool

    async def run(self) -> Run:
        """Connect, learn, judge, write."""
        started = time.monotonic()
        budget = self.budget
        async with connect(
            **self.server,
            concurrency=self.sampling["concurrency"],
            max_tokens=self.reward.max_tokens,
            longest_prompt=self.task.longest_prompt,
            needs=NEEDS,
            budget=budget,
        ) as session:
            tokenizer = await checked_tokenizer(session)
            store = self.folder / STORE
            with (
                work_in(self.folder),
                trials_in(
                    self.folder,
                    store,
                    session,
                    tokenizer,
                    self.task,
                    self.reward,
                    report=self.report,
                    budget=budget,
                    **self.sampling,
                ) as trials,
            ):
                price_model(budget, session, self.price, self.prices)
                price_judge(budget, self.reward, self.prices)
                trials.drift.policy = self.on_drift
                async with recorded(trials, self._record(trials)):
                    fitted, pairs = await self._fitted(trials)
                origin = provenance(self.report.notices, command="blackbox_lb.fit(...)")
                result = whole_result(fitted, pairs, self.folder, origin)
                check_written(write_result(fitted, result, self.folder))
        priced = budget.prices is not None
        spent = spent_words(budget.spent, time.monotonic() - started, priced)
        return self._run_of(fitted.bias, result, pairs, spent)

    async def _fitted(self, trials: Trials) -> tuple[Fitted, tuple[AnswerPair, ...]]:
        """The result of the plan, and all answers to the test prompts."""
        fitted = await fit_plan(trials, self.task, self.plan)
        sent = to_request_bias(fitted.bias)
        return fitted, answer_pairs(trials, fitted.tests, sent)

    def _record(self, trials: Trials) -> Manifest:
        splits = (self.task.train, self.task.validation, self.task.test)
        prompts = [example.prompt for split in splits for example in split]
        settings = settings_of_run(trials, prompts)
        results = RunResults(FIT_FILES, self.about)
        return Manifest(self.folder, "fit", settings, results=results, restart=self.restart)

    def _run_of(
        self, bias: Bias, result: FitResult, pairs: tuple[AnswerPair, ...], spent: str
    ) -> Run:
        report = NextStep(shell_line("blb", "report", self.folder), "look at every answer")
        conclusion = fit_conclusion(
            bias, result, self.reward.label, pairs, self.folder, spent, [report]
        )
        notices = tuple(self.report.notices)
        server = {**self.server, "concurrency": self.sampling["concurrency"]}
        return Run(
            self.folder, bias, result, self.task, self.reward, pairs, notices, conclusion, server
        )


fit = blocking(fit_async)


def _task_of(
    data: str | Path | Task | None,
    name: str | None,
    validation: str | Path | None,
    test: str | Path | None,
    **columns: Any,
) -> Task:
    if isinstance(data, Task):
        if name is not None or validation is not None or test is not None:
            raise InputError(
                "``data`` is a Task, which has all splits; leave out ``task``,"
                " ``validation_data`` and ``test_data``"
            )
        return data
    if data is not None and not isinstance(data, str | Path):
        raise InputError(
            f"``data`` is a {type(data).__name__}; give the path of a file of rows, or a Task"
        )
    return load_task(name, data, validation, test, **columns)


def _tools(tools: str | Path | Sequence[Mapping[str, Any]]) -> str:
    """The tools as JSON in one spelling. Raises InputError: they are no list of functions."""
    if isinstance(tools, str | Path):
        return read_tools(Path(tools))
    try:
        return tools_text(list(tools))
    except ValueError as error:
        raise InputError(f"``tools``: {error}") from error


def _features(specs: Iterable[str]) -> tuple[PromptFeature, ...]:
    features = [parse_feature(spec) for spec in dict.fromkeys(specs)]
    return tuple(feature for feature in features if feature is not None)


def _folder(out: str | Path | None, task: Task) -> Path:
    folder = Path(RUNS) / task.name if out is None else Path(out)
    with explained(f"make the folder {folder}", "give another with ``out``"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _reporter(on_progress: Callable[[Progress], object] | None, quiet: bool) -> Reporter:
    if on_progress is not None:
        return Calling(on_progress, _ignore if quiet else _say)
    if quiet:
        return Silent()
    return Printing(_say)


def _say(text: str) -> None:
    sys.stderr.write(f"{legible(redacted(text))}\n")


def _ignore(text: str) -> None:
    """Say nothing."""
