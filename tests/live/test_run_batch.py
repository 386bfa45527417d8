"""A real ``vllm run-batch``: its answers are those that a server gives to the same requests, and a
fit takes them as its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from blackbox_lb import load_task
from blackbox_lb.store import RolloutStore
from blackbox_lb.types import Completion
from tests.support.commands import options
from tests.support.questions import write_rows
from tests.support.vllm_server import ALONE, DTYPE, ERROR, MODEL, NEEDED, PYTHON, vllm_server

pytestmark = NEEDED
NAME = "m"
FLAGS = (
    f"--model {MODEL} --served-model-name {NAME} --dtype {DTYPE} --max-model-len 512"
    " --generation-config vllm --max-num-seqs 16"
)
FLAGS += " --enforce-eager --no-enable-chunked-prefill --max-num-batched-tokens 2048"


def metadata(folder: Path) -> dict[str, str]:
    """vLLM's own entry, which builds for the CPU lack."""
    script = "import importlib.metadata as m; m.version('vllm')"
    if subprocess.run([PYTHON, "-c", script], capture_output=True, check=False).returncode:
        information = folder / "vllm-0.0.0+cpu.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: vllm\nVersion: 0.0.0+cpu\n"
        )
    return {"PYTHONPATH": str(folder)}


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
        {"prompt": example.prompt.text, "answer": "x", "split": split}
        for example, split in zip(load_task("capitals").train, splits, strict=False)
    ]
    data = write_rows(tmp_path / "data.jsonl", rows)
    task = (
        *options(provider="vllm", model=NAME, data=data, reward="length", max_tokens=12),
        *options(top_logprobs=5, samples_per_prompt=2, seed=7),
    )
    files = options(tokenizer=Path(MODEL) / "tokenizer.json", out=tmp_path / "batch")
    batch = ("collect", *task, "--batch", *files)
    told = json.loads(blb(*batch, "--json", "--quiet"))["next"][0].split()
    places = [word for option in ("-i", "-o") for word in (option, told[told.index(option) + 1])]
    command = [PYTHON, "-m", "vllm.entrypoints.cli.main", "run-batch", *places, *FLAGS.split()]
    own = metadata(tmp_path)
    ran = subprocess.run(
        command,
        env=os.environ | ALONE | own,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "12 completions" in blb(*batch)
    with vllm_server(FLAGS, tmp_path / "server.log", own) as port:
        address = f"http://127.0.0.1:{port}/v1"
        blb("collect", *task, "--base-url", address, "--out", tmp_path / "live")
        ours, theirs = stored(tmp_path / "batch"), stored(tmp_path / "live")
        assert ours.keys() == theirs.keys()
        same = [key for key in ours if np.array_equal(ours[key].token_ids, theirs[key].token_ids)]
        assert len(same) >= len(ours) // 2
        for key in same:
            assert np.abs(ours[key].logprobs - theirs[key].logprobs).max() < ERROR
            assert ours[key].whole == theirs[key].whole
            assert ours[key].top_ids.shape == theirs[key].top_ids.shape
        small = options(test_samples=2, validation_samples=1, tau=0.2, l2=1)
        assert "training: 0 of 12 in" in blb(
            "fit", *task, "--base-url", address, "--out", tmp_path / "batch", *small
        )
    assert (tmp_path / "batch" / "bias.json").is_file()
