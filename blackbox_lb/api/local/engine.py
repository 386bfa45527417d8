"""The embedded engine: a llama.cpp server on this machine that lives exactly as long as a ``with``
block.

It is reached over loopback HTTP like any other llama.cpp server; ``_engine_process`` explains its
separate process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import httpx2

from blackbox_lb.api.local._engine_process import HOST, EngineSettings
from blackbox_lb.api.local.hub import EXTRA, check_gguf
from blackbox_lb.errors import InputError

START_SECONDS = 30
SMALL_MODEL = 1 << 30
"""Bytes. Up to this size a model fits the caches well enough that servers of one thread beat one
server of several.
"""


class LocalEngine:
    """llama.cpp on this machine, serving one model on a free loopback port until the ``with`` block
    is left.

    ``parallel``: requests generated at once. ``context``: tokens that one request may use, prompt
    and completion together.
    ``threads``: all threads used; by default every usable core up to 16. However the block or the
    whole process ends (an exception, Ctrl-C, SIGTERM, kill -9), the engine ends too.

    Raises InputError: a size below 1, the extra is not installed, or llama.cpp cannot load the
    model (its reason is in the message).
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        parallel: int = 16,
        context: int = 512,
        threads: int | None = None,
    ) -> None:
        sizes = {
            "parallel": parallel,
            "context": context,
            "threads": 1 if threads is None else threads,
        }
        for name, value in sizes.items():
            if value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")
        self.model_path = check_gguf(Path(model_path))
        servers, server_threads = _split(
            threads or min(_cores(), 16), parallel, self.model_path.stat().st_size
        )
        self._settings = EngineSettings(
            model=str(self.model_path),
            name=self.model_path.stem,
            servers=servers,
            threads=server_threads,
            slots=-(-parallel // servers),
            context=context,
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        """The address of the running engine for an OpenAI client, as in
        ``http://127.0.0.1:41231/v1``.
        """
        if self._process is None:
            raise InputError("the engine is not running; use it in a with statement")
        return f"http://{HOST}:{self._port}/v1"

    def __enter__(self) -> LocalEngine:
        if importlib.util.find_spec("xllamacpp") is None:
            raise InputError(f"the local engine needs xllamacpp: {EXTRA}")
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine and close its port. Closing twice does nothing."""
        process = self._process
        self._process = None
        if process is not None:
            process.kill()  # nothing needs saving, and it does not listen while loading
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._log is not None:
            self._log.close()

    def _start(self) -> None:
        script = str(Path(__file__).with_name("_engine_process.py"))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        # A session of its own: Ctrl-C in a terminal reaches this process, which then stops the
        # engine.
        self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and script
            [sys.executable, "-P", script, json.dumps(self._settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        line = b""
        if self._process.stdout is not None:
            line = self._process.stdout.readline()
        if not line:
            raise InputError(
                f"llama.cpp cannot serve {self.model_path}: {self._complaint(self._process.wait())}"
            )
        self._port = json.loads(line)["port"]
        self._wait_healthy()

    def _complaint(self, status: int) -> str:
        """llama.cpp's last output, cut to the one line with the reason."""
        if self._log is None:
            return f"status {status}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        reasons = [line.partition("error loading model: ")[2] for line in lines]
        reasons = (
            [reason for reason in reasons if reason]
            or [line for line in lines if " E " in line]
            or lines[-1:]
        )
        hint = ""
        if status < 0:
            hint = "; is there enough free memory?"
        if not reasons:
            return f"it ended with status {status}{hint}"
        return reasons[0].strip() + hint

    def _wait_healthy(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(httpx2.HTTPError):
                address = f"http://{HOST}:{self._port}/health"
                if (
                    httpx2.get(address, timeout=START_SECONDS, trust_env=False).status_code
                    == httpx2.codes.OK
                ):
                    return
            time.sleep(0.05)
        raise InputError(
            f"the engine did not become healthy within {START_SECONDS} s; is port {self._port}"
            " filtered?"
        )


def _cores() -> int:
    """Cores this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _split(threads: int, parallel: int, size: int) -> tuple[int, int]:
    """(servers on one port, threads of each). Several servers need no barriers between layers:
    faster where the model is small.
    """
    if (
        sys.platform != "linux" or size > SMALL_MODEL
    ):  # elsewhere the kernel does not spread connections over one port
        return 1, threads
    servers = max(1, min(threads, parallel // 4, 8))
    return servers, threads // servers
