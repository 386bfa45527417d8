"""Which bias a name asks for, which address a request goes to, and what the body becomes: the proxy
without a network.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.deploy.injection import Injection
from blackbox_lb.deploy.proxy.bodies import ServedBiases
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.deploy.proxy.served import ServedBias, load_served
from blackbox_lb.deploy.proxy.upstream import Upstream
from blackbox_lb.errors import BiasError, InputError, ProfileError
from tests.support.errors import raises_naming
from tests.support.proxy_upstream import SENT, VALUES, bias

CHAT = "/v1/chat/completions"


def served(model: str, alias: str | None = None, on_conflict: Any = "raise") -> ServedBias:
    """A bias under a name."""
    return ServedBias(model, alias, bias(model), Injection(RequestBias(VALUES), on_conflict))


NAMES = ServedBiases(
    [served("gpt"), served("gpt", "short"), served("gpt", "polite"), served("org/m@1", "short")]
)


def body(**members: object) -> bytes:
    """A request body."""
    return json.dumps(members).encode()


@pytest.mark.parametrize(
    ("name", "model", "alias"),
    [("gpt", "gpt", None), ("gpt@short", "gpt", "short"), ("org/m@1@short", "org/m@1", "short")],
)
def test_a_name_chooses_its_bias(name: str, model: str, alias: str | None) -> None:
    """The plain name of a model, or MODEL@ALIAS, even where the model's own name holds an @."""
    chosen = NAMES.choose(name)
    assert chosen is not None
    assert (chosen.model, chosen.alias, chosen.name) == (model, alias, name)


@pytest.mark.parametrize(
    "name", ["gpt-4", "@cf/meta/llama", "claude@2026", "org/m@1", "", None, 3, ["gpt"]]
)
def test_other_models_have_none(name: object) -> None:
    """A name that shares neither model nor alias with a bias is another model, which may hold an @
    too.
    """
    assert NAMES.choose(name) is None


@pytest.mark.parametrize(
    "name", ["gpt@shrt", "gpt@", "gtp@short", "org/m@1@polite", "gpt@short@short"]
)
def test_an_unknown_alias_is_not_found(name: str) -> None:
    """A typing error in model or alias is answered with the names that exist, never sent on without
    the bias.
    """
    with raises_naming(
        ErrorAnswer, "'gpt'", "'gpt@polite'", "'gpt@short'", "'org/m@1@short'"
    ) as error:
        NAMES.choose(name)
    assert (error.value.status, error.value.code) == (404, "model_not_found")


@pytest.mark.parametrize("alias", [None, "short"])
def test_two_biases_of_one_name_are_refused(alias: str | None) -> None:
    """At the start: no request could say which is meant."""
    with raises_naming(InputError, "'gpt", "--bias"):
        ServedBiases([served("gpt", alias), served("gpt", alias)])


def test_arguments_name_files_and_aliases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``ALIAS=FILE``; what stands before "=" is no alias where it holds a slash, so that any path
    can be given.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r" / "a=b").mkdir(parents=True)
    for path in ("b.json", "r/a=b/b.json", "x=y.json"):
        bias().save(tmp_path / path)
    rows = load_served(
        ["b.json", "v1.short-2=b.json", "r/a=b/b.json", "./x=y.json", "z=./x=y.json"]
    )
    assert [row.alias for row in rows] == [None, "v1.short-2", None, None, "z"]
    assert load_served(["b.json"], models=["one", "two"])[1].name == "two"
    with raises_naming(InputError, "'a b'"):
        load_served(["a b=b.json"])
    with raises_naming(BiasError, "y.json"):
        load_served(["x=y.json"])


def test_a_provider_checks_and_formats(tmp_path: Path) -> None:
    """Its limits are checked before the first request, and its format is what is sent."""
    bias().save(tmp_path / "b.json")
    with raises_naming(BiasError, "7", "1.25", "``provider=openai``"):
        load_served([str(tmp_path / "b.json")], provider="openai")
    with raises_naming(ProfileError, "'nobody'", "openai", "vllm"):
        load_served([str(tmp_path / "b.json")], provider="nobody")
    (row,) = load_served([str(tmp_path / "b.json")], provider="llamacpp")
    sent = json.loads(ServedBiases([row]).edit(CHAT, body(model="m")).content)
    assert sent["logit_bias"] == [[2, -100], [7, 1.25], [199998, -3.0000000000000004]]


@pytest.mark.parametrize(
    ("base", "target", "url"),
    [
        ("http://h:8000/v1", "/v1/chat/completions?a=1&b=%2F", "http://h:8000/v1/chat/completions?a=1&b=%2F"),
        ("http://h:8000/v1/", "/v1", "http://h:8000/v1"),
        ("http://h:8000", "/v1/models", "http://h:8000/v1/models"),
        ("http://h:8000/v1", "/tokenize", "http://h:8000/tokenize"),
        ("http://h:8000/v1", "/v1beta/x", "http://h:8000/v1beta/x"),
        ("https://h/inference/v1", "/v1/models/a%2Fb", "https://h/inference/v1/models/a%2Fb"),
        ("https://h/v1beta/openai", "/v1/models", "https://h/v1beta/openai/models"),
        ("https://h.azure.com", "/openai/deployments/d/x?api-version=1", "https://h.azure.com/openai/deployments/d/x?api-version=1"),
        ("http://[::1]:80/v1", "/v1/a?", "http://[::1]:80/v1/a?"),
        ("http://h/v1", "//evil.example/x", "http://h//evil.example/x"),
        ("http://h/v1", "/@evil.example/x", "http://h/@evil.example/x"),
        ("http://h/v1", "/v1/a..b/...", "http://h/v1/a..b/..."),
    ],
)  # fmt: skip
def test_paths_lie_under_the_upstream(base: str, target: str, url: str) -> None:
    """/v1 here is the upstream's base URL; other paths lie beside it; query and escapes go as they
    came.
    """
    assert Upstream(base).url(target) == url


@pytest.mark.parametrize(
    "target",
    ["http://evil.example/v1/x", "evil.example:443", "*", "", "/v1/../../x", "/v1/%2e%2e/x", "/v1/%252e%252e/x", "/..%2fx",
     "/..%5cx", "/..\\x", "/./x", "/v1/..", "/a b", "/a\tb", "/a#b", "/\u00e9", "/a\udcff", "/a\nb"],
)  # fmt: skip
def test_targets_that_could_leave_the_upstream_are_refused(target: str) -> None:
    """Absolute addresses, dot segments however they are spelled, and characters that servers read
    differently.
    """
    with pytest.raises(ErrorAnswer) as error:
        Upstream("http://h/v1").url(target)
    assert error.value.status == 400


@given(st.text(st.sampled_from("/.%2ef5c@:?#\\v1ah[]&=") | st.characters(), max_size=30))
def test_no_target_reaches_another_host(target: str) -> None:
    """Whatever is asked for, the address is refused or has the upstream's host, port and path
    prefix, with no user name.
    """
    upstream = Upstream("http://host.example:8000/team/v1")
    try:
        url = URL(upstream.url(target), encoded=True)
    except ErrorAnswer:
        return
    assert (url.scheme, url.host, url.port, url.user) == ("http", "host.example", 8000, None)
    assert url.raw_path.startswith("/team/")
    assert url.raw_path_qs == url.raw_path + (
        "" if not url.raw_query_string else f"?{url.raw_query_string}"
    )


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:8000/v1", "ftp://h/v1", "http:///v1", "http://h:port/v1", "http://h:99999/v1", "http://sk-secret@h/v1",
     "http://u:sk-secret@h/v1", "http://h/v1?key=sk-secret", "http://h/v1#sk-secret", "http://h/v1 x", "http://[::1/v1", ""],
)  # fmt: skip
def test_a_bad_upstream_is_refused(address: str) -> None:
    """With what to give instead, and without showing a key that may stand in it."""
    with raises_naming(InputError, "``upstream``") as error:
        Upstream(address)
    assert "sk-secret" not in str(error.value)


def test_an_alias_becomes_its_model() -> None:
    """Only ``model`` changes beside the bias; a prompt that holds the same words does not."""
    content = body(
        model="gpt@short", messages=[{"role": "user", "content": '"model": "gpt@short"'}], x=1e-7
    )
    edit = NAMES.edit(CHAT, content)
    assert json.loads(edit.content) == {**json.loads(content), "model": "gpt", "logit_bias": SENT}


AZURE = "/openai/deployments/{}/chat/completions{}"


@pytest.mark.parametrize(
    ("target", "members", "name", "sent"),
    [
        (AZURE.format("gpt", "?v=1"), {}, "gpt", AZURE.format("gpt", "?v=1")),
        (AZURE.format("gpt@short", "?v=1"), {}, "gpt@short", AZURE.format("gpt", "?v=1")),
        (AZURE.format("gpt%40short", ""), {}, "gpt@short", AZURE.format("gpt", "")),
        (AZURE.format("gpt", ""), {"model": "gpt-4o"}, "gpt", AZURE.format("gpt", "")),
        (AZURE.format("gpt@short", ""), {"model": "gpt"}, "gpt@short", AZURE.format("gpt", "")),
        (AZURE.format("gpt@short", ""), {"model": None}, "gpt@short", AZURE.format("gpt", "")),
        (AZURE.format("gpt@short", ""), {"model": "gpt@short"}, "gpt@short", AZURE.format("gpt", "")),
        (AZURE.format("g%70t", ""), {"model": "other"}, "gpt", AZURE.format("g%70t", "")),
        (AZURE.format("gpt%40short", "?x=/deployments/gpt%40short/"), {}, "gpt@short",
         AZURE.format("gpt", "?x=/deployments/gpt%40short/")),
        (AZURE.format("gpt", "?x=/deployments/other/"), {"model": "other"}, "gpt",
         AZURE.format("gpt", "?x=/deployments/other/")),
        (f"{CHAT}?x=/deployments/other/y", {"model": "gpt"}, "gpt", f"{CHAT}?x=/deployments/other/y"),
        (f"{CHAT}?x=/deployments/gpt", {"model": "other"}, None, f"{CHAT}?x=/deployments/gpt"),
        (AZURE.format("other", ""), {"model": "gpt"}, None, AZURE.format("other", "")),
        (AZURE.format("other", ""), {"model": "gpt@short"}, None, AZURE.format("other", "")),
    ],
)  # fmt: skip
def test_the_deployment_in_the_path_alone_counts(
    target: str, members: dict[str, Any], name: str | None, sent: str
) -> None:
    """Azure's deployment decides, neither a query nor the body's model. An alias leaves path and
    body, and any other name in the body stays; what goes out unbiased stays as it is.
    """
    content = body(**members)
    edit = NAMES.edit(target, content)
    assert (edit.served and edit.served.name) == name
    assert edit.target == sent
    if name is None:
        assert edit.content is content
        return
    if members.get("model") == "gpt@short":
        members = {"model": "gpt"}
    assert json.loads(edit.content) == {**members, "logit_bias": SENT}


@pytest.mark.parametrize(
    ("member", "is_read"),
    [
        (b'"prompt":[' + b"12345," * 900_000 + b"1]", True),
        (b'"prompt":[' + b"1," * 1_000_001 + b"1]", False),
        (b'"messages":[' + b"{}," * 500_001 + b"{}]", False),
        (b'"x":' + b"[" * 1_000_001, False),
        (b'"x":{' + b'"k":1,' * 250_000 + b'"k":1' + b"}", False),
        (b'"prompt":"' + b"A text, of many words: and signs. " * 100_000 + b'"', True),
        (b'"image":"' + b"A" * 8_000_000 + b'"', True),
    ],
    ids=["ids", "numbers", "objects", "brackets", "keys", "text", "image"],
)
def test_a_body_of_more_values_than_a_prompt_has_is_refused(member: bytes, is_read: bool) -> None:
    """413 before it is read, since reading it would hold others up; long prompts and images are
    read.
    """
    content = b'{"model":"gpt",' + member + b"}"
    if is_read:
        assert NAMES.edit(CHAT, content).served is not None
        return
    with pytest.raises(ErrorAnswer) as error:
        NAMES.edit(CHAT, content)
    assert (error.value.status, error.value.code) == (413, "request_too_large")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b'"gpt"', b"\xff", b'\xef\xbb\xbf{"model":"gpt"}', b"[" * 100_000],
)
def test_a_body_that_cannot_be_read_is_refused(content: bytes) -> None:
    """It could reach a lenient upstream without its bias."""
    with raises_naming(ErrorAnswer, "JSON") as error:
        NAMES.edit(CHAT, content)
    assert error.value.status == 400


def test_other_models_pass_or_raise() -> None:
    """Unbiased models go on byte for byte, or are refused with the names that are biased."""
    content = body(model="other")
    assert NAMES.edit(CHAT, content).content is content
    with raises_naming(ErrorAnswer, "'gpt@polite'", "'other'") as error:
        ServedBiases(NAMES, "raise").edit(CHAT, content)
    assert (error.value.status, error.value.code) == (400, "model_not_biased")


def test_where_the_caller_keeps_its_own_no_bias_is_claimed() -> None:
    """Under "theirs" the answer must not say, nor the counts, that ours was added; without a
    conflict it is.
    """
    rule = ServedBiases([served("gpt", "short", on_conflict="theirs")])
    edit = rule.edit(CHAT, body(model="gpt@short", logit_bias={"7": 1}))
    assert (json.loads(edit.content), edit.served) == (
        {"model": "gpt", "logit_bias": {"7": 1}},
        None,
    )
    assert rule.edit(CHAT, body(model="gpt@short")).served is not None


def test_a_conflict_is_refused_unless_told_otherwise() -> None:
    """With the option that decides it, in the words of an HTTP client, who cannot set a Python
    argument.
    """
    with raises_naming(ErrorAnswer, "--on-conflict") as error:
        NAMES.edit(CHAT, body(model="gpt", logit_bias={"7": 1}))
    assert (error.value.status, error.value.param) == (400, "logit_bias")
    assert "on_conflict=" not in str(error.value)
