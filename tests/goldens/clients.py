"""What a program does with a learned bias: a wrapped client sends requests, which are recorded."""

from __future__ import annotations

from pathlib import Path

from openai import OpenAI

import blackbox_lb as blb
from tests.support.exact import ExactServer


def wrapped_clients(folder: Path, server: ExactServer) -> None:
    """Chat completions of three prompts through a client that was given the bias of the run."""
    bias = blb.Bias.load(folder / "run" / "bias.json")
    client = blb.apply(OpenAI(api_key="none", base_url=server.base_url), bias)
    for number, text in enumerate(("thing 1: it is red", "thing 2: it is blue", "thing 3")):
        client.chat.completions.create(
            model="exact",
            messages=[{"role": "user", "content": text}],
            max_tokens=4,
            temperature=1.0,
            seed=number,
        )
    client.close()
