"""From a batch's answers to the store: each line is read like a live answer, in any order, any
number of times.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from blackbox_lb.api.limits.budget import Spent, used_by
from blackbox_lb.api.wire.columns.parse import loads
from blackbox_lb.errors import (
    ContentFiltered,
    CorruptResponse,
    Drifted,
    InputError,
    NoLogprobs,
    ProviderError,
)
from blackbox_lb.extras.batches.lines import SampleRequest
from blackbox_lb.extras.batches.plan import BatchSpec
from blackbox_lb.extras.batches.record import BatchRecord
from blackbox_lb.rollouts.collect import MOST_TOKENS, of_another
from blackbox_lb.rollouts.progress import Watcher
from blackbox_lb.safety.http.clients import ceiling
from blackbox_lb.safety.http.retries import is_passing
from blackbox_lb.store.integrity import prompt_of
from blackbox_lb.types import Completion, Draw, Prompt

OK = 200
SHORTEST = 64
"""Shortest answer, in bytes, that is looked for in its line: a shorter one may stand there twice,
and is no answer anyway.
"""
UNDONE = frozenset({"batch_expired", "batch_cancelled"})
"""Codes of requests that were never begun."""


class _Response(msgspec.Struct):
    body: msgspec.Raw


class _Outer(msgspec.Struct):
    response: _Response


_OUTER = msgspec.json.Decoder(_Outer)


@dataclass(slots=True)
class Tally:
    """Counts of lines: ``answered`` and stored now, ``stored before`` or twice in the files,
    ``filtered`` prompts, ``undone`` (expired, cancelled, or failed in a way that passes),
    ``refused``, ``unreadable``, ``short`` (fewer completions than were asked for), and ``foreign``:
    not of this store. ``error``: the first refused or unreadable one.
    """

    lines: Counter[str] = field(default_factory=Counter)
    spent: Spent = field(default_factory=Spent)
    error: ProviderError | None = None
    drifted: Drifted | None = None

    def sentence(self) -> str:
        return (
            ", ".join(f"{number:,} {what}" for what, number in self.lines.items() if number)
            or "no line"
        )


class BatchReader:
    """Reads the files of one job into a store. ``watch`` is called with every completion."""

    def __init__(self, setup: BatchSpec, job: BatchRecord, watch: Watcher) -> None:
        self._session = setup.trials.session
        self._store = setup.trials.store
        self._settings = setup.settings
        self._sampling = setup.sampling
        self._job = job
        self._prices = setup.trials.budget.prices
        self._watch = watch
        self._drift = setup.trials.drift
        self._there = self._store.keys(job.request)
        self._prompts: dict[str, Prompt | None] = {}
        self.tally = Tally()

    async def read(self, path: Path) -> None:
        """Take in a file of answers or of errors; one that is not there has no lines."""
        for line in self._lines(path):
            self.tally.lines[self._line(line)] += 1
            await asyncio.sleep(
                0
            )  # Ctrl-C may end it here: stored answers stay, the rest is still in the file

    def _lines(self, path: Path) -> Iterator[bytes]:
        asked = {"top_logprobs": self._sampling.top_logprobs}
        longest = ceiling(asked, max(self._sampling.max_tokens, MOST_TOKENS))
        try:
            with path.open("rb") as file:
                while line := file.readline(longest):
                    if line.strip():
                        yield line
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror}; the same command downloads it again"
            ) from error

    def _line(self, line: bytes) -> str:
        """Store the answer of one line; return its category in the tally."""
        try:
            document = self._session.channel.parsed(line, self._parsed)
        except CorruptResponse as error:
            return self._faulty(error)
        name = document.get("custom_id") if isinstance(document, dict) else None
        ask = SampleRequest.parse(name, self._job.prefix)
        prompt = None if ask is None else self._prompt(ask.prompt)
        if ask is None or prompt is None:
            return "foreign"
        keys = ask.keys(self._job.request)
        if self._there.issuperset(keys):
            return "stored before"
        response = document.get("response") or {}
        fault = document.get("error")
        status = response.get("status_code") if isinstance(response, dict) else None
        if fault or status != OK or not isinstance(response.get("body"), dict):
            return self._failed(ask, prompt, status, fault or response)
        return self._answered(ask, prompt, response["body"])

    def _parsed(self, line: bytes) -> Any:
        """Parse a line and its answer, which is nearly all of the line, by the parser for live
        ones.
        """
        try:
            answer = bytes(_OUTER.decode(line).response.body)
        except msgspec.MsgspecError:
            return loads(line)
        if len(answer) < SHORTEST:
            return loads(line)
        start = line.find(answer)
        document = loads(line[:start] + b"null" + line[start + len(answer) :])
        return {
            **document,
            "response": {**document["response"], "body": self._session.parse(answer)},
        }

    def _prompt(self, name: str) -> Prompt | None:
        if name not in self._prompts:
            row = self._store.row("prompts", (name,))
            self._prompts[name] = None if row is None else prompt_of(row)
        return self._prompts[name]

    def _answered(self, ask: SampleRequest, prompt: Prompt, body: dict[str, Any]) -> str:
        self.tally.spent += used_by(body, 0, ask.count * self._sampling.max_tokens, self._prices)
        try:
            completions = self._session.completions_in(body, Draw(self._sampling), ask.count)
        except (CorruptResponse, NoLogprobs) as error:
            return self._faulty(error)
        drifted = self._drift.seen(completions, self._session.profile.models.fleet)
        of = dict(self._settings)
        if drifted is not None:
            self.tally.drifted = self.tally.drifted or drifted
            of |= of_another(self._session.model, completions[0])
        self._keep(of, prompt, ask, completions)
        return "short" if len(completions) < ask.count else "answered"

    def _keep(
        self,
        of: Mapping[str, Any],
        prompt: Prompt,
        ask: SampleRequest,
        completions: list[Completion],
    ) -> None:
        stored = self._store.add_answer(
            of, prompt, dict(zip(ask.samples, completions, strict=False))
        )
        self._there.update(stored)
        for completion in completions[: ask.count]:
            self._watch(completion)

    def _failed(self, ask: SampleRequest, prompt: Prompt, status: Any, body: Any) -> str:
        """The category of an error line: a filtered prompt is done with, a passing failure is
        undone, the rest is refused.
        """
        told = body.get("body") or body.get("error") or body if isinstance(body, dict) else body
        code = told.get("code") if isinstance(told, dict) else None
        if isinstance(code, str) and code in UNDONE:
            return "undone"
        status = status if isinstance(status, int) and status != OK else None
        error = self._session.channel.refusal(status, told)
        if isinstance(error, ContentFiltered):
            self._keep(
                self._settings,
                prompt,
                ask,
                [Completion.empty("content_filter", self._session.model)] * ask.count,
            )
            return "filtered"
        if is_passing(error):
            return "undone"
        self.tally.error = self.tally.error or error
        return "refused"

    def _faulty(self, error: ProviderError) -> str:
        self.tally.error = self.tally.error or error
        return "unreadable"
