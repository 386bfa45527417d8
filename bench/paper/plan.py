"""One of the paper's tables (``accuracy.toml``, ``compression.toml``) at a share of its size, and
what that asks of the provider at most.

The rule: of the paper's rollouts the share ``scale`` is drawn, with problems and rollouts a problem
both shrunk by its square root; the problems that choose and judge shrink by the square root too,
which widens an interval by the fourth root. Which problems are kept is a matter of their ids, so
that a smaller run is part of a larger one and a larger one continues it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from blackbox_lb import BlbError, Example, Task

__all__ = ["TABLES", "Part", "Rollouts", "Stage", "load_table", "part_of", "plan_sentences"]

TABLES = ("accuracy", "compression")
FEWEST_PROBLEMS = 8
"""Training problems: fewer say nothing of others."""
FEWEST_ROLLOUTS = 4
"""A training problem: fewer seldom hold both a right and a wrong answer."""
FEWEST_JUDGED = 20
"""Problems to choose on, and to judge on."""
CHARACTERS = 4
"""Of a prompt that make about one token, in English."""

Table = Mapping[str, Any]


def load_table(name: str) -> Table:
    """The settings and numbers of a table of the paper."""
    text = Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@dataclass(frozen=True, slots=True)
class Rollouts:
    """``samples`` rollouts of each of ``problems`` training problems."""

    problems: int
    samples: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.problems * self.samples

    def part(self, share: float) -> Rollouts:
        """About ``share`` of them, by fewer problems and fewer rollouts of each; the same problems
        from the first on.

        Within half a problem's rollouts of ``share``, but for the smallest numbers that this module
        allows.
        """
        samples = min(self.samples, max(FEWEST_ROLLOUTS, round(self.samples * math.sqrt(share))))
        problems = min(self.problems, max(FEWEST_PROBLEMS, round(self.total * share / samples)))
        return Rollouts(problems, samples)


@dataclass(frozen=True, slots=True)
class Stage:
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
    def sentence(self) -> str:
        """What is asked for."""
        return (
            f"{self.title}: at most {self.completions:,} completions of at most {self.cap:,}"
            f" tokens, prompts of about {self.prompt_tokens:,} tokens"
        )


def _stage(title: str, examples: Sequence[Example], samples: int, cap: int) -> Stage:
    characters = sum(
        len(message.content) for example in examples for message in example.prompt.messages
    )
    prompt = math.ceil(characters / CHARACTERS / max(len(examples), 1))
    return Stage(title, len(examples) * samples, cap, prompt)


@dataclass(frozen=True, slots=True)
class Part:
    """A benchmark of a table at a scale.

    Attributes:
        name: of the benchmark.
        table: the whole table.
        task: the problems that are used.
        rollouts: what ``ips`` and the clusters learn from.
        projected: what ``projection`` learns from.
    """

    name: str
    table: Table
    task: Task
    rollouts: Rollouts
    projected: Rollouts

    @property
    def paper(self) -> Mapping[str, Any]:
        """The benchmark as the paper used it."""
        benchmark: Mapping[str, Any] = self.table["benchmarks"][self.name]
        return benchmark

    def sentences(self, scale: float) -> list[str]:
        """What was scaled from what to what."""
        paper = self.paper
        here = self.rollouts
        full = Rollouts(paper["train"], paper["rollouts"])
        percent = f"{100 * here.total / full.total:.3g} %"
        return [
            f"{paper['title']}: {here.problems:,} training problems x {here.samples} rollouts ="
            f" {here.total:,}, {percent} of the paper's"
            f" {full.problems:,} x {full.samples} = {full.total:,} (asked for:"
            f" {100 * scale:.3g} %)",
            f"{paper['title']}: {len(self.task.validation):,} of {paper['validation']:,} validation"
            f" and {len(self.task.test):,} of {paper['test']:,} test problems; {paper['positions']}"
            f" positions a rollout and caps of {paper['train_cap']} and {paper['test_cap']} tokens"
            " as in the paper",
            f"{paper['title']}: projection learns from {self.projected.total:,} of these rollouts"
            f" ({self.projected.problems:,} problems x {self.projected.samples})",
        ]

    def stages(self) -> list[Stage]:
        """What is asked of the provider at most; what is in the store is not asked again."""
        table = self.table
        task = self.task
        train_cap = self.paper["train_cap"]
        test_cap = self.paper["test_cap"]
        grid = len(table["alpha"]) * len(table["tau"])
        methods = 2
        tried = grid + 2 * len(table["projection"]["tau"])
        if table["clusters"]:
            methods += 1
            tried += grid
        base_samples = methods - 1
        return [
            _stage("training", task.train, self.rollouts.samples, train_cap),
            _stage("validation, base", task.validation, base_samples, train_cap),
            _stage(f"validation, {tried} candidates", task.validation, tried, train_cap),
            *(
                _stage(f"test, at most {cap} tokens", task.test, 1 + methods, cap)
                for cap in sorted({train_cap, test_cap})
            ),
            _stage("test, KL to the base", task.test, methods, train_cap),
        ]


def part_of(name: str, table: Table, task: Task, scale: float) -> Part:
    """``task`` cut down to ``scale`` of the paper's numbers, or to what it has.

    Raises BlbError: a split has no problem.
    """
    paper: Mapping[str, Any] = table["benchmarks"][name]
    for split in ("train", "validation", "test"):
        if not getattr(task, split):
            raise BlbError(
                f"{task.name} has no {split} problems; {paper['title']} needs some in every split"
            )
    rollouts = Rollouts(min(paper["train"], len(task.train)), paper["rollouts"]).part(scale)

    judged = {
        split: max(FEWEST_JUDGED, math.ceil(paper[split] * math.sqrt(scale)))
        for split in ("validation", "test")
    }
    cut = replace(
        task,
        train=picked(task.train, rollouts.problems),
        validation=picked(task.validation, judged["validation"]),
        test=picked(task.test, judged["test"]),
    )
    return Part(name, table, cut, rollouts, rollouts.part(table["projection"]["share"]))


def picked(examples: Sequence[Example], count: int) -> tuple[Example, ...]:
    """The first ``count`` in an order that only ids decide: benchmarks are sorted by subject, and a
    part must have them all.
    """

    def place(example: Example) -> bytes:
        return blake2b(example.id.encode(), digest_size=8).digest()

    return tuple(sorted(examples, key=place)[:count])


def plan_sentences(parts: Sequence[Part], scale: float) -> list[str]:
    """What is scaled, what each stage asks for at most, and the sum."""
    sentences = []
    stages = []
    for part in parts:
        sentences += part.sentences(scale)
        sentences += [f"{part.paper['title']}, {stage.sentence}" for stage in part.stages()]
        stages += part.stages()
    prompt = sum(stage.completions * stage.prompt_tokens for stage in stages)
    return [
        *sentences,
        f"in all at most {sum(stage.completions for stage in stages):,} completions, at most"
        f" {sum(stage.tokens for stage in stages):,} completion tokens and about {prompt:,} prompt"
        f" tokens ({CHARACTERS} characters each); what the store holds is not asked for again",
    ]
