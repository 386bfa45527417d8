"""Collection by batch, step by step: write, upload, create, wait, download, ingest; an interrupted
run goes on at its last step.

Each step is in the job's record before the next begins, so that a job killed at any moment keeps
its progress.
"""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from blackbox_lb.errors import BlbError, Interrupted, ProviderError, RequestRejected, ServerFailed
from blackbox_lb.extras.batches.ingest import BatchReader, Tally
from blackbox_lb.extras.batches.plan import BatchSpec, check_budget
from blackbox_lb.extras.batches.provider_api import BatchApi, ended
from blackbox_lb.extras.batches.record import BatchRecord
from blackbox_lb.extras.batches.submit import QUEUE_FULL, Submission, reason
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.safety.http.retries import is_passing
from blackbox_lb.safety.printable import with_remedy
from blackbox_lb.types import Prompt

FIRST_PAUSE = 10.0
LONGEST_PAUSE = 120.0
GROWTH = 1.5
"""Seconds between two looks at batches that take minutes to a day."""
LOST_LOOKS = 20
"""Failed looks in a row that end the wait: the network may be away for a while."""


@dataclass(frozen=True, slots=True)
class State:
    """One open job, for display: its batch, its state, requests and answers; ``command``: for the
    user to run.
    """

    name: str
    batch: str | None
    status: str
    requests: int
    answered: int = 0
    command: str | None = None

    def __str__(self) -> str:
        if self.command is not None:
            return f"{self.requests:,} requests wait for: {self.command}"
        return (
            f"{self.batch or self.name}: {self.status}, {self.answered:,} of {self.requests:,}"
            " requests answered"
        )


class Pending(BlbError):
    """Batch jobs are at work, or wait for the user's own program; nothing went wrong. ``states``:
    of each job.
    """

    def __init__(self, states: Sequence[State], missing: int) -> None:
        super().__init__(
            f"{len(states)} batch jobs are not done; {missing:,} completions are still to come"
        )
        self.states = tuple(states)
        self.missing = missing


async def collect_batches(
    trials: Trials,
    prompts: Sequence[Prompt],
    samples: int,
    *,
    wait: bool = True,
    most: int | None = None,
) -> None:
    """Make sure, by batch, that the store holds ``samples`` completions of every prompt at
    temperature 1.

    Stored samples, and those that an open job asks for, are not asked for again. ``wait``: until
    every job has ended; else one look at each. ``most``: requests a file, no more than the provider
    takes.

    Raises Pending: jobs are at work, or wait for the user's own program. BudgetExhausted: the
    missing requests could pass a limit; nothing was submitted. Interrupted: jobs go on without us.
    ProviderError: requests were refused or failed; answers are stored. Drifted: another model or
    system answered.
    """
    async with _work(BatchSpec.of(trials, most)) as work:
        work.open += work.setup.write(prompts, samples, work.open)
        check_budget(
            trials.budget, [job for job in work.open if job.step in ("written", "uploaded")]
        )
        await work.run(wait)
        work.report(prompts, samples)


async def cancel_batches(trials: Trials, *, wait: bool = True) -> Counter[str]:
    """End all open jobs of these settings: those at the provider are cancelled, and their earlier
    answers stored.

    Returns the tally of their requests. Raises Pending where the provider has not ended one yet.
    """
    async with _work(BatchSpec.of(trials)) as work:
        await work.cancel()
        await work.run(wait)
        return work.lines


@asynccontextmanager
async def _work(setup: BatchSpec) -> AsyncIterator[BatchRunner]:
    """The open jobs of a collection, for one process at a time."""
    with setup.jobs.locked():
        setup.jobs.tidy()
        if setup.rules.command is not None:
            yield BatchRunner(setup, None)
            return
        async with BatchApi(setup.trials.session) as api:
            yield BatchRunner(setup, api)


class BatchRunner:
    """One command's work on the jobs of a store. ``lines``: the tally of the jobs that it
    closed.
    """

    def __init__(self, setup: BatchSpec, api: BatchApi | None) -> None:
        self.setup = setup
        self.jobs = setup.jobs
        self._report = setup.trials.report
        self._hosted = None if api is None else (api, Submission(setup, api))
        self.open = setup.open_jobs()
        self.lines: Counter[str] = Counter()
        self._error: BlbError | None = None
        self._drifted: BlbError | None = None
        self._told: dict[str, str] = {}

    async def run(self, wait: bool) -> None:
        """Advance every open job as far as possible. Raises Pending where it does not wait for all
        of them.
        """
        pause = FIRST_PAUSE
        lost = 0
        while True:
            try:
                states = [
                    state
                    for job in list(self.open)
                    if (state := await self._advanced(job)) is not None
                ]
                lost = 0
            except ProviderError as error:
                lost += 1
                if not wait or not is_passing(error) or lost > LOST_LOOKS:
                    raise
                self._report.notice(with_remedy(error, f"looking again in {pause:.0f} s"))
                states = [
                    State(job.name, job.batch_id, job.step, job.requests) for job in self.open
                ]
            if not states:
                return
            if not wait or self._hosted is None:
                raise Pending(states, sum(job.completions for job in self.open))
            self._tell(states)
            await self._sleep(pause)
            pause = min(pause * GROWTH, LONGEST_PAUSE)

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError as error:
            if not self.setup.trials.budget.closed:
                raise
            names = ", ".join(job.batch_id or job.name for job in self.open)
            raise Interrupted(
                f"Interrupted ({names} goes on at {self.setup.trials.session.profile.name} and is"
                " paid for; ``cancel`` ends it)"
            ) from error

    def _tell(self, states: Sequence[State]) -> None:
        for state in states:
            if self._told.get(state.name) != str(state):
                self._told[state.name] = str(state)
                self._report.notice(str(state))

    async def _advanced(self, job: BatchRecord) -> State | None:
        """Advance a job as far as possible now; return its state, None once it is done."""
        if self._hosted is None:
            return await self._answered_by_command(job)
        api, submission = self._hosted
        if job.step in ("written", "uploaded", "creating"):
            if job.status == QUEUE_FULL and any(other.submitted for other in self.open):
                return State(job.name, None, "waits for the batches before it", job.requests)
            await submission.submit(job)
        if job.step == "running":
            document = await api.look(job.batch_id or "")
            job.status = str(document["status"])
            if not ended(job.status):
                done = (document.get("request_counts") or {}).get("completed") or 0
                return State(job.name, job.batch_id, job.status, job.requests, int(done))
            if submission.put_back(job, document):
                return self._queued(job, document)
            self._end(job, document)
        for name, path in (
            (job.output_file_id, self.jobs.output(job)),
            (job.error_file_id, self.jobs.errors(job)),
        ):
            if name is not None and not path.exists():
                await api.download(name, path)
        self._close(job, await self._read(job))
        return None

    def _queued(self, job: BatchRecord, document: Mapping[str, Any]) -> State:
        if not any(other.submitted for other in self.open):
            said = (
                f"{job.provider} did not begin a batch of {job.requests:,} requests:"
                f" {reason(document)}"
            )
            smaller = "or cancel it and make smaller ones with ``batch_requests``"
            raise RequestRejected(
                with_remedy(
                    said, f"run the same command again when other batches have ended, {smaller}"
                )
            )
        return State(job.name, None, "waits for the batches before it", job.requests)

    def _end(self, job: BatchRecord, document: Mapping[str, Any]) -> None:
        job.output_file_id, job.error_file_id = (
            document.get("output_file_id"),
            document.get("error_file_id"),
        )
        job.step = "ended"
        self.jobs.save(job)
        if job.status == "failed":
            self._error = self._error or RequestRejected(
                f"{job.provider} refused the batch {job.batch_id}: {reason(document)}"
            )

    async def _answered_by_command(self, job: BatchRecord) -> State | None:
        """Take in the output of the user's program; return its command where that is missing or
        incomplete.
        """
        output = self.jobs.output(job)
        command = self.setup.rules.command or ""
        if job.cancelled or output.exists():
            tally = await self._read(job)
            if job.cancelled or sum(tally.lines.values()) - tally.lines["foreign"] >= job.requests:
                self._close(job, tally)
                return None
            self._report.notice(f"{output} is not whole: {tally.sentence()}, of {job.requests:,}")
        words = {
            "input": self.jobs.input(job.name),
            "output": output,
            "model": self.setup.trials.session.model,
        }
        told = command.format(**{name: shlex.quote(str(value)) for name, value in words.items()})
        return State(job.name, None, "waits", job.requests, command=told)

    async def _read(self, job: BatchRecord) -> Tally:
        paths = [path for path in (self.jobs.output(job), self.jobs.errors(job)) if path.exists()]
        if not paths:
            return Tally()
        with self._report.stage(f"batch {job.batch_id or job.name}", job.completions) as watch:
            reader = BatchReader(self.setup, job, watch)
            for path in paths:
                await reader.read(path)
        self.setup.trials.budget.spent += reader.tally.spent
        return reader.tally

    def _close(self, job: BatchRecord, tally: Tally) -> None:
        self.lines.update(tally.lines)
        self._error = self._error or tally.error
        self._drifted = self._drifted or tally.drifted
        kept = bool(tally.lines["unreadable"])
        self.jobs.close(job, dict(tally.lines), keep=kept)
        self.open.remove(job)
        where = f"; its files stay in {self.jobs.folder}" if kept else ""
        self._report.notice(
            f"batch {job.batch_id or job.name} {job.status or 'done'}: {tally.sentence()}{where}"
        )

    def report(self, prompts: Sequence[Prompt], samples: int) -> None:
        """Raise the error that kept completions from the store, where any are missing."""
        if self._drifted is not None:
            raise self._drifted
        missing = sum(ask.count for _, ask in self.setup.missing(prompts, samples))
        if not missing:
            return
        told = (
            ", ".join(f"{number:,} requests {what}" for what, number in self.lines.items())
            or "no request answered"
        )
        again = (
            f"{missing:,} completions are missing ({told}); the same command asks for them again"
        )
        if self._error is not None:
            raise type(self._error)(with_remedy(self._error, again)) from self._error
        raise ServerFailed(again)

    async def cancel(self) -> None:
        """Ask for the end of every open job; close those that were never submitted."""
        for job in list(self.open):
            job.cancelled = True
            if (
                self._hosted is not None and job.step == "creating"
            ):  # only a batch that exists can be cancelled
                await self._hosted[1].settle(job)
            if self._hosted is not None and job.step == "running":
                await self._hosted[0].cancel(job.batch_id or "")
                self.jobs.save(job)
            elif job.step in ("written", "uploaded"):
                job.status = "never submitted"
                self._close(job, await self._read(job))
