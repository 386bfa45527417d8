"""A real vLLM for live tests. BLB_TEST_VLLM names a Python with vLLM, BLB_TEST_VLLM_MODEL a folder
with a model; BLB_TEST_VLLM_DTYPE is float32 unless set.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PYTHON = os.environ.get("BLB_TEST_VLLM", "")
MODEL = os.environ.get("BLB_TEST_VLLM_MODEL", "")
DTYPE = os.environ.get("BLB_TEST_VLLM_DTYPE", "float32")
NEEDED = [
    pytest.mark.live,
    pytest.mark.skipif(
        not (PYTHON and MODEL),
        reason="set BLB_TEST_VLLM to a Python with vLLM and BLB_TEST_VLLM_MODEL",
    ),
]
"""The marks of a module that needs it."""
ERROR = {"float32": 2e-3, "bfloat16": 0.3}[DTYPE]
"""Nats by which a logprob may be off: the same prefix in another batch is another order of sums."""
ALONE = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}
"""Its environment: no hub, no telemetry."""


@contextmanager
def vllm_server(flags: str, log: Path, environment: dict[str, str]) -> Iterator[int]:
    """The port of a server with these flags, from when it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = f"-m vllm.entrypoints.openai.api_server --host 127.0.0.1 --port {port} {flags}"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [PYTHON, *words.split()],
            env=os.environ | ALONE | environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + 300
            while not _healthy(port):
                assert process.poll() is None, log.read_text(errors="replace")[-4000:]
                assert time.monotonic() < until, log.read_text(errors="replace")[-4000:]
                time.sleep(1)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False
