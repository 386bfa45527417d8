"""run.json: the settings of a folder's runs, so that none is resumed under other settings, and no
result replaced by that of another question, by accident.
"""

import hashlib
import itertools
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from blackbox_lb._version import __version__
from blackbox_lb.api.drift import DriftWatch
from blackbox_lb.api.limits.budget import Spent
from blackbox_lb.api.session import Session
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.records.run_file import (
    FILE,
    AnsweringSystems,
    RecordedRun,
    read_run_file,
)
from blackbox_lb.providers.profile import ABOUT
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.progress import Reporter, Shorter, Watcher, work
from blackbox_lb.safety.files import explained, locked, write_whole
from blackbox_lb.safety.printable import shell_line
from blackbox_lb.safety.secrets import redacted
from blackbox_lb.store import canonical, prompt_hash
from blackbox_lb.types import Prompt

PACKAGES = ("numpy", "scipy", "openai", "lm-eval", "xllamacpp")
"""Other distributions whose version can change a number."""


def provenance(
    notices: Sequence[str] = (),
    command: str | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The origin for a document: ``command``, ``date`` (UTC), ``python``, ``machine``,
    ``versions``, ``remarks``.

    command: what was run; None for the running command line.
    settings: options from a file or the environment, which the command line does not show.
    """
    return {
        "command": command_line(sys.argv[1:]) if command is None else redacted(command),
        "settings": {name: redacted(value) for name, value in settings.items()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": (
            {"blackbox-lb": __version__}
            | {name: release for name in PACKAGES if (release := _version(name)) is not None}
        ),
        "remarks": [redacted(notice) for notice in notices],
    }


def command_line(arguments: Sequence[str]) -> str:
    """The command in shell syntax, without secrets in addresses or options."""
    return shell_line("blb", *map(redacted, arguments))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


class Remembering:
    """A reporter that keeps every remark and passes everything on."""

    def __init__(self, listener: Reporter) -> None:
        self._listener = listener
        self.notices: list[str] = []

    def stage(self, title: str, completions: int) -> AbstractContextManager[Watcher]:
        """The stage of the reporter behind it."""
        return self._listener.stage(title, completions)

    def notice(self, text: str) -> None:
        """Keep the sentence and pass it on."""
        self.notices.append(text)
        self._listener.notice(text)

    def detail(self, text: str) -> None:
        """Keep the sentence and pass it on."""
        self.notices.append(text)
        self._listener.detail(text)

    def expect(self, completions: int, prompts: int, tokens: int, shorter: Shorter) -> None:
        """Pass on what is to come."""
        self._listener.expect(completions, prompts, tokens, shorter)


LOCK = "run.lock"
"""The file in a run's folder that a command at work there holds locked."""
QUESTION = ("provider", "model", "max_tokens", "seed", "stop", "prompts")
"""Settings that say what a result is about; the others say how it was come by."""
DIGITS = 16
"""Hexadecimal digits of a hash that are kept."""


@dataclass(frozen=True, slots=True)
class RunResults:
    """The results that a command writes into its folder.

    files: their names, the most important first; the rest is what is read beside them or made of
    them. about: settings beyond ``QUESTION`` that say what they are about, as the reward.
    """

    files: tuple[str, ...]
    about: Mapping[str, Any]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def settings_of_run(trials: Trials, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """The settings that a resumed run must share with its start: no address beyond its host, and no
    key. Of the profile a hash of its rows, without its title, its evidence and its rules for files
    of requests.
    """
    session = trials.session
    rows = session.profile.model_dump(mode="json", exclude={*ABOUT, "batch"} - {"name"})
    return {
        "provider": session.profile.name,
        "profile": _hash(canonical(rows)),
        "host": host_of(session),
        "model": session.model,
        "tokenizer": trials.tokenizer.fingerprint,
        "endpoint": session.endpoint,
        "max_tokens": trials.reward.max_tokens,
        "top_logprobs": trials.top_logprobs,
        "seed": trials.seed,
        "stop": list(trials.stop),
        "prompts": _hash("".join(prompt_hash(prompt) for prompt in prompts)),
    }


def work_in(folder: Path) -> AbstractContextManager[None]:
    """Inside, no other process works in the folder of a run. InputError: one does."""
    return locked(
        folder / LOCK,
        f"another command is at work in {folder}, and both would pay for the same completions; wait"
        " until it ends, stop it, or give another ``out``",
        reentrant=True,
    )


def host_of(session: Session) -> str:
    """The host of a session's address: the only part that is ever written down."""
    return urlsplit(session.base_url).hostname or ""


class Manifest:
    """The run.json of ``folder`` for the run called ``name`` (its command).

    results: what the command writes into the folder; None where it replaces nothing there.

    Raises InputError: the file cannot be read; or, without ``restart``, the run was started under
    other settings and was not finished, or its results would replace those about something else.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        settings: Mapping[str, Any],
        *,
        results: RunResults | None = None,
        restart: bool = False,
    ) -> None:
        self.path = folder / FILE
        self.name = name
        self.settings = dict(settings)
        self._document = read_run_file(folder)
        self._written = False
        self._results = results
        run = self._document.runs.get(name)
        if run is not None and not run.finished and not restart:
            self._refuse_others(run)
        if not restart:
            self._refuse_replacing()

    def expect(self, drift: DriftWatch) -> None:
        """Give ``drift`` the earlier answering systems for the same model at the same address."""
        answered = self._answered()
        if answered is not None:
            drift.models.update(answered.models)
            drift.systems.update(answered.systems)

    def start(self) -> None:
        """Write that the run has begun. Raises InputError where that cannot be written."""
        run = RecordedRun(settings=self.settings, version=__version__, started=_now())
        self._document.runs[self.name] = run
        self._write()
        self._written = True

    def end(self, drift: DriftWatch, spent: Spent, error: BaseException | None) -> None:
        """Write the end of a begun run: by ``error``, or complete. A run with wrong input has
        ended, too. After a complete one, results about something else make room for its own.
        """
        if error is None:
            self._set_aside()
        run = self._document.runs.get(self.name)
        all_was_stored = error is None and run is not None and run.settings == self.settings
        if run is None or not (self._written or all_was_stored):
            return
        run.finished = error is None or isinstance(error, InputError)
        run.ended = _now()
        run.stopped_by = None if error is None else type(error).__name__
        run.mixed = drift.mixed
        counts = {
            name: getattr(spent, name)
            for name in ("requests", "prompt_tokens", "completion_tokens")
        }
        run.spent = {**counts, "dollars": round(spent.dollars, 6)}
        answered = self._answered()
        if answered is None:
            provider, host, model = (self.settings[key] for key in ("provider", "host", "model"))
            answered = AnsweringSystems(provider=provider, host=host, model=model)
            self._document.answered.append(answered)
        answered.models = dict(drift.models)
        answered.systems = dict(drift.systems)
        if error is None and self._results is not None:
            self._document.results[self.name] = self._question(self._results)
        self._write()

    def _answered(self) -> AnsweringSystems | None:
        key = tuple(self.settings[name] for name in ("provider", "host", "model"))
        return next(
            (
                answered
                for answered in self._document.answered
                if (answered.provider, answered.host, answered.model) == key
            ),
            None,
        )

    def _refuse_others(self, recorded: RecordedRun) -> None:
        if recorded.mixed:
            raise InputError(
                f"the run of {self.name} in {self.path.parent} stopped because the tokenizer"
                " changed: its last completions may be of either; start anew with another ``out``,"
                " or take them as they are with ``restart``"
            )
        names = [
            name
            for name, value in self.settings.items()
            if recorded.settings.get(name, value) != value
        ]
        if names:
            changes = "; ".join(
                f"{name} {recorded.settings[name]!r} -> {self.settings[name]!r}" for name in names
            )
            raise InputError(
                f"the run of {self.name} in {self.path.parent} was not finished and had other"
                f" settings: {changes}; give them as they were, another ``out``, or ``restart`` to"
                " go on under the new ones (what is stored stays, and is not mixed)"
            )

    def _question(self, results: RunResults) -> dict[str, Any]:
        """What the results of this run are about."""
        return {name: self.settings[name] for name in QUESTION} | dict(results.about)

    def _other_question(self) -> dict[str, tuple[Any, Any]]:
        """Setting -> its values in the results that lie in the folder, and in this run, where they
        differ.
        """
        if self._results is None or not (self.path.parent / self._results.files[0]).exists():
            return {}
        before = self._document.results.get(self.name)
        question = self._question(self._results)
        return {
            name: (before[name], value)
            for name, value in question.items()
            if before is not None and before.get(name, value) != value
        }

    def _refuse_replacing(self) -> None:
        changes = "; ".join(
            f"{name} {before!r} -> {value!r}"
            for name, (before, value) in self._other_question().items()
        )
        if changes:
            raise InputError(
                f"{self.path.parent} holds the results of another {self.name}: {changes}; give"
                " another ``out``, or ``restart`` to put them into a folder beside the new ones"
            )

    def _set_aside(self) -> None:
        """Move results about something else into a folder of their own."""
        if self._results is None or not self._other_question():
            return
        folder = self.path.parent
        with explained(f"put the results in {folder} aside", "make room, or give another ``out``"):
            places = (folder / f"replaced-{number}" for number in itertools.count(1))
            aside = next(place for place in places if not place.exists())
            aside.mkdir()
            for name in self._results.files:
                if (folder / name).exists():
                    (folder / name).replace(aside / name)

    def _write(self) -> None:
        text = json.dumps(self._document.model_dump(mode="json"), indent=2) + "\n"
        with explained(f"write {self.path}", "make room, or give another ``out``"):
            write_whole(self.path, text.encode())


def earlier_pace(folder: Path, provider: str) -> tuple[float, float, float] | None:
    """How fast the largest run in ``folder`` that asked ``provider`` was.

    Returns seconds of a unit of work (``rollouts.progress.work``), and tokens of a prompt and of a
    completion; None where no run tells. Raises InputError: the record cannot be read.
    """
    runs = [
        run
        for run in read_run_file(folder).runs.values()
        if run.ended and run.spent.get("requests") and run.settings.get("provider") == provider
    ]
    if not runs:
        return None
    run = max(runs, key=lambda run: run.spent["requests"])
    requests = run.spent["requests"]
    prompts = run.spent.get("prompt_tokens", 0.0)
    tokens = run.spent.get("completion_tokens", 0.0)
    spent = datetime.fromisoformat(run.ended or "") - datetime.fromisoformat(run.started)
    second = spent.total_seconds() / max(work(prompts, tokens), 1.0)
    return second, prompts / requests, tokens / requests


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
