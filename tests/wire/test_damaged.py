"""Damaged answers are refused by name; that any other damage is read to lawful numbers or refused,
test_fuzz.py says.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blackbox_lb.api.wire import parse_response
from blackbox_lb.errors import CorruptResponse
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import Profile
from blackbox_lb.types import Sampling
from blackbox_lb.vocabulary import Vocabulary
from tests.support.entries import entry
from tests.support.errors import raises_naming

ProfileWith = Callable[..., Profile]
Path = tuple[Any, ...]
GONE = object()
ENTRIES = [
    entry(" the", -0.5, (" the", -0.5), (" a", -1.0)),
    entry(" cat", -9999.0, (" a", -1.0), (" the", -2.0)),
]


def answer(**choice: Any) -> dict[str, Any]:
    """An answer of one choice."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return {"model": "m", "usage": usage, "choices": [{"finish_reason": "stop", **choice}]}


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
    whole = answer(message={"content": " the cat"}, logprobs={"content": ENTRIES})
    with pytest.raises(CorruptResponse):
        parse_response(profile_with(), "chat", damaged(whole, path, GONE), Sampling(), vocabulary)


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
