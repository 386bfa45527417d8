"""``blb serve`` with the embedded engine: one address, one bias, and an end in good order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from tests.support.commands import blb
from tests.support.smollm import FINGERPRINT, ids

BODY: dict[str, Any] = {
    "temperature": 0,
    "max_tokens": 3,
    "messages": [{"role": "user", "content": "Is the sky blue?"}],
}


def save_bias(folder: Path, **fields: Any) -> None:
    """A run's folder whose bias makes every token " yes", learned by another server."""
    made = {
        "provider": "llamacpp",
        "model": "another-name.gguf",
        "tokenizer": FINGERPRINT,
        "reward": "length",
        "estimator": "ips",
        "entries": (Entry(id=ids()[b" yes"], bias=100.0),),
    }
    Bias(**{**made, **fields}).save(folder / "bias.json")


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str]]:
    """The address of a running ``blb serve``, and its line; it must end in order when told to."""
    command = [sys.executable, "-m", "blackbox_lb", "serve", str(folder), "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),  # without the COLUMNS that GNU readline puts into that of C
    )
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
        address = re.match(r"blb serve at (\S+) -> \S+ adds: (\S+) ", line)
        assert address, line
        yield address[1], address[2]
    finally:
        process.send_signal(signal.SIGTERM)
        _, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints


@pytest.mark.live
@pytest.mark.needs("xllamacpp")
def test_the_engine_answers_with_the_bias(tmp_path: Path) -> None:
    """Under the engine's own name of the model, which is listed; the engine ends with it."""
    save_bias(tmp_path)
    with serving(tmp_path) as (address, model):
        listed = httpx2.get(f"{address}/models").json()["data"]
        assert [row["id"] for row in listed] == [model]
        assert httpx2.get(f"{address.removesuffix('/v1')}/ready").status_code == 200
        answer = httpx2.post(f"{address}/chat/completions", json={"model": model, **BODY})
        assert answer.headers["blackbox-lb-bias"] == model
        assert answer.json()["choices"][0]["message"]["content"] == " yes yes yes"


@pytest.mark.live
@pytest.mark.needs("xllamacpp")
def test_a_bias_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    """Before anything is served: its ids mean other tokens."""
    save_bias(tmp_path, tokenizer="another")
    result = blb("serve", tmp_path, "--port", "0")
    assert result.exit_code == 2
    assert "learned under tokenizer another" in result.stderr
