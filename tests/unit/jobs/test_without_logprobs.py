"""A provider that returns no logprobs: ratio learns from texts alone, the others say what they
lack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from click.testing import Result

from blackbox_lb.bias.document import Bias
from tests.support.commands import blb
from tests.support.exact import ExactModel, ExactServer

SIZE, GOOD = 20, 4
MODEL = ExactModel(SIZE, 8, end=True, prompts=6, sharpness=0.5, seed=2)
SPLITS = (("train", 20), ("validation", 6), ("test", 24))
Call = Callable[..., Result]


def silent(number: int, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without any logprobs."""
    for choice in answer["choices"]:
        choice.pop("logprobs", None)
    return answer


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model that keeps all logprobs to itself."""
    with ExactServer(MODEL, faults=silent) as running:
        yield running


@pytest.fixture
def fit(server: ExactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A fit that asks for no logprobs, with the vocabulary given by name."""
    tiktoken.list_encoding_names()
    ranks = {server.texts[token].encode(): token for token in range(SIZE - 1)}
    ranks |= {bytes([byte]): SIZE + byte for byte in range(256)}
    special = {"<|endoftext|>": SIZE - 1}
    encoding = {
        "name": "texts",
        "pat_str": r"\s?\S+|\s",
        "mergeable_ranks": ranks,
        "special_tokens": special,
    }
    constructors: Any = tiktoken.registry.ENCODING_CONSTRUCTORS
    monkeypatch.setitem(constructors, "texts", lambda: encoding)
    data, profile = tmp_path / "data.jsonl", tmp_path / "own.toml"
    rows = [
        {"prompt": f"{split} {n}", "answer": "a", "split": split}
        for split, count in SPLITS
        for n in range(count)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    profile.write_text(
        'extends = "llamacpp"\nname = "own"\ntokenizer = { source = "model name"'
        " }\n[logprobs]\nend_token_listed = false\n"
    )

    def run(*more: object) -> Result:
        where = (
            "--provider",
            profile,
            "--model",
            "exact",
            "--base-url",
            server.base_url,
            "--out",
            tmp_path / "run",
        )
        size = (
            "--samples-per-prompt",
            16,
            "--validation-samples",
            4,
            "--test-samples",
            6,
            "--max-tokens",
            8,
        )
        task = (
            "--data",
            data,
            "--reward",
            f"regex:{server.texts[GOOD]}\\b",
            "--tokenizer",
            "texts",
        )
        options = (*where, *size, *task, "--top-logprobs", 0, "--seed", 1, "--tau", 0.2, *more)
        return blb("fit", *options)

    return run


def test_ratio_needs_no_logprobs(fit: Call, server: ExactServer, tmp_path: Path) -> None:
    """It raises the token that the reward asks for, and helps; no request asked for logprobs."""
    said = fit("--estimator", "ratio")
    assert said.exit_code == 0, said.output
    assert re.search(
        r"3\d\d completions came without token logprobs", " ".join(said.output.split())
    ), "a few are blank"
    bias = Bias.load(tmp_path / "run" / "bias.json")
    assert max(bias.logit_bias, key=lambda token: bias.logit_bias[token]) == GOOD
    assert bias.verdict[0].verdict == "HELPS", bias.verdict[0]
    sent = [body for path, body in server.calls if path.endswith("/completions")]
    assert not any(body.get("logprobs") for body in sent)


@pytest.mark.parametrize("estimator", ["projection", "ips"])
def test_the_others_say_what_they_lack(fit: Call, estimator: str) -> None:
    """Exit code 2 and the estimator that would work."""
    said = fit("--estimator", estimator)
    assert said.exit_code == 2, said.output
    assert "--estimator ratio" in " ".join(said.output.split())
