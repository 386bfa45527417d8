"""A provider's files and batches, through the SDK: its retries, its wait for a file, its download.

The API: https://platform.openai.com/docs/api-reference/batch

To create a batch is the one call that cannot be repeated, so it has a single try.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai

from blackbox_lb.api.session import Session
from blackbox_lb.errors import CorruptResponse, ProviderError, RequestRejected, ServerFailed
from blackbox_lb.extras.batches.record import BatchRecord
from blackbox_lb.safety.files import replacing
from blackbox_lb.safety.http.clients import HttpAnswer
from blackbox_lb.safety.printable import shorten

TIMEOUT = httpx2.Timeout(600.0, connect=30.0)
"""Seconds for each piece of a file, and for an answer to begin."""
METADATA = "blackbox_lb"
"""The key of a batch's metadata that holds the job's name."""
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
NOT_YET = frozenset({"pending", "running"})
"""States of a file that Azure has not examined yet."""
READY_PAUSE = 1.0
"""Seconds between two looks at a file that is not examined yet."""
PAGE = 100
"""Batches a page of the provider's list."""
CLOCKS = 86_400.0
"""Seconds; no clock of a provider differs more from this machine's."""
QUEUE_FULL = "token_limit_exceeded"
"""The code of a batch that was not begun because others wait; it can begin when they have ended."""


class BatchApi:
    """The files and batches behind a session's address, under its key.

    To be closed with ``aclose``.

    Raises, from every method:
        ProviderError: one of its subclasses, with the provider's words.
    """

    def __init__(self, session: Session) -> None:
        self._name = session.profile.name
        self._channel = session.channel
        self._client = session.channel.for_files(TIMEOUT)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def upload(self, path: Path) -> str:
        """Upload a file of requests, and return its id when the provider has examined it."""
        files = self._client.files
        with self._translated():
            with path.open("rb") as file:
                content = (path.name, file, "application/jsonl")
                answer = await files.create(file=content, purpose="batch")
            name = self._id(answer)
            if getattr(answer, "status", None) in NOT_YET:
                try:
                    answer = await files.wait_for_processing(name, poll_interval=READY_PAUSE)
                except RuntimeError as error:
                    raise ServerFailed(
                        f"{self._name} has not processed the file of requests {name}; run the same"
                        " command again"
                    ) from error
        if getattr(answer, "status", None) == "error":
            raise RequestRejected(
                f"{self._name} could not process the file of requests:"
                f" {getattr(answer, 'status_details', '')}"
            )
        return name

    async def create(self, job: BatchRecord, url: str) -> str:
        """Create the batch of a job with an uploaded file, in a single try, and return its id."""
        endpoint: Any = url
        with self._translated():
            answer = await self._client.with_options(max_retries=0).batches.create(
                input_file_id=job.file_id or "",
                endpoint=endpoint,
                completion_window="24h",
                metadata={METADATA: job.name, "sha256": job.sha256},
            )
        return self._id(answer)

    async def find(self, job: BatchRecord) -> str | None:
        """The id of the job's batch; None where the provider has none, or did not begin it."""
        with self._translated():
            async for batch in self._client.batches.list(limit=PAGE):
                if batch.created_at and batch.created_at < job.written - CLOCKS:
                    return None  # the list is newest first
                name = (batch.metadata or {}).get(METADATA)
                is_of_job = batch.input_file_id == job.file_id or name == job.name
                if is_of_job and batch.id not in job.refused:
                    return self._id(batch)
        return None

    async def look(self, batch: str) -> dict[str, Any]:
        """The document of a batch, by its id."""
        with self._translated():
            answer = await self._client.batches.retrieve(batch)
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

    async def cancel(self, batch: str) -> None:
        """Ask the provider to end a batch; one that has ended stays unchanged."""
        try:
            with self._translated():
                await self._client.batches.cancel(batch)
        except ProviderError:
            if (await self.look(batch))["status"] not in ENDED:
                raise

    async def download(self, name: str, path: Path) -> None:
        """Write the content of a provider's file to ``path``, all of it or nothing.

        It may be larger than the memory.
        """
        with replacing(path) as draft, self._translated():
            async with self._client.files.with_streaming_response.content(name) as answer:
                await answer.stream_to_file(draft)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn an error of the SDK's client into one of this package."""
        try:
            yield
        except openai.APIStatusError as error:
            answer = error.response
            place = str(answer.url.copy_with(query=None))
            refusal = HttpAnswer(answer.status_code, answer.headers, answer.content, place)
            raise self._channel.refused(refusal) from error
        except (openai.OpenAIError, httpx2.HTTPError) as error:
            cause: BaseException = error
            if isinstance(error, openai.OpenAIError) and error.__cause__ is not None:
                cause = error.__cause__
            raise self._channel.unanswered(cause) from error

    def _id(self, answer: Any) -> str:
        name = getattr(answer, "id", None)
        if not isinstance(name, str) or not name:
            raise CorruptResponse(
                f"{self._name} answered without an id:"
                f" {self._channel.masked(str(answer))[:200]}; is this an OpenAI-compatible API"
                " with /files and /batches?"
            )
        return name


def complaints(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What the provider says against a batch: ``code``, ``message`` and ``line``."""
    errors = document.get("errors")
    if not isinstance(errors, dict):
        return []
    return [complaint for complaint in errors.get("data") or [] if isinstance(complaint, dict)]


def reason(document: Mapping[str, Any]) -> str:
    """The provider's words about a batch that failed."""
    for complaint in complaints(document):
        words = complaint.get("message") or complaint.get("code") or "no reason is told"
        if complaint.get("line"):
            return f"line {complaint['line']}: {words}"
        return str(words)
    return "no reason is told"
