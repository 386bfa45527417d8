"""The plan of a collection by batch: files of requests for all missing answers, within the limits.

A collection may be one shard of a larger one, and may have no server to ask.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.limits.budget import SpendLimit, Spent
from blackbox_lb.api.session import Session
from blackbox_lb.api.wire import build_request
from blackbox_lb.errors import BudgetExhausted, InputError, ProfileError
from blackbox_lb.extras.batches.lines import (
    PREFIX,
    Line,
    SampleRequest,
    names_in,
    split,
    write_input,
)
from blackbox_lb.extras.batches.record import BatchRecord, Jobs
from blackbox_lb.jobs.records.run_record import host_of
from blackbox_lb.providers.schema import BatchRules
from blackbox_lb.rollouts.collect import (
    MissingRequest,
    Series,
    draw_of,
    keys_of,
    missing_requests,
    settings_of,
)
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.store import canonical, prompt_hash, request_hash
from blackbox_lb.store.rows import messages_of
from blackbox_lb.types import Example, Prompt
from blackbox_lb.vocabulary.tokenizer import Tokenizer

DIGITS = 16
"""Hexadecimal digits of a prompt's hash that decide on its shard. 64 bits make shards equally
likely.
"""


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """One collection: its requests, and the jobs of its store.

    trials: session, store and budget.
    jobs: the jobs of the store.
    rules: what the provider says of batches.
    draw: how completions are drawn.
    settings: those of all requests.
    request: the hash of the settings.
    most: requests a file; None for no limit.
    """

    trials: Trials
    jobs: Jobs
    rules: BatchRules
    draw: Draw
    settings: dict[str, Any]
    request: str
    most: int | None

    @classmethod
    def of(cls, trials: Trials, most: int | None = None) -> BatchSpec:
        """The collection of ``trials`` at temperature 1.

        most: requests a file, where the provider does not take fewer.

        Raises:
            ProfileError: the endpoint takes no batches.
        """
        session = trials.session
        rules = session.profile.batch
        if rules is None:
            raise no_batch(session.profile.name, [])
        if session.endpoint not in rules.urls:
            raise no_batch(session.profile.name, list(rules.urls))
        draw = trials.draw(SAMPLED, endpoint=session.endpoint)
        settings = settings_of(session, trials.tokenizer, draw)
        if most is None or (rules.requests is not None and rules.requests < most):
            most = rules.requests
        return cls(
            trials=trials,
            jobs=Jobs(trials.store.path),
            rules=rules,
            draw=draw,
            settings=settings,
            request=request_hash(settings),
            most=most,
        )

    @property
    def url(self) -> str:
        """The ``url`` of each line."""
        return self.rules.urls[self.trials.session.endpoint]

    def open_jobs(self) -> list[BatchRecord]:
        """The open jobs of these settings.

        A job that differs in the tokenizer alone, which no request shows, gets these settings.
        """
        session = self.trials.session
        foreign = 0
        jobs: list[BatchRecord] = []
        for job in self.jobs.all():
            if not job.open:
                continue
            settings = {**job.settings, "tokenizer": self.settings["tokenizer"]}
            place = (job.provider, job.host)
            if settings == self.settings and place == (session.profile.name, host_of(session)):
                job.request = self.request
                job.settings = self.settings
                jobs.append(job)
            else:
                foreign += 1
        if foreign:
            self.trials.report.notice(
                f"{foreign} open batch jobs in {self.jobs.folder} have other settings or another"
                " provider and are left alone: the command that made them goes on with them"
            )
        return jobs

    def missing(
        self, prompts: Sequence[Prompt], samples: int, jobs: Iterable[BatchRecord] = ()
    ) -> list[MissingRequest]:
        """Requests for the samples that are neither stored nor asked for by ``jobs``."""
        session = self.trials.session
        covered = self.trials.store.keys(self.request)
        for job in jobs:
            covered.update(self._keys(job))
        series = Series(prompts, self.draw, samples)
        keys = keys_of(self.request, series)
        return missing_requests(session.profile, session.endpoint, covered, series, keys)

    def write(
        self, prompts: Sequence[Prompt], samples: int, jobs: Iterable[BatchRecord]
    ) -> list[BatchRecord]:
        """Write new jobs for all samples that are neither stored nor asked for by ``jobs``.

        Files and records are durable; nothing is sent.
        """
        requests = self.missing(prompts, samples, jobs)
        if not requests:
            return []
        rows = [
            {"hash": prompt_hash(request.prompt), "messages": messages_of(request.prompt)}
            for request in requests
        ]
        row = {"hash": self.request, "settings": canonical(self.settings)}
        self.trials.store.add_rows({"prompts": rows, "requests": [row]})
        lines = map(self._line, requests)
        return [self._written(group) for group in split(lines, self.most, self.rules.size)]

    def _line(self, request: MissingRequest) -> Line:
        session = self.trials.session
        body = build_request(
            session.profile,
            draw_of(self.draw, request),
            model=session.model,
            prompt=request.prompt,
            n=len(request.samples),
        )
        longest = self.draw.sampling.max_tokens
        return Line.of(request, self.request[:PREFIX], self.url, body, longest)

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

    def _keys(self, job: BatchRecord) -> Iterator[str]:
        """The keys of an open job's answers, from its file; the record has only their number."""
        for name in names_in(self.jobs.input(job.name)):
            ask = SampleRequest.parse(name, job.prefix)
            if ask is not None:
                yield from ask.keys(self.request)


def check_budget(budget: SpendLimit, jobs: Sequence[BatchRecord]) -> None:
    """Announce the most that jobs may cost before they are submitted, and ask the user.

    Raises:
        BudgetExhausted: they could pass a limit.
    """
    if not jobs:
        return
    prompt = sum(job.most_prompt for job in jobs)
    completion = sum(job.most_completion for job in jobs)
    dollars = 0.0
    if budget.prices is not None:
        dollars = budget.prices.dollars(prompt, completion)
    total = Spent(sum(job.requests for job in jobs), prompt, completion, dollars)
    limit = budget.limits.passed_by(total)
    if limit is not None:
        raise BudgetExhausted(
            f"the batch could take {total}, more than {limit}, and nobody could stop it in the"
            " middle: raise the limit, or ask for less with ``limit`` or ``samples_per_prompt``;"
            " nothing was submitted"
        )
    if budget.opening is not None:
        budget.opening()
        budget.opening = None


def no_batch(provider: str, endpoints: Sequence[str]) -> ProfileError:
    """The error where a provider, or this endpoint of it, takes no batches.

    endpoints: those that take batches.
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

    The hash of a prompt decides on its shard. So appended or reordered prompts move no prompt to
    another shard, and equal prompts are never drawn twice. Sizes differ like those of random parts.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse ``text``, as in "2/4". Raises InputError where it names no shard."""
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(
                f"``shard`` is {text!r}; give one of n parts as I/N, where I counts from 1 to N, as"
                " in 1/4, 2/4, 3/4 and 4/4"
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        """The shard in the form for ``parse``."""
        return f"{self.index}/{self.count}"

    def of(self, examples: Iterable[Example]) -> tuple[Example, ...]:
        """The examples whose prompts belong to this shard, in their order."""
        return tuple(
            example
            for example in examples
            if int(prompt_hash(example.prompt)[:DIGITS], 16) % self.count == self.index - 1
        )


class OfflineSession(Session):
    """A session without a server, where a program on the user's machine answers files later.

    Its model is named, and its tokenizer is that of the vocabulary.

    Raises, on entering:
        InputError: no model, or no vocabulary.
    """

    async def _served(self) -> Sequence[str]:
        if self._model is None or self.vocabulary is None:
            raise InputError(
                f"{self.profile.name} answers batch files without a server that could be asked:"
                " give ``model``, and its vocabulary with ``tokenizer=PATH/tokenizer.json`` (a"
                " ``model`` that is a folder with a tokenizer.json needs none)"
            )
        return []

    async def tokenizer(self) -> Tokenizer:
        """The tokenizer of the vocabulary."""
        if self.vocabulary is None:
            raise InputError("the session has not been entered: its vocabulary is not known yet")
        return Tokenizer(self.vocabulary.fingerprint, self.vocabulary.size)


def tokenizer_beside(model: str | None) -> str | None:
    """The tokenizer.json in a model's folder; None where there is none."""
    if not model:
        return None
    path = Path(model) / "tokenizer.json"
    if not path.is_file():
        return None
    return str(path)
