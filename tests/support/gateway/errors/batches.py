"""What OpenAI and Azure say of files and batches: refusals of requests, and complaints about the
lines of a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.support.gateway.errors.openai import JSON, OpenAIWords, Refusal

__all__ = ["OPENAI_BATCHES", "BatchWords", "azure_batches"]


@dataclass(frozen=True, slots=True)
class BatchWords:
    """One provider's limits and sentences. ``own``: what it says of every other request.
    ``expires``: whether a job ends after a day; ``slow_files``: looks until an uploaded file is
    processed; ``endpoints``: the urls that lines may have."""

    own: OpenAIWords
    requests: int
    size: int
    expires: bool
    slow_files: int
    endpoints: tuple[str, ...]

    def not_jsonl(self) -> Refusal:
        """A file of another kind."""
        return self.own.error("batch file", "Invalid file format for Batch API. Must be .jsonl")

    def too_large(self) -> Refusal:
        """More bytes than a file may have."""
        return self.own.error("batch size", "File is too large.")

    def no_file(self, name: str) -> Refusal:
        """No such file."""
        return self.own.error(
            "no such file", f"No such File object: {name}", param="id", status=404
        )

    def not_ready(self, name: str) -> Refusal:
        """A file that has not been looked through yet."""
        return self.own.error("batch file", f"The file {name} is not processed yet.")

    def no_batch(self, name: str) -> Refusal:
        """No such batch."""
        return self.own.error("no such batch", f"No batch found with id '{name}'.", status=404)

    def cannot_cancel(self, status: str) -> Refusal:
        """A batch that has ended."""
        return self.own.error(
            "batch cancel", f"Cannot cancel a batch with status '{status}'.", status=409
        )

    def outside(self, asked: Mapping[str, object]) -> Refusal:
        """Another completion window, or another endpoint."""
        name, known = (
            ("completion_window", ("24h",))
            if asked["completion_window"] != "24h"
            else ("endpoint", self.endpoints)
        )
        values = " and ".join(f"'{each}'" for each in known)
        return self.own.error(
            "batch values",
            f"Invalid value: '{asked[name]}'. Supported values are: {values}.",
            param=name,
            code="invalid_value",
        )

    def bad_line(self, line: int) -> JSON:
        """A line that is no request."""
        return _complaint("invalid_json_line", "This line is not parseable as valid JSON.", line)

    def duplicate(self, line: int) -> JSON:
        """Two lines of one name."""
        message = (
            "The custom_id for this request is a duplicate of another request. The custom_id"
            " parameter must be unique for each request in a batch."
        )
        return _complaint("duplicate_custom_id", message, line, "custom_id")

    def other_url(self, line: int) -> JSON:
        """A line for another endpoint than the batch's."""
        return _complaint(
            "url_mismatch",
            "The URL provided for this request does not match the batch endpoint.",
            line,
            "url",
        )

    def several_models(self) -> JSON:
        """Lines for several models."""
        return _complaint(
            "model_mismatch", "The batch input file contains requests for several models.", None
        )

    def empty(self) -> JSON:
        """No line."""
        return _complaint("empty_file", "The batch input file is empty.", None)

    def too_many(self, most: int) -> JSON:
        """More lines than a file may have."""
        return _complaint(
            "too_many_tasks",
            f"The batch input file has more requests than the maximum of {most}.",
            None,
        )

    def queue_full(self, model: str, most: int) -> JSON:
        """More prompt tokens wait than may."""
        message = (
            f"Enqueued token limit reached for {model} in organization org-gateway. Limit: {most:,}"
            " enqueued tokens. Please try again once some in_progress batches have been completed."
        )
        return _complaint("token_limit_exceeded", message, None)


def _complaint(code: str, message: str, line: int | None, param: str | None = None) -> JSON:
    return {"code": code, "message": message, "line": line, "param": param}


OPENAI_BATCHES = BatchWords(
    own=OpenAIWords(),
    requests=50_000,
    size=200_000_000,
    expires=True,
    slow_files=0,
    endpoints=("/v1/chat/completions", "/v1/completions"),
)


def azure_batches(own: OpenAIWords) -> BatchWords:
    """Azure's: its own gate's sentences, files that are looked through first, no end after a day,
    urls without /v1.
    """
    return BatchWords(
        own=own,
        requests=100_000,
        size=200_000_000,
        expires=False,
        slow_files=2,
        endpoints=("/chat/completions",),
    )
