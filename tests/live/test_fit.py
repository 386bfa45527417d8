"""The main job on a real language model: the embedded engine, a small task, a verdict."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from openai import OpenAI

from blackbox_lb import Bias, apply, load_task
from blackbox_lb.local import LocalEngine, resolve_model

pytestmark = pytest.mark.live


def test_fit_judge_and_apply(tmp_path: Path) -> None:
    """Rewarded for brevity, SmolLM2 answers shorter on prompts it was not fitted on, in the verdict and through a biased client."""
    task = load_task("capitals")
    rows = [
        {"prompt": example.prompt.text, "answer": list(example.answers), "split": split}
        for split, examples in (
            ("train", task.train[:24]),
            ("validation", task.validation[:6]),
            ("test", task.test[:24]),
        )
        for example in examples
    ]
    data = tmp_path / "short.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        sys.executable,
        "-m",
        "blackbox_lb",
        "fit",
        "--provider",
        "local",
        "--data",
        str(data),
        "--reward",
        "length",
    ]
    command += ["--max-tokens", "24", "--samples-per-prompt", "4", "--validation-samples", "2", "--test-samples", "2"]
    command += ["--out", str(tmp_path / "run"), "--l2", "1", "--quiet", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (tokens,) = [row for row in result["verdict"] if row["metric"] == "tokens" and row["setting"] == "temperature 1"]
    assert tokens["verdict"] == "HELPS", tokens
    bias = Bias.load(tmp_path / "run" / "bias.json")
    assert 0 < len(bias.entries) <= 300
    assert bias.vocab_size == 49_152
    with LocalEngine(resolve_model()) as engine:
        client = OpenAI(base_url=engine.base_url, api_key="none")
        plain, biased = (_mean_length(each, bias.model) for each in (client, apply(client, bias)))
    assert biased < plain


def test_ctrl_c_stops_the_command_and_its_engine(tmp_path: Path) -> None:
    """Interrupted while it collects, the command ends without a traceback, its engine with it, its completions kept."""
    command = [
        sys.executable,
        "-m",
        "blackbox_lb",
        "collect",
        "--provider",
        "local",
        "--task",
        "capitals",
        "--reward",
        "length",
    ]
    running = subprocess.Popen(
        [*command, "--out", str(tmp_path), "--quiet"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while _stored(tmp_path / "rollouts.db") < 3:
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    _, complaint = running.communicate(timeout=15)
    assert running.returncode != 0
    assert "Traceback" not in complaint
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)
    assert _stored(tmp_path / "rollouts.db") >= 3


def _stored(path: Path) -> int:
    if not path.exists():
        return 0
    with closing(sqlite3.connect(path)) as db:
        try:
            (count,) = db.execute("SELECT count(*) FROM completions").fetchone()
        except sqlite3.OperationalError:  # not made yet
            return 0
    return int(count)


def _mean_length(client: OpenAI, model: str) -> float:
    lengths = [
        client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": example.prompt.text}],
            max_tokens=24,
            temperature=1,
            extra_body={"top_k": 0, "min_p": 0},
        ).usage
        for example in load_task("capitals").test[:24]
    ]
    return sum(usage.completion_tokens for usage in lengths if usage) / len(lengths)
