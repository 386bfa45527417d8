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
from typing import Any

import pytest
from openai import OpenAI

from blackbox_lb import Bias, apply, load_task
from blackbox_lb.api.local.engine import LocalEngine, resolve_model
from blackbox_lb.bias.records import Entry

pytestmark = pytest.mark.live
END = 2


def test_fit_and_judge(tmp_path: Path) -> None:
    """The first command of the README on fewer prompts: greedy decisions of SmolLM2 become
    right.
    """
    accuracy, bias = fitted(
        tmp_path,
        "continents",
        (16, 4, 12),
        "accuracy",
        "--max-tokens",
        "4",
        "--deploy",
        "greedy",
        metric="accuracy",
        at="greedy",
    )
    assert accuracy["verdict"] == "HELPS", accuracy
    assert 0 < len(bias.entries) <= 300
    assert bias.vocab_size == 49_152


@pytest.mark.slow
def test_fit_from_samples(tmp_path: Path) -> None:
    """Rewarded for brevity, SmolLM2 answers shorter on prompts that it was not fitted on, by more
    than six standard errors.

    With a low tau the end token, one of few entries, learns more from a smaller sample than a mild
    tau does from a large one. ``known_truth`` states the same of exact models by default.
    """
    asked = [
        "--max-tokens",
        "28",
        "--samples-per-prompt",
        "5",
        "--validation-samples",
        "1",
        "--test-samples",
        "2",
    ]
    asked += ["--l2", "2", "--tau", "0.05", "--deploy", "temperature=1", "--entries", "32"]
    tokens, _ = fitted(
        tmp_path, "capitals", (20, 2, 16), "length", *asked, metric="tokens", at="temperature 1"
    )
    assert tokens["verdict"] == "HELPS", tokens


def fitted(
    folder: Path,
    name: str,
    sizes: tuple[int, int, int],
    reward: str,
    *options: str,
    metric: str,
    at: str,
) -> tuple[dict[str, Any], Bias]:
    """The verdict on ``metric`` at one setting of ``blb fit`` on the first prompts of a built-in
    task, and the bias.
    """
    task = load_task(name)
    rows = [
        {"prompt": example.prompt.text, "answer": list(example.answers), "split": split}
        for split, size, examples in zip(
            ("train", "validation", "test"),
            sizes,
            (task.train, task.validation, task.test),
            strict=True,
        )
        for example in examples[:size]
    ]
    data = folder / "short.jsonl"
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
        reward,
    ]
    command += ["--out", str(folder / "run"), "--quiet", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)["verdict"]
    (row,) = [row for row in verdict if row["metric"] == metric and row["setting"] == at]
    return row, Bias.load(folder / "run" / "bias.json")


def test_a_biased_client_on_a_real_engine(tmp_path: Path) -> None:
    """With +100 on the end token the biased client's answer is empty; the plain client's, over the
    same connection, is not.
    """
    with LocalEngine(resolve_model()) as engine:
        client = OpenAI(base_url=engine.base_url, api_key="none")
        (model,) = [each.id for each in client.models.list()]
        entries = (Entry(id=END, bias=100.0),)
        bias = Bias(
            provider="local",
            model=model,
            tokenizer="t",
            reward="length",
            estimator="projection",
            entries=entries,
        )
        lengths = [_length(each, model) for each in (client, apply(client, bias), client)]
    assert lengths[1] == 1
    assert min(lengths[0], lengths[2]) > 1


def test_ctrl_c_stops_the_command_and_its_engine(tmp_path: Path) -> None:
    """Interrupted while it collects, the command ends without a traceback, its engine with it, its
    completions kept.
    """
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
        "--max-tokens",
        "8",
        "--concurrency",
        "4",
    ]
    running = subprocess.Popen(
        [*command, "--out", str(tmp_path), "--quiet"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while _stored(tmp_path / "rollouts.db") < 3:
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    _, complaint = running.communicate(timeout=60)
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


def _length(client: OpenAI, model: str) -> int:
    question = load_task("capitals").test[0].prompt.text
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], max_tokens=24, temperature=0
    )
    return answer.usage.completion_tokens if answer.usage else 0
