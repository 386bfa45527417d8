"""How much of the paper is run: a share of its rollouts, and what that asks of the provider at
most.

The rule: of the paper's rollouts the share ``scale`` is drawn, with problems and rollouts a problem
both shrunk by its square root; the problems that choose and judge shrink by the square root too,
which widens an interval by the fourth root. Which problems are kept is a matter of their ids, so
that a smaller run is part of a larger one and a larger one continues it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from bench.paper.configuration import Benchmark, Configuration
from blackbox_lb.api.limits.budget import prompt_bound
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.forecast import Forecast
from blackbox_lb.tasks import Task
from blackbox_lb.types import Example

FEWEST_PROBLEMS = 8
"""Training problems: fewer say nothing of others."""
FEWEST_ROLLOUTS = 4
"""A training problem: fewer seldom hold both a right and a wrong answer."""
FEWEST_JUDGED = 20
"""Problems to choose on, and to judge on."""
CHARACTERS = 4
"""Of a prompt that make about one token, in English."""


@dataclass(frozen=True, slots=True)
class PlannedRollouts:
    """``samples`` rollouts of each of ``problems`` training problems."""

    problems: int
    samples: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.problems * self.samples

    def part(self, share: float) -> PlannedRollouts:
        """About ``share`` of them, by fewer problems and fewer rollouts of each; the same problems
        from the first on.

        Within half a problem's rollouts of ``share``, but for the smallest numbers that this module
        allows.
        """
        if not 0 < share <= 1:
            raise InputError(
                f"scale is {share:g}; it is the share of the paper's rollouts to draw, above 0 and"
                " at most 1"
            )
        samples = min(self.samples, max(FEWEST_ROLLOUTS, round(self.samples * math.sqrt(share))))
        problems = min(self.problems, max(FEWEST_PROBLEMS, round(self.total * share / samples)))
        return PlannedRollouts(problems, samples)


@dataclass(frozen=True, slots=True)
class ScalingStage:
    """At most ``completions`` are asked for, each of at most ``cap`` tokens, after a prompt of
    about ``prompt_tokens``.
    """

    title: str
    completions: int
    cap: int
    prompt_tokens: int

    @property
    def tokens(self) -> int:
        """Completion tokens at most."""
        return self.completions * self.cap

    @property
    def forecast(self) -> Forecast:
        """One completion a request, of prompts of which only the usual length is known."""
        longest, count = prompt_bound(["x" * self.prompt_tokens * CHARACTERS]), self.completions
        return Forecast(count, count, count * self.prompt_tokens, count * longest, self.tokens)


@dataclass(frozen=True, slots=True)
class Scaled:
    """One benchmark at a scale: the problems that are used, and how many rollouts each estimator
    learns from.
    """

    name: str
    benchmark: Benchmark
    task: Task
    rollouts: PlannedRollouts
    projected: PlannedRollouts

    def sentences(self, scale: float) -> list[str]:
        """What was scaled from what to what."""
        paper, here = self.benchmark, self.rollouts
        full = PlannedRollouts(paper.train, paper.rollouts)
        return [
            (
                f"{paper.title}: {here.problems:,} training problems x {here.samples} rollouts ="
                f" {here.total:,}, {100 * here.total / full.total:.3g} % of the paper's"
                f" {full.problems:,} x {full.samples} = {full.total:,} (asked for:"
                f" {100 * scale:.3g} %)"
            ),
            (
                f"{paper.title}: {len(self.task.validation):,} of {paper.validation:,} validation"
                f" and {len(self.task.test):,} of {paper.test:,} test problems; {paper.positions}"
                f" positions a rollout and caps of {paper.train_cap} and {paper.test_cap} tokens as"
                " in the paper"
            ),
            (
                f"{paper.title}: projection learns from {self.projected.total:,} of these rollouts "
                f"({self.projected.problems:,} problems x {self.projected.samples})"
            ),
        ]

    def stages(self, configuration: Configuration) -> tuple[ScalingStage, ...]:
        """What is asked of the provider at most; what is in the store already is not asked
        again.
        """
        paper, task = self.benchmark, self.task
        grid = len(configuration.alpha) * len(configuration.tau)
        tried = [grid, 2 * len(configuration.projection.tau)] + [grid] * bool(
            configuration.clusters
        )
        learned = len(tried)
        judged = {paper.train_cap, paper.test_cap}

        def stage(title: str, examples: Sequence[Example], each: int, cap: int) -> ScalingStage:
            characters = sum(
                len(message.content) for example in examples for message in example.prompt.messages
            )
            return ScalingStage(
                title,
                len(examples) * each,
                cap,
                math.ceil(characters / CHARACTERS / max(len(examples), 1)),
            )

        return (
            stage("training", task.train, self.rollouts.samples, paper.train_cap),
            stage(
                "validation, base",
                task.validation,
                1 + bool(configuration.clusters),
                paper.train_cap,
            ),
            stage(
                f"validation, {sum(tried)} candidates", task.validation, sum(tried), paper.train_cap
            ),
            *(
                stage(f"test, at most {cap} tokens", task.test, 1 + learned, cap)
                for cap in sorted(judged)
            ),
            stage("test, KL to the base", task.test, learned, paper.train_cap),
        )


def scaled(name: str, benchmark: Benchmark, task: Task, scale: float, share: float) -> Scaled:
    """``task`` cut down to ``scale`` of the paper's numbers, or to what it has. ``share``: of the
    rollouts, for projection.

    Raises:
        InputError: ``scale`` is not in (0, 1], or a split has no problem.
    """
    for split, examples in (
        ("training", task.train),
        ("validation", task.validation),
        ("test", task.test),
    ):
        if not examples:
            raise InputError(
                f"{task.name} has no {split} problems; {benchmark.title} needs some in every split"
            )
    rollouts = PlannedRollouts(min(benchmark.train, len(task.train)), benchmark.rollouts).part(
        scale
    )
    return Scaled(
        name,
        benchmark,
        replace(
            task,
            train=picked(task.train, rollouts.problems),
            validation=picked(task.validation, _judged(benchmark.validation, scale)),
            test=picked(task.test, _judged(benchmark.test, scale)),
        ),
        rollouts,
        rollouts.part(share),
    )


def _judged(paper: int, scale: float) -> int:
    return max(FEWEST_JUDGED, math.ceil(paper * math.sqrt(scale)))


def picked(examples: Sequence[Example], count: int) -> tuple[Example, ...]:
    """The first ``count`` in an order that only ids decide: benchmarks are sorted by subject, and a
    part must have them all.
    """
    order = sorted(
        examples, key=lambda example: blake2b(example.id.encode(), digest_size=8).digest()
    )
    return tuple(order[:count])
