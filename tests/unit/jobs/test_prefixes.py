"""Logged prefixes: every base completion of the bias's own model counts, and nothing else that a
store holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb.errors import InputError, NoLogprobs
from blackbox_lb.jobs.compiling.logged_prefixes import logged_prefixes
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.store import RolloutStore
from blackbox_lb.types import Completion, Prompt
from blackbox_lb.vocabulary import Vocabulary
from tests.support.biases import bias_of
from tests.support.errors import raises_naming

BIAS = bias_of(reward="length")
SAMPLING = {"temperature": 1.0, "top_logprobs": 2, "max_tokens": 9, "seed": None}
BASE = {
    "provider": "vllm",
    "model": "m",
    "tokenizer": "t",
    "endpoint": "chat",
    "sampling": SAMPLING,
    "bias": [],
}
Add = Callable[..., Path]


def completion(*tokens: int) -> Completion:
    """Each token listed at .6, beside token 9 at .3."""
    shape = (len(tokens), 1)
    return Completion(
        text="x" * len(tokens),
        finish_reason="stop",
        token_ids=np.array(tokens, dtype=np.int32),
        logprobs=np.full(len(tokens), np.log(0.6), dtype=np.float32),
        top_ids=np.hstack([np.array(tokens).reshape(shape), np.full(shape, 9)]).astype(np.int32),
        top_logprobs=np.tile(np.log(np.array([[0.6, 0.3]])), shape).astype(np.float32),
    )


@pytest.fixture
def add(tmp_path: Path) -> Add:
    """Store a completion that was drawn at other settings than the base's, in the ways named;
    returns the store.
    """
    path = tmp_path / "rollouts.db"

    def put(
        *tokens: int,
        drawn: Completion | None = None,
        temperature: float = 1.0,
        top: int = 2,
        **other: Any,
    ) -> Path:
        sampling = SAMPLING | {"temperature": temperature, "top_logprobs": top}
        with RolloutStore(path) as store:
            prompt = Prompt.user(f"question {store.size().completions}")
            request = BASE | {"sampling": sampling} | other
            store.add(request, prompt, 0, drawn or completion(*tokens))
        return path

    return put


@pytest.mark.parametrize(
    "other",
    [
        {"bias": [[4, 1.0]]},
        {"temperature": 0.0},
        {"temperature": 0.5},
        {"top": 0},
        {"model": "another"},
        {"tokenizer": "another"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_nothing_else_counts(add: Add, other: dict[str, Any]) -> None:
    """Drawn with a bias, at another temperature, without lists, of another model or tokenizer: left
    alone, and an error alone. Other limits and seeds are other requests of the same base.
    """
    alone = add(5, **other)
    kind = InputError if {"model", "tokenizer"} & set(other) else NoLogprobs
    with raises_naming(kind, "rollouts.db", "m"):
        logged_prefixes(alone, BIAS, load_profile("vllm"))
    add(1, 2)
    add(3, sampling=SAMPLING | {"seed": 5, "max_tokens": 3})
    read = logged_prefixes(alone, BIAS, load_profile("vllm"))
    assert (len(read.rollouts.keys), read.next_token.n_positions, read.notices) == (2, 3, [])
    assert read.next_token.token_ids.tolist() == [1, 2, 3, 9]


def test_what_cannot_be_read_is_counted(add: Add) -> None:
    """An incomplete and a filtered completion are left out, and lists that sum to more than one are
    scaled, each with a sentence; alone they are no prefixes at all.
    """
    add(drawn=replace(completion(1), whole=False))
    path = add(drawn=Completion.empty("content_filter"))
    with raises_naming(NoLogprobs, "2", "m"):
        logged_prefixes(path, BIAS, load_profile("vllm"))
    coarse = np.log(np.array([[0.8, 0.3], [0.6, 0.3]])).astype(np.float32)
    add(drawn=replace(completion(1, 2), top_logprobs=coarse))
    read = logged_prefixes(path, BIAS, load_profile("vllm"))
    assert len(read.rollouts.keys) == 1
    counts = [" ".join(notice.split()[:3]) for notice in read.notices]
    assert sorted(counts) == ["1 completions are", "1 completions are", "1 of 2"]


def test_the_end_token_is_left_alone_where_it_is_not_listed(add: Add) -> None:
    """It stands among the alternatives and is never sampled: with the vocabulary it joins no
    support, without one it is refused.
    """
    vocabulary = Vocabulary(
        "v", {n: bytes([n]) for n in range(1, 9)}, {"<end>": 9}, 10, lambda _text: [1]
    )
    path = add(1, 2, provider="hosted")
    with raises_naming(InputError, "hosted", "``tokenizer``"):
        logged_prefixes(path, BIAS, load_profile("vllm"))
    read = logged_prefixes(path, BIAS, load_profile("vllm"), vocabulary)
    assert read.next_token.token_ids.tolist() == [1, 2]
    assert read.next_token.unnamed.tolist() == pytest.approx([0.3, 0.3])
