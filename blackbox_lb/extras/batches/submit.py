"""Submission: a file is uploaded, and its batch created once, as far as this can be known.

Creating a batch is the one step that cannot be repeated. Its job is marked first, and a marked job
is looked for among the provider's batches, by its file and by its name in their metadata, before it
is created again. One assumption stays: a batch whose creation was not confirmed is listed within
``SETTLING`` seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Literal

from blackbox_lb.errors import CorruptResponse, ProviderError, RateLimited
from blackbox_lb.extras.batches.plan import BatchSpec
from blackbox_lb.extras.batches.provider_api import BatchApi
from blackbox_lb.extras.batches.record import BatchRecord
from blackbox_lb.safety.http.retries import ATTEMPTS, is_passing

SETTLING = 10.0
"""Seconds until a new batch shows in the provider's list."""
QUEUE_FULL = "token_limit_exceeded"
"""The code of a batch that was not begun because others wait: it can begin once they have ended."""


class Submission:
    """From files to batches, for the jobs of one command."""

    def __init__(self, setup: BatchSpec, api: BatchApi) -> None:
        self._setup = setup
        self._api = api

    async def submit(self, job: BatchRecord) -> None:
        """Turn an unsubmitted job into a running batch. Ctrl-C in mid-creation waits for the
        answer.
        """
        jobs = self._setup.jobs
        budget = self._setup.trials.budget
        if job.step == "written":
            job.file_id = await self._api.upload(jobs.input(job.name))
            self._step(job, "uploaded")
        budget.check()
        budget.in_flight += 1
        try:
            job.batch_id = await self._created(job)
            self._step(job, "running")
        finally:
            budget.in_flight -= 1
        budget.check()

    async def settle(self, job: BatchRecord) -> None:
        """Find out whether the batch of a job with an unconfirmed creation exists."""
        await asyncio.sleep(max(0.0, min(SETTLING, (job.tried or 0.0) + SETTLING - time.time())))
        job.batch_id = await self._api.find(job)
        self._step(job, "running" if job.batch_id else "uploaded")

    def put_back(self, job: BatchRecord, document: Mapping[str, Any]) -> bool:
        """Whether a failed batch can be created again after others have ended; it then counts as
        never created.
        """
        if job.status != "failed" or not any(
            complaint.get("code") == QUEUE_FULL for complaint in _complaints(document)
        ):
            return False
        job.refused.append(job.batch_id or "")
        job.batch_id = None
        job.status = QUEUE_FULL
        job.tried = None
        self._step(job, "uploaded")
        return True

    async def _created(self, job: BatchRecord) -> str:
        for attempt in range(1, ATTEMPTS + 1):
            if job.step == "creating":
                await self.settle(job)
                if job.batch_id is not None:
                    return job.batch_id
            job.tried = time.time()
            self._step(job, "creating")
            try:
                return await self._api.create(job, self._setup.url)
            except ProviderError as error:
                await self._not_heard_of(job, error, last=attempt == ATTEMPTS)
        raise AssertionError("the last attempt returns or raises")  # pragma: no cover

    async def _not_heard_of(self, job: BatchRecord, error: ProviderError, *, last: bool) -> None:
        """After a failed creation: raise, or leave the job to be tried again."""
        rate = isinstance(error, RateLimited)
        if rate or not (is_passing(error) or isinstance(error, CorruptResponse)):
            self._step(job, "uploaded")  # a refusal: nothing was created
        if last or not is_passing(error):
            raise error
        if rate:
            await asyncio.sleep(SETTLING)

    def _step(self, job: BatchRecord, step: Literal["uploaded", "creating", "running"]) -> None:
        job.step = step
        self._setup.jobs.save(job)


def reason(document: Mapping[str, Any]) -> str:
    """The provider's own words about a batch that failed."""
    first = next(iter(_complaints(document)), {})
    line = f"line {first['line']}: " if first.get("line") else ""
    return f"{line}{first.get('message') or first.get('code') or 'no reason is told'}"


def _complaints(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    errors = document.get("errors")
    data = errors.get("data") if isinstance(errors, dict) else None
    return [each for each in data or [] if isinstance(each, dict)]
