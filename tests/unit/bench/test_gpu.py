"""bench.gpu: jobs that need others, stores that are copied while they are written, and the
tables.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from bench.commands import Place
from bench.gpu import __main__ as program
from bench.gpu.__main__ import Model
from bench.gpu.vllm_overhead import of_steps as overhead
from bench.steps import Step
from blackbox_lb import load_task
from blackbox_lb.cli import main
from tests.support.questions import write_rows


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """With 40 training rows of a task, and problems of GSM8K and MATH."""
    data = tmp_path / "data"
    rows = [
        {"prompt": f"Which is {i}? Answer with one word.", "answer": "entity", "split": "train"}
        for i in range(40)
    ]
    rows += [
        {"prompt": f"Which is {split}?", "answer": "person", "split": split}
        for split in ("validation", "test")
    ]
    for name in ("gsm8k", "math500"):
        (data / name).mkdir(parents=True)
    for name in ("sst2", "trec"):
        write_rows(data / f"{name}.jsonl", rows)
    for name in ("train", "test"):
        write_rows(data / "gsm8k" / f"{name}.jsonl", [{"question": "2 x 4?", "answer": "#### 8"}])
    problems = ({"problem": f"What is {n}/2?", "answer": f"\\frac{{{n}}}{{2}}"} for n in (3, 5))
    write_rows(data / "math500" / "test.jsonl", problems)
    place = Place(("--provider", "local"), tmp_path / "out", data)
    return Model("m", place, "folder")


def test_jobs_come_after_those_they_need(model: Model) -> None:
    """Each has a name of its own, and what it needs is there and begins before it; draws are
    different and have all test rows; what is run takes every command.
    """
    found = program.planned([model], program.PARTS)
    names = [job.name for job in found]
    assert len(set(names)) == len(names)
    assert all(names.index(job.needs) < names.index(job.name) for job in found if job.needs)
    data = model.place.out / "data"
    draws = [(data / f"trec_30_{draw}.jsonl").read_text().splitlines() for draw in range(5)]
    assert {len(draw) for draw in draws} == {32}
    assert len(set(map(tuple, draws))) == len(draws)
    task = load_task(data=data / "math.jsonl", learns=False)
    assert [example.answers for example in task.test] == [("\\frac{3}{2}",), ("\\frac{5}{2}",)]
    above = click.Context(main, **main.context_settings)
    for job in found:
        words = list(job.words)
        if not job.module:
            command = main.get_command(above, words.pop(0))
            assert command is not None
            command.make_context("blb", words, parent=above)
        elif job.module == "bench.gpu.vllm_overhead":
            assert words[0] == "steps"
            places = [__file__ if word.endswith("bias.json") else word for word in words[1:]]
            overhead.make_context("steps", places)
    runners = [job.variables["VLLM_USE_V2_MODEL_RUNNER"] for job in found if "_live_" in job.name]
    assert runners == ["0", "1"]


def test_a_job_ends_at_its_share_of_the_time_and_the_next_takes_what_is_there(
    tmp_path: Path,
) -> None:
    """The first is interrupted with most of the time left and has no exit code; the second runs all
    the same.
    """
    done = {name: threading.Event() for name in ("first", "second")}
    begin = time.monotonic()
    first = Step("first", ("-c", "import time; time.sleep(3600)"), module="timeit", until=0.02)
    assert program.run(first, tmp_path, begin + 100, done, begin) is None
    second = Step("second", ("-h",), "timeit", needs="first", takes_less=True, variables={"X": "1"})
    assert program.run(second, tmp_path, begin + 100, done, begin) == 0
    assert not (tmp_path / "first.exit").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--size", "10", "--minutes", "3"),
        ("--size", "10", "--part", "records"),
        ("--size", "60", "--keep"),
        ("--part", "live", "--here"),
        ("--size", "11"),
    ],
)
def test_options_that_contradict_each_other(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Refused before a server is started."""
    asked = (str(tmp_path / "out"), "--model", "m=x", "--data", str(tmp_path), "--embedding", "e")
    done = CliRunner().invoke(program.main, [*asked, *words])
    assert done.exit_code == 2
    assert words[-2] in done.output or words[-1] in done.output
    assert not (tmp_path / "out").exists()


def test_a_store_is_copied_while_it_is_written(tmp_path: Path) -> None:
    """What is in the log alone is in the copy; of no store there is no copy."""
    with sqlite3.connect(tmp_path / "rollouts.db") as store:
        store.execute("PRAGMA journal_mode = WAL")
        store.execute("CREATE TABLE t (x)")
        store.execute("INSERT INTO t VALUES (7)")
        store.commit()
        program.copy_store(tmp_path / "rollouts.db", tmp_path / "own" / "rollouts.db")
    assert sqlite3.connect(tmp_path / "own" / "rollouts.db").execute(
        "SELECT x FROM t"
    ).fetchall() == [(7,)]
    program.copy_store(tmp_path / "absent.db", tmp_path / "none" / "rollouts.db")
    assert not (tmp_path / "none" / "rollouts.db").exists()


def _row(setting: str, base: float, biased: float) -> dict[str, Any]:
    return {
        "setting": setting,
        "metric": "contains",
        "base": base,
        "biased": biased,
        "low": 0.0,
        "high": 0.1,
        "verdict": "HELPS",
    }


def test_tables_hold_greedy_rows_and_means_over_draws(tmp_path: Path) -> None:
    """Temperature 1 goes behind greedy; draws have a mean and a standard error; what is packed
    holds no large store.
    """
    out = tmp_path / "out"
    for name, biased in (("m_trec", 0.5), ("m_trec_30_0_words", 0.6), ("m_trec_30_1_words", 0.8)):
        (out / name).mkdir(parents=True)
        beside = [
            {"against": "fixed bias", "base": 0.5},
            {"against": "classifier on words", "base": 0.4},
        ]
        verdict = [_row("temperature 1", 0.1, 0.2), _row("greedy", 0.3, biased)]
        (out / name / "result.json").write_text(
            json.dumps({"verdict": verdict, "beside": beside, "usage": None})
        )
    numbers = {"mean": 0.5, "low": 0.4, "high": 0.6}
    policy = {"setting": "greedy", "prompts": 9, "metrics": {"contains": numbers}}
    policies = [
        policy | {"name": name, "bias": bias} for name, bias in (("base", None), ("b", "b"))
    ]
    evaluation = {"label": "contains", "model": "m", "policies": policies, "comparisons": []}
    (out / "m_trec" / "evaluation.json").write_text(json.dumps(evaluation))
    (out / "m_trec" / "rollouts.db").write_bytes(bytes(program.LARGEST + 1))
    done = CliRunner().invoke(
        program.main,
        [str(out), "--model", "m=x", "--data", str(tmp_path), "--embedding", "e", "--summary"],
    )
    assert done.exit_code == 0, done.output
    table = (out / "summary.md").read_text()
    assert "| m_trec | 0.300 | 0.500 | +0.000 to +0.100 HELPS |" in table
    assert (
        "| m_trec | 30 | words | 2 | 0.500 ± 0.000 | 0.700 ± 0.100 | 0.400 ± 0.000 | 2 | +0.200 |"
        in table
    )
    assert "## m_trec" in table
    assert "| **b** | 0.50 (0.40 to 0.60) |" in table
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        assert {"out/summary.json", "out/m_trec/result.json"} <= set(archive.getnames())
        assert "out/m_trec/rollouts.db" not in archive.getnames()
