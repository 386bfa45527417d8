"""The rule from a caller's body to the one that is sent: laws over any JSON object."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.deploy.injection import Injection
from blackbox_lb.errors import InputError
from tests.support.errors import raises_naming

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.text().filter(lambda key: key != "logit_bias"), JSON, max_size=4)
VALUES = st.dictionaries(st.integers(0, 200_000), st.floats(-100, 100), min_size=1, max_size=5)


@given(
    document=DOCUMENTS,
    values=VALUES,
    indent=st.none() | st.just(1),
    space=st.sampled_from(["", " \n", "\r\n\t"]),
)
def test_appending_keeps_every_byte(
    document: dict[str, Any], values: dict[int, float], indent: Any, space: str
) -> None:
    """The body stays byte for byte up to its closing brace, and reads as the same object with the
    bias, exactly.
    """
    content = (json.dumps(document, indent=indent) + space).encode()
    body = Injection(RequestBias(values)).body(content, document)
    assert body.startswith(content.rstrip()[:-1])
    read = json.loads(body)
    assert {int(token): value for token, value in read.pop("logit_bias").items()} == values
    assert read == document


@given(document=DOCUMENTS, values=VALUES, own=VALUES)
def test_each_rule_touches_the_bias_alone(
    document: dict[str, Any], values: dict[int, float], own: dict[int, float]
) -> None:
    """Under each rule all other members stay, and the bias is ours, theirs, or the sum per id,
    as pairs too; under "raise" none is sent. An empty bias sends the caller's body.
    """
    plain = json.dumps(document).encode()
    assert Injection(RequestBias({})).body(plain, document) is plain
    whole = {**document, "logit_bias": {str(token): value for token, value in own.items()}}
    content = json.dumps(whole).encode()
    total = {
        token: values.get(token, 0) + own.get(token, 0) for token in values.keys() | own.keys()
    }
    expected: tuple[tuple[Any, dict[int, float]], ...] = (
        ("ours", values),
        ("theirs", own),
        ("add", total),
    )
    for rule, sent in expected:
        read = json.loads(Injection(RequestBias(values), rule).body(content, whole))
        assert {int(token): value for token, value in read.pop("logit_bias").items()} == sent
        assert read == document
        pairs = json.loads(Injection(RequestBias(values), rule, as_pairs=True).body(content, whole))
        assert rule == "theirs" or dict(pairs["logit_bias"]) == sent
    assert Injection(RequestBias({})).body(content, whole) is content
    with raises_naming(InputError, "logit_bias"):
        Injection(RequestBias(values)).body(content, whole)


@pytest.mark.parametrize("own", [{"7": 1}, None])
def test_a_number_that_json_cannot_hold_is_refused(own: Any) -> None:
    """1e400, which Python reads as infinite, would be written as the word Infinity, and NaN stays
    the word NaN; a body that is only appended to keeps its bytes, and a whole value is an integer.
    """
    document = {"x": float("inf"), "logit_bias": own}
    with raises_naming(InputError, "JSON"):
        Injection(RequestBias({7: 1.0}), "add").body(b'{"x":1e400,"logit_bias":null}', document)
    assert Injection(RequestBias({7: 1.0})).body(b'{"x":1e400}', {"x": float("inf")}) == (
        b'{"x":1e400,"logit_bias":{"7":1}}'
    )
