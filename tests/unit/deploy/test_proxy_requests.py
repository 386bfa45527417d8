"""Which bias a name asks for, which address a request goes to, and what the body becomes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from blackbox_lb.bias.features import Embedding, FeatureVector
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.deploy.injection import Injection
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.deploy.proxy.served import ServedBias, load_served
from blackbox_lb.deploy.proxy.server import HEADER
from blackbox_lb.deploy.proxy.upstream import Upstream
from blackbox_lb.errors import (
    BiasError,
    ConnectionFailed,
    InputError,
    ProfileError,
    RequestRejected,
)
from blackbox_lb.vocabulary.embedding import TextVectors
from tests.support.biases import WIDE
from tests.support.errors import raises_naming
from tests.support.proxy_upstream import (
    SENT,
    Origin,
    bias,
    exchange,
    plain,
    proxied,
    proxy_for,
    request,
    running,
)

CHAT = "/v1/chat/completions"
AZURE = "/openai/deployments/{}/chat/completions"
SPELLINGS = (
    *("/v1/completions/", "/v1/chat/%63ompletions", "/v1/chat/%2563ompletions"),
    *("/v1/chat%2Fcompletions", "/v1/chat%5Ccompletions", "/v1/chat/Completions"),
    *("/v1/chat/completions;x=1", "/v1/chat/completions%20", "/v1/chat/completions%3Fx"),
    "/v1/chat/completions/;x/",
)
"""Paths that some server reads as one that samples."""
OTHERS = ("/v1/chat/completionsx", "/v1/chat/completions/abc", "/v1/embeddings")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Origin, int]]:
    """A proxy of a model with three biases, and one whose own name holds an @."""
    biases = (bias("gpt"), ("short", bias("gpt")), ("polite", bias("gpt")))
    with proxied(plain(), *biases, ("short", bias("org/m@1"))) as (origin, port, _):
        yield origin, port


@pytest.mark.parametrize(
    ("target", "members", "name", "sent_target", "sent_model"),
    [
        (CHAT, {"model": "gpt"}, "gpt", CHAT, "gpt"),
        *((path, {"model": "gpt"}, "gpt", path, "gpt") for path in SPELLINGS),
        *((path, {"model": "gpt"}, None, path, "gpt") for path in OTHERS),
        (CHAT, {"model": "gpt@short"}, "gpt@short", CHAT, "gpt"),
        (CHAT, {"model": "org/m@1@short"}, "org/m@1@short", CHAT, "org/m@1"),
        *((CHAT, {"model": name}, None, CHAT, name) for name in ("gpt-4", "@cf/meta/llama", "claude@2026", "org/m@1", "", None, 3, ["gpt"])),
        (AZURE.format("gpt") + "?v=1", {}, "gpt", AZURE.format("gpt") + "?v=1", None),
        (AZURE.format("gpt"), {"model": "gpt-4o"}, "gpt", AZURE.format("gpt"), "gpt-4o"),
        (AZURE.format("g%70t"), {"model": "other"}, "gpt", AZURE.format("g%70t"), "other"),
        (AZURE.format("gpt%40short"), {"model": None}, "gpt@short", AZURE.format("gpt"), None),
        (AZURE.format("gpt@short") + "?x=/deployments/gpt%40short/", {"model": "gpt@short"}, "gpt@short",
         AZURE.format("gpt") + "?x=/deployments/gpt%40short/", "gpt"),
        (AZURE.format("other"), {"model": "gpt@short"}, None, AZURE.format("other"), "gpt@short"),
        (CHAT + "?x=/deployments/other/y", {"model": "gpt"}, "gpt", CHAT + "?x=/deployments/other/y", "gpt"),
        (CHAT + "?x=/deployments/gpt", {"model": "other"}, None, CHAT + "?x=/deployments/gpt", "other"),
    ],
)  # fmt: skip
def test_a_name_chooses_its_bias(
    served: tuple[Origin, int],
    target: str,
    members: dict[str, Any],
    name: str | None,
    sent_target: str,
    sent_model: object,
) -> None:
    """By MODEL or MODEL@ALIAS, in the body, or in the path of an Azure deployment, which alone
    counts there. Only the name changes beside the bias; what gets none keeps every byte.
    """
    origin, port = served
    messages = [{"role": "user", "content": '"model": "gpt@short"'}]
    content = json.dumps({**members, "messages": messages, "x": 1e-7}).encode()
    _, fields, _ = exchange(port, request(target, content))
    arrived = origin.arrived[-1]
    assert dict(fields).get(HEADER) == name
    assert arrived.line == f"POST {sent_target} HTTP/1.1"
    if name is None:
        assert arrived.body == content
        return
    model = {"model": sent_model} if members else {}
    assert arrived.json == {**model, "messages": messages, "x": 1e-7, "logit_bias": SENT}


def test_arguments_name_files_and_aliases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``ALIAS=FILE``; what stands before "=" is no alias where it holds a slash, so that any path
    can be given. A provider's format is what is sent, and under "theirs" no bias is claimed where
    the caller keeps its own.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r" / "a=b").mkdir(parents=True)
    for path in ("b.json", "r/a=b/b.json", "x=y.json"):
        bias().save(tmp_path / path)
    files = ["b.json", "v1.short-2=b.json", "r/a=b/b.json", "./x=y.json", "z=./x=y.json"]
    assert [row.alias for row in load_served(files)] == [None, "v1.short-2", None, None, "z"]
    with raises_naming(InputError, "'a b'"):
        load_served(["a b=b.json"])
    with raises_naming(ProfileError, "'nobody'", "openai", "vllm"):
        load_served(["b.json"], provider="nobody")
    rows = load_served(["b.json"], models=["one", "two"], provider="llamacpp", on_conflict="theirs")
    with Origin(plain()).running() as origin, running(proxy_for(origin.address, *rows)) as port:
        for body in (b'{"model":"two"}', b'{"model":"one","logit_bias":{"7":1}}'):
            answer = exchange(port, request(CHAT, body))
    kept_out = bias().replacing(phrases=("a testament to",), provider="llamacpp")
    kept_out.save(tmp_path / "p.json")
    counts = [row.parts and row.parts.counts for row in load_served(["p.json"], models=["a", "b"])]
    assert counts[0] is not counts[1]
    first, second = origin.arrived
    assert first.json["logit_bias"] == [[2, -100], [7, 1.25], [199998, -3.0000000000000004]]
    assert (second.body, dict(answer[1]).get(HEADER)) == (body, None)


@pytest.mark.parametrize(
    ("failure", "said", "has_own"),
    [
        (BiasError("the embedding model m gives other vectors"), "gives other vectors", True),
        (ConnectionFailed("no answer from http://e/v1; is it running?"), "is it running?", False),
        (RequestRejected("no room for the prompt sk-prompt"), "RequestRejected", False),
        (BiasError("the embedding model m gives other vectors"), "gives other vectors", False),
    ],
)
def test_a_missing_embedding_is_told(
    failure: Exception, said: str, has_own: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As a failure, whether or not the request has a bias of its own; without the words of an API,
    which may repeat the prompt.
    """

    class Failing(TextVectors):
        def of(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
            raise failure

    learned = Embedding(model="m", vectors=(FeatureVector(name="0", values=(0.1,)),), probe=(1.0,))
    sent = RequestBias({1: 0.5}, (learned,), WIDE, vectors=Failing("m"))
    served = ServedBias("m", None, bias("m"), Injection(sent))
    own = {"logit_bias": {"1": 1}} if has_own else {}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **own}
    with Origin(plain()).running() as origin, running(proxy_for(origin.address, served)) as port:
        answer = exchange(port, request(CHAT, json.dumps(body).encode()))
    error = json.loads(answer[2])["error"]
    assert (answer[0].split()[1], error["code"]) == ("502", "embedding_failed")
    assert said in error["message"]
    assert said in caplog.text
    assert "sk-prompt" not in caplog.text
    assert not origin.arrived


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.parametrize(
    ("member", "status"),
    [
        (b'"prompt":[' + b"12345," * 900_000 + b"1]", "200"),
        (b'"prompt":[' + b"1," * 1_000_001 + b"1]", "413"),
        (b'"messages":[' + b"{}," * 500_001 + b"{}]", "413"),
        (b'"x":' + b"[" * 1_000_001, "413"),
        (b'"x":{' + b'"k":1,' * 250_000 + b'"k":1' + b"}", "413"),
        (b'"prompt":"' + b"A text, of many words: and signs. " * 100_000 + b'"', "200"),
        (b'"image":"' + b"A" * 8_000_000 + b'"', "200"),
    ],
    ids=["ids", "numbers", "objects", "brackets", "keys", "text", "image"],
)  # fmt: skip
def test_a_body_of_more_values_than_a_prompt_has_is_refused(
    served: tuple[Origin, int], member: bytes, status: str
) -> None:
    """Before it is read, since reading it would hold others up; long prompts and images are
    read.
    """
    line, _, _ = exchange(served[1], request(CHAT, b'{"model":"gpt",' + member + b"}"))
    assert line.split()[1] == status


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
        *(("http://h/v1", target, None) for target in ("http://evil.example/v1/x", "evil.example:443", "*", "", "/v1/../../x", "/v1/%2e%2e/x",
          "/v1/%252e%252e/x", "/..%2fx", "/..%5cx", "/..\\x", "/./x", "/v1/..", "/a b", "/a\tb", "/a#b", "/\u00e9", "/a\udcff", "/a\nb")),
    ],
)  # fmt: skip
def test_paths_lie_under_the_upstream(base: str, target: str, url: str | None) -> None:
    """/v1 here is the upstream's base URL; other paths lie beside it; query and escapes go as they
    came. Absolute addresses, dot segments however they are spelled, and characters that servers
    read differently are refused.
    """
    if url is not None:
        assert Upstream(base).url(target) == url
        return
    with pytest.raises(ErrorAnswer) as error:
        Upstream(base).url(target)
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
    query = f"?{url.raw_query_string}" if url.raw_query_string else ""
    assert url.raw_path_qs == url.raw_path + query
