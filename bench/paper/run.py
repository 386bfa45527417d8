"""The job: every method of one of the paper's tables, learned and judged on one benchmark after the
other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from bench.paper.clusters import clusters_in_table, clusters_of
from bench.paper.configuration import Configuration
from bench.paper.results import BenchmarkResult, MethodResult
from bench.paper.scaling import Scaled
from blackbox_lb.bias.document import Bias
from blackbox_lb.errors import ConnectionFailed, InputError
from blackbox_lb.jobs.evaluation.compare import mean_of
from blackbox_lb.jobs.fitting.fit import fit
from blackbox_lb.jobs.fitting.result import Fitted
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import GREEDY, PolicyScores, compare, together
from blackbox_lb.tasks import Reward, parse_reward
from blackbox_lb.vocabulary.embedding import EXTRA

Learner: TypeAlias = Literal["ips", "clusters", "projection"]
Opened: TypeAlias = Callable[[bool], AbstractAsyncContextManager[Trials]]
"""Called with whether the text of every token is needed: the trials of one model, whose reward is
that of the test.
"""


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """One benchmark of ``configuration``, its results under ``folder``; ``seed`` draws the
    positions.
    """

    configuration: Configuration
    scaled: Scaled
    folder: Path
    seed: int = 0

    def plan(self, method: Learner) -> Plan:
        """What ``fit`` is told for ips, clusters or projection."""
        settings = self.configuration
        rollouts = self.scaled.rollouts
        if method == "projection":
            rollouts = self.scaled.projected
        plan = Plan(
            reward=settings.reward,
            samples_per_prompt=rollouts.samples,
            limit=rollouts.problems,
            validation_samples=1,
            test_samples=1,
            seed=self.seed,
            objective=settings.objective,
            deploy=("greedy",),
        )
        if method == "projection":
            projection = settings.projection
            return plan.replacing(tau=projection.tau, entries=projection.entries)
        return plan.replacing(
            estimator=(method,),
            tau=settings.tau,
            alpha=settings.alpha,
            alpha_scale="absolute",
            positions=self.scaled.benchmark.positions,
            entries=None,
        )


def rewards_of(configuration: Configuration, scaled: Scaled) -> tuple[Reward, Reward]:
    """The reward under the token cap of training and validation, and under that of the test."""
    paper, correct = scaled.benchmark, scaled.task.correct
    training, test = (
        parse_reward(configuration.reward, max_tokens=cap, correct=correct)
        for cap in (paper.train_cap, paper.test_cap)
    )
    return training, test


async def run(job: BenchmarkRun, opened: Opened) -> BenchmarkResult:
    """All methods of the table on one benchmark. Everything received is in the trials' store: the
    same call resumes.

    A method that cannot be run says why in its place; only a provider that fails ends the run.

    Raises:
        ProviderError: the API failed; what was received is kept.
        InputError: the reward is not one for these problems.
    """
    task = job.scaled.task
    async with opened(False) as trials:
        base = await trials.scores("test at greedy, base", task.test, GREEDY, 1)
        learned = [await _learned(job, trials, "ips"), await _learned(job, trials, "projection")]
    if job.configuration.clusters:
        learned.insert(0, await _clusters(job, opened, unlearnable=learned[0].result.missing))
    judged = _judged(base, learned, trials.reward)
    return BenchmarkResult(
        benchmark=job.scaled.name,
        task=task.name,
        note=task.note,
        train=len(task.train),
        validation=len(task.validation),
        test=len(task.test),
        methods=(_scored(MethodResult(method="base"), base), *judged),
    )


@dataclass(frozen=True, slots=True)
class _Learned:
    """A method's result so far, with its scores on the test problems where there are any."""

    result: MethodResult
    scores: PolicyScores | None = None
    bias: Bias | None = None
    path: Path | None = None


async def _clusters(job: BenchmarkRun, opened: Opened, *, unlearnable: str | None) -> _Learned:
    """The paper's tied baseline, where what it takes beyond the provider is there. unlearnable: why
    ``ips`` was not run, which reads the same rollouts.
    """
    missing = [name for name in ("sentence_transformers", "sklearn") if find_spec(name) is None]
    if missing:
        return _Learned(
            MethodResult(method="clusters", missing=f"needs the extra clusters: {EXTRA}")
        )
    if unlearnable:
        return _Learned(MethodResult(method="clusters", missing=unlearnable))
    settings, training = job.configuration, rewards_of(job.configuration, job.scaled)[0]
    try:
        async with opened(True) as trials:
            drawn, samples = (
                replace(trials, reward=training),
                job.plan("ips").validation_samples,
            )
            labels = await clusters_of(
                drawn, job.scaled.task, samples, settings.clusters, settings.embedding or None
            )
            with clusters_in_table(labels):
                return await _learned(job, trials, "clusters")
    except (
        InputError,
        ConnectionFailed,
    ) as error:  # the embedding model, or the vocabulary, is not to be had
        return _Learned(MethodResult(method="clusters", missing=str(error)))


async def _learned(job: BenchmarkRun, trials: Trials, method: Learner) -> _Learned:
    """``method`` learned under the training cap and scored greedily under the test's."""
    task, name = job.scaled.task, f"{job.scaled.benchmark.title}, {method}"
    training, _ = rewards_of(job.configuration, job.scaled)
    trials.report.notice(f"{name}:")
    plan = job.plan(method)
    try:
        result = await fit(replace(trials, reward=training), task, plan)
    except InputError as error:
        trials.report.notice(f"{name} not run: {error}")
        return _Learned(MethodResult(method=method, missing=str(error)))
    scores = await trials.scores(
        f"test at greedy, {method}", task.test, GREEDY, 1, result.bias.logit_bias
    )
    folder = job.folder / job.scaled.name / method
    folder.mkdir(parents=True, exist_ok=True)
    result.uncompiled.save(folder / "learned.json")
    return _Learned(
        _describe(method, result, trials, job.configuration.clusters),
        scores,
        result.bias,
        folder / "bias.json",
    )


def _describe(method: Learner, result: Fitted, trials: Trials, clusters: int) -> MethodResult:
    bias, size = result.bias, trials.tokenizer.vocabulary_size
    params = {"ips": size, "clusters": clusters}.get(method, len(bias.entries))
    keys = ("tau", "l2", "alpha")
    return MethodResult(
        method=method,
        rollouts=bias.rollouts,
        params=params,
        entries=len(bias.entries),
        chosen=", ".join(f"{key} {bias.settings[key]:g}" for key in keys if key in bias.settings),
        compiled=None if bias.compiled is None else bias.compiled.sentence,
    )


def _judged(base: PolicyScores, learned: Sequence[_Learned], reward: Reward) -> list[MethodResult]:
    """Every method against the base, their p-values adjusted for each other; each bias is saved
    with its verdict.
    """
    rows = [
        compare(GREEDY, base, each.scores, reward.label) if each.scores else [] for each in learned
    ]
    adjusted = iter(together([row for group in rows for row in group]))
    told = []
    for each, group in zip(learned, rows, strict=True):
        verdict = tuple(next(adjusted) for _ in group)
        result = each.result
        if each.scores is not None and each.bias is not None and each.path is not None:
            each.bias.verified(verdict).save(each.path)
            result = _scored(
                result.model_copy(update={"verdict": verdict, "bias": str(each.path)}), each.scores
            )
        told.append(result)
    return told


def _scored(result: MethodResult, scores: PolicyScores) -> MethodResult:
    accuracy = None if scores.correct is None else mean_of(scores.correct)
    return result.model_copy(update={"accuracy": accuracy, "tokens": mean_of(scores.tokens)})
