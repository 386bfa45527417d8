"""bench.gpu: a page that is cut off, and made at the next call; its options."""

from __future__ import annotations

import importlib
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from bench.biases import fixed
from bench.commands import Place
from bench.gallery.use import USES
from bench.gpu import __main__ as program
from bench.gpu import plan, vllm_overhead
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


def test_a_page_that_was_cut_off_is_made_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third call asks nothing; the archive has the page without rows of data."""
    for module in program.NEEDED:
        pytest.importorskip(module)
    monkeypatch.setattr(program, "GALLERY", "tests.support.letters")
    monkeypatch.setattr(program, "PAGES", ("decisions",))
    monkeypatch.setattr(program, "USES", {"decisions": PAGE})
    monkeypatch.setattr(program, "PACKING", 0.0)
    monkeypatch.setattr(program, "SHORTEST", 1.0)
    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7), delay=2.0) as server:
        assert "not finished" in called(server, tmp_path, "--size", "0.04")
        assert "out/decisions.log" in packed(tmp_path)
        server.delay = 0.0
        assert "1 of 1 pages ended well" in called(server, tmp_path)
        asked = len(server.requests)
        assert "1 of 1 pages ended well" in called(server, tmp_path)
        assert len(server.requests) == asked > 0
    names = packed(tmp_path)
    assert {"out/pages/index.md", "out/pages/decisions.md", "out/decisions/fit/bias.json"} <= names
    assert "out/decisions/letters.jsonl" not in names
    assert "| exact | [Letters](decisions.md) | temperature 1 |" in (
        tmp_path / "out" / "pages" / "index.md"
    ).read_text(encoding="utf-8")


def test_the_plan_counts_what_the_committed_pages_took() -> None:
    """A larger model takes longer, a page without recorded requests is named; nothing starts."""
    small, large = (
        CliRunner().invoke(program.main, ["nowhere", "--plan", "--billions", billions])
        for billions in ("0.5", "300")
    )
    assert small.exit_code == large.exit_code == 0
    (run,) = (page.run for page in plan.read_pages(["labels"]))
    assert f"| labels | {run.requests:,} | {run.prompt_tokens:,} |" in small.output
    assert "--size 30 does not fit" in large.output
    silent = plan.estimated(["labels", "nothing"], plan.Estimate(1.0, 6), 1.0, 30.0)
    assert "not counted: nothing" in silent


def test_every_page_is_a_command_that_the_gallery_takes(tmp_path: Path) -> None:
    """All pages that need no hub are there."""
    place = Place(("--provider", "vllm"), tmp_path, tmp_path, small=True)
    for page in program.PAGES:
        module, *words = program.words_of(page, place)
        importlib.import_module(module + ".__main__").main.make_context(page, words)
    elsewhere = {name for name in USES if name.startswith("paper_")} | {"public_coder"}
    assert set(USES) - elsewhere == set(program.PAGES)


@pytest.mark.parametrize("words", [(), ("--model", "m=x", "--job", "paper_accuracy")])
def test_what_cannot_be_made_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Before a server is started."""
    asked = (str(tmp_path / "out"), "--data", str(tmp_path), *words)
    assert CliRunner().invoke(program.main, asked).exit_code == 2
    assert not (tmp_path / "out").exists()


class Engine:
    """A vLLM that gives each request a token a step."""

    def __init__(self, *_: object, **settings: object) -> None:
        self.llm_engine = self
        self.lacking: list[int] = []

    def add_request(self, name: str, prompt: str, params: dict[str, Any]) -> None:
        """Keep what is left of it."""
        assert params["extra_args"]["blb_bias"]
        self.lacking.append(params["max_tokens"])

    def has_unfinished_requests(self) -> bool:
        """Whether a request lacks tokens."""
        return bool(self.lacking)

    def step(self) -> None:
        """A token for each."""
        self.lacking = [tokens - 1 for tokens in self.lacking if tokens > 1]


def test_the_cost_of_a_bias_inside_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both tables for each number of requests, with the way that sends the map."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=Engine, SamplingParams=dict))
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")  # restored afterwards
    fixed(3).save(tmp_path / "bias.json")
    words = ["steps", "--model", "m", "--bias", str(tmp_path / "bias.json"), "--tokens", "5"]
    words += ["--repeats", "2", "--concurrent", "1", "--concurrent", "3"]
    ended = CliRunner().invoke(vllm_overhead.main, words, catch_exceptions=False)
    assert ended.exit_code == 0
    assert ended.output.count("| LearnedBias |") == 4
    assert ended.output.count("LearnedBias to logit_bias, 3 entries, in the same repeat: ") == 4
