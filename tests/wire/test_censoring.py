"""A logprob that the provider keeps back becomes a bound that cannot be wrong, and a propensity
comes from its own field.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.api.wire import parse_response
from blackbox_lb.api.wire.dialects import DIALECTS
from blackbox_lb.api.wire.identity import Identity
from blackbox_lb.api.wire.position import PositionReader
from blackbox_lb.errors import CorruptResponse, NoLogprobs
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.types import UNNAMED, Completion, Sampling
from tests.support.errors import raises_naming

ProfileWith = Callable[..., Profile]
IDS = {"tokens": {"id": "field id"}}


def entry(token: int, logprob: Any, *top: tuple[int, Any], **more: Any) -> dict[str, Any]:
    """One position: the sampled token and its alternatives."""
    alternatives = [
        {"id": other, "token": str(other), "bytes": None, "logprob": value} for other, value in top
    ]
    return {
        "id": token,
        "token": str(token),
        "bytes": None,
        "logprob": logprob,
        "top_logprobs": alternatives,
        **more,
    }


def read(profile: Profile, *entries: dict[str, Any], k: int = 3) -> Completion:
    """The completion of an answer with these positions."""
    choice = {
        "message": {"content": "x"},
        "finish_reason": "length",
        "logprobs": {"content": list(entries)},
    }
    answer = {"choices": [choice], "usage": {"completion_tokens": len(entries)}}
    (completion,) = parse_response(profile, "chat", answer, Sampling(top_logprobs=k))
    return completion


def likeliest(
    rules: EndpointRules, listed: list[tuple[int, float]], asked: int
) -> list[tuple[int, float]]:
    """The alternatives (id, logprob) that are kept of a position, from the likeliest."""
    profile = load_profile("vllm")
    identity = Identity(profile, rules, None)
    reader = PositionReader(profile, rules, DIALECTS[rules.dialect], identity, asked)
    fields = reader.read(reader.listing([0], [-1.0], [listed]))
    return list(zip(fields["top_ids"][0].tolist(), fields["top_logprobs"][0].tolist(), strict=True))


def test_a_censored_logprob_is_bounded_by_the_least_listed(profile_with: ProfileWith) -> None:
    """The sampled token is not among the k most likely, so the k-th bounds it; the positions around
    it stay observed.
    """
    found = read(
        profile_with(**IDS),
        entry(1, -0.1, (1, -0.1), (2, -3.0), (3, -4.0)),
        entry(9, -9999.0, (1, -0.1), (3, -4.5), (2, -3.0)),
    )
    assert found.bounded is not None
    assert found.bounded.tolist() == [False, True]
    assert found.bounded.dtype == np.bool_
    assert found.logprobs.tolist() == pytest.approx([-0.1, -4.5])
    assert found.token_ids.tolist() == [1, 9]
    assert 9 not in found.top_ids[1]
    assert found.whole


def test_without_a_list_nothing_bounds_but_zero(profile_with: ProfileWith) -> None:
    """No alternatives were asked for: all that is known of the logprob is that it is one."""
    found = read(profile_with(**IDS), entry(9, -9999), k=0)
    assert found.bounded is not None
    assert (found.bounded.tolist(), found.logprobs.tolist()) == ([True], [0.0])


def test_a_token_that_replaces_the_last_is_bounded_by_the_last_that_is_sure(
    profile_with: ProfileWith,
) -> None:
    """Of 3 listed only 2 are sure to be the most likely; the second bounds what is outside of
    them.
    """
    profile = profile_with(**IDS, endpoints={"chat": {"sampled_in_list": "replaces the last"}})
    found = read(profile, entry(9, -9999.0, (1, -0.1), (2, -3.0), (3, -4.0)))
    assert found.logprobs.tolist() == pytest.approx([-3.0])


def test_a_token_outside_the_list_with_its_own_logprob_is_observed(
    profile_with: ProfileWith,
) -> None:
    """With fewer alternatives than the limit, OpenAI gives the logprob of any token; nothing is
    bounded then.
    """
    found = read(profile_with(**IDS), entry(9, -7.5, (1, -0.1), (2, -3.0), (3, -4.0)))
    assert found.bounded is None
    assert found.logprobs.tolist() == [-7.5]


def test_a_logprob_that_is_kept_back_and_listed_is_known(profile_with: ProfileWith) -> None:
    """What stands in the list is a logprob, whatever stands beside the sampled token."""
    found = read(profile_with(**IDS), entry(2, -9999.0, (1, -0.1), (2, -3.0)))
    assert found.bounded is None
    assert found.logprobs.tolist() == pytest.approx([-3.0])


def test_an_alternative_without_its_logprob_is_not_listed(profile_with: ProfileWith) -> None:
    """The number that stands for "not given" is a probability nowhere, and bounds nothing."""
    found = read(profile_with(**IDS), entry(9, -9999.0, (1, -0.1), (9, -9999.0)))
    assert found.top_ids.tolist() == [[1]]
    assert found.logprobs.tolist() == pytest.approx([-0.1])


@pytest.mark.parametrize(
    ("declared", "value"), [(None, -9999.0), (-9999.0, -9998.0), (-1e9, -9999.0)]
)
def test_a_placeholder_that_the_profile_does_not_list_is_refused(
    profile_with: ProfileWith, declared: float | None, value: float
) -> None:
    """Only the number that the profile names is read as "not given"; any other that cannot be a
    logprob is corrupt.
    """
    profile = profile_with(**IDS, logprobs={"censored": declared})
    with raises_naming(CorruptResponse, "logprobs.censored"):
        read(profile, entry(9, value, (1, -0.1)))


@given(
    values=st.lists(st.floats(-50, 0, width=32), min_size=1, max_size=8, unique=True),
    asked=st.integers(0, 10),
    limit=st.integers(1, 10),
    replaces=st.booleans(),
    data=st.data(),
)
def test_nothing_unlisted_is_more_likely_than_what_is_kept(
    values: list[float], asked: int, limit: int, replaces: bool, data: st.DataObject
) -> None:
    """Whatever is not among the kept ones is at most as likely as each of them, so that the last
    one bounds it; also where the sampled token takes the last place, however many places there
    are: the server's own limit may be below k.
    """
    row: Any = "replaces the last" if replaces else "no"
    rules = EndpointRules(path="/", dialect="content", ask_logprobs="flag", sampled_in_list=row)
    order = sorted(enumerate(values), key=lambda pair: -pair[1])
    listed = list(enumerate(values))
    sure = min(asked, len(values))
    if replaces:
        width = min(asked, limit, len(values))
        sampled = data.draw(st.sampled_from(order))
        is_listed = sampled in order[:width]
        listed = order[:width] if is_listed else [*order[: max(width - 1, 0)], sampled]
        sure = max(width - 1, 0)
    assert likeliest(rules, listed, asked) == order[:sure]


def test_a_server_that_lists_fewer_than_asked_for_may_have_replaced_the_last_of_those(
    profile_with: ProfileWith,
) -> None:
    """Five asked for, three listed: the third is the sampled token, and the third most likely one
    is not known.
    """
    profile = profile_with(**IDS, endpoints={"chat": {"sampled_in_list": "replaces the last"}})
    position = entry(9, -12.0, (1, -0.5), (2, -1.5), (9, -12.0))
    assert read(profile, position, k=5).top_ids.tolist() == [[1, 2]]
    assert read(profile, position, k=3).top_ids.tolist() == [[1, 2]]
    assert read(profile, position, k=2).top_ids.tolist() == [[1]]
    assert read(profile, position, k=-1).top_ids.tolist() == [[1, 2, 9]]


def test_several_unnamed_alternatives_may_stand_in_one_list(
    profile_with: ProfileWith, vocabulary: Any
) -> None:
    """Their mass is listed mass; only a token with an id can be listed twice by mistake."""
    top = [
        {"token": name, "bytes": None, "logprob": value}
        for name, value in (("<|x|>", -1.0), ("<|y|>", -2.0))
    ]
    the = {"token": " the", "bytes": list(b" the"), "logprob": -0.75}
    content = [{**the, "top_logprobs": [*top, the]}]
    choice = {
        "message": {"content": " the"},
        "finish_reason": "stop",
        "logprobs": {"content": content},
    }
    answer = {"choices": [choice], "usage": {"completion_tokens": 1}}
    (found,) = parse_response(profile_with(), "chat", answer, Sampling(top_logprobs=3), vocabulary)
    assert found.top_ids.tolist() == [[0, UNNAMED, UNNAMED]]
    assert found.top_logprobs.tolist() == [[-0.75, -1.0, -2.0]]
    assert found.whole
    content[0]["top_logprobs"] = [*top, the, the]
    with raises_naming(CorruptResponse, "twice"):
        parse_response(profile_with(), "chat", answer, Sampling(top_logprobs=4), vocabulary)


def test_the_propensity_comes_from_the_field_that_the_profile_names(
    profile_with: ProfileWith,
) -> None:
    """The base model's logprob and the one that the token was sampled with are two columns."""
    profile = profile_with(**IDS, logprobs={"propensity": "sampling_logprob"})
    found = read(
        profile, entry(1, -0.5, sampling_logprob=-0.25), entry(2, -1.5, sampling_logprob=-1.25)
    )
    assert found.propensities is not None
    assert found.propensities.tolist() == [-0.25, -1.25]
    assert found.logprobs.tolist() == [-0.5, -1.5]


def test_without_a_field_of_its_own_there_is_no_propensity(profile_with: ProfileWith) -> None:
    """Where the logprob is the propensity there is no second column, even if the server sends
    one.
    """
    assert read(profile_with(**IDS), entry(1, -0.5, sampling_logprob=-0.25)).propensities is None


@pytest.mark.parametrize("given", [{}, {"sampling_logprob": None}])
def test_a_missing_propensity_is_named(profile_with: ProfileWith, given: dict[str, Any]) -> None:
    """Reading the other field in its place would be a guess."""
    profile = profile_with(**IDS, logprobs={"propensity": "sampling_logprob"})
    with raises_naming(NoLogprobs, "acme", "`sampling_logprob`"):
        read(profile, entry(1, -0.5, **given))


@pytest.mark.parametrize("value", [math.nan, 0.5, "x", -9999.0])
def test_a_propensity_that_is_no_logprob_is_refused(profile_with: ProfileWith, value: Any) -> None:
    """It is held to the same contract as a logprob."""
    profile = profile_with(**IDS, logprobs={"propensity": "sampling_logprob"})
    with raises_naming(CorruptResponse, f"logprob {value!r}"):
        read(profile, entry(1, -0.5, sampling_logprob=value))
