"""The main job through hosted APIs' rules with a real language model behind them: the verdict is
the one of the engine itself.

``tests/unit/jobs/test_hosted.py::test_a_fit_from_prompts_to_a_verdict`` states the same by default, with an
exact model behind the rules; the model's fingerprint is stated by
``known_truth/test_truth_vocabulary.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb import Bias, load_task
from blackbox_lb.api.local.engine import LocalEngine, resolve_model
from tests.support.gateway import RulesGateway
from tests.support.smollm import tokenizer_json

pytestmark = [pytest.mark.live, pytest.mark.slow]
PROVIDERS = {
    "openai": ("gpt-4o-mini", "OPENAI_API_KEY"),
    "azure": ("gpt-4o-mini", "AZURE_OPENAI_API_KEY"),
    "fireworks": ("accounts/fireworks/models/gateway", "FIREWORKS_API_KEY"),
}
LAST_ID = 49_151


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    """One engine behind all providers."""
    with LocalEngine(resolve_model(), parallel=24, context=512) as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short task: capitals, 40 prompts to learn from and 60 to judge on, so that six rows can be
    judged together.
    """
    task = load_task("capitals")
    splits = (
        ("train", task.train[:40]),
        ("validation", task.validation[:4]),
        ("test", task.test[:60]),
    )
    path = tmp_path_factory.mktemp("task") / "short.jsonl"
    rows = [
        {"prompt": example.prompt.text, "answer": list(example.answers), "split": split}
        for split, examples in splits
        for example in examples
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def verdict(data: Path, out: Path, *options: str, **environment: str) -> dict[str, Any]:
    """What ``blb fit`` says of the reward at temperature 1; rewarded is brevity."""
    command = [
        sys.executable,
        "-m",
        "blackbox_lb",
        "fit",
        "--data",
        str(data),
        "--reward",
        "length",
        "--out",
        str(out),
    ]
    command += [
        "--max-tokens",
        "32",
        "--samples-per-prompt",
        "10",
        "--validation-samples",
        "1",
        "--test-samples",
        "4",
    ]
    command += ["--l2", "5", "--tau", "0.25", "--concurrency", "24", "--quiet", "--json", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    row: dict[str, Any] = json.loads(done.stdout)["verdict"][0]
    return row


@pytest.fixture(scope="module")
def direct(
    engine: LocalEngine, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The verdict of the engine itself."""
    out = tmp_path_factory.mktemp("direct")
    return verdict(data, out, "--provider", "llamacpp", "--base-url", engine.base_url)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_same_verdict_through_every_providers_rules(
    provider: str, engine: LocalEngine, data: Path, direct: dict[str, Any], tmp_path: Path
) -> None:
    """Without ids, without the end token, with -9999.0, whole numbers and five logprobs a token:
    still shorter, and proven so.

    The base rewards agree within noise, and every request is valid under OpenAI's official schema.
    """
    model, variable = PROVIDERS[provider]
    # The hosted APIs' vocabularies end with <|endoftext|>; in this model's it is the first id.
    profile = tmp_path / "profile.toml"
    profile.write_text(
        f'extends = "{provider}"\nname = "{provider}"\n[bias]\nhighest_id = {LAST_ID}\n'
    )
    with RulesGateway(provider, engine, concurrency=24) as gateway:
        where = ("--provider", str(profile), "--model", model, "--base-url", gateway.base_url)
        row = verdict(
            data,
            tmp_path / "run",
            *where,
            "--tokenizer",
            str(tokenizer_json()),
            **{variable: gateway.key},
        )
        assert gateway.invalid_requests == []
        assert set(gateway.statuses) == {200}
    assert row["verdict"] == direct["verdict"] == "HELPS", (row, direct)
    assert row["base"] == pytest.approx(direct["base"], rel=0.35)
    bias = Bias.load(tmp_path / "run" / "bias.json")
    assert bias.tokenizer == "probe-sha256:cd84d358e4b578e905070cbdfe1dab8d", (
        "the same as behind the engine itself"
    )
    assert bias.censoring is not None
    assert (bias.censoring.bounded > 0) == (provider != "fireworks")
