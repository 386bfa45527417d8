"""Damaged answers: whatever one field of an answer holds, it is read, or refused with an error of
the tree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from blackbox_lb.api.wire import parse_response
from blackbox_lb.errors import BlbError, CorruptResponse
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import Profile
from blackbox_lb.types import Sampling
from blackbox_lb.vocabulary import Vocabulary
from tests.support.entries import entry
from tests.support.errors import raises_naming

ProfileWith = Callable[..., Profile]
Path = tuple[Any, ...]
GONE = object()
DAMAGE: list[Any] = [GONE, None, True, "", "\ud800", [], {}, [None], [256]]
DAMAGE += [3, -1, 2**40, 10**400, -1e300, np.nan, -np.inf, -9999.0]


ENTRIES = [
    entry(" the", -0.5, (" the", -0.5), (" a", -1.0)),
    entry(" cat", -9999.0, (" a", -1.0), (" the", -2.0)),
]
PAIRS = {"output_token_logprobs": [[-0.5, 0, " the"], [-1.0, 2, " cat"]]}
NESTED = {**PAIRS, "output_top_logprobs": [[[-0.5, 0, None], [-1.0, 1, None]], [[-1.0, 2, None]]]}
FLAT = {
    **PAIRS,
    "output_top_logprobs_idx_flat": [0, 1, 2, 3],
    "output_top_logprobs_val_flat": [-0.5, -1.0, -1.0, -2.0],
    "output_top_logprobs_shape": [2, 2],
    "output_top_logprobs_null_prefix": 0,
}
LEGACY = {
    "tokens": [" the", " cat"],
    "token_logprobs": [-0.5, -1.0],
    "top_logprobs": [{" the": -0.5, " a": -1.0}, {" cat": -1.0}],
}


def answer(**choice: Any) -> dict[str, Any]:
    """An answer of one choice."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return {"model": "m", "usage": usage, "choices": [{"finish_reason": "stop", **choice}]}


def of_meta(info: dict[str, Any]) -> dict[str, Any]:
    """An answer of SGLang's own dialect."""
    return answer(message={"content": " the cat"}, logprobs={}, meta_info=info)


PART = {"type": "output_text", "text": " the cat", "logprobs": ENTRIES}
RESPONSE = {
    "status": "completed",
    "output": [{"type": "message", "content": [PART]}],
    "usage": {"output_tokens": 2},
}
META = {"endpoints": {"chat": {"dialect": "meta"}}}
ANSWERS: dict[str, tuple[dict[str, Any], Endpoint, dict[str, Any]]] = {
    "content": ({}, "chat", answer(message={"content": " the cat"}, logprobs={"content": ENTRIES})),
    "legacy": ({}, "completions", answer(text=" the cat", logprobs=LEGACY)),
    "latin-1": (
        {"endpoints": {"completions": {"id": "latin-1"}}},
        "completions",
        answer(text=" the", logprobs=LEGACY),
    ),
    "responses": ({}, "responses", RESPONSE),
    "meta": (META, "chat", of_meta(NESTED)),
    "flat meta": (META, "chat", of_meta(FLAT)),
}


def paths(value: Any, here: Path = ()) -> Iterator[Path]:
    """Where every field of ``value`` stands, at any depth."""
    children: Any = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, child in children:
        yield (*here, name)
        yield from paths(child, (*here, name))


def damaged(value: Any, path: Path, damage: Any) -> Any:
    """A copy of ``value`` with the field at ``path`` replaced, or gone."""
    result = owner = copy.deepcopy(value)
    for name in path[:-1]:
        owner = owner[name]
    if damage is GONE:
        del owner[path[-1]]
    else:
        owner[path[-1]] = damage
    return result


@pytest.mark.parametrize("name", ANSWERS)
def test_one_damaged_field_is_read_or_refused(
    profile_with: ProfileWith, vocabulary: Vocabulary, name: str
) -> None:
    """No other exception and no warning, and what is read is numbers of the right shape."""
    rows, endpoint, whole = ANSWERS[name]
    profile, sampling = profile_with(**rows), Sampling(top_logprobs=2)
    assert parse_response(profile, endpoint, whole, sampling, vocabulary)[0].whole
    refused = 0
    for path in paths(whole):
        for damage in DAMAGE:
            try:
                found = parse_response(
                    profile, endpoint, damaged(whole, path, damage), sampling, vocabulary
                )
            except BlbError:
                refused += 1
                continue
            for each in found:
                assert isinstance(each.text, str), (path, damage)
                assert each.token_ids.shape == each.logprobs.shape == each.top_ids.shape[:1], (
                    path,
                    damage,
                )
                assert np.isfinite(each.logprobs).all(), (path, damage)
                assert not np.isnan(each.top_logprobs).any(), (path, damage)
                assert each.n_tokens >= 0, (path, damage)
    assert refused > 100


FIRST = ("choices", 0, "logprobs", "content", 0)
"""Where the first position of an answer of chat stands."""


@pytest.mark.parametrize(
    "path",
    [
        ("choices",),
        ("choices", 0),
        ("choices", 0, "message", "content"),
        (*FIRST, "bytes"),
        (*FIRST, "logprob"),
        (*FIRST, "top_logprobs", 0, "bytes"),
    ],
)
def test_a_missing_field_is_refused(
    profile_with: ProfileWith, vocabulary: Vocabulary, path: Path
) -> None:
    """Nothing that is missing is made up."""
    _, endpoint, whole = ANSWERS["content"]
    with pytest.raises(CorruptResponse):
        parse_response(profile_with(), endpoint, damaged(whole, path, GONE), Sampling(), vocabulary)


@pytest.mark.parametrize("answer", [None, [], "no", 3, {}, {"error": {"message": "overloaded"}}])
@pytest.mark.parametrize("endpoint", ["chat", "completions", "responses"])
def test_what_is_no_answer_is_refused(
    profile_with: ProfileWith, endpoint: Endpoint, answer: Any
) -> None:
    """A 200 with anything else inside is not an answer."""
    missing = "output" if endpoint == "responses" else "choices"
    wrong: list[Any] = [answer, {missing: "x"}, {missing: [1]}]
    if endpoint != "responses":
        wrong.append({missing: []})
    for each in wrong:
        with raises_naming(CorruptResponse, "acme", missing):
            parse_response(profile_with(), endpoint, each, Sampling(top_logprobs=2))


def test_a_number_is_no_list_of_bytes(profile_with: ProfileWith, vocabulary: Vocabulary) -> None:
    """Python would make that many zero bytes of it, and another token, or run out of memory."""
    for path in (("bytes",), ("top_logprobs", 0, "bytes")):
        broken = answer(
            message={"content": "x"}, logprobs={"content": [damaged(ENTRIES[0], path, 3)]}
        )
        with raises_naming(CorruptResponse, "'3'"):
            parse_response(profile_with(), "chat", broken, Sampling(top_logprobs=2), vocabulary)


def test_a_bound_of_probability_zero_is_refused(
    profile_with: ProfileWith, vocabulary: Vocabulary
) -> None:
    """A token that was sampled cannot have been less likely than one that is impossible."""
    impossible = entry(" cat", -9999.0, (" a", -0.001), (" the", -np.inf))
    with raises_naming(CorruptResponse, "-inf"):
        parse_response(
            profile_with(),
            "chat",
            answer(message={"content": " cat"}, logprobs={"content": [impossible]}),
            Sampling(top_logprobs=2),
            vocabulary,
        )
