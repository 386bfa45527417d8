"""The lines of batch files, each a request for samples of a prompt with a name for its answer.

The format: https://platform.openai.com/docs/api-reference/batch/request-input
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blackbox_lb.api.limits.budget import prompt_bound
from blackbox_lb.errors import InputError
from blackbox_lb.rollouts.collect import MissingRequest
from blackbox_lb.safety.files import explained, replacing
from blackbox_lb.store import prompt_hash, rollout_key

PREFIX = 8
"""Hexadecimal digits of the request hash in a name."""
NAME = re.compile(r"([0-9a-f]{8})\.([0-9A-Za-z_-]{43})\.(\d{1,9})\.(\d{1,4})", re.ASCII)


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Samples ``first`` to ``first + count - 1`` of the prompt with this hash."""

    prompt: str
    first: int
    count: int

    @property
    def samples(self) -> range:
        """The numbers of the samples."""
        return range(self.first, self.first + self.count)

    def keys(self, request: str) -> list[str]:
        """The keys of the samples in a store; ``request`` is the hash of the settings."""
        return [rollout_key(request, self.prompt, sample) for sample in self.samples]

    def name(self, prefix: str) -> str:
        """The custom_id, with settings, prompt and samples.

        It has at most 64 characters, which are letters, digits, "-", "_" and ".".
        """
        digest = base64.urlsafe_b64encode(bytes.fromhex(self.prompt)).decode().rstrip("=")
        return f"{prefix}.{digest}.{self.first}.{self.count}"

    @classmethod
    def of(cls, request: MissingRequest) -> SampleRequest:
        """The samples that a request of a collection asks for."""
        return cls(prompt_hash(request.prompt), request.samples[0], len(request.samples))

    @classmethod
    def parse(cls, name: object, prefix: str) -> SampleRequest | None:
        """Parse a custom_id; None where it is not of these settings."""
        if not isinstance(name, str):
            return None
        match = NAME.fullmatch(name)
        if match is None or match[1] != prefix:
            return None
        return cls(base64.urlsafe_b64decode(match[2] + "=").hex(), int(match[3]), int(match[4]))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an input file.

    content: the line, with its end.
    completions: their number.
    most_prompt, most_completion: tokens at most.
    """

    content: bytes
    completions: int
    most_prompt: int
    most_completion: int

    @classmethod
    def of(
        cls, request: MissingRequest, prefix: str, url: str, body: Mapping[str, Any], longest: int
    ) -> Line:
        """The line that sends ``body``, word for word that of the live request.

        Args:
            request: the samples that it asks for.
            prefix: the beginning of its custom_id.
            url: the path of the endpoint.
            longest: tokens of a completion at most.
        """
        document = {
            "custom_id": SampleRequest.of(request).name(prefix),
            "method": "POST",
            "url": url,
            "body": body,
        }
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
        return cls(
            content=text.encode(errors="backslashreplace"),
            completions=len(request.samples),
            most_prompt=prompt_bound(request.prompt.sent_texts),
            most_completion=len(request.samples) * longest,
        )


def write_input(path: Path, lines: Sequence[Line]) -> dict[str, Any]:
    """Write a file of lines, so that a crash cannot lose it afterwards.

    Returns:
        Its SHA-256, and the sums over its lines, by field of ``BatchRecord``.
    """
    digest = hashlib.sha256()
    errors = explained(f"write {path}", "make room, or give another ``out``")
    with errors, replacing(path) as draft, draft.open("xb") as file:
        for line in lines:
            digest.update(line.content)
            file.write(line.content)
    totals = {
        name: sum(getattr(line, name) for line in lines)
        for name in ("completions", "most_prompt", "most_completion")
    }
    return {"sha256": digest.hexdigest(), "requests": len(lines), **totals}


def split(lines: Iterable[Line], requests: int | None, size: int | None) -> Iterator[list[Line]]:
    """Groups of lines, one for each file.

    Args:
        lines: the lines.
        requests: most lines of a file; None for no limit.
        size: most bytes of a file; None for no limit.

    Raises:
        InputError: a line alone is larger than a file may be.
    """
    group: list[Line] = []
    group_size = 0
    for line in lines:
        length = len(line.content)
        if size is not None and length > size:
            raise InputError(
                f"one request has {length:,} bytes, and a batch file may have {size:,}; leave such"
                " long prompts out, or collect without ``batch``"
            )
        is_full = len(group) == requests or (size is not None and group_size + length > size)
        if group and is_full:
            yield group
            group = []
            group_size = 0
        group.append(line)
        group_size += length
    if group:
        yield group


def names_in(path: Path) -> Iterator[str]:
    """The custom_id of every line of a file by ``write_input``, in which it stands first.

    Raises:
        InputError: the file cannot be read.
    """
    remedy = (
        "without it nobody knows which answers the job will bring: put it back, or end the job"
        " with ``cancel``"
    )
    with explained(f"read {path}", remedy), path.open("rb") as file:
        for line in file:
            if line.strip():
                yield line.split(b'"', 4)[3].decode()
