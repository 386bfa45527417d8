"""A vLLM server on a GPU."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

__all__ = ["start", "stop", "wait"]

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


def start(
    name: str, folder: Path, port: int, out: Path, more: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start vLLM with this model, in a session of its own; its log is OUT/server.log.

    more: options, before which equal ones of ``FLAGS`` give way.
    """
    vllm = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder)]
    command = [*vllm, "--served-model-name", name, "--port", str(port), *FLAGS, *COMPILED, *more]
    with (out / "server.log").open("wb") as log:
        return subprocess.Popen(
            command, env=os.environ | OFFLINE, stdout=log, stderr=log, start_new_session=True
        )


def wait(port: int, process: subprocess.Popen[bytes], until: float) -> None:
    """Wait until the server answers; until: in seconds of the monotonic clock.

    Raises:
        RuntimeError: it ended, or did not answer in time.
    """
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(
                f"the server at port {port} ended with {process.returncode}; see server.log"
            )
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise RuntimeError(f"the server at port {port} did not answer in time; see server.log")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop one that was started here."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
