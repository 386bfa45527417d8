"""vLLM servers, one a model, on one GPU."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

__all__ = ["start", "stop", "wait"]

FLAGS = shlex.split(
    "--host 127.0.0.1 --generation-config vllm --max-logprobs -1 --max-num-seqs 512"
    " --api-server-count 4 --max-model-len 2048 --gpu-memory-utilization 0.2"
    " --kv-cache-memory-bytes 8000000000"
)
COMPILED = ("--compilation-config", '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}')
OFFLINE = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}


def start(name: str, folder: Path, port: int, out: Path) -> subprocess.Popen[bytes]:
    """Start vLLM with this model, in a session of its own; its log is OUT/NAME.server.log."""
    vllm = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder)]
    command = [*vllm, "--served-model-name", name]
    with (out / f"{name}.server.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--port", str(port), *FLAGS, *COMPILED],
            env=os.environ | OFFLINE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def wait(port: int, process: subprocess.Popen[bytes] | None, seconds: float) -> None:
    """Wait until the server answers.

    Raises:
        RuntimeError: it ended, or did not answer in time.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process is not None and process.poll() is not None:
            raise RuntimeError(
                f"the server at port {port} ended with {process.returncode}; see its log"
            )
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise RuntimeError(f"the server at port {port} did not answer in {seconds:.0f} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop one that was started here."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
