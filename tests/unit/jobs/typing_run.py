"""Checked by mypy, never run: a fit and its run as a user writes them."""

from __future__ import annotations

from typing import assert_type

from openai import OpenAI

import blackbox_lb as blb


def reward(example: blb.Example, completion: blb.Completion) -> float:
    """A user's own reward."""
    return float(completion.text in example.answers) - 0.01 * completion.n_tokens


def one_call() -> None:
    """Arguments and results have types."""
    run = blb.fit("rows.jsonl", reward=reward, provider="vllm", tau=[0.5, 1.0], entries=None)
    assert_type(run, blb.Run)
    assert_type(run.bias, blb.Bias)
    assert_type(run.apply(OpenAI()), OpenAI)
    assert_type(run.examples(3)[0].base.text, str)
    assert_type(run.decide(["a", {"state": {"b": 1}}], question="team")[0].label, str | None)
    blb.fit("rows.jsonl", reward="length", on_progress=lambda step: print(step.done))
    blb.fit("rows.jsonl", reward="length", learn_from="neither")  # type: ignore[arg-type]
    blb.fit("rows.jsonl", reward="length", samples="ten")  # type: ignore[call-arg]
    blb.fit("rows.jsonl")  # type: ignore[call-arg]
    blb.fit([{"prompt": "a", "answer": "b"}], reward="accuracy", deploy="greedy")
    blb.fit(3, reward="accuracy")  # type: ignore[arg-type]


async def in_a_loop() -> None:
    """The asynchronous call has the same type."""
    assert_type(await blb.fit_async("rows.jsonl", reward="length"), blb.Run)
