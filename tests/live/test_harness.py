"""lm-evaluation-harness and the package ask one engine the same questions and give every answer the
same score.

By default ``tests/unit/extras/test_harness.py`` states the same without an engine:
``test_the_prompts_are_the_harnesss`` of the questions, ``test_every_score_is_the_harnesss`` of
extracted answers and scores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from blackbox_lb.api.local.engine import LocalEngine, resolve_model
from blackbox_lb.extras.harness import HarnessMetric, HarnessOptions, load_harness
from blackbox_lb.tasks.rewards.matching import Matcher

pytest.importorskip("xllamacpp")
lm_eval = pytest.importorskip("lm_eval")
pytestmark = [pytest.mark.live, pytest.mark.slow]

MAX_TOKENS = 64
QUESTIONS = 12
FEWSHOT = 2
THINGS = ("cups", "bricks", "stamps", "coins", "nails", "pens")


def problems(first: int, count: int) -> list[dict[str, str]]:
    """Word problems in the columns of GSM8K."""
    return [
        {
            "question": (
                f"Bo has {n} {THINGS[n % 6]} and gets {n % 7} more. How many {THINGS[n % 6]} has Bo"
                " now?"
            ),
            "answer": (
                f"Bo has {n} + {n % 7} = <<{n}+{n % 7}={n + n % 7}>>{n + n % 7}"
                f" {THINGS[n % 6]}.\n#### {n + n % 7}"
            ),
        }
        for n in range(first, first + count)
    ]


def own_yaml(folder: Path, data: Path) -> str:
    """The harness's task gsm8k with local files, under a name of its own."""
    config = {
        "include": str(Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / "gsm8k.yaml"),
        "task": "gsm8k_files",
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {
            "data_files": {split: str(data / f"{split}.jsonl") for split in ("train", "test")}
        },
    }
    (folder / "gsm8k_files.yaml").write_text(json.dumps(config))  # JSON is YAML
    return str(config["task"])


def run_harness(engine: LocalEngine, folder: Path, data: Path) -> list[dict[str, Any]]:
    """What the harness's own command logs of every question and filter."""
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"]
    where = f"base_url={engine.base_url}/completions,model={engine.model_path.stem}"
    command += [
        "--model_args",
        f"{where},tokenizer_backend=None,tokenized_requests=False,max_gen_toks={MAX_TOKENS}",
    ]
    command += [
        "--tasks",
        own_yaml(folder, data),
        "--include_path",
        str(folder),
        "--num_fewshot",
        str(FEWSHOT),
    ]
    command += ["--log_samples", "--output_path", str(folder / "out")]
    offline = {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | offline
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (log,) = (folder / "out").rglob("samples_gsm8k_files_*.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_every_answer_is_scored_alike(tmp_path: Path) -> None:
    """Same prompts, same extracted answers, same scores under both filters; and our own greedy run
    gives the same completions.
    """
    data = tmp_path / "data"
    data.mkdir()
    for split, rows in (("train", problems(10, 30)), ("test", problems(60, QUESTIONS))):
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with LocalEngine(resolve_model(), parallel=1, context=1024) as engine:
        logged = run_harness(engine, tmp_path, data)
        client = OpenAI(base_url=engine.base_url, api_key="none")
        for name in ("strict-match", "flexible-extract"):
            task = load_harness("gsm8k", HarnessOptions(data, FEWSHOT, filter=name))
            samples = sorted(
                (row for row in logged if row["filter"] == name), key=lambda row: int(row["doc_id"])
            )
            assert isinstance(task.correct, Matcher)
            assert isinstance(task.correct.judge, HarnessMetric)
            assert len(samples) == len(task.test) == QUESTIONS
            for example, sample in zip(task.test, samples, strict=True):
                ((text,),) = sample["resps"]
                assert example.prompt.text == sample["arguments"]["gen_args_0"]["arg_0"]
                assert [task.correct.judge.extracted(example, text)] == sample["filtered_resps"]
                assert task.correct(example, text) == bool(sample["exact_match"])
            print(
                f"{name}: {sum(sample['exact_match'] for sample in samples)} of {QUESTIONS}"
                " correct, by both"
            )
        same = 0
        for example, sample in zip(task.test, samples, strict=True):
            answer = client.completions.create(
                model=engine.model_path.stem,
                prompt=example.prompt.text,
                max_tokens=MAX_TOKENS,
                temperature=0,
                stop=list(task.stop),
            )
            same += answer.choices[0].text == sample["resps"][0][0]
        assert same == QUESTIONS
