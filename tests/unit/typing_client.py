"""Checked by mypy, never run: a biased client has the type of the client it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from openai import AsyncAzureOpenAI, AsyncOpenAI, AzureOpenAI, OpenAI

from blackbox_lb.bias import Bias
from blackbox_lb.client import apply


class Own(OpenAI):
    """A caller's subclass."""


def same_type(bias: Bias, path: Path) -> None:
    """Every kind of client comes back as what it was, and the options are checked."""
    assert_type(apply(OpenAI(), bias), OpenAI)
    assert_type(apply(AsyncOpenAI(), path), AsyncOpenAI)
    assert_type(apply(AzureOpenAI(), str(path), others="raise"), AzureOpenAI)
    assert_type(apply(AsyncAzureOpenAI(), bias, on_conflict="add", models=["a"], as_pairs=True), AsyncAzureOpenAI)
    assert_type(apply(Own(), bias), Own)
    assert_type(bias.logit_bias, dict[int, float])
    apply(OpenAI(), bias, on_conflict="merge")  # type: ignore[arg-type]
    apply(object(), bias)  # type: ignore[type-var]
