"""From the answers of a batch to the store. Each line is read like a live answer.

Lines may come in any order, and a file may be read any number of times.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.limits.budget import Spent, used_by
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
from blackbox_lb.store.rows import prompt_of
from blackbox_lb.types import Completion, Prompt

OK = 200
TOGETHER = 64
"""Answers of one transaction: a commit waits for the disk, and what is lost in a crash still stands
in the file.
"""
UNDONE = frozenset({"batch_expired", "batch_cancelled"})
"""Codes of requests that were never begun."""


@dataclass(slots=True)
class Tally:
    """The outcome of the lines of a job.

    lines: the number of lines of each kind. "answered" were stored now. "stored before" were in the
        store already, or are twice in the files. "filtered" met a content filter. "undone" expired,
        were cancelled, or failed in a way that passes. "refused" and "unreadable" have no answer.
        "short" have fewer completions than asked for. "foreign" belong to another store.
    spent: requests, tokens and dollars.
    error: that of the first refused or unreadable line.
    drifted: the first sign of another model or system.
    """

    lines: Counter[str] = field(default_factory=Counter)
    spent: Spent = field(default_factory=Spent)
    error: ProviderError | None = None
    drifted: Drifted | None = None

    def sentence(self) -> str:
        """The counts, for display."""
        counts = [f"{number:,} {kind}" for kind, number in self.lines.items() if number]
        return ", ".join(counts) or "no line"


class BatchReader:
    """Reads the files of one job into a store; ``watch`` is called with every completion."""

    def __init__(self, setup: BatchSpec, job: BatchRecord, watch: Watcher) -> None:
        self._session = setup.trials.session
        self._store = setup.trials.store
        self._settings = setup.settings
        self._sampling = setup.draw.sampling
        self._job = job
        self._prices = setup.trials.budget.prices
        self._watch = watch
        self._drift = setup.trials.drift
        self._stored = self._store.keys(job.request)
        self._prompts: dict[str, Prompt | None] = {}
        self._unstored: list[Mapping[str, Sequence[Mapping[str, Any]]]] = []
        self.tally = Tally()

    async def read(self, path: Path) -> None:
        """Store a file of answers or of errors; a missing file has no lines."""
        for line in self._lines(path):
            self.tally.lines[self._line(line)] += 1
            if len(self._unstored) == TOGETHER:
                self._store_answers()
            # Ctrl-C may end it here. Stored answers stay, and the file still has the others.
            await asyncio.sleep(0)
        self._store_answers()

    def _lines(self, path: Path) -> Iterator[bytes]:
        body = {"top_logprobs": self._sampling.top_logprobs}
        longest = ceiling(body, max(self._sampling.max_tokens, MOST_TOKENS))
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
        """Store the answer of one line, and return the line's kind in the tally."""
        try:
            document = self._session.channel.parsed(line)
        except CorruptResponse as error:
            return self._faulty(error)
        if not isinstance(document, dict):
            return "foreign"
        ask = SampleRequest.parse(document.get("custom_id"), self._job.prefix)
        if ask is None:
            return "foreign"
        prompt = self._prompt(ask.prompt)
        if prompt is None:
            return "foreign"
        if self._stored.issuperset(ask.keys(self._job.request)):
            return "stored before"
        response = document.get("response") or {}
        fault = document.get("error")
        status = None
        body = None
        if isinstance(response, dict):
            status = response.get("status_code")
            body = response.get("body")
        if fault or status != OK or not isinstance(body, dict):
            return self._failed(ask, prompt, status, fault or response)
        return self._answered(ask, prompt, body)

    def _prompt(self, name: str) -> Prompt | None:
        if name not in self._prompts:
            row = self._store.row("prompts", (name,))
            self._prompts[name] = None
            if row is not None:
                self._prompts[name] = prompt_of(row)
        return self._prompts[name]

    def _answered(self, ask: SampleRequest, prompt: Prompt, body: dict[str, Any]) -> str:
        most = ask.count * self._sampling.max_tokens
        try:
            self.tally.spent += used_by(body, 0, most, self._prices)
            completions = self._session.completions_in(body, Draw(self._sampling), ask.count)
        except (CorruptResponse, NoLogprobs) as error:
            return self._faulty(error)
        drifted = self._drift.seen(completions, self._session.profile.models.fleet)
        settings = dict(self._settings)
        if drifted is not None:
            self.tally.drifted = self.tally.drifted or drifted
            settings |= of_another(self._session.model, completions[0])
        self._keep(settings, prompt, ask, completions)
        if len(completions) < ask.count:
            return "short"
        return "answered"

    def _keep(
        self,
        settings: Mapping[str, Any],
        prompt: Prompt,
        ask: SampleRequest,
        completions: list[Completion],
    ) -> None:
        """Keep the completions of one answer until ``_store_answers``."""
        numbered = dict(zip(ask.samples, completions, strict=False))
        rows = self._store.rows_of(settings, prompt, numbered)
        self._unstored.append(rows)
        self._stored.update(row["key"] for row in rows["completions"])
        for completion in completions[: ask.count]:
            self._watch(completion)

    def _store_answers(self) -> None:
        if self._unstored:
            self._store.add_answers(self._unstored)
            self._unstored = []

    def _failed(self, ask: SampleRequest, prompt: Prompt, status: Any, fault: Any) -> str:
        """The kind of an error line.

        A filtered prompt is stored as such. A failure that passes is undone, any other is refused.
        """
        code = None
        if isinstance(fault, dict):
            fault = fault.get("body") or fault.get("error") or fault
        if isinstance(fault, dict):
            code = fault.get("code")
        if isinstance(code, str) and code in UNDONE:
            return "undone"
        if not isinstance(status, int) or status == OK:
            status = None
        error = self._session.channel.refusal(status, fault)
        if isinstance(error, ContentFiltered):
            empty = Completion.empty("content_filter", self._session.model)
            self._keep(self._settings, prompt, ask, [empty] * ask.count)
            return "filtered"
        if is_passing(error):
            return "undone"
        self.tally.error = self.tally.error or error
        return "refused"

    def _faulty(self, error: ProviderError) -> str:
        self.tally.error = self.tally.error or error
        return "unreadable"
