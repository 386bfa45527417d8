"""Learning: what is looked at before all is paid for, and what a fit says of itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import Result

from blackbox_lb.bias.document import Bias
from tests.support.commands import asking, blb, options, refusal
from tests.support.exact import ExactModel, ExactServer
from tests.support.printed import ended_well
from tests.support.questions import write_rows

MODEL = ExactModel(12, 6, end=True, prompts=5, sharpness=0.7)
FIRST_LOOK = 50
"""Prompts that are looked at before more is paid for."""
TRAIN = FIRST_LOOK + 15
SPLITS = (("train", TRAIN), ("validation", 4), ("test", 12))
Call = Callable[..., Result]


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model with an end token."""
    with ExactServer(MODEL) as running:
        yield running


@pytest.fixture
def fit(server: ExactServer, tmp_path: Path) -> Call:
    """A small fit, with more training prompts than are looked at first."""
    rows = [
        {"prompt": f"{split} {n}", "answer": "a", "split": split}
        for split, count in SPLITS
        for n in range(count)
    ]
    data = write_rows(tmp_path / "data.jsonl", rows)

    def run(reward: str, *more: object) -> Result:
        where = asking(server, out=tmp_path / "run", data=data)
        size = options(samples_per_prompt=4, validation_samples=2, test_samples=2, max_tokens=6)
        return blb("fit", *where, *size, *options(top_logprobs=5, seed=1, reward=reward), *more)

    return run


def test_nothing_to_learn_stops_early(fit: Call, server: ExactServer) -> None:
    """A reward that no completion earns is noticed after 50 prompts: exit code 2, a remedy, and no
    more requests. Where the user goes on, it is refused at the end: harder prompts would not help.
    """
    words = refusal(fit("regex:nothing like this"))
    assert f"all completions of a prompt earn the same on each of {FIRST_LOOK} prompts" in words
    assert "V_0" not in words
    assert f"stopped after {FIRST_LOOK} of {TRAIN} prompts" in words
    assert "--go-on" in words
    assert len(server.completions) == 4 * FIRST_LOOK
    words = refusal(fit("regex:nothing like this", "--go-on"))
    assert "use another reward, or other prompts" in words
    assert "harder" not in words


def test_lengths_that_the_limit_hides_are_said_at_first_sight(fit: Call, tmp_path: Path) -> None:
    """Where most completions of a reward by length are cut, a longer limit is named after the first
    look, as the first reason at the end, and in the place of more prompts.
    """
    words = refusal(fit("length", "--max-tokens", 1))
    assert "completions end at the limit of 1 token" in words
    assert "--max-tokens 16" in words
    assert "another reward" not in words
    said = ended_well(fit("length", "--max-tokens", 2, "--go-on"))
    words = " ".join(said.output.split())
    assert f"first {FIRST_LOOK} prompts: " in words.partition("training: ")[0]
    assert "a reward by length cannot tell these apart: --max-tokens" in words
    failed = [
        each for each in Bias.load(tmp_path / "run" / "bias.json").findings if each.word == "FAIL"
    ]
    assert failed[0].code == "truncated"
    assert "``max_tokens=" in failed[0].remedy
    assert not any("collect" in each.remedy for each in failed)


def test_the_first_look_is_part_of_the_whole(
    fit: Call, server: ExactServer, tmp_path: Path
) -> None:
    """What the first look collected is not asked for again; the fit says what it found, in the file
    and on the screen.
    """
    said = ended_well(fit("length", "--tau", 0.3, "--l2", 5, "--verbose"))
    words = " ".join(said.output.split())
    assert f"first {FIRST_LOOK} prompts: V_0 is" in words
    bias = Bias.load(tmp_path / "run" / "bias.json")
    assert bias.rollouts == 4 * TRAIN
    trained = [body for body in server.completions if not body.get("logit_bias")]
    assert len(trained) == 4 * TRAIN + (2 + 1) * 12, (
        "training, test at two settings, each once; one candidate, no validation"
    )
    codes = {each.code for each in bias.findings}
    assert codes >= {"test", "reward", "samples", "censoring", "touched"}
    assert bias.findings[0].code == "test"
    shown = blb("show", tmp_path / "run" / "bias.json")
    assert all(f"{each.code}: " in shown.output for each in bias.findings)
    document = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [each["code"] for each in document["findings"]] == [each.code for each in bias.findings]


def test_a_training_completion_is_scored_once(
    fit: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reward is asked of each at most once in a whole fit, also of those of the first look."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        "calls = []\n"
        "def reward(example, completion):\n"
        "    calls.append(example.prompt.messages[-1].content)\n"
        "    return float(completion.n_tokens)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ended_well(fit(f"{name}:reward", "--l2", 5))
    asked = Counter(import_module(name).calls)
    scored = [count for prompt, count in asked.items() if prompt.startswith("train")]
    assert len(scored) == TRAIN
    assert max(scored) <= 4


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("--top-logprobs", 0), "use --top-logprobs from 1"),
        (("--l2", "inf"), "--l2 inf: give a finite number"),
        (("--alpha", "nan"), "--alpha nan: give a finite number"),
        (("--objective", "pareto", "--data", "bare.jsonl"), "4 of 4 validation examples have no"),
    ],
)
def test_what_cannot_work_costs_nothing(
    fit: Call,
    server: ExactServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: tuple[object, ...],
    words: str,
) -> None:
    """No logprobs, numbers that are none, and the Pareto rule on prompts without answers."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"prompt": f"{split} {n}", "split": split} for split, count in SPLITS for n in range(count)
    ]
    write_rows(Path("bare.jsonl"), rows)
    assert words in refusal(fit("length", *wrong))
    assert len(server.completions) == 0
