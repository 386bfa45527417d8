"""The origin of a result: the command, the versions, the machine, the date, and all remarks on the
way.
"""

import platform
import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click
from click.core import ParameterSource

from blackbox_lb._version import __version__
from blackbox_lb.rollouts.progress import Reporter, Watcher
from blackbox_lb.safety.secrets import redacted

PACKAGES = ("numpy", "scipy", "openai", "lm-eval", "xllamacpp")
"""Other distributions whose version can change a number."""


def provenance(notices: Sequence[str] = (), command: str | None = None) -> dict[str, Any]:
    """The origin for a document: ``command``, ``date`` (UTC), ``python``, ``machine``,
    ``versions``, ``remarks``.

    command: what was run; None for the running command line.
    ``settings``: options from a file or the environment, which the command line does not show.
    """
    return {
        "command": command_line(sys.argv[1:]) if command is None else redacted(command),
        "settings": _settings(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": (
            {"blackbox-lb": __version__}
            | {name: found for name in PACKAGES if (found := _version(name)) is not None}
        ),
        "remarks": [redacted(notice) for notice in notices],
    }


def command_line(arguments: Sequence[str]) -> str:
    """The command in shell syntax, without secrets in addresses or options."""
    return shlex.join(["blb", *map(redacted, arguments)])


def _settings() -> dict[str, str]:
    """Option -> value, for options of the running command that are not on its command line."""
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return {}
    unseen = (ParameterSource.DEFAULT_MAP, ParameterSource.ENVIRONMENT)
    given = (name for name in ctx.params if ctx.get_parameter_source(name) in unseen)
    return {name: redacted(str(ctx.params[name])) for name in given}


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
