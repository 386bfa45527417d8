"""Checked by mypy, never run: a biased client has the type of the client it was made from, a
drop-in one the SDK's arguments.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from openai import AsyncAzureOpenAI, AsyncOpenAI, AzureOpenAI, OpenAI

from blackbox_lb import Bias, apply
from blackbox_lb import openai as drop_in


class Own(OpenAI):
    """A caller's subclass."""


def same_type(bias: Bias, path: Path) -> None:
    """Every kind of client comes back as what it was, and the options are checked."""
    assert_type(apply(OpenAI(), bias), OpenAI)
    assert_type(apply(AsyncOpenAI(), path), AsyncOpenAI)
    assert_type(apply(AzureOpenAI(), str(path), others="raise"), AzureOpenAI)
    assert_type(
        apply(AsyncAzureOpenAI(), bias, on_conflict="add", models=["a"], as_pairs=True),
        AsyncAzureOpenAI,
    )
    assert_type(apply(Own(), bias), Own)
    assert_type(bias.logit_bias, dict[int, float])
    apply(OpenAI(), bias, on_conflict="merge")  # type: ignore[arg-type]
    apply(object(), bias)  # type: ignore[type-var]


def drop_ins(bias: Bias, path: Path) -> None:
    """Each stands where the SDK's stands, copies to itself, and takes the SDK's arguments with
    their types.
    """
    client = drop_in.OpenAI(bias=bias, api_key="k", timeout=3.0, max_retries=1)
    plain: OpenAI = client
    assert_type(client.with_options(timeout=3), drop_in.OpenAI)
    other: AsyncOpenAI = drop_in.AsyncOpenAI(
        bias="bias.json", base_url="http://127.0.0.1/v1", bias_others="raise"
    )
    azure: AzureOpenAI = drop_in.AzureOpenAI(
        bias=path, azure_endpoint="https://a", bias_models=["d"]
    )
    last: AsyncAzureOpenAI = drop_in.AsyncAzureOpenAI(
        bias=path, azure_deployment="d", bias_as_pairs=True
    )
    drop_in.OpenAI()  # type: ignore[call-arg]
    drop_in.OpenAI(bias=bias, api_key=3)  # type: ignore[arg-type]
    drop_in.OpenAI(bias=bias, azure_endpoint="https://a")  # type: ignore[call-arg]
    drop_in.OpenAI(bias=bias, bias_on_conflict="merge")  # type: ignore[arg-type]
    _ = plain, other, azure, last
