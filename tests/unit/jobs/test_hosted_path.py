"""The tutorial's path for open weights on a host: key, self-test, a fit within a cost, the bias in
a client; through OpenRouter's and Together's rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from blackbox_lb import Bias, apply
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.safety.http import retries
from tests.encodings import register_encoding
from tests.support.commands import blb
from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import RulesGateway
from tests.support.questions import write_rows

MODEL = ExactModel(40, 40, end=True, prompts=4, sharpness=0.7)
END = 39
LAST_ID = 295
"""Of the encoding: all single bytes stand behind the exact model's tokens."""
KEY = "sk-gateway-0123456789abcdefghijklmnop"
REWARD = r"regex:\b[cd]\b"
HOSTS = [
    ("openrouter", "openai/gpt-4o-mini", "OPENROUTER_API_KEY"),
    ("together", "Qwen/Qwen3.5-9B", "TOGETHER_API_KEY"),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[ExactServer]:
    """The open weights, as any host would serve them."""
    with ExactServer(MODEL) as running:
        yield running


@pytest.mark.parametrize(("host", "model", "variable"), HOSTS)
def test_key_doctor_fit_apply(
    host: str,
    model: str,
    variable: str,
    engine: ExactServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fit before the self-test is refused; with what it saved one is paid for within its limit,
    and its bias goes out with a client's requests.
    """
    monkeypatch.setenv(variable, KEY)
    monkeypatch.setattr(retries, "retry_pause", lambda state: 0.01)
    register_encoding(monkeypatch, f"path-{host}-{model[:4].lower()}", engine.texts, END)
    data, mine, out = tmp_path / "train.jsonl", tmp_path / "mine.toml", tmp_path / "run"
    rows = [{"prompt": f"question {number}", "answer": "a"} for number in range(60)]
    write_rows(data, rows)
    hosts: dict[str, tuple[str, ...]] = {"Full": ()}  # read by OpenRouter's rules alone
    with RulesGateway(
        host, engine, key=KEY, concurrency=1, largest=LAST_ID, hosts=hosts
    ) as gateway:
        where: list[object] = ["--model", model, "--base-url", gateway.base_url]
        where += ["--tokenizer", f"path-{host}-{model[:4].lower()}", "--concurrency", 1]
        task: list[object] = ["--data", data, "--reward", REWARD, "--max-tokens", 8, "--out", out]
        task += ["--price", "100,100", "--max-cost", 5, "--samples-per-prompt", 12]
        task += ["--tau", 0.1, "--l2", 0.5, "--test-samples", 8, "--deploy", "temperature=1"]
        early = blb("fit", "--provider", host, *where, *task)
        assert early.exit_code == 2
        assert "blb doctor" in early.stderr
        asked = len(gateway.calls)

        doctor = blb("doctor", "--provider", host, *where, "--yes", "--save", mine)
        assert doctor.exit_code == 0, doctor.output
        assert load_profile(str(mine)).unknown == []
        assert len(gateway.calls) - asked < 125

        fit = blb("fit", "--provider", mine, *where, *task, "--json", "--yes")
        assert fit.exit_code == 0, fit.output
        document: dict[str, Any] = json.loads(fit.stdout)
        assert document["verdict"][0]["verdict"] == "HELPS"
        bias = Bias.load(out / "bias.json")
        client = apply(OpenAI(base_url=gateway.base_url, api_key=KEY), bias)
        client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "question 1"}], max_tokens=4
        )
        sent = gateway.calls[-1]
    assert sent.status == 200
    assert sent.body is not None
    assert {int(token): value for token, value in sent.body["logit_bias"].items()} == dict(
        bias.logit_bias
    )
