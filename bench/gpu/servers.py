"""A vLLM server on a GPU."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["serving"]

FLAGS = shlex.split(
    "--host 127.0.0.1 --generation-config vllm --max-logprobs -1 --max-num-seqs 512"
    " --api-server-count 4 --max-model-len 4096"
)
"""The model's own length would need more memory for a single request than a large model leaves;
its tensors keep the types of its files.
"""
COMPILED = ("--compilation-config", '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}')
OFFLINE = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}


@contextmanager
def serving(
    name: str, folder: Path, port: int, log: Path, more: Sequence[str], until: float
) -> Iterator[None]:
    """vLLM with the model of a folder, in a session of its own, from when it answers.

    Args:
        name: of the model in requests.
        folder: of the model.
        port: at which it listens.
        log: file for what it prints.
        more: options, before which equal ones of ``FLAGS`` give way.
        until: when it must answer, in seconds of the monotonic clock.

    Raises:
        RuntimeError: it ended, or did not answer in time.
    """
    vllm = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder)]
    command = [*vllm, "--served-model-name", name, "--port", str(port), *FLAGS, *COMPILED, *more]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=os.environ | OFFLINE, stdout=file, stderr=file, start_new_session=True
        )
    try:
        while not _answers(port):
            if process.poll() is not None:
                raise RuntimeError(f"vLLM ended with {process.returncode}; see {log}")
            if time.monotonic() > until:
                raise RuntimeError(f"vLLM did not answer in time; see {log}")
            time.sleep(1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False
