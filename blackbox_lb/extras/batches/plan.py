"""The plan of a collection by batch: files of requests for all missing answers, within the
command's limits; and its shards.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from blackbox_lb.api.limits.budget import SpendLimit, Spent
from blackbox_lb.errors import BudgetExhausted, InputError, ProfileError
from blackbox_lb.extras.batches.lines import (
    PREFIX,
    Line,
    SampleRequest,
    asks,
    names_in,
    request_line,
    split,
    write_input,
)
from blackbox_lb.extras.batches.record import BatchRecord, Jobs
from blackbox_lb.jobs.records.run_record import host_of
from blackbox_lb.providers.schema import BatchRules
from blackbox_lb.rollouts.collect import batch_of, settings_of
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.store import canonical, prompt_hash, request_hash
from blackbox_lb.store.rows import messages_of
from blackbox_lb.types import Draw, Example, Prompt, Sampling

DIGITS = 16
"""Hexadecimal digits of a prompt's hash that decide: 64 bits, so that every shard is equally
likely.
"""


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """One collection: its requests, and the jobs of its store. ``settings``: of all of its
    requests, ``request``: their hash.

    ``most``: requests a file.
    """

    trials: Trials
    jobs: Jobs
    rules: BatchRules
    sampling: Sampling
    settings: dict[str, Any]
    request: str
    most: int | None

    @classmethod
    def of(cls, trials: Trials, most: int | None = None) -> BatchSpec:
        """The collection of ``trials`` at temperature 1. Raises ProfileError: its endpoint takes no
        batches.
        """
        session = trials.session
        rules = session.profile.batch
        if rules is None or session.endpoint not in rules.urls:
            raise no_batch(session.profile.name, [] if rules is None else list(rules.urls))
        draw = trials.draw(SAMPLED)
        settings = settings_of(session, trials.tokenizer, draw)
        fewest = min((each for each in (most, rules.requests) if each is not None), default=None)
        return cls(
            trials,
            Jobs(trials.store.path),
            rules,
            draw.sampling,
            settings,
            request_hash(settings),
            fewest,
        )

    @property
    def url(self) -> str:
        return self.rules.urls[self.trials.session.endpoint]

    def open_jobs(self) -> list[BatchRecord]:
        """The open jobs of these settings; one that only differs in the tokenizer, which no request
        shows, is adopted.
        """
        session = self.trials.session
        others = 0
        found: list[BatchRecord] = []
        for job in filter(lambda job: job.open, self.jobs.all()):
            same = {**job.settings, "tokenizer": self.settings["tokenizer"]} == self.settings
            if same and (job.provider, job.host) == (session.profile.name, host_of(session)):
                job.request = self.request
                job.settings = self.settings
                found.append(job)
            else:
                others += 1
        if others:
            self.trials.report.notice(
                f"{others} open batch jobs in {self.jobs.folder} have other settings or another"
                " provider and are left alone: the command that made them goes on with them"
            )
        return found

    def missing(
        self, prompts: Sequence[Prompt], samples: int, asked: Collection[str] = ()
    ) -> Iterator[tuple[Prompt, SampleRequest]]:
        """The samples neither stored nor among the ``asked`` keys."""
        session = self.trials.session
        there = self.trials.store.keys(self.request).union(asked)
        return asks(
            prompts,
            samples,
            self.request,
            there,
            batch_of(session.profile, session.endpoint, self.sampling),
        )

    def write(
        self, prompts: Sequence[Prompt], samples: int, jobs: Iterable[BatchRecord]
    ) -> list[BatchRecord]:
        """Write new jobs for all samples neither stored nor asked for by ``jobs``: durable files
        and records, nothing sent.
        """
        wanted = list(
            self.missing(prompts, samples, {key for job in jobs for key in self._keys(job)})
        )
        if not wanted:
            return []
        rows = [{"hash": ask.prompt, "messages": messages_of(prompt)} for prompt, ask in wanted]
        row = {"hash": self.request, "settings": canonical(self.settings)}
        self.trials.store.add_rows({"prompts": rows, "requests": [row]})
        lines = (self._line(prompt, ask) for prompt, ask in wanted)
        return [self._written(group) for group in split(lines, self.most, self.rules.size)]

    def _line(self, prompt: Prompt, ask: SampleRequest) -> Line:
        session = self.trials.session
        draw = Draw(self.sampling, endpoint=session.endpoint)
        return request_line(
            session.profile, draw, self.url, session.model, prompt, ask, self.request
        )

    def _written(self, group: Sequence[Line]) -> BatchRecord:
        session = self.trials.session
        name = token_hex(6)
        job = BatchRecord(
            name=name,
            provider=session.profile.name,
            host=host_of(session),
            request=self.request,
            prefix=self.request[:PREFIX],
            settings=self.settings,
            written=time.time(),
            **write_input(self.jobs.input(name), group),
        )
        self.jobs.save(job)
        return job

    def _keys(self, job: BatchRecord) -> Iterable[str]:
        """The keys of an open job's answers. Its file is read: the record only holds their
        number.
        """
        found = (
            SampleRequest.parse(name, job.prefix) for name in names_in(self.jobs.input(job.name))
        )
        return (key for ask in found if ask is not None for key in ask.keys(self.request))


def check_budget(budget: SpendLimit, fresh: Sequence[BatchRecord]) -> None:
    """Announce the maximum of ``fresh`` jobs before they are submitted, and ask.

    Raises BudgetExhausted: they could pass a limit.
    """
    if not fresh:
        return
    prompt = sum(job.most_prompt for job in fresh)
    completion = sum(job.most_completion for job in fresh)
    dollars = 0.0 if budget.prices is None else budget.prices.dollars(prompt, completion)
    total = Spent(sum(job.requests for job in fresh), prompt, completion, dollars)
    if (limit := budget.limits.passed_by(total)) is not None:
        raise BudgetExhausted(
            f"the batch could take {total}, more than {limit}, and nobody could stop it in the"
            " middle: raise the limit, or ask for less with ``limit`` or ``samples_per_prompt``;"
            " nothing was submitted"
        )
    if budget.opening is not None:
        budget.opening()
        budget.opening = None


def no_batch(provider: str, endpoints: Sequence[str]) -> ProfileError:
    """The reason why a provider, or this endpoint of it, takes no batches; ``endpoints``: those
    that do.
    """
    if not endpoints:
        return ProfileError(
            f"{provider} takes no batches, as far as its profile knows (table [batch]); leave"
            " ``batch`` out"
        )
    return ProfileError(
        f"{provider} takes batches for {', '.join(endpoints)} only; use ``endpoint={endpoints[0]}``"
    )


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard ``index``, from 1, of ``count``.

    A prompt's own hash decides its shard, whatever stands before or behind it: appended or
    reordered prompts move none of the others, and equal prompts are never drawn twice. Sizes differ
    like those of random parts.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse ``text``, as in "2/4". Raises InputError: it names no shard."""
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
        index, count = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= index <= count:
            raise InputError(
                f"``shard`` is {text!r}; give one of n parts as I/N, where I counts from 1 to N, as"
                " in 1/4, 2/4, 3/4 and 4/4"
            )
        return cls(index, count)

    def __str__(self) -> str:
        """The shard in the form for ``parse``."""
        return f"{self.index}/{self.count}"

    def holds(self, prompt: Prompt) -> bool:
        return int(prompt_hash(prompt)[:DIGITS], 16) % self.count == self.index - 1

    def of(self, examples: Iterable[Example]) -> tuple[Example, ...]:
        """The examples whose prompts belong to this shard, in their order."""
        return tuple(example for example in examples if self.holds(example.prompt))
