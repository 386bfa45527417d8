"""Batches: files that are uploaded, jobs that answer them line by line between two looks, and files
of answers and errors.

Nothing runs by a clock: a job goes on when it is looked at, so that a test decides how far.
"""

from __future__ import annotations

import email
import email.message
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tests.support.exact.listener import Reply, Request
from tests.support.gateway.engine import Endpoint
from tests.support.gateway.refusals import JSON, complaint, refusal

Answerer: TypeAlias = Callable[[Endpoint, JSON], tuple[int, JSON]]
"""Endpoint and body of one line -> status and answer, as a live request gets them."""
ENDPOINTS: Mapping[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/chat/completions": "chat",
    "/v1/completions": "completions",
}
EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}
DAY = 86_400


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """``requests`` of a file. ``expires``: whether a job ends after a day; ``slow_files``: looks
    until an uploaded file is processed; ``endpoints``: the urls that lines may have.
    """

    requests: int = 50_000
    expires: bool = True
    slow_files: int = 0
    endpoints: tuple[str, ...] = ("/v1/chat/completions", "/v1/completions")


@dataclass(slots=True)
class BatchJob:
    """One batch. ``lines``: its requests; ``done``: how many have run; ``looks`` since it began to
    run.
    """

    id: str
    input_file: str
    endpoint: str
    metadata: JSON | None
    created: int
    status: str = "validating"
    lines: list[JSON] = field(default_factory=list)
    complaints: list[JSON] = field(default_factory=list)
    output: list[JSON] = field(default_factory=list)
    errors: list[JSON] = field(default_factory=list)
    done: int = 0
    looks: int = 0
    files: dict[str, str] = field(default_factory=dict)


class BatchDesk:
    """The files and batches of one provider. ``jobs``: all of them, the oldest first.

    A test may set: ``requests``: the limit of a file; ``enqueued``: prompt tokens of all jobs that
    have not ended; ``pace``: requests that run between two looks, None for all; ``lifetime``: looks
    after which a running job expires (OpenAI); ``lost_creations``: how many of the next jobs are
    created while the connection breaks; ``twice``: answers that stand in the output file twice.
    """

    def __init__(self, provider: str, limits: BatchLimits, answer: Answerer) -> None:
        self._provider = provider
        self._limits = limits
        self._answer = answer
        self.requests = limits.requests
        self.enqueued: int | None = None
        self.pace: int | None = None
        self.lifetime: int | None = None
        self.lost_creations = 0
        self.twice = 0
        self.jobs: list[BatchJob] = []
        self._files: dict[str, bytes] = {}
        self._names: dict[str, str] = {}
        self._pending: dict[str, int] = {}
        self._lock = threading.Lock()

    def reply(
        self, rest: str, query: Mapping[str, str], request: Request
    ) -> Reply | Literal["drop"]:
        """The answer to a request; ``rest``: its path from /files or /batches on. Raises Refusal."""
        with self._lock:
            match request.method, rest.strip("/").split("/"):
                case "POST", ["files"]:
                    return Reply(200, self._upload(request))
                case "GET", ["files", name] if name in self._files:
                    document = self._file(name)
                    self._pending[name] = max(0, self._pending.get(name, 0) - 1)
                    return Reply(200, document)
                case "GET", ["files", name, "content"] if name in self._files:
                    return Reply(200, self._files[name])
                case "POST", ["batches"]:
                    return self._create(json.loads(request.body))
                case "GET", ["batches"]:
                    return Reply(200, self._list(query))
                case "GET", ["batches", name] if (job := self._job(name)) is not None:
                    self._advance(job)
                    return Reply(200, self._document(job))
                case "POST", ["batches", name, "cancel"] if (job := self._job(name)) is not None:
                    job.status = "cancelling"
                    return Reply(200, self._document(job))
        raise refusal(self._provider, "url", path=rest)

    def _upload(self, request: Request) -> JSON:
        filename, content = _uploaded(request)
        name = self._add_file(content, filename)
        self._pending[name] = self._limits.slow_files
        return self._file(name)

    def _add_file(self, content: bytes, filename: str) -> str:
        name = f"file-gateway{len(self._files):04d}"
        self._files[name], self._names[name] = content, filename
        return name

    def _file(self, name: str) -> JSON:
        return {
            "id": name,
            "object": "file",
            "bytes": len(self._files[name]),
            "created_at": int(time.time()),
            "filename": self._names[name],
            "purpose": "batch",
            "status": "pending" if self._pending.get(name) else "processed",
        }

    def _create(self, asked: JSON) -> Reply | Literal["drop"]:
        assert asked["completion_window"] == "24h"
        assert asked["endpoint"] in self._limits.endpoints
        assert not self._pending[asked["input_file_id"]], "the file is not processed yet"
        job = BatchJob(
            id=f"batch_gateway{len(self.jobs):04d}",
            input_file=asked["input_file_id"],
            endpoint=asked["endpoint"],
            metadata=asked.get("metadata"),
            created=int(time.time()),
        )
        self.jobs.append(job)
        if self.lost_creations:
            self.lost_creations -= 1
            return "drop"
        return Reply(200, self._document(job))

    def _job(self, name: str) -> BatchJob | None:
        return next((job for job in self.jobs if job.id == name), None)

    def _list(self, query: Mapping[str, str]) -> JSON:
        newest = self.jobs[::-1]
        after = next((n + 1 for n, job in enumerate(newest) if job.id == query.get("after")), 0)
        limit = int(query.get("limit", 20))
        data = [self._document(job) for job in newest[after : after + limit]]
        more = len(newest) > after + limit
        return {
            "object": "list",
            "data": data,
            "has_more": more,
            "last_id": data[-1]["id"] if data else None,
        }

    def _advance(self, job: BatchJob) -> None:
        """One look's worth of progress."""
        if job.status == "validating":
            self._validate(job)
            job.status = "failed" if job.complaints else "in_progress"
        elif job.status == "in_progress":
            job.looks += 1
            self._run(job)
            if job.done == len(job.lines):
                job.status = "finalizing"
            elif self.lifetime is not None and job.looks >= self.lifetime and self._limits.expires:
                self._finish(job, "expired")
        elif job.status == "finalizing":
            self._finish(job, "completed")
        elif job.status == "cancelling":
            self._finish(job, "cancelled")

    def _run(self, job: BatchJob) -> None:
        most = len(job.lines) if self.pace is None else job.done + self.pace
        for line in job.lines[job.done : most]:
            status, answer = self._answer(ENDPOINTS[job.endpoint], line["body"])
            response = {"status_code": status, "request_id": f"req_{job.done}", "body": answer}
            row = {
                "id": f"batch_req_{job.done}",
                "custom_id": line["custom_id"],
                "response": response,
                "error": None,
            }
            (job.output if status == 200 else job.errors).append(row)
            job.done += 1

    def _finish(self, job: BatchJob, status: str) -> None:
        """Write the files: lines of answers in no order, errors, and the requests that were too
        late.
        """
        job.status = status
        if status == "expired":
            for line in job.lines[job.done :]:
                job.errors.append(
                    {
                        "id": f"batch_req_{line['custom_id']}",
                        "custom_id": line["custom_id"],
                        "response": None,
                        "error": EXPIRED,
                    }
                )
        random.Random(len(job.output)).shuffle(job.output)  # an order, no secret
        job.output += job.output[: self.twice]
        for kind, rows in (("output", job.output), ("error", job.errors)):
            if rows:
                content = "".join(json.dumps(row) + "\n" for row in rows).encode()
                job.files[kind] = self._add_file(content, f"{job.id}_{kind}.jsonl")

    def _validate(self, job: BatchJob) -> None:
        content = self._files[job.input_file].decode()
        job.lines = [json.loads(line) for line in content.splitlines()]
        assert {line["url"] for line in job.lines} == {job.endpoint}
        assert len({line["custom_id"] for line in job.lines}) == len(job.lines)
        if len(job.lines) > self.requests:
            job.complaints.append(complaint("too_many_tasks", most=self.requests))
        alive = [other for other in self.jobs if other.status in ("in_progress", "finalizing")]
        waiting = sum(_cost(line["body"]) for each in [*alive, job] for line in each.lines)
        if self.enqueued is not None and waiting > self.enqueued:
            model = job.lines[0]["body"]["model"]
            job.complaints.append(
                complaint("token_limit_exceeded", model=model, most=self.enqueued)
            )

    def _document(self, job: BatchJob) -> JSON:
        return {
            "id": job.id,
            "object": "batch",
            "endpoint": job.endpoint,
            "errors": {"object": "list", "data": job.complaints} if job.complaints else None,
            "input_file_id": job.input_file,
            "completion_window": "24h",
            "status": job.status,
            "output_file_id": job.files.get("output"),
            "error_file_id": job.files.get("error"),
            "created_at": job.created,
            "expires_at": job.created + DAY,
            "request_counts": {
                "total": len(job.lines),
                "completed": len(job.output),
                "failed": len(job.errors),
            },
            "metadata": job.metadata,
        }


def _cost(body: JSON) -> int:
    """Tokens that a prompt costs before anything is generated."""
    texts = [message["content"] for message in body.get("messages", [])]
    return -(-sum(len(text) for text in texts or [body.get("prompt", "")]) // 4) + 2


def _uploaded(request: Request) -> tuple[str, bytes]:
    """Name and content of the file in a multipart form."""
    kind = request.headers.get("content-type", "")
    head = f"Content-Type: {kind}\r\nMIME-Version: 1.0\r\n\r\n".encode()
    form: Any = email.message_from_bytes(head + request.body)
    parts = {part.get_param("name", header="content-disposition"): part for part in form.walk()}
    assert parts["purpose"].get_payload(decode=True) == b"batch"
    filename = parts["file"].get_filename()
    assert filename.endswith(".jsonl")
    return filename, parts["file"].get_payload(decode=True)
