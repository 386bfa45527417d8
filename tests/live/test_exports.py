"""What ``blb export`` writes for other tools, run with the tools themselves, each in an environment
of its own: what reaches the server is the bias, at the setting of its verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.export import FORMATS, export
from blackbox_lb.bias.records import Entry, SamplingRecord
from tests.support.biases import length_verdict
from tests.support.environments import OFFLINE, Install, environment, output
from tests.support.exact import ExactModel, ExactServer

__all__ = ["environment"]  # a fixture

Run: TypeAlias = Callable[[Path, str, Path, str], object]
"""Programs, what was exported, an empty folder and the server's address."""

VALUES = {0: -1.5, 3: 0.25, 7: 2.0, 10: 1 / 3}
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample

@task
def hello():
    return Task(dataset=[Sample(input="Hello")])
"""
"""A task of inspect_ai: one question, no score."""
ROUTER = """
import sys, yaml, litellm
rows = yaml.safe_load(sys.argv[1])["model_list"]
router = litellm.Router(model_list=rows)
messages = [{"role": "user", "content": "Hello"}]
print(router.completion(model=rows[0]["model_name"], messages=messages))
"""
LLM_MODEL = "- {model_id: mine, model_name: exact, api_base: %s}\n"


def bias() -> Bias:
    """A greedy bias with fractions that helps."""
    return Bias(
        provider="own",
        model="exact",
        tokenizer="t",
        reward="length",
        estimator="ips",
        verdict=(length_verdict("greedy", "HELPS"),),
        sampling=SamplingRecord(max_tokens=8, top_logprobs=5, endpoint="chat"),
        entries=tuple(Entry(id=token, bias=value) for token, value in VALUES.items()),
    )


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model of 12 tokens."""
    with ExactServer(ExactModel(12, 8, end=True)) as running:
        yield running


def run_python(programs: Path, text: str, folder: Path, address: str) -> object:
    """A script."""
    # DSPy would answer from its cache of an earlier run.
    where = {"OPENAI_BASE_URL": address, "DSPY_CACHEDIR": str(folder)}
    return output(programs / "python", "-c", text, folder=folder, **OFFLINE, **where)


def run_shell(programs: Path, text: str, folder: Path, address: str) -> object:
    """Commands."""
    where = {
        "OPENAI_BASE_URL": address,
        "LLM_USER_PATH": str(folder),
        "PATH": f"{programs}:/usr/bin:/bin",
    }
    (folder / "extra-openai-models.yaml").write_text(LLM_MODEL % address)
    (folder / "TASK.py").write_text(TASK)
    # The exact model streams nothing.
    text = text.replace(" MODEL ", " mine ").replace("llm -m mine", "llm --no-stream -m mine")
    return output("bash", "-euc", text, folder=folder, **OFFLINE, **where)


def run_router(programs: Path, text: str, folder: Path, address: str) -> object:
    """A configuration, read by LiteLLM's router."""
    where = {"OPENAI_BASE_URL": address}
    return output(programs / "python", "-c", ROUTER, text, folder=folder, **OFFLINE, **where)


TOOLS: dict[str, tuple[str, Run]] = {
    "litellm": ("litellm", run_python),
    "langchain": ("langchain-openai", run_python),
    "pydantic-ai": ("pydantic-ai-slim[openai]", run_python),
    "dspy": ("dspy", run_python),
    "llm": ("llm", run_shell),
    "inspect": ("inspect_ai openai", run_shell),
    "litellm-yaml": ("litellm pyyaml", run_router),
}
"""Format -> the packages it needs, and how its text is run."""


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("format", TOOLS)
def test_the_tool_sends_the_bias(
    server: ExactServer, environment: Install, tmp_path: Path, format: str
) -> None:
    """To the last bit, or as whole numbers where that is what the tool takes; once greedy, and with
    the limit of tokens.
    """
    packages, run = TOOLS[format]
    run(environment(packages), export(bias(), format), tmp_path, server.base_url)
    bodies: list[dict[str, Any]] = [body for path, body in server.calls if "completions" in path]
    assert bodies
    expected = {str(token): value for token, value in VALUES.items()}
    if FORMATS[format].limit is not None:
        expected = {"0": -2, "7": 2}
    for body in bodies:
        assert body["logit_bias"] == expected
        assert body["temperature"] == 0
        assert body.get("max_tokens", body.get("max_completion_tokens")) == 8
