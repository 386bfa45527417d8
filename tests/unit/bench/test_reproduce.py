"""The paper's tables run again: its settings as printed, the rule of scaling, the layout, and the
whole command.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from bench.paper import clusters as clusters_module
from bench.paper import run as job_module
from bench.paper.__main__ import main
from bench.paper.clustering import Clustering
from bench.paper.plan import FEWEST_PROBLEMS, FEWEST_ROLLOUTS, Rollouts, load_table
from blackbox_lb import Bias, RolloutStore
from blackbox_lb.cli import main as blb
from blackbox_lb.estimate.choice.table import ROWS
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_rows

MODEL = ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)
SPLITS = (("train", range(9)), ("validation", range(20, 28)), ("test", range(40, 48)))
PAPER = {
    # rollouts, positions, training cap, test cap, test problems
    "math": (64, 128, 1024, 1024, 5000),
    "gsm8k": (128, 256, 512, 1024, 1319),
    "gpqa": (128, 128, 512, 4096, 45),
}
Call = Callable[..., Result]


def test_settings_are_those_of_the_paper() -> None:
    """Appendix "Rollout-generation settings", and the table of sample sizes, number by number."""
    for table in ("accuracy", "compression"):
        for name, paper in load_table(table)["benchmarks"].items():
            keys = ("rollouts", "positions", "train_cap", "test_cap", "test")
            assert tuple(paper[key] for key in keys) == PAPER[name]
    chosen = ("reward", "objective", "clusters")
    assert [load_table("accuracy")[key] for key in chosen] == ["log-accuracy", "reward", 32]
    assert [load_table("compression")[key] for key in chosen] == ["length", "pareto", 0]


@pytest.mark.parametrize("table", ["accuracy", "compression"])
def test_every_number_says_where_the_paper_has_it(table: str) -> None:
    """Each line of a benchmark that holds a number ends in a comment."""
    text = Path(job_module.__file__).with_name(f"{table}.toml").read_text(encoding="utf-8")
    parts = [part for part in text.split("\n\n") if part.startswith("[benchmarks.")]
    lines = [
        line
        for part in parts
        for line in part.splitlines()
        if " = " in line and not line.startswith("title")
    ]
    assert lines
    assert [line for line in lines if "  # " not in line and not line.startswith("harness")] == []


@given(st.integers(1, 10_000), st.integers(1, 256), st.floats(1e-6, 1))
def test_a_part_is_a_part(problems: int, samples: int, share: float) -> None:
    """Never more problems or rollouts than there are; as many in all as asked for, but for rounding
    and the smallest numbers.
    """
    full = Rollouts(problems, samples)
    part = full.part(share)
    assert 1 <= part.problems <= problems
    assert 1 <= part.samples <= samples
    smallest = part.problems <= FEWEST_PROBLEMS or part.samples <= FEWEST_ROLLOUTS
    if not smallest and part.problems < problems:
        assert abs(part.total - full.total * share) <= part.samples / 2 + 1e-6
    assert full.part(1) == full


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model with an end token."""
    with ExactServer(MODEL) as running:
        yield running


@pytest.fixture(autouse=True)
def no_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed, the extra ``clusters`` is not."""
    monkeypatch.setattr(job_module, "find_spec", lambda name: None)


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """Run the command on 9, 8 and 8 problems; ``answer`` is right where it is contained."""
    data, profile = tmp_path / "own.jsonl", tmp_path / "profile.toml"
    profile.write_text('extends = "llamacpp"\nname = "own"\n')

    def run(
        table: str, *more: object, url: str = "http://127.0.0.1:1/v1", answer: str = "a"
    ) -> Result:
        rows = [
            {"prompt": f"question {n}", "answer": answer, "split": split}
            for split, ns in SPLITS
            for n in ns
        ]
        write_rows(data, rows)
        where = (
            "--provider",
            profile,
            "--base-url",
            url,
            "--out",
            tmp_path / "run",
            "--top-logprobs",
            4,
            "--seed",
            1,
        )
        options = ("--table", table, "--data", data, "--scale", 1e-6, *where, *more)
        return CliRunner().invoke(main, [str(each) for each in options])

    return run


def test_the_whole_command(call: Call, server: ExactServer, tmp_path: Path) -> None:
    """Ours stands beside the paper's, within what the plan said, with every bias and its verdict; a
    second run asks for nothing.
    """
    options = ("accuracy", "--benchmark", "gsm8k")
    planned = json.loads(call(*options, "--dry-run", "--json").stdout)["plan"]["gsm8k"]
    assert not server.requests
    first = call(*options, url=server.base_url)
    assert first.exit_code == 0, first.output
    with RolloutStore(tmp_path / "run" / "gsm8k" / "rollouts.db") as store:
        drawn = store.size().completions
    assert 0 < drawn <= sum(stage["completions"] for stage in planned)

    document = json.loads((tmp_path / "run" / "reproduction.json").read_bytes())
    methods = document["benchmarks"][0]["methods"]
    assert list(methods) == ["base", "clusters", "ips", "projection"]
    assert "needs the extra clusters" in methods["clusters"]["missing"]
    for name in ("ips", "projection"):
        own = methods[name]
        bias = Bias.load(tmp_path / "run" / "gsm8k" / name / "bias.json")
        assert own["rollouts"] == 8 * 4
        verdict = own["verdict"]
        saved = [(row.metric, row.difference, row.verdict) for row in bias.verdict or ()]
        assert saved == [(row["metric"], row["difference"], row["verdict"]) for row in verdict]
        assert [row["metric"] for row in verdict] == ["accuracy", "tokens"]
        assert verdict[0]["biased"] == pytest.approx(own["accuracy"]["mean"])
        assert verdict[0]["setting"] == "greedy"
        assert (bias.estimator, bias.sampling and bias.sampling.max_tokens) == (name, 512)
    alphas = load_table("accuracy")["alpha"]
    assert any(f"alpha {value:g}" in methods["ips"]["chosen"] for value in alphas)

    page = (tmp_path / "run" / "reproduction.md").read_text(encoding="utf-8")
    assert (
        "| LoRA-GRPO | ~10^7 |  | 45.24 ± 1.40 | 76.72 ± 2.27 | not run | 31.11 ± 13.33 |" in page
    )
    assert (
        "| Logit bias (32 clusters) | 32 |  | 30.12 ± 1.26 | 33.30 ± 2.58 | not run | 24.40 ±"
        " 13.33 |" in page
    )
    assert "projection, 100% of the rollouts" in page
    for told in (
        "problems from own.jsonl, not the paper's",
        "not run: MATH, GPQA",
        "the paper does not tell",
    ):
        assert told in page
        assert told in first.stdout

    asked = len(server.requests)
    again = call(*options, "--json", url=server.base_url)
    assert json.loads(again.stdout)["benchmarks"] == document["benchmarks"]
    assert [path for path, _ in server.calls[asked:] if "completions" in path] == []


def test_the_baseline_of_clusters(
    call: Call, server: ExactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is learned from the words of the validation completions, judged and saved as the others
    are; its row leaves the table.
    """
    given: list[tuple[list[str], object]] = []

    def made(
        vocabulary: object, texts: list[str], *, k: int, cache: Path, **_: object
    ) -> Clustering:
        given.append((texts, cache.name))
        return Clustering(np.arange(12) % 3, k, "toy", 5)

    monkeypatch.setattr(job_module, "find_spec", lambda name: object())
    monkeypatch.setattr(clusters_module, "cluster_vocabulary", made)
    done = call("accuracy", "--benchmark", "gsm8k", url=server.base_url)
    assert done.exit_code == 0, done.output
    assert "32 clusters of 5 words and special strings by toy" in done.stderr
    ((texts, cache),) = given
    assert (len(texts), any(texts), cache) == (8, True, "clusters.npz")
    document = json.loads((tmp_path / "run" / "reproduction.json").read_bytes())
    methods = document["benchmarks"][0]["methods"]
    own = methods["clusters"]
    assert "missing" not in own
    assert own["params"] == 32
    assert own["chosen"].startswith("tau 1, alpha ")
    assert own["rollouts"] == methods["ips"]["rollouts"] == 8 * 4
    folder = tmp_path / "run" / "gsm8k" / "clusters"
    bias, learned = Bias.load(folder / "bias.json"), Bias.load(folder / "learned.json")
    assert bias.estimator == "clusters"
    assert len(bias.verdict or ()) == len(own["verdict"]) == 2
    assert 0 < len(learned.logit_bias) < 12
    assert len(set(learned.logit_bias.values())) <= 2
    assert "clusters" not in ROWS
    shown = CliRunner().invoke(blb, ["show", str(folder / "bias.json")])
    assert (shown.exit_code, "clusters" in shown.output) == (
        0,
        True,
    ), "a file of an estimator that the package lacks is read"


def test_the_plan_alone_needs_no_server(call: Call) -> None:
    """What would be asked for is told in completions and tokens, with what was scaled, and a larger
    scale asks for more.
    """
    told = call("compression", "--dry-run")
    assert told.exit_code == 0, told.output
    assert "in all at most" in told.stdout
    assert "of the paper's 6,900 x 64 = 441,600" in told.stdout
    sums = []
    for scale in (1e-6, 1):
        plan = json.loads(call("compression", "--dry-run", "--json", "--scale", scale).stdout)[
            "plan"
        ]["math"]
        sums.append(sum(stage["tokens"] for stage in plan))
    assert sums[0] < sums[1]


def refused(result: Result, *parts: str) -> None:
    """One sentence, no traceback, exit code 2."""
    assert result.exit_code == 2, result.output
    for part in parts:
        assert part in result.output
    assert "Traceback" not in result.output


def test_refusals(call: Call, tmp_path: Path) -> None:
    """What cannot be run is said before anything is asked for."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    refused(call("compression", url=url), "127.0.0.1", "Error: ")
    refused(call("compression", "--data", tmp_path / "none.jsonl"), "none.jsonl")
    refused(call("compression", "--benchmark", "gsm8k"), "has no benchmark gsm8k", "math")
    refused(call("accuracy"), "--data has the problems of one benchmark", "give one --benchmark")
    refused(call("accuracy", "--scale", 2), "--scale")
