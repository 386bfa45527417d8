"""A provider's files and batches, one call each:
https://platform.openai.com/docs/api-reference/batch.

Calls are retried within limits. Creating a batch is not: after a lost answer, ``find`` looks for
the batch.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2
import openai

from blackbox_lb.api.session import Session
from blackbox_lb.errors import CorruptResponse, ProviderError, RequestRejected, ServerFailed
from blackbox_lb.extras.batches.record import BatchRecord
from blackbox_lb.safety.files import replacing
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
READY_TRIES = 600
PAGE = 100
CLOCKS = 86_400.0
"""Largest difference in seconds between the provider's clock and ours, beyond doubt."""


def ended(status: str | None) -> bool:
    return status in ENDED


class BatchApi:
    """The files and batches behind a session's address, under its key. Use as an asynchronous
    context manager.

    Raises, from every method:
        ProviderError: one of its subclasses, in the provider's own words.
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
        """Upload a file of requests; return its id, once the provider has examined it."""

        async def once() -> str:
            with path.open("rb") as file:
                found = await self._client.files.create(
                    file=(path.name, file, "application/jsonl"), purpose="batch"
                )
            return self._id(found)

        name = await self._tried(once)
        for _ in range(READY_TRIES):
            found = await self._tried(lambda: self._client.files.retrieve(name))
            if getattr(found, "status", None) == "error":
                raise RequestRejected(
                    f"{self._name} could not process the file of requests:"
                    f" {getattr(found, 'status_details', '')}"
                )
            if getattr(found, "status", None) not in NOT_YET:
                return name
            await asyncio.sleep(READY_PAUSE)
        raise ServerFailed(
            f"{self._name} has not processed the file of requests {name}; run the same command"
            " again"
        )

    async def create(self, job: BatchRecord, url: str) -> str:
        """Create the batch of a job with an uploaded file, in a single try; return its id."""
        endpoint: Any = url
        try:
            found = await self._client.batches.create(
                input_file_id=job.file_id or "",
                endpoint=endpoint,
                completion_window="24h",
                metadata={METADATA: job.name, "sha256": job.sha256},
            )
        except openai.OpenAIError as error:
            raise self._error(error) from error
        return self._id(found)

    async def find(self, job: BatchRecord) -> str | None:
        """The id of the job's batch, if the provider has one, without those that it did not
        begin.
        """

        async def once() -> str | None:
            async for each in self._client.batches.list(limit=PAGE):
                if each.created_at and each.created_at < job.written - CLOCKS:
                    return None  # they come newest first
                own = (
                    each.input_file_id == job.file_id
                    or (each.metadata or {}).get(METADATA) == job.name
                )
                if own and each.id not in job.refused:
                    return self._id(each)
            return None

        return await self._tried(once)

    async def look(self, batch: str) -> dict[str, Any]:
        return self._document(await self._tried(lambda: self._client.batches.retrieve(batch)))

    async def cancel(self, batch: str) -> None:
        """Ask for an end of the batch; an ended one stays unchanged."""
        try:
            await self._tried(lambda: self._client.batches.cancel(batch))
        except RequestRejected:
            if not ended((await self.look(batch))["status"]):
                raise
        except ServerFailed as error:  # 409, which elsewhere passes
            if not ended((await self.look(batch))["status"]):
                raise error from None

    async def download(self, name: str, path: Path) -> None:
        """Write the content of a file, which may be larger than the memory, to ``path``, whole or
        not at all.
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
        """An error of the SDK's client as one of ours."""
        if isinstance(error, openai.APIStatusError):
            return self._channel.refused(error.response)
        return self._channel.unanswered(
            error.__cause__ if isinstance(error, openai.OpenAIError) and error.__cause__ else error
        )

    def _id(self, found: Any) -> str:
        name = getattr(found, "id", None)
        if not isinstance(name, str) or not name:
            raise CorruptResponse(
                f"{self._name} answered without an id: {self._channel.masked(str(found))[:200]}; is"
                " this an OpenAI-compatible API with /files and /batches?"
            )
        return name

    def _document(self, found: Any) -> dict[str, Any]:
        self._id(found)
        document: dict[str, Any] = found.to_dict()
        # Azure's first versions spelt the states in one word.
        status = document.get("status") or "unknown"
        if not isinstance(status, str):
            raise CorruptResponse(
                f"{self._name} answered with the status {shorten(status)} of a batch, which is no"
                " text; is this an OpenAI-compatible API with /files and /batches?"
            )
        status = status.lower()
        return {**document, "status": "in_progress" if status == "inprogress" else status}
