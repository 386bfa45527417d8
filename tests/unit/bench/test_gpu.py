"""bench.gpu: a page that is planned, cut off, and made at the next call; jobs, options and rates."""

from __future__ import annotations

import importlib
import re
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.commands import Place
from bench.gallery.use import USES
from bench.gpu import __main__ as program
from bench.gpu import servers
from bench.gpu.vllm_overhead import of_steps as overhead
from tests.support.exact import ExactModel, ExactServer
from tests.support.letters import PAGE


def called(server: ExactServer, folder: Path, *words: str) -> str:
    """What the command prints, with a server that answers already."""
    profile = folder / "own.toml"
    profile.write_text('extends = "llamacpp"\nname = "own"\n')
    asked = ["--provider", str(profile), "--base-url", server.base_url, "--data", str(folder)]
    ended = CliRunner().invoke(
        program.main, [str(folder / "out"), "--model", "exact", *asked, *words]
    )
    assert ended.exit_code == 0, ended.output
    return ended.output


def packed(folder: Path) -> set[str]:
    """The names in OUT.tar.gz."""
    with tarfile.open(folder / "out.tar.gz") as archive:
        return set(archive.getnames())


def requests_of(pattern: str, text: str) -> int:
    """The number of requests in a row of a table."""
    row = re.search(pattern, text)
    assert row
    return int(row[1].replace(",", ""))


def test_a_page_that_was_cut_off_is_made_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan asks nothing and forecasts the requests; a third call asks nothing; the archive has
    the page without rows of data; a page that is not there has its evaluations in the summary.
    """
    for module in program.NEEDED:
        pytest.importorskip(module)
    monkeypatch.setattr(program, "GALLERY", "tests.support.letters")
    monkeypatch.setattr(program, "PAGES", ("decisions",))
    monkeypatch.setattr(program, "USES", {"decisions": PAGE})
    monkeypatch.setattr(program, "PACKING", 0.0)
    monkeypatch.setattr(program, "SHORTEST", 1.0)
    out = tmp_path / "out"
    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7), delay=2.0) as server:
        plan = called(server, tmp_path, "--plan")
        assert "--size 30 fits" in plan
        assert not out.exists()
        assert not server.requests
        assert "not finished" in called(server, tmp_path, "--size", "0.04")
        assert "out/decisions.log" in packed(tmp_path)
        server.delay = 0.0
        assert "1 of 1 jobs ended well" in called(server, tmp_path)
        asked = len(server.requests)
        assert called(server, tmp_path).splitlines() == [str(tmp_path / "out.tar.gz")]
        assert len(server.requests) == asked > 0
        text = (out / "summary.md").read_text()
        names = packed(tmp_path)
        (out / "pages" / "decisions.json").unlink()
        called(server, tmp_path, "--size", "0")
    assert {"out/summary.md", "out/pages/decisions.md", "out/decisions/fit/bias.json"} <= names
    assert "out/decisions/letters.jsonl" not in names
    assert "| exact | [Letters](decisions.md) | temperature 1 |" in text
    assert re.search(r"\| decisions/fit \| 0\.\d+ \| 0\.\d+ \|", text)
    spent = requests_of(r"\| decisions \| \d\.\d \| ([\d,]+) \|", text)
    planned = requests_of(r"\| decisions \| 2 \| ([\d,]+) \|", plan)
    assert planned / 2 < spent <= planned
    assert "## decisions is not finished: eval" in (out / "summary.md").read_text()


def test_every_job_is_a_command_that_its_program_takes(tmp_path: Path) -> None:
    """All pages that need no hub are there; what has the GPU alone needs an earlier page's bias."""
    place = Place(("--provider", "vllm"), tmp_path, tmp_path, small=True)
    for page in program.PAGES:
        module, *words = program.page_job(page, place).words
        importlib.import_module(module + ".__main__").main.make_context(page, words)
    elsewhere = {name for name in USES if name.startswith("paper_")} | {"public_coder"}
    assert set(USES) - elsewhere == set(program.PAGES)
    *live, last = program.jobs_alone(list(program.ALONE), tmp_path, tmp_path)
    assert [job.variables["VLLM_USE_V2_MODEL_RUNNER"] for job in live] == ["0", "1"]
    bias = Path(last.variables["BLB_BIAS_DIR"], "bias.json")
    bias.parent.mkdir(parents=True)
    bias.touch()
    overhead.make_context("steps", list(last.words[2:]))


def test_other_words_are_another_job(tmp_path: Path) -> None:
    """One that failed is run again, one that ended well is not."""
    job = program.Job("help", ["timeit", "-h"])
    assert program.run(program.Job("help", ["timeit", "--none"]), tmp_path, float("inf")) == 2
    assert not job.has_ended(tmp_path)
    assert program.run(job, tmp_path, float("inf")) == 0
    assert job.has_ended(tmp_path)
    assert not program.Job("help", ["timeit", "-h", "-v"]).has_ended(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ("--size", "10"),
        ("--model", "m=x", "--job", "live", "--base-url", "http://127.0.0.1:1/v1"),
        ("--model", "m=x", "--job", "paper_accuracy"),
    ],
)
def test_options_that_contradict_each_other(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Refused before a server is started."""
    asked = (str(tmp_path / "out"), "--data", str(tmp_path), *words)
    assert CliRunner().invoke(program.main, asked).exit_code == 2
    assert not (tmp_path / "out").exists()


def test_options_of_the_user_stand_behind_those_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM takes the last of two."""
    monkeypatch.setattr(sys, "executable", "/bin/echo")
    process = servers.start("m", tmp_path, 1, tmp_path, ["--max-model-len", "512"])
    assert process.wait(60) == 0
    told = (tmp_path / "server.log").read_text()
    assert "--max-model-len 4096" in told
    assert told.endswith(" --max-model-len 512\n")
    with pytest.raises(RuntimeError, match="ended with 0"):
        servers.wait(1, process, float("inf"))
