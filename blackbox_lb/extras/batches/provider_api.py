"""A provider's files and batches, and how a file becomes a batch once.

Calls (https://platform.openai.com/docs/api-reference/batch) are retried within limits. To create a
batch is the one step that cannot be repeated. So its job is marked first, and a marked job is
looked for among the provider's batches, by its file and by its name in their metadata, before it is
created again. One assumption remains, that a batch whose creation was not confirmed is listed
within ``SETTLING`` seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx2
import openai

from blackbox_lb.api.session import Session
from blackbox_lb.errors import (
    CorruptResponse,
    ProviderError,
    RateLimited,
    RequestRejected,
    ServerFailed,
)
from blackbox_lb.extras.batches.plan import BatchSpec
from blackbox_lb.extras.batches.record import BatchRecord
from blackbox_lb.safety.files import replacing
from blackbox_lb.safety.http.retries import ATTEMPTS, is_passing
from blackbox_lb.safety.printable import shorten

T = TypeVar("T")
TIMEOUT = httpx2.Timeout(600.0, connect=30.0)
"""Seconds for each piece of a file, and for an answer to begin."""
METADATA = "blackbox_lb"
"""The key of a batch's metadata that holds the job's name."""
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
NOT_YET = frozenset({"pending", "running"})
"""States of a file that Azure has not examined yet."""
READY_PAUSE = 1.0
"""Seconds between two looks at a file that is not examined yet."""
READY_TRIES = 600
"""Most such looks."""
PAGE = 100
"""Batches a page of the provider's list."""
CLOCKS = 86_400.0
"""Seconds; no clock of a provider differs more from this machine's."""
SETTLING = 10.0
"""Seconds until a new batch is in the provider's list."""
QUEUE_FULL = "token_limit_exceeded"
"""The code of a batch that was not begun because others wait; it can begin when they have ended."""


def ended(status: str | None) -> bool:
    """Whether a batch of this status stays as it is."""
    return status in ENDED


class BatchApi:
    """The files and batches behind a session's address, under its key.

    Use as an asynchronous context manager.

    Raises, from every method:
        ProviderError: one of its subclasses, with the provider's words.
    """

    def __init__(self, session: Session) -> None:
        self._name = session.profile.name
        self._channel = session.channel
        self._client = session.channel.for_files(TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.close()

    async def upload(self, path: Path) -> str:
        """Upload a file of requests, and return its id when the provider has examined it."""

        async def once() -> str:
            with path.open("rb") as file:
                answer = await self._client.files.create(
                    file=(path.name, file, "application/jsonl"), purpose="batch"
                )
            return self._id(answer)

        name = await self._tried(once)
        for _ in range(READY_TRIES):
            answer = await self._tried(lambda: self._client.files.retrieve(name))
            status = getattr(answer, "status", None)
            if status == "error":
                raise RequestRejected(
                    f"{self._name} could not process the file of requests:"
                    f" {getattr(answer, 'status_details', '')}"
                )
            if status not in NOT_YET:
                return name
            await asyncio.sleep(READY_PAUSE)
        raise ServerFailed(
            f"{self._name} has not processed the file of requests {name}; run the same command"
            " again"
        )

    async def create(self, job: BatchRecord, url: str) -> str:
        """Create the batch of a job with an uploaded file, in a single try, and return its id."""
        endpoint: Any = url
        try:
            answer = await self._client.batches.create(
                input_file_id=job.file_id or "",
                endpoint=endpoint,
                completion_window="24h",
                metadata={METADATA: job.name, "sha256": job.sha256},
            )
        except openai.OpenAIError as error:
            raise self._error(error) from error
        return self._id(answer)

    async def find(self, job: BatchRecord) -> str | None:
        """The id of the job's batch; None where the provider has none, or did not begin it."""

        async def once() -> str | None:
            async for batch in self._client.batches.list(limit=PAGE):
                if batch.created_at and batch.created_at < job.written - CLOCKS:
                    return None  # the list is newest first
                name = (batch.metadata or {}).get(METADATA)
                is_of_job = batch.input_file_id == job.file_id or name == job.name
                if is_of_job and batch.id not in job.refused:
                    return self._id(batch)
            return None

        return await self._tried(once)

    async def look(self, batch: str) -> dict[str, Any]:
        """The document of a batch, by its id."""
        return self._document(await self._tried(lambda: self._client.batches.retrieve(batch)))

    async def cancel(self, batch: str) -> None:
        """Ask the provider to end a batch; one that has ended stays unchanged."""
        try:
            await self._tried(lambda: self._client.batches.cancel(batch))
        except RequestRejected:
            if not ended((await self.look(batch))["status"]):
                raise
        except ServerFailed as error:  # 409, which passes at other requests
            if not ended((await self.look(batch))["status"]):
                raise error from None

    async def download(self, name: str, path: Path) -> None:
        """Write the content of a provider's file to ``path``, all of it or nothing.

        It may be larger than the memory.
        """
        with replacing(path) as draft:

            async def once() -> None:
                async with self._client.files.with_streaming_response.content(name) as answer:
                    with draft.open("wb") as file:
                        async for part in answer.iter_bytes(1 << 16):
                            file.write(part)

            await self._tried(once)

    async def _tried(self, once: Callable[[], Awaitable[T]]) -> T:
        async def translated() -> T:
            try:
                return await once()
            except (openai.OpenAIError, httpx2.HTTPError) as error:
                raise self._error(error) from error

        return await self._channel.tried(translated)

    def _error(self, error: openai.OpenAIError | httpx2.HTTPError) -> ProviderError:
        """The error of this package for one of the SDK's client."""
        if isinstance(error, openai.APIStatusError):
            return self._channel.refused(error.response)
        cause: BaseException = error
        if isinstance(error, openai.OpenAIError) and error.__cause__ is not None:
            cause = error.__cause__
        return self._channel.unanswered(cause)

    def _id(self, answer: Any) -> str:
        name = getattr(answer, "id", None)
        if not isinstance(name, str) or not name:
            raise CorruptResponse(
                f"{self._name} answered without an id:"
                f" {self._channel.masked(str(answer))[:200]}; is this an OpenAI-compatible API"
                " with /files and /batches?"
            )
        return name

    def _document(self, answer: Any) -> dict[str, Any]:
        self._id(answer)
        document: dict[str, Any] = answer.to_dict()
        status = document.get("status") or "unknown"
        if not isinstance(status, str):
            raise CorruptResponse(
                f"{self._name} answered with the status {shorten(status)} of a batch, which is no"
                " text; is this an OpenAI-compatible API with /files and /batches?"
            )
        status = status.lower()
        if status == "inprogress":  # the spelling of Azure's first versions
            status = "in_progress"
        return {**document, "status": status}


# --- From a file to a batch


class Submission:
    """Turns files into batches, for the jobs of one command."""

    def __init__(self, setup: BatchSpec, api: BatchApi) -> None:
        self._setup = setup
        self._api = api

    async def submit(self, job: BatchRecord) -> None:
        """Turn an unsubmitted job into a running batch.

        Ctrl-C while the batch is created waits for the answer.
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
        pause = (job.tried or 0.0) + SETTLING - time.time()
        await asyncio.sleep(max(0.0, min(SETTLING, pause)))
        job.batch_id = await self._api.find(job)
        if job.batch_id:
            self._step(job, "running")
        else:
            self._step(job, "uploaded")

    def put_back(self, job: BatchRecord, document: Mapping[str, Any]) -> bool:
        """Put the job of a batch back to "uploaded" if the provider's queue was full.

        Returns:
            Whether it was; then the batch can be created again when others have ended.
        """
        codes = [complaint.get("code") for complaint in _complaints(document)]
        if job.status != "failed" or QUEUE_FULL not in codes:
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
                # A refusal creates nothing; after other errors the batch may exist.
                is_rate = isinstance(error, RateLimited)
                may_pass = is_passing(error)
                if is_rate or not (may_pass or isinstance(error, CorruptResponse)):
                    self._step(job, "uploaded")
                if attempt == ATTEMPTS or not may_pass:
                    raise
                if is_rate:
                    await asyncio.sleep(SETTLING)
        raise AssertionError("the last attempt returns or raises")  # pragma: no cover

    def _step(self, job: BatchRecord, step: Literal["uploaded", "creating", "running"]) -> None:
        job.step = step
        self._setup.jobs.save(job)


def reason(document: Mapping[str, Any]) -> str:
    """The provider's words about a batch that failed."""
    for complaint in _complaints(document):
        words = complaint.get("message") or complaint.get("code") or "no reason is told"
        if complaint.get("line"):
            return f"line {complaint['line']}: {words}"
        return str(words)
    return "no reason is told"


def _complaints(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    errors = document.get("errors")
    if not isinstance(errors, dict):
        return []
    return [complaint for complaint in errors.get("data") or [] if isinstance(complaint, dict)]
