"""Plays a scene in a folder: its server, its files, its commands; and the facts that are left."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.goldens.facts import Facts, Left, facts_of
from tests.goldens.requests import request_facts
from tests.goldens.scenes import Scene
from tests.support.commands import blb
from tests.support.exact import ExactServer
from tests.support.exact.llamacpp_answers import JSON
from tests.support.exact.server import Answer
from tests.support.questions import write_rows

ASKS = ("fit", "eval", "check")
"""Commands that ask the server."""


def play(scene: Scene, folder: Path) -> Facts:
    """The facts of a scene that is played in an empty folder.

    Raises:
        AssertionError: a command does not end with exit code 0.
        MissingFact, KeyError: the scene did not leave a fact that it is kept for.
    """
    write_rows(folder / "rows.jsonl", scene.rows)
    for name, text in scene.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    printed = []
    with scene.server() as server, contextlib.chdir(folder), _proxy(server):
        if scene.killed_after:
            _killed(_words(scene.commands[0], server), server, scene.killed_after)
        for command in scene.commands:
            result = blb(*_words(command, server))
            assert result.exit_code == 0, f"{command}\n{result.output}"
            if result.stdout.startswith("{"):
                printed.append(json.loads(result.stdout))
        if scene.afterwards is not None:
            scene.afterwards(folder, server)
        calls = list(server.calls)
    facts = facts_of(scene.facts, Left(folder / "run", printed))
    return facts | request_facts(calls, distinct=bool(scene.killed_after))


@contextlib.contextmanager
def _proxy(server: ExactServer) -> Iterator[None]:
    """The server is the proxy of every host but its own."""
    names = {"HTTP_PROXY": server.url, "NO_PROXY": "127.0.0.1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
            patch.setenv(name.lower(), value)
        yield


def _words(command: str, server: ExactServer) -> list[str]:
    words = shlex.split(command)
    if words[0] in ASKS:
        if "--provider" not in words:
            words += ["--provider", "llamacpp"]
        words += ["--base-url", server.base_url, "--seed", "1", "--quiet"]
    return words


def _killed(words: list[str], server: ExactServer, answered: int) -> None:
    """Run a command in a process of its own and kill it when it waits for one answer more than
    ``answered``.
    """
    is_waiting = threading.Event()
    is_killed = threading.Event()

    def hold(number: int, answer: JSON) -> Answer:
        if number >= answered and not is_killed.is_set():
            is_waiting.set()
            is_killed.wait()
            return "drop"
        return answer

    server.faults = hold
    with subprocess.Popen(
        [sys.executable, "-m", "blackbox_lb", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            while not is_waiting.wait(0.05):
                assert process.poll() is None, f"{words} ended before it was killed"
        finally:
            process.kill()
            is_killed.set()
    server.faults = None
