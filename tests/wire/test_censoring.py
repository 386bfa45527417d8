"""A logprob that the provider keeps back becomes a bound that cannot be wrong, and a propensity
comes from its own field.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.api.wire import parse_response
from blackbox_lb.errors import CorruptResponse, NoLogprobs
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.types import UNNAMED, Completion, Sampling
from tests.support.entries import entry as spelled
from tests.support.errors import raises_naming
from tests.wire.conftest import ProfileWith, Read, choice

IDS = {"tokens": {"id": "field id"}}
REPLACES = {**IDS, "endpoints": {"chat": {"sampled_in_list": "replaces the last"}}}


def entry(token: int, logprob: Any, *top: tuple[int, Any], **more: Any) -> dict[str, Any]:
    """One position: the sampled token and its alternatives."""
    alternatives = [
        {"id": other, "token": str(other), "bytes": None, "logprob": value} for other, value in top
    ]
    sampled = {"id": token, "token": str(token), "bytes": None, "logprob": logprob}
    return {**sampled, "top_logprobs": alternatives, **more}


def read_ids(profile: Profile, *entries: dict[str, Any], k: int = 3) -> Completion:
    """The completion of an answer with these positions."""
    listed = choice(len(entries), "length", "x", logprobs={"content": list(entries)})
    answer = {"choices": [listed], "usage": {"completion_tokens": len(entries)}}
    (completion,) = parse_response(profile, "chat", answer, Sampling(top_logprobs=k))
    return completion


def test_a_censored_logprob_is_bounded_by_the_least_listed(profile_with: ProfileWith) -> None:
    """The sampled token is not among the k most likely, so the k-th bounds it; the positions around
    it stay observed.
    """
    found = read_ids(
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


@pytest.mark.parametrize(
    ("rows", "sampled", "logprob", "is_bounded"),
    [
        pytest.param(IDS, entry(9, -9999), 0.0, True, id="no list: it is a logprob"),
        pytest.param(
            REPLACES,
            entry(9, -9999.0, (1, -0.1), (2, -3.0), (3, -4.0)),
            -3.0,
            True,
            id="the last may be the sampled one, so the second bounds",
        ),
        pytest.param(
            IDS, entry(9, -7.5, (1, -0.1), (2, -3.0)), -7.5, False, id="outside, with its own"
        ),
        pytest.param(
            IDS, entry(2, -9999.0, (1, -0.1), (2, -3.0)), -3.0, False, id="kept back and listed"
        ),
        pytest.param(
            IDS,
            entry(9, -9999.0, (1, -0.25), (9, -9999.0)),
            -0.25,
            True,
            id="an alternative without its logprob is not listed",
        ),
    ],
)
def test_what_a_list_says_of_the_sampled_token(
    profile_with: ProfileWith, rows: Any, sampled: Any, logprob: float, is_bounded: bool
) -> None:
    """Its own logprob where it is given or listed, else a bound."""
    found = read_ids(profile_with(**rows), sampled)
    assert (found.bounded is not None) is is_bounded
    assert found.logprobs.tolist() == [logprob]
    assert not is_bounded or 9 not in found.top_ids[0]


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
        read_ids(profile, entry(9, value, (1, -0.1)))


@given(
    values=st.lists(st.floats(-50, 0, width=32), min_size=1, max_size=8, unique=True),
    asked=st.integers(0, 10),
    limit=st.integers(1, 10),
    data=st.data(),
)
def test_nothing_unlisted_is_more_likely_than_what_is_kept(
    values: list[float], asked: int, limit: int, data: st.DataObject
) -> None:
    """Whatever is not among the kept ones is at most as likely as each of them, so that the last
    one bounds it: where the sampled token takes the last place, however many places there are (the
    server's own limit may be below k), and where it does not.
    """
    order = sorted(enumerate(values), key=lambda pair: -pair[1])
    width = min(asked, limit, len(values))
    sampled = data.draw(st.sampled_from(order))
    listed = order[:width]
    if sampled not in listed:
        listed = [*order[: max(width - 1, 0)], sampled]
    for name, shown, sure in (
        ("llamacpp", list(enumerate(values)), min(asked, len(values))),
        ("fireworks", listed, max(width - 1, 0)),
    ):
        position = entry(sampled[0], sampled[1], *shown)
        for named in (position, *position["top_logprobs"]):
            named |= {"token_id": named["id"], "bytes": [97], "sampling_logprob": -1.0}
        found = read_ids(load_profile(name), position, k=asked)
        kept = zip(found.top_ids[0].tolist(), found.top_logprobs[0].tolist(), strict=True)
        assert list(kept) == order[:sure]


def test_a_server_that_lists_fewer_than_asked_for_may_have_replaced_the_last_of_those(
    profile_with: ProfileWith,
) -> None:
    """Five asked for, three listed: the third is the sampled token, and the third most likely one
    is not known.
    """
    position = entry(9, -12.0, (1, -0.5), (2, -1.5), (9, -12.0))
    for k, kept in ((5, [1, 2]), (3, [1, 2]), (2, [1]), (-1, [1, 2, 9])):
        assert read_ids(profile_with(**REPLACES), position, k=k).top_ids.tolist() == [kept]


def test_several_unnamed_alternatives_may_stand_in_one_list(read: Read) -> None:
    """Their mass is listed mass; only a token with an id can be listed twice by mistake."""
    top = [("<|x|>", -1.0), ("<|y|>", -2.0), (" the", -0.75)]
    position = spelled(" the", -0.75, *top)
    for unnamed in position["top_logprobs"][:2]:
        unnamed["bytes"] = None
    listed = choice(name=" the", logprobs={"content": [position]})
    (found,) = read(listed, total=1, top_logprobs=3)
    assert found.top_ids.tolist() == [[0, UNNAMED, UNNAMED]]
    assert found.top_logprobs.tolist() == [[-0.75, -1.0, -2.0]]
    assert found.whole
    position["top_logprobs"].append(position["top_logprobs"][2])
    with raises_naming(CorruptResponse, "twice"):
        read(listed, total=1, top_logprobs=4)


PROPENSITY = {**IDS, "logprobs": {"propensity": "sampling_logprob"}}


def test_the_propensity_comes_from_the_field_that_the_profile_names(
    profile_with: ProfileWith,
) -> None:
    """The base model's logprob and the one that the token was sampled with are two columns; where
    the logprob is the propensity there is no second one, even if the server sends it.
    """
    sent = entry(1, -0.5, sampling_logprob=-0.25), entry(2, -1.5, sampling_logprob=-1.25)
    found = read_ids(profile_with(**PROPENSITY), *sent)
    assert found.propensities is not None
    assert found.propensities.tolist() == [-0.25, -1.25]
    assert found.logprobs.tolist() == [-0.5, -1.5]
    assert read_ids(profile_with(**IDS), *sent).propensities is None


def test_a_propensity_that_is_none_is_refused(profile_with: ProfileWith) -> None:
    """Reading the other field in the place of a missing one would be a guess; any is held to the
    contract of a logprob.
    """
    profile = profile_with(**PROPENSITY)
    missing: list[dict[str, Any]] = [{}, {"sampling_logprob": None}]
    for fields in missing:
        with raises_naming(NoLogprobs, "acme", "`sampling_logprob`"):
            read_ids(profile, entry(1, -0.5, **fields))
    for value in (math.nan, 0.5, "x", -9999.0):
        with raises_naming(CorruptResponse, f"logprob {value!r}"):
            read_ids(profile, entry(1, -0.5, sampling_logprob=value))
