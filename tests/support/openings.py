"""An opening of an exact model: prompts of which some want an answer that begins with " b" or
" e", fits of it, and what ``blb check`` says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

import blackbox_lb
from tests.support.commands import blb
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_rows

MODEL = ExactModel(14, 1, seed=3, prompts=2000, sharpness=1.5, end=True)
OPENING = (1, 4)
"""Tokens " b" and " e", the opening."""
DECIDE = "begins-with:b,e"
LABELLED = ("--decide", DECIDE, "--reward", "accuracy")
COUNTS = {"train": 150, "validation": 150, "test": 60}


def margin(prompt: str) -> float:
    """Nats by which the best token of the opening is ahead of every other."""
    logprobs = MODEL.logprobs([], MODEL.prompt_of(prompt))
    return float(logprobs[list(OPENING)].max() - np.delete(logprobs, OPENING).max())


def row(
    prompt: str, rng: np.random.Generator, slope: float = 3.0, centre: float = -2.0
) -> dict[str, str]:
    """A prompt that wants the opening with a chance that rises with the model's margin, from where
    it is ``centre`` nats.
    """
    is_wanted = rng.random() < expit(slope * (margin(prompt) - centre))
    return {"prompt": prompt, "want": "begins" if is_wanted else "other"}


def fit_opening(
    folder: Path,
    server: ExactServer,
    slope: float = 3.0,
    validation_centre: float = -2.0,
    **more: Any,
) -> blackbox_lb.Run:
    """A fit from first lists of rows of all splits."""
    rng = np.random.default_rng(1)
    centres = {"validation": validation_centre}
    rows = [
        {**row(f"{split} {number}", rng, slope, centres.get(split, -2.0)), "split": split}
        for split, count in COUNTS.items()
        for number in range(count)
    ]
    return blackbox_lb.fit(
        write_rows(folder / "data.jsonl", rows),
        reward="accuracy",
        decide=DECIDE,
        provider="llamacpp",
        base_url=server.base_url,
        max_tokens=1,
        out=folder / "run",
        quiet=True,
        **more,
    )


def prompts_sent(server: ExactServer, before: int = 0) -> int:
    """How many prompts the server was asked, after so many requests."""
    return sum("messages" in body or "prompt" in body for body in server.requests[before:])


def check(server: ExactServer, data: Path, *more: object) -> str:
    """What blb check prints of these rows."""
    result = blb(
        *("check", "--provider", "llamacpp", "--base-url", server.base_url, "--data", data),
        *("--max-tokens", 1, "--quiet", "--out", data.parent / "check", *more),
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def checked(server: ExactServer, data: Path, *more: object) -> tuple[dict[str, Any], int]:
    """The same as a document, and how many prompts it asked."""
    before = len(server.requests)
    document = json.loads(check(server, data, "--json", *more))
    return document, prompts_sent(server, before)
