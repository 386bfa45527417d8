"""Collection by batch in steps: write, upload, create, wait, download, ingest.

Each step is in the job's record before the next one begins, so that a run that was killed goes on
at its last step. To create a batch cannot be repeated: its job is marked first, and a marked job is
looked for among the provider's batches, by its file and by its name in their metadata, before it is
created again. One assumption remains, that a batch whose creation was not confirmed is listed
within ``SETTLING`` seconds.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from blackbox_lb.errors import (
    BlbError,
    CorruptResponse,
    Interrupted,
    ProviderError,
    RateLimited,
    RequestRejected,
    ServerFailed,
)
from blackbox_lb.extras.batches.ingest import BatchReader, Tally
from blackbox_lb.extras.batches.plan import BatchSpec, check_budget
from blackbox_lb.extras.batches.provider_api import (
    ENDED,
    QUEUE_FULL,
    BatchApi,
    complaints,
    reason,
)
from blackbox_lb.extras.batches.record import BatchRecord
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.safety.http.retries import is_passing
from blackbox_lb.safety.printable import with_remedy
from blackbox_lb.types import Prompt

FIRST_PAUSE = 10.0
"""Seconds between the first two looks at batches, which take minutes to a day."""
GROWTH = 1.5
"""Each pause in units of the pause before it."""
LONGEST_PAUSE = 120.0
"""Seconds."""
LOST_LOOKS = 20
"""Failed looks in a row that end the wait. The network may be away for a while."""
SETTLING = 10.0
"""Seconds until a new batch is in the provider's list."""


@dataclass(frozen=True, slots=True)
class State:
    """One open job, for display.

    name: that of the job.
    batch: the provider's id of its batch.
    status: the provider's word, or that of this package.
    requests, answered: their numbers.
    command: the command that the user has to run; None where a provider answers.
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
    """Batch jobs are at work, or wait for the user's program; nothing went wrong.

    states: that of each job.
    missing: completions still to come.
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
    """Collect completions at temperature 1 by batch, until the store has enough of every prompt.

    Stored samples, and those that an open job asks for, are not asked for again.

    Args:
        trials: session, store and budget.
        prompts: the prompts.
        samples: completions of each.
        wait: whether to wait until every job has ended; else each job is looked at once.
        most: requests a file, where the provider does not take fewer.

    Raises:
        Pending: jobs are at work, or wait for the user's program.
        BudgetExhausted: the missing requests could pass a limit; nothing was submitted.
        Interrupted: the user stopped the wait; the jobs go on.
        ProviderError: requests were refused or failed; answers are stored.
        Drifted: another model or system answered.
    """
    async with _work(BatchSpec.of(trials, most)) as work:
        work.open += work.setup.write(prompts, samples, work.open)
        unsubmitted = [job for job in work.open if job.step in ("written", "uploaded")]
        check_budget(trials.budget, unsubmitted)
        await work.run(wait)
        work.report(prompts, samples)


async def cancel_batches(trials: Trials, *, wait: bool = True) -> Counter[str]:
    """Cancel all open jobs of these settings, and store their answers so far.

    Returns:
        The number of requests of each kind, see ``Tally.lines``.

    Raises:
        Pending: the provider has not ended a job yet.
    """
    async with _work(BatchSpec.of(trials)) as work:
        await work.cancel()
        await work.run(wait)
        return work.lines


@asynccontextmanager
async def _work(setup: BatchSpec) -> AsyncIterator[BatchRunner]:
    """The open jobs of a collection, locked for this process."""
    with setup.jobs.locked():
        setup.jobs.tidy()
        if setup.rules.command is not None:
            yield BatchRunner(setup, None)
            return
        async with aclosing(BatchApi(setup.trials.session)) as api:
            yield BatchRunner(setup, api)


class BatchRunner:
    """The work of one command on the jobs of a store.

    Args:
        setup: the collection.
        api: the provider's files and batches; None where a program on the user's machine answers.

    ``open`` has the open jobs, ``lines`` the tally of the jobs that were closed.
    """

    def __init__(self, setup: BatchSpec, api: BatchApi | None) -> None:
        self.setup = setup
        self.jobs = setup.jobs
        self._report = setup.trials.report
        self._api = api
        self.open = setup.open_jobs()
        self.lines: Counter[str] = Counter()
        self._error: BlbError | None = None
        self._drifted: BlbError | None = None
        self._announced: dict[str, str] = {}
        """Name of a job -> the state that was announced last."""

    async def run(self, wait: bool) -> None:
        """Advance every open job as far as possible.

        Raises:
            Pending: jobs are open, and ``wait`` is False or a program has to answer.
        """
        pause = FIRST_PAUSE
        lost = 0
        while True:
            try:
                states = []
                for job in list(self.open):
                    state = await self._advanced(job)
                    if state is not None:
                        states.append(state)
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
            if not wait or self._api is None:
                raise Pending(states, sum(job.completions for job in self.open))
            self._announce(states)
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

    def _announce(self, states: Sequence[State]) -> None:
        for state in states:
            if self._announced.get(state.name) != str(state):
                self._announced[state.name] = str(state)
                self._report.notice(str(state))

    async def _advanced(self, job: BatchRecord) -> State | None:
        """Advance a job as far as possible now, and return its state; None when it is done."""
        api = self._api
        if api is None:
            return await self._answered_by_command(job)
        if job.step in ("written", "uploaded", "creating"):
            if job.status == QUEUE_FULL and self._any_submitted():
                return State(job.name, None, "waits for the batches before it", job.requests)
            await self._submit(api, job)
        if job.step == "running":
            document = await api.look(job.batch_id or "")
            job.status = str(document["status"])
            if job.status not in ENDED:
                answered = (document.get("request_counts") or {}).get("completed") or 0
                return State(job.name, job.batch_id, job.status, job.requests, int(answered))
            codes = [complaint.get("code") for complaint in complaints(document)]
            if job.status == "failed" and QUEUE_FULL in codes:
                return self._put_back(job, document)
            self._end(job, document)
        await self._download(api, job)
        self._close(job, await self._read(job))
        return None

    def _any_submitted(self) -> bool:
        return any(job.submitted for job in self.open)

    async def _submit(self, api: BatchApi, job: BatchRecord) -> None:
        """Turn an unsubmitted job into a running batch.

        Ctrl-C while the batch is created waits for the answer.
        """
        budget = self.setup.trials.budget
        if job.step == "written":
            job.file_id = await api.upload(self.jobs.input(job.name))
            self._step(job, "uploaded")
        budget.check()
        budget.in_flight += 1
        try:
            if job.step == "creating":
                await self._settle(api, job)
            if job.step == "uploaded":
                await self._create(api, job)
        finally:
            budget.in_flight -= 1
        budget.check()

    async def _create(self, api: BatchApi, job: BatchRecord) -> None:
        job.tried = time.time()
        self._step(job, "creating")
        try:
            job.batch_id = await api.create(job, self.setup.url)
        except ProviderError as error:
            # A refusal creates nothing; after other errors the batch may exist.
            may_exist = is_passing(error) or isinstance(error, CorruptResponse)
            if isinstance(error, RateLimited) or not may_exist:
                self._step(job, "uploaded")
            raise
        self._step(job, "running")

    async def _settle(self, api: BatchApi, job: BatchRecord) -> None:
        """Find out whether the batch of a job with an unconfirmed creation exists."""
        pause = (job.tried or 0.0) + SETTLING - time.time()
        await asyncio.sleep(max(0.0, min(SETTLING, pause)))
        job.batch_id = await api.find(job)
        self._step(job, "running" if job.batch_id else "uploaded")

    def _step(self, job: BatchRecord, step: Literal["uploaded", "creating", "running"]) -> None:
        job.step = step
        self.jobs.save(job)

    def _put_back(self, job: BatchRecord, document: Mapping[str, Any]) -> State:
        """Put the job of a batch that the provider's full queue did not take back to "uploaded": it
        can be created again when others have ended.
        """
        job.refused.append(job.batch_id or "")
        job.batch_id = None
        job.status = QUEUE_FULL
        job.tried = None
        self._step(job, "uploaded")
        if not self._any_submitted():
            message = (
                f"{job.provider} did not begin a batch of {job.requests:,} requests:"
                f" {reason(document)}"
            )
            remedy = (
                "run the same command again when other batches have ended, or cancel it and make"
                " smaller ones with ``batch_requests``"
            )
            raise RequestRejected(with_remedy(message, remedy))
        return State(job.name, None, "waits for the batches before it", job.requests)

    def _end(self, job: BatchRecord, document: Mapping[str, Any]) -> None:
        job.output_file_id = document.get("output_file_id")
        job.error_file_id = document.get("error_file_id")
        job.step = "ended"
        self.jobs.save(job)
        if job.status == "failed":
            self._error = self._error or RequestRejected(
                f"{job.provider} refused the batch {job.batch_id}: {reason(document)}"
            )

    async def _download(self, api: BatchApi, job: BatchRecord) -> None:
        """Download the files of an ended job.

        Providers remove files after some weeks. A cancelled job goes on without those.
        """
        for name, path in (
            (job.output_file_id, self.jobs.output(job)),
            (job.error_file_id, self.jobs.errors(job)),
        ):
            if name is None or path.exists():
                continue
            try:
                await api.download(name, path)
            except RequestRejected as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                if not job.cancelled:
                    remedy = (
                        f"if {job.provider} has removed the file, give up its answers with"
                        " ``cancel``, after which the same command asks for them again"
                    )
                    raise RequestRejected(with_remedy(error, remedy)) from error

    async def _answered_by_command(self, job: BatchRecord) -> State | None:
        """Read the output of the user's program.

        Returns:
            The state with the program's command where the output is missing or incomplete.
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
            "{input}": str(self.jobs.input(job.name)),
            "{output}": str(output),
            "{model}": self.setup.trials.session.model,
        }
        for place, word in words.items():
            command = command.replace(place, shlex.quote(word))
        return State(job.name, None, "waits", job.requests, command=command)

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
        keep = tally.lines["unreadable"] > 0
        self.jobs.close(job, dict(tally.lines), keep=keep)
        self.open.remove(job)
        sentence = f"batch {job.batch_id or job.name} {job.status or 'done'}: {tally.sentence()}"
        if keep:
            sentence += f"; its files stay in {self.jobs.folder}"
        self._report.notice(sentence)

    def report(self, prompts: Sequence[Prompt], samples: int) -> None:
        """Raise the error that kept completions from the store, where any are missing."""
        if self._drifted is not None:
            raise self._drifted
        missing = sum(len(request.samples) for request in self.setup.missing(prompts, samples))
        if not missing:
            return
        counts = [f"{number:,} requests {kind}" for kind, number in self.lines.items()]
        message = (
            f"{missing:,} completions are missing ({', '.join(counts) or 'no request answered'});"
            " the same command asks for them again"
        )
        if self._error is not None:
            raise type(self._error)(with_remedy(self._error, message)) from self._error
        raise ServerFailed(message)

    async def cancel(self) -> None:
        """Ask the provider to end every open job, and close those that were never submitted."""
        for job in list(self.open):
            job.cancelled = True
            if self._api is not None:
                if job.step == "creating":  # only a batch that exists can be cancelled
                    await self._settle(self._api, job)
                if job.step == "running":
                    await self._api.cancel(job.batch_id or "")
                    self.jobs.save(job)
                    continue
            if job.step in ("written", "uploaded"):
                job.status = "never submitted"
                self._close(job, await self._read(job))
