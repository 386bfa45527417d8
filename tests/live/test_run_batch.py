"""A real ``vllm run-batch``: its answers are those that a server gives to the same requests, and a
fit takes them as its own.

BLB_TEST_VLLM names a Python with vLLM, BLB_TEST_VLLM_MODEL a folder with a model;
BLB_TEST_VLLM_DTYPE is float32 unless set.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from blackbox_lb.store import RolloutStore
from blackbox_lb.types import Completion

PYTHON, MODEL = os.environ.get("BLB_TEST_VLLM"), os.environ.get("BLB_TEST_VLLM_MODEL")
DTYPE = os.environ.get("BLB_TEST_VLLM_DTYPE", "float32")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        not (PYTHON and MODEL),
        reason="set BLB_TEST_VLLM to a Python with vLLM and BLB_TEST_VLLM_MODEL",
    ),
]
NAME = "m"
FLAGS = (
    f"--model {MODEL} --served-model-name {NAME} --dtype {DTYPE} --max-model-len 512"
    " --generation-config vllm --max-num-seqs 16"
)
FLAGS += " --enforce-eager --no-enable-chunked-prefill --max-num-batched-tokens 2048"
ERROR = {"float32": 2e-3, "bfloat16": 0.3}
"""Nats by which a logprob may be off: the same prefix in another batch is another order of sums."""
COUNTRIES = (
    "France",
    "Spain",
    "Italy",
    "Peru",
    "Japan",
    "Norway",
    "Egypt",
    "Kenya",
    "Cuba",
    "Chad",
)


def environment(folder: Path) -> dict[str, str]:
    """No hub, no telemetry, and vLLM's own entry as builds for the CPU lack it."""
    script = "import importlib.metadata as m; m.version('vllm')"
    if subprocess.run([str(PYTHON), "-c", script], capture_output=True, check=False).returncode:
        information = folder / "vllm-0.0.0+cpu.dist-info"
        information.mkdir(exist_ok=True)
        (information / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: vllm\nVersion: 0.0.0+cpu\n"
        )
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
    }
    return os.environ | settings | {"DO_NOT_TRACK": "1", "PYTHONPATH": str(folder)}


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A vLLM server under the flags of the batch; its base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    command = [
        str(PYTHON),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *FLAGS.split()],
            env=environment(folder),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + 300
            while not healthy(port):
                assert process.poll() is None, log.read_text(errors="replace")[-4000:]
                assert time.monotonic() < until, log.read_text(errors="replace")[-4000:]
                time.sleep(1)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def healthy(port: int) -> bool:
    """Whether it answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False


def blb(*words: object) -> str:
    """A command that must succeed; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "blackbox_lb", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def stored(folder: Path) -> dict[str, Completion]:
    """The training completions of a run by key."""
    with RolloutStore(folder / "rollouts.db", read_only=True) as store:
        (request,) = (each for each, settings in store.requests().items() if not settings["bias"])
        keys = sorted(store.keys(request))
        return dict(zip(keys, store.completions(keys), strict=True))


def test_run_batch_gives_what_a_server_gives(tmp_path: Path) -> None:
    """With a seed: the same keys, the same tokens of nearly all, their logprobs to rounding; then a
    fit asks for no training.
    """
    splits = ["train"] * 6 + ["validation"] * 2 + ["test"] * 2
    rows = [
        {"prompt": f"What is the capital of {country}?", "answer": "x", "split": split}
        for country, split in zip(COUNTRIES, splits, strict=True)
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = [
        "--provider",
        "vllm",
        "--model",
        NAME,
        "--data",
        data,
        "--reward",
        "length",
        "--max-tokens",
        12,
    ]
    task += ["--top-logprobs", 5, "--samples-per-prompt", 2, "--seed", 7]
    batch = [
        "collect",
        *task,
        "--batch",
        "--tokenizer",
        Path(MODEL or "") / "tokenizer.json",
        "--out",
        tmp_path / "batch",
    ]
    told = json.loads(blb(*batch, "--json", "--quiet"))["next"][0].split()
    places = [word for option in ("-i", "-o") for word in (option, told[told.index(option) + 1])]
    command = [str(PYTHON), "-m", "vllm.entrypoints.cli.main", "run-batch", *places, *FLAGS.split()]
    ran = subprocess.run(
        command, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=400
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "12 completions" in blb(*batch)
    with server(tmp_path) as address:
        blb("collect", *task, "--base-url", address, "--out", tmp_path / "live")
        ours, theirs = stored(tmp_path / "batch"), stored(tmp_path / "live")
        assert ours.keys() == theirs.keys()
        same = [key for key in ours if np.array_equal(ours[key].token_ids, theirs[key].token_ids)]
        assert len(same) >= len(ours) // 2
        for key in same:
            assert np.abs(ours[key].logprobs - theirs[key].logprobs).max() < ERROR[DTYPE]
            assert ours[key].whole == theirs[key].whole
            assert ours[key].top_ids.shape == theirs[key].top_ids.shape
        small = ["--test-samples", 2, "--validation-samples", 1, "--tau", 0.2, "--l2", 1]
        assert "training: 0 of 12 in" in blb(
            "fit", *task, "--base-url", address, "--out", tmp_path / "batch", *small
        )
    assert (tmp_path / "batch" / "bias.json").is_file()
