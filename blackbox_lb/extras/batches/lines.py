"""The lines of batch files: the samples of a prompt that each request asks for, and the name that
returns with its answer.

The format: https://platform.openai.com/docs/api-reference/batch/request-input
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blackbox_lb.api.limits.budget import prompt_bound
from blackbox_lb.api.wire import build_request
from blackbox_lb.errors import InputError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.safety.files import explained, replacing
from blackbox_lb.store import prompt_hash, rollout_key
from blackbox_lb.types import Draw, Prompt

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
        return range(self.first, self.first + self.count)

    def keys(self, request: str) -> list[str]:
        """Their keys in a store, under the settings with this hash."""
        return [rollout_key(request, self.prompt, sample) for sample in self.samples]

    def name(self, prefix: str) -> str:
        """The custom_id: settings, prompt and samples in at most 64 characters of letters, digits,
        "-", "_" and ".".
        """
        digest = base64.urlsafe_b64encode(bytes.fromhex(self.prompt)).decode().rstrip("=")
        return f"{prefix}.{digest}.{self.first}.{self.count}"

    @classmethod
    def parse(cls, name: object, prefix: str) -> SampleRequest | None:
        """Parse a custom_id; None where it is not of these settings."""
        match = NAME.fullmatch(name) if isinstance(name, str) else None
        if match is None or match[1] != prefix:
            return None
        return cls(base64.urlsafe_b64decode(match[2] + "=").hex(), int(match[3]), int(match[4]))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an input file, and how many completions, prompt tokens and completion tokens it
    takes at most.
    """

    content: bytes
    completions: int
    most_prompt: int
    most_completion: int


def asks(
    prompts: Iterable[Prompt], samples: int, request: str, there: Collection[str], most: int
) -> Iterator[tuple[Prompt, SampleRequest]]:
    """Requests for all keys, each once: runs of at most ``most`` samples of one prompt, prompt by
    prompt.
    """
    for prompt in dict.fromkeys(prompts):
        name = prompt_hash(prompt)
        first = count = 0
        for sample in range(samples + 1):
            wanted = sample < samples and rollout_key(request, name, sample) not in there
            if count and (not wanted or count == most):
                yield prompt, SampleRequest(name, first, count)
                count = 0
            if wanted:
                first = first if count else sample
                count = count + 1


def request_line(
    profile: Profile,
    draw: Draw,
    url: str,
    model: str,
    prompt: Prompt,
    ask: SampleRequest,
    request: str,
) -> Line:
    """The line with the same request as a live one, word for word."""
    sampling = draw.sampling
    if sampling.seed is not None:  # as ``collect`` sends it: a seed of its own for every sample
        sampling = replace(
            sampling, seed=(sampling.seed + int(ask.keys(request)[0][:8], 16)) & 0x7FFFFFFF
        )
    body = build_request(
        profile, replace(draw, sampling=sampling), model=model, prompt=prompt, n=ask.count
    )
    document: dict[str, Any] = {
        "custom_id": ask.name(request[:PREFIX]),
        "method": "POST",
        "url": url,
        "body": body,
    }
    content = (
        json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(
            errors="backslashreplace"
        )
        + b"\n"
    )
    bound = prompt_bound([message.content for message in prompt.messages])
    return Line(content, ask.count, bound, ask.count * sampling.max_tokens)


def write_input(path: Path, lines: Sequence[Line]) -> dict[str, Any]:
    """Write a file of lines, so that a crash cannot lose it afterwards. Returns its SHA-256 and the
    sums over its lines.
    """
    digest = hashlib.sha256()
    told = explained(f"write {path}", "make room, or give another ``out``")
    with told, replacing(path) as draft, draft.open("xb") as file:
        for line in lines:
            digest.update(line.content)
            file.write(line.content)
    totals = {
        name: sum(getattr(line, name) for line in lines)
        for name in ("completions", "most_prompt", "most_completion")
    }
    return {"sha256": digest.hexdigest(), "requests": len(lines), **totals}


def split(lines: Iterable[Line], requests: int | None, size: int | None) -> Iterator[list[Line]]:
    """Groups of lines that fit a file each. Raises InputError: one line alone is larger than a file
    may be.
    """
    group: list[Line] = []
    taken = 0
    for line in lines:
        length = len(line.content)
        if size is not None and length > size:
            raise InputError(
                f"one request has {length:,} bytes, and a batch file may have {size:,}; leave such"
                " long prompts out, or collect without ``batch``"
            )
        if group and (len(group) == requests or (size is not None and taken + length > size)):
            yield group
            group = []
            taken = 0
        group.append(line)
        taken += length
    if group:
        yield group


def names_in(path: Path) -> Iterator[str]:
    """The custom_id of every line of one of our own input files, where it stands first."""
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                yield line.split(b'"', 4)[3].decode()
