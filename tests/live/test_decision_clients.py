"""Other people's clients of decision endpoints through the proxy, unmodified and by base URL alone:
each gets the mended answer, whatever the upstream speaks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.deploy.proxy.decisions import ServedQuestions
from blackbox_lb.deploy.proxy.server import Proxy
from blackbox_lb.questions.question import question_of_labels
from tests.support.deciding_upstream import KEY, deciding, deciding_with_key, mended
from tests.support.environments import Install, environment, output
from tests.support.proxy_upstream import Answering, proxied

__all__ = ["environment"]  # a fixture

CLIENTS = Path(__file__).with_name("third_party") / "decision_clients.py"
PACKAGES = {
    "typesafe": "typesafe-sdk[zstd]==0.7.5",
    "openai": "openai>=3.57",
    "langchain": "langchain-typesafe==0.0.1a3",
    "jev_eval": "jev-eval==1.2.0",
    "dspy": "dspy[typesafe]==3.4.1",
}
"""Client -> what is installed for it."""
CONFORMANCE = "jevcompat==0.1.1"
QUESTION = question_of_labels(["billing", "tech", "sales"], "Which team?").replacing(id="team")
STATE = "I was charged twice."
READINGS = ("systemone", "openai", "sglang", "letters", "words")


@pytest.fixture(scope="module")
def programs(environment: Install) -> Path:
    """The programs of an environment with all clients."""
    return environment(" ".join([*PACKAGES.values(), CONFORMANCE]))


@contextmanager
def serving(reading: Any, upstream: Answering = deciding) -> Iterator[tuple[str, Proxy]]:
    """The address of a proxy with the question before an upstream, without /v1; the proxy."""
    row = mended(QUESTION, reading, offsets=(0.0, 0.0, 20.0))
    with proxied(upstream, questions=ServedQuestions([row])) as (_, port, proxy):
        yield f"http://127.0.0.1:{port}", proxy


@pytest.mark.live
@pytest.mark.parametrize(
    ("client", "reading"), [*((client, "systemone") for client in PACKAGES), ("openai", "letters")]
)
def test_an_unmodified_client_gets_the_mended_answer(
    programs: Path, client: str, reading: str
) -> None:
    """The offsets make the last option the largest, which the upstream's answer need not be. What
    the upstream speaks no client sees: one is enough to try another.
    """
    request = json.dumps({"state": STATE, "question": QUESTION.as_json()})
    with serving(reading) as (root, proxy):
        printed = output(programs / "python", CLIENTS, client, root, REQUEST=request)
        counts = dict(proxy.metrics.decisions)
    answer = json.loads(printed.splitlines()[-1])
    assert answer["choice"] == "sales"
    assert answer.get("long", "sales") == "sales"
    if client == "openai":
        assert "choices" in answer["refusal"] or "instructions" in answer["refusal"]
    if client != "dspy":
        assert answer["probabilities"]["sales"] > 0.99
        assert list(answer["probabilities"]) == list(QUESTION.names)
    assert counts["mended"] >= 1


@pytest.mark.live
@pytest.mark.parametrize("reading", READINGS)
def test_the_conformance_test_of_system_one_passes(programs: Path, reading: str) -> None:
    """Every MUST that it can reach without a key, with any upstream."""
    with serving(reading) as (root, _):
        printed = output(programs / "jevcompat", "test", root)
    failed = [line for line in printed.splitlines() if "✗ MUST" in line]
    assert not failed
    assert "conformant to spec 0.1: MUST 32/32" in printed, printed


@pytest.mark.live
@pytest.mark.parametrize("reading", ["systemone", "letters"])
def test_the_callers_key_is_read_by_the_upstream(programs: Path, reading: str) -> None:
    """What can be reached with a key alone: bearer keys pass, missing and wrong ones get the
    upstream's 401 in System One's form.
    """
    with serving(reading, deciding_with_key) as (root, _):
        printed = output(programs / "jevcompat", "test", root, "--key", KEY)
    lines = printed.splitlines()
    for name in (
        "MUST   auth.bearer",
        "SHOULD auth.missing",
        "SHOULD auth.invalid",
    ):
        assert any(f"✓ {name}" in line for line in lines), printed
    assert not [line for line in lines if "✗ MUST" in line]
