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
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from bench.gpu import __main__ as program
from bench.gpu import jobs, summary
from bench.gpu.jobs import Job, Place
from bench.gpu.vllm_overhead import of_steps as overhead
from blackbox_lb.cli import main
from blackbox_lb.tasks.load import load_task
from tests.support.questions import write_rows


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """One task of 40 training rows."""
    rows = [
        {"prompt": f"Which is {i}? Answer with one word.", "answer": "entity", "split": "train"}
        for i in range(40)
    ]
    rows += [
        {"prompt": f"Which is {split}?", "answer": "person", "split": split}
        for split in ("validation", "test")
    ]
    write_rows(tmp_path / "trec.jsonl", rows)
    return Place("m", ("--provider", "local"), tmp_path / "out", tmp_path, "folder")


def test_jobs_come_after_those_they_need(place: Place) -> None:
    """Each has a name of its own, and what it needs is there and begins before it; draws are
    different and have all test rows.
    """
    found = program.planned([place], program.PARTS)
    names = [job.name for job in found]
    assert len(set(names)) == len(names)
    assert all(names.index(job.needs) < names.index(job.name) for job in found if job.needs)
    draws = [
        place.out.joinpath("data", f"trec_30_{draw}.jsonl").read_text().splitlines()
        for draw in range(jobs.DRAWS[30])
    ]
    assert {len(each) for each in draws} == {32}
    assert len(set(map(tuple, draws))) == len(draws)


def test_math_is_answered_with_the_biases_of_gsm8k(place: Place) -> None:
    """One evaluation a bias, each after its fit; ``blb`` takes every command."""
    (place.data / "math500").mkdir()
    rows = ({"problem": f"What is {n}/2?", "answer": f"\\frac{{{n}}}{{2}}"} for n in range(3, 6))
    write_rows(place.data / "math500" / "test.jsonl", rows)
    found = jobs.math(place)
    assert [job.needs for job in found] == ["m_gsm8k_projection", "m_gsm8k_ips"]
    for job in found:
        _read_by_blb(job)
    task = load_task(data=place.out / "data" / "math.jsonl", learns=False)
    assert [example.answers for example in task.test] == [
        (f"\\frac{{{n}}}{{2}}",) for n in (3, 4, 5)
    ]


def _read_by_blb(job: Job) -> None:
    """Let ``blb`` read the words of a job, without running it."""
    above = click.Context(main, **main.context_settings)
    command = main.get_command(above, job.command[0])
    assert command is not None
    command.make_context(job.command[0], list(job.command[1:]), parent=above)


def test_a_job_ends_at_its_share_of_the_time_and_the_next_takes_what_is_there(
    tmp_path: Path,
) -> None:
    """The first is interrupted with most of the time left and has no exit code; the second runs all
    the same.
    """
    done = {name: threading.Event() for name in ("first", "second")}
    begin = time.monotonic()
    first = Job("first", ("-c", "import time; time.sleep(3600)"), module="timeit", until=0.02)
    assert program.run(first, tmp_path, begin + 100, done, begin) is None
    second = Job("second", ("-h",), "first", module="timeit", takes_less=True, variables={"X": "1"})
    assert program.run(second, tmp_path, begin + 100, done, begin) == 0
    assert not (tmp_path / "first.exit").exists()


def test_the_live_tests_run_under_both_runners(place: Place) -> None:
    """Each in an environment of its own; the overhead is that of the first decision's bias."""
    found = jobs.live(place)
    assert [job.variables["VLLM_USE_V2_MODEL_RUNNER"] for job in found] == ["0", "1"]
    assert Path(found[0].command[1]).is_file()
    (job,) = jobs.overhead(place)
    assert job.needs == "m_trec"
    overhead.make_context(
        "steps", [__file__ if word.endswith("bias.json") else word for word in job.command[1:]]
    )


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
    (out / "m_trec" / "rollouts.db").write_bytes(bytes(program.LARGEST + 1))
    done = CliRunner().invoke(
        program.main,
        [str(out), "--model", "m=x", "--data", str(tmp_path), "--embedding", "e", "--summary"],
    )
    assert done.exit_code == 0, done.output
    table = (out / "summary.md").read_text()
    assert "| m_trec | 0.300 | 0.500 |" in table
    assert (
        "| m_trec | 30 | words | 2 | 0.500 ± 0.000 | 0.700 ± 0.100 | 0.400 ± 0.000 | 2 | +0.200 |"
        in table
    )
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        assert {"out/summary.json", "out/m_trec/result.json"} <= set(archive.getnames())
        assert "out/m_trec/rollouts.db" not in archive.getnames()


def test_gsm8k_is_right_by_its_words_or_by_its_last_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number behind the words is right; one without them is only the last number; and the two
    estimators are compared on the same problems.
    """
    questions = [f"question {number}" for number in range(4)]
    rows = [{"prompt": question, "answer": "7", "split": "test"} for question in questions]
    rows += [{"prompt": name, "answer": "7", "split": name} for name in ("train", "validation")]
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / "gsm8k.jsonl", rows)
    right, last, wrong = "The answer is 7.", "So there are 7.", "The answer is 8."
    texts = {
        "ips": {"base": [wrong] * 4, "biased": [wrong, wrong, last, last]},
        "projection": {"base": [wrong] * 4, "biased": [right, right, right, last]},
    }
    for name in texts:
        (tmp_path / f"m_gsm8k_{name}").mkdir()
        (tmp_path / f"m_gsm8k_{name}" / "result.json").write_text("{}")

    def greedy(folder: Path, *_: object) -> Any:
        for policy, said in texts[folder.name.rpartition("_")[2]].items():
            yield policy, list(zip(questions, said, strict=True))

    monkeypatch.setattr(summary, "_greedy", greedy)
    monkeypatch.setattr(summary, "Bias", SimpleNamespace(load=lambda _: None))
    found = summary._school(tmp_path)
    ips, projection = found["m_gsm8k_ips"], found["m_gsm8k_projection"]
    assert (ips["biased right"], ips["biased last number right"]) == (0, 0.5)
    assert (projection["biased right"], projection["biased last number right"]) == (0.75, 1)
    assert projection["biased says the words"] == 0.75
    assert projection["base right"] == projection["base last number right"] == 0
    assert projection["more than ips"] == 0.75
    assert projection["from"] < 0.75 < projection["to"]
    assert "more than ips" not in ips
