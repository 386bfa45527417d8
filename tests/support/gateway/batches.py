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

from tests.support.exact.listener import Reply
from tests.support.gateway.fields import Endpoint
from tests.support.gateway.refusals import JSON, complaint, refusal

__all__ = ["Answerer", "BatchDesk", "BatchJob", "BatchLimits"]

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
    """``requests`` and ``size`` (bytes) of a file. ``expires``: whether a job ends after a day;
    ``slow_files``: looks until an uploaded file is processed; ``endpoints``: the urls that lines may
    have.
    """

    requests: int = 50_000
    size: int = 200_000_000
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

    A test may set: ``requests``: the limit of a file; ``enqueued``: prompt tokens of all
    jobs that have not ended;
    ``pace``: requests that run between two looks, None for all; ``lifetime``: looks after which a
    running job expires (OpenAI);
    ``lost_creations``: how many of the next jobs are created while the connection breaks;
    ``twice``: answers that stand in the
    output file twice.
    """

    def __init__(
        self,
        provider: str,
        limits: BatchLimits,
        answer: Answerer,
        cost: Callable[[Endpoint, JSON], int],
    ) -> None:
        self._provider = provider
        self._limits = limits
        self._answer = answer
        self._cost = cost
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
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> Reply | Literal["drop"]:
        """The answer to a request below ``/files`` or ``/batches``; raises Refusal."""
        with self._lock:
            match method, path.strip("/").split("/"):
                case "POST", ["files"]:
                    return Reply(200, self._upload(headers, body))
                case "GET", ["files", name]:
                    return Reply(200, self._file(name))
                case "GET", ["files", name, "content"]:
                    return Reply(200, self._content(name))
                case "POST", ["batches"]:
                    return self._create(body)
                case "GET", ["batches"]:
                    return Reply(200, self._list(query))
                case "GET", ["batches", name]:
                    job = self._job(name)
                    self._advance(job)
                    return Reply(200, self._document(job))
                case "POST", ["batches", name, "cancel"]:
                    return Reply(200, self._cancel(self._job(name)))
        raise refusal(self._provider, "url", method=method, path=path)

    def _upload(self, headers: Mapping[str, str], body: bytes) -> JSON:
        parts = _parts(headers, body)
        if parts.get("purpose", ("", b""))[1] != b"batch":
            raise refusal(self._provider, "required", name="purpose")
        filename, content = parts.get("file", ("", b""))
        if not filename.endswith(".jsonl"):
            raise refusal(self._provider, "batch file")
        if len(content) > self._limits.size:
            raise refusal(self._provider, "batch size")
        name = self._add_file(content, filename)
        self._pending[name] = self._limits.slow_files
        return self._file_object(name, "batch")

    def _add_file(self, content: bytes, filename: str) -> str:
        name = f"file-gateway{len(self._files):04d}"
        self._files[name], self._names[name] = content, filename
        return name

    def _file(self, name: str) -> JSON:
        found = self._file_object(name, "batch")
        self._pending[name] = max(0, self._pending.get(name, 0) - 1)
        return found

    def _file_object(self, name: str, purpose: str) -> JSON:
        return {
            "id": name,
            "object": "file",
            "bytes": len(self._content(name)),
            "created_at": int(time.time()),
            "filename": self._names[name],
            "purpose": purpose,
            "status": "pending" if self._pending.get(name) else "processed",
        }

    def _content(self, name: str) -> bytes:
        if name not in self._files:
            raise refusal(self._provider, "no such file", name=name)
        return self._files[name]

    def _create(self, body: bytes) -> Reply | Literal["drop"]:
        try:
            asked = json.loads(body)
        except ValueError:
            raise refusal(self._provider, "JSON") from None
        for name in ("input_file_id", "endpoint", "completion_window"):
            if asked.get(name) is None:
                raise refusal(self._provider, "required", name=name)
        supported = {"completion_window": ("24h",), "endpoint": self._limits.endpoints}
        for name, known in supported.items():
            if asked[name] not in known:
                facts = {"name": name, "value": asked[name], "known": " and ".join(known)}
                raise refusal(self._provider, "batch values", **facts)
        self._content(asked["input_file_id"])
        if self._pending.get(asked["input_file_id"]):
            raise refusal(self._provider, "batch pending", name=asked["input_file_id"])
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

    def _job(self, name: str) -> BatchJob:
        found = next((job for job in self.jobs if job.id == name), None)
        if found is None:
            raise refusal(self._provider, "no such batch", name=name)
        return found

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

    def _cancel(self, job: BatchJob) -> JSON:
        if job.status not in ("validating", "in_progress", "finalizing", "cancelling"):
            raise refusal(self._provider, "batch cancel", state=job.status)
        job.status = "cancelling"
        return self._document(job)

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
        seen: set[str] = set()
        models: set[object] = set()
        content = self._content(job.input_file).decode()
        for number, text in enumerate(content.splitlines(), 1):
            try:
                line = json.loads(text)
                known = line["custom_id"] in seen
                seen.add(line["custom_id"])
                models.add(line["body"].get("model"))
                wrong = line["url"] != job.endpoint
            except (ValueError, KeyError, TypeError, AttributeError):
                job.complaints.append(complaint("invalid_json_line", number))
                continue
            if known:
                job.complaints.append(complaint("duplicate_custom_id", number))
            if wrong:
                job.complaints.append(complaint("url_mismatch", number))
            job.lines.append(line)
        if not job.lines and not job.complaints:
            job.complaints.append(complaint("empty_file"))
        if len(job.lines) > self.requests:
            job.complaints.append(complaint("too_many_tasks", most=self.requests))
        if len(models) > 1:
            job.complaints.append(complaint("model_mismatch"))
        self._queue(job)

    def _queue(self, job: BatchJob) -> None:
        if self.enqueued is None:
            return
        alive = [other for other in self.jobs if other.status in ("in_progress", "finalizing")]
        waiting = sum(
            self._cost(ENDPOINTS[each.endpoint], line["body"])
            for each in [*alive, job]
            for line in each.lines
        )
        if waiting > self.enqueued:
            model = str(job.lines[0]["body"].get("model"))
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


def _parts(headers: Mapping[str, str], body: bytes) -> dict[str, tuple[str, bytes]]:
    """The parts of a multipart form: name -> file name and content."""
    head = f"Content-Type: {headers.get('content-type', '')}\r\nMIME-Version: 1.0\r\n\r\n".encode()
    message = email.message_from_bytes(head + body)
    found: dict[str, tuple[str, bytes]] = {}
    for part in message.get_payload() if message.is_multipart() else []:
        if not isinstance(part, email.message.Message):
            continue
        disposition: Any = dict(part.get_params(header="content-disposition") or [])
        content: Any = part.get_payload(decode=True)
        found[disposition.get("name", "")] = (disposition.get("filename", ""), content or b"")
    return found
