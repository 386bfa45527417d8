"""A file of mended decisions where a logit bias is expected: one sentence, before anything is asked
or written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from blackbox_lb.bias.decisions import MendedQuestion
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.export import logit_bias, vllm_xargs
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.deploy.batch_files import apply_batch
from blackbox_lb.deploy.bias_directory import Expected
from blackbox_lb.errors import BiasError
from blackbox_lb.questions.question import parse_questions
from blackbox_lb.types import Prompt
from tests.support.biases import bias_of
from tests.support.commands import blb, options, refused
from tests.support.printed import ended_well
from tests.support.tickets import QUESTION

WORDS = ("mends decisions", "Run.decide", "proxy --decide")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A bias file with one mended question and no entry."""
    [question] = parse_questions({"team": QUESTION}, "team.json")
    mended = MendedQuestion(
        question=question,
        reading="systemone",
        path="/systemone",
        model="decider-1",
        slope=2.0,
        center=(0.0, 0.0, 0.0),
        offsets=(-1.0, 0.0, 1.0),
        mending="slope and offsets",
        rows=100,
    )
    path = tmp_path / "bias.json"
    model = {"provider": "ollama", "model": "decider-1", "tokenizer": "model:decider-1"}
    bias_of(**model, reward="accuracy", decisions=(mended,)).save(path)
    return path


def test_python_gets_no_logit_bias_of_it(file: Path, tmp_path: Path) -> None:
    bias = Bias.load(file)
    batch = tmp_path / "batch.jsonl"
    batch.write_text("{}\n")
    uses: dict[str, Callable[[], object]] = {
        "logit_bias": lambda: bias.logit_bias,
        "at": lambda: bias.at(Prompt.user("a")),
        "to_request_bias": lambda: to_request_bias(bias),
        "export": lambda: logit_bias(file),
        "xargs": lambda: vllm_xargs(file, "team", messages="a"),
        "a server of vLLM": lambda: Expected("another", 100, 100).check(bias),
        "batch": lambda: apply_batch(batch, tmp_path / "out.jsonl", file),
    }
    for name, use in uses.items():
        with pytest.raises(BiasError) as raised:
            use()
        assert all(word in str(raised.value) for word in WORDS), name


def test_commands_refuse_it(file: Path) -> None:
    server = options(provider="ollama", base_url="http://127.0.0.1:9/v1", model="decider-1")
    for words in (
        ["try", file, "hello", *server],
        ["compile", file, *options(provider="openai")],
        ["analyze", file],
        ["export", file, "--format", "openai"],
        ["proxy", "--bias", file, *options(upstream="http://127.0.0.1:9/v1")],
    ):
        text = refused(*words)
        assert all(word in text for word in WORDS), (words, text)


def test_show_prints_how_it_mends(file: Path) -> None:
    shown = ended_well(blb("show", file))
    for text in ("team", "billing", "-1.000", "slope 2.000", "decider-1"):
        assert text in shown.output
    assert "Promoted" not in shown.output
    assert json.loads(blb("show", file, "--json").stdout)["decisions"][0]["slope"] == 2.0
