"""A biased client sends the bias exactly once with every chat and completion request of its model,
and changes nothing else; so does one of the drop-in classes, which are the SDK's with more arguments.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncAzureOpenAI, AsyncOpenAI, AzureOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from blackbox_lb import apply, apply_batch
from blackbox_lb import openai as drop_in
from blackbox_lb.api.transport.channel import Channel
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.literals import OnConflict
from blackbox_lb.providers.profile import load_profile
from tests.support.biases import FIELDS
from tests.support.errors import raises_naming
from tests.support.exact.listener import Request
from tests.support.recording_server import Server, completion, recording

VALUES = {2: -100.0, 7: 1.25, 50256: 0.1, 199998: -3.0000000000000004}
SENT = {"2": -100, "7": 1.25, "50256": 0.1, "199998": -3.0000000000000004}
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "héllo 🙂"}]


@pytest.fixture
def server() -> Iterator[Server]:
    """A fresh server on a free loopback port."""
    with recording() as fresh:
        yield fresh


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    """The caller's own client, with settings of its own."""
    with OpenAI(
        api_key="key-1",
        base_url=server.url,
        organization="org-1",
        default_headers={"x-own": "kept"},
        default_query={"api-version": "1"},
        timeout=11.0,
        max_retries=3,
    ) as own:
        yield own


@pytest.fixture
def bias() -> Bias:
    """Four entries: whole, binary-exact, not binary-exact, and one with all 17 digits."""
    return make(VALUES)


def make(values: dict[int, float]) -> Bias:
    """A bias for the model "tiny"."""
    entries = tuple(Entry(id=token, bias=value) for token, value in values.items())
    return Bias(**FIELDS | {"model": "tiny", "entries": entries})


def ask(client: OpenAI, **options: Any) -> Any:
    """One plain chat request for the model "tiny", unless another is named."""
    return client.chat.completions.create(
        **{"model": "tiny", "messages": HELLO, "temperature": 0.5, **options}
    )


def assert_biased(seen: Request, expected: object = SENT) -> None:
    """The bias arrived once, as it is, with a true content length."""
    assert seen.json["logit_bias"] == expected
    assert seen.body.count(b'"logit_bias"') == 1
    assert int(seen.headers["content-length"]) == len(seen.body)


def test_settings_and_connections_are_shared(server: Server, client: OpenAI, bias: Bias) -> None:
    """Auth, headers, query, timeout and retries are kept, no second connection is opened, and the
    body alone differs, by the bias.
    """
    ask(client)
    biased = apply(client, bias)
    ask(biased)
    plain, seen = server.seen
    assert_biased(seen)
    assert {**plain.json, "logit_bias": SENT} == seen.json
    assert {**plain.headers, "content-length": ""} == {**seen.headers, "content-length": ""}
    assert plain.path == seen.path
    assert server.connections == 1
    kept = [seen.headers[name] for name in ("authorization", "openai-organization", "x-own")]
    assert kept == ["Bearer key-1", "org-1", "kept"]
    for name in ("timeout", "max_retries", "base_url"):
        assert getattr(biased, name) == getattr(client, name)
    assert type(biased) is OpenAI


@pytest.mark.parametrize("way", ["copy", "with_options"])
def test_another_http_client_keeps_the_bias(
    server: Server, client: OpenAI, bias: Bias, way: str
) -> None:
    """A derived client with an HTTP client of its own sends each bias once through that client, as
    does one derived from it; closing it closes that HTTP client, as the SDK does.
    """
    biased = apply(client, bias, others="pass")
    both = apply(biased, make({5: 2.0}), models=["other"], others="pass")
    own = httpx2.Client(headers={"x-gateway": "g"})
    derived = getattr(both, way)(http_client=own)
    assert type(derived) is OpenAI
    for sender in (derived, derived.with_options(timeout=60), getattr(derived, way)(timeout=60)):
        for model, expected in (("tiny", SENT), ("other", {"5": 2})):
            ask(sender, model=model)
            assert_biased(server.last, expected)
            assert server.last.headers["x-gateway"] == "g"
    again = getattr(derived, way)(http_client=httpx2.Client())
    ask(again)
    assert_biased(server.last)
    assert "x-gateway" not in server.last.headers
    again.close()
    derived.close()
    assert own.is_closed
    with httpx2.Client() as plain:
        ask(client.with_options(http_client=plain))
    assert "logit_bias" not in server.last.json


@pytest.mark.parametrize("kind", [AsyncOpenAI, AsyncAzureOpenAI])
def test_asynchronous_clients(server: Server, bias: Bias, kind: Any) -> None:
    """Many requests at once, copies with another HTTP client, a borrowed transport, and closing;
    then the caller's own client is unbiased. Azure's ``copy`` is one of its own.
    """
    options: dict[str, Any] = {"base_url": server.url}
    if kind is AsyncAzureOpenAI:
        options = {"azure_endpoint": server.url.removesuffix("/v1"), "api_version": "1"}

    async def talk() -> None:
        async with kind(api_key="k", **options) as own, httpx2.AsyncClient() as http_client:
            biased = apply(own, bias)
            derived = biased.with_options(http_client=http_client)
            clients = [biased, biased, derived, derived.copy(timeout=60)]
            await asyncio.gather(
                *(each.completions.create(model="tiny", prompt="a") for each in clients)
            )
            url = f"{server.url}/completions"
            request = biased._client.build_request("POST", url, json={"model": "tiny"})
            transport = biased._client._transport_for_url(request.url)
            assert await (await transport.handle_async_request(request)).aread()
            await biased.close()
            assert (biased.is_closed(), own.is_closed()) == (True, False)
            with raises_naming(RuntimeError, "closed"):
                await biased.completions.create(model="tiny", prompt="a")
            await own.completions.create(model="tiny", prompt="a")

    asyncio.run(talk())
    *biased, plain = server.seen
    assert len(biased) == 5
    for seen in biased:
        assert_biased(seen)
    assert "logit_bias" not in plain.json


def test_redirect_keeps_it_once(server: Server, client: OpenAI, bias: Bias) -> None:
    """A 307 to another chat endpoint carries the biased body on, once."""
    server.redirects = {"/v1/chat/completions": "/v2/chat/completions"}
    ask(apply(client, bias))
    assert [seen.path for seen in server.seen] == ["/v1/chat/completions", "/v2/chat/completions"]
    for seen in server.seen:
        assert_biased(seen)


@pytest.mark.parametrize(
    ("deployment", "models", "biased"),
    [(None, None, True), ("mine", None, False), ("mine", ["mine"], True), (None, ["mine"], False)],
)
def test_azure(
    server: Server, bias: Bias, deployment: str | None, models: list[str] | None, biased: bool
) -> None:
    """A deployment stands in the path, where Azure reads it: its name in ``models`` counts, and not
    the body's.
    """
    with AzureOpenAI(
        api_key="k",
        azure_endpoint=server.url.removesuffix("/v1"),
        azure_deployment=deployment,
        api_version="2026-01-01",
    ) as client:
        ask(apply(client, bias, models=models))
    assert server.last.path == f"/openai/deployments/{deployment or 'tiny'}/chat/completions"
    assert server.last.headers["api-key"] == "k"
    assert ("logit_bias" in server.last.json) is biased


def test_other_models_warn_once_or_raise(
    server: Server, client: OpenAI, bias: Bias, caplog: pytest.LogCaptureFixture
) -> None:
    """By default a request for another model goes out as it is, and the log warns once for each
    model, copies included. "raise" refuses it, and a body without a model, before anything is sent.
    ``models`` names what the server calls the model, in place of the bias's own name.
    """
    biased = apply(client, bias)
    for model in ("tiny-2", "tiny-2", "tiny-3"):
        ask(biased.with_options(timeout=9), model=model, logit_bias={"1": 5})
        assert server.last.json["logit_bias"] == {"1": 5}
    first, second = (record.getMessage() for record in caplog.records)
    for part in ("no logit bias sent", "'tiny-2'", "'tiny'", "models="):
        assert part in first
    assert "'tiny-3'" in second
    server.seen.clear()
    biased = apply(client, bias, models=["alias-a", "alias-b"], others="raise")
    for model, shown in (("tiny", "'tiny'"), ("alias-a\x1b", "'alias-a\\x1b'")):
        with raises_naming(InputError, "'alias-a'", shown):
            ask(biased, model=model)
    with raises_naming(InputError, "'alias-a'", "models=[...]"):
        biased.post("/chat/completions", body={}, cast_to=object)
    assert not server.seen
    ask(biased, model="alias-b")
    assert_biased(server.last)


def test_add_reads_llama_cpp_forms(server: Server, client: OpenAI, bias: Bias) -> None:
    """Pairs are summed per id, repeats included, and ``false`` (never sample) wins over any
    number.
    """
    own = [[7, 1], [7, 0.5], [2, False], [2, 3]]
    ask(apply(client, bias, on_conflict="add"), extra_body={"logit_bias": own})
    assert_biased(server.last, {**SENT, "7": 2.75, "2": False})


@pytest.mark.parametrize(
    ("own", "facts"),
    [
        ({"cat": 1}, ("'cat'",)),
        ({"-1": 1}, ("'-1'",)),
        ({"1": "2"}, ("'2'", "token 1")),
        ({"1": True}, ("True", "token 1")),
        ({"1": 10**400}, ("token 1", "1e+06", f"gives {10**17}...{0:019}")),
        ([[1, 2, 3]], ("[id, value]",)),
        (5, ("[id, value]",)),
    ],
)
def test_add_refuses_what_it_cannot_add(
    server: Server, client: OpenAI, bias: Bias, own: Any, facts: tuple[str, ...]
) -> None:
    """A bias of the caller's that has no sum with ours is refused before anything is sent."""
    with raises_naming(InputError, "logit_bias", *facts):
        ask(apply(client, bias, on_conflict="add"), extra_body={"logit_bias": own})
    assert not server.seen


def test_applying_twice_is_a_conflict(server: Server, client: OpenAI, bias: Bias) -> None:
    """A bias on a biased client follows the later call's rule, so nothing is doubled by
    accident.
    """
    with raises_naming(InputError, "logit_bias"):
        ask(apply(apply(client, bias), bias))
    rules: dict[OnConflict, object] = {"add": {**SENT, "7": 2.25}, "ours": {"7": 1}, "theirs": SENT}
    for rule, expected in rules.items():
        ask(apply(apply(client, bias), make({7: 1.0}), on_conflict=rule))
        assert_biased(server.last, expected)


@pytest.mark.parametrize(
    ("path", "body", "api"),
    [
        ("/responses", {"model": "tiny"}, "Responses"),
        ("/responses/compact", {"model": "tiny"}, "Responses"),
        ("/assistants", {"model": "tiny"}, "Assistants"),
        ("/assistants/a1", {"model": "tiny"}, "Assistants"),
        ("/threads/runs", {"model": "tiny"}, "Assistants"),
        ("/threads/t1/runs", {"model": "tiny"}, "Assistants"),
        ("/agents/sessions", {"model": "tiny"}, "Agents"),
        ("/agents/a1", {"model": "tiny"}, "Agents"),
        ("/agents/sessions/s1", {"agent": {"model": "tiny"}}, "Agents"),
        ("/realtime/client_secrets", {"session": {"type": "realtime", "model": "tiny"}}, "Realtime"),
        ("/realtime/calls/c1/accept", {"model": "tiny"}, "Realtime"),
        ("/live/sessions", {"session": {"model": "tiny"}}, "Live"),
        ("/decisions", {"model": "tiny"}, "Decisions"),
        ("/evals/e1/runs", {"data_source": {"type": "completions", "model": "tiny"}}, "Evals"),
        ("/fine_tuning/alpha/graders/run", {"grader": {"type": "score_model", "model": "tiny"}, "model_sample": "a"}, "Graders"),
        ("/messages", {"model": "tiny"}, "Messages"),
    ],
)  # fmt: skip
def test_endpoints_that_take_no_bias(
    server: Server, client: OpenAI, bias: Bias, path: str, body: dict[str, Any], api: str
) -> None:
    """Wherever the biased model would generate without the bias, the request is refused with the
    API's name.
    """
    with raises_naming(InputError, api, "logit_bias", "'tiny'"):
        apply(client, bias).post(path, body=body, cast_to=object)
    assert not server.seen


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embeddings", {"model": "tiny", "input": "a"}),
        ("/moderations", {"model": "tiny", "input": "a"}),
        ("/audio/speech", {"model": "tiny", "input": "a", "voice": "v"}),
        ("/responses/input_tokens", {"model": "tiny", "input": "a"}),
        ("/threads/t1/messages", {"role": "user", "content": "a"}),
        ("/fine_tuning/jobs", {"model": "tiny", "training_file": "f"}),
        ("/chat/completions/abc", {"metadata": {"model": "tiny"}}),
        ("/batches", {"input_file_id": "f", "endpoint": "/v1/chat/completions"}),
    ],
)
def test_other_endpoints_are_untouched(
    server: Server, client: OpenAI, bias: Bias, path: str, body: dict[str, Any]
) -> None:
    """What generates no text, or only refers to it, goes out as it is, even under
    ``others="raise"``.
    """
    apply(client, bias, others="raise").post(path, body=body, cast_to=object)
    assert server.last.json == body


LINES = b"".join(
    json.dumps(
        {"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": body}
    ).encode()
    + b"\n"
    for n, body in enumerate(
        [{"model": "tiny", "logit_bias": {"7": 1}}, {"model": "other"}, {"model": "tiny"}]
    )
)


def test_an_unbiased_batch_file_is_refused(
    server: Server, client: OpenAI, bias: Bias, tmp_path: Path
) -> None:
    """As bytes, a path or an open file: the line that lacks the bias is named; the whole of the
    others arrives. In parts it cannot be checked; other uploads pass.
    """
    biased = apply(client, bias)
    announced: Any = {"bytes": 2, "filename": "a.jsonl", "mime_type": "text/jsonl"}
    path = tmp_path / "requests.jsonl"
    path.write_bytes(LINES)
    with path.open("rb") as opened:
        for given_as in (("a.jsonl", LINES), path, opened):
            with raises_naming(InputError, "line 3", "logit_bias", "apply_batch"):
                biased.files.create(file=given_as, purpose="batch")
    with raises_naming(InputError, "client.files.create"):
        biased.uploads.create(**announced, purpose="batch")
    assert not server.seen
    apply_batch(path, path, bias, on_conflict="theirs", others="pass")
    with path.open("rb") as opened:
        biased.files.create(file=opened, purpose="batch")
    assert path.read_bytes() in server.last.body
    biased.files.create(file=("a.jsonl", LINES), purpose="fine-tune")
    assert LINES in server.last.body
    biased.uploads.create(**announced, purpose="fine-tune")
    assert server.last.json == {**announced, "purpose": "fine-tune"}


@pytest.mark.parametrize("filler", ["x", "é", "\n", "\ud800"])
def test_a_long_prompt_arrives_as_it_is(
    server: Server, client: OpenAI, bias: Bias, filler: str
) -> None:
    """The parser for long bodies decides the same, lone surrogates included, and every byte of the
    prompt stays.
    """
    content = json.dumps(
        {"messages": [{"role": "user", "content": filler * 20_000}], "model": "tiny"}
    ).encode()
    apply(client, bias).post("/chat/completions", content=content, cast_to=object)
    assert_biased(server.last)
    assert server.last.body.startswith(content[:-1])


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        *((content, "application/json") for content in (b"plain", b"", b"[1]", b'{"model": "tiny"', b'\xff{"model": "tiny"}')),
        (b"plain", "text/plain"),
    ],
)  # fmt: skip
def test_bodies_that_are_no_json_object_are_untouched(
    server: Server, client: OpenAI, bias: Bias, content: bytes, kind: str
) -> None:
    """What names no model goes out byte for byte; the server has the say."""
    options: Any = {"headers": {"content-type": kind}}
    biased = apply(client, bias)
    biased.post("/chat/completions", content=content, options=options, cast_to=object)
    assert server.last.body == content


def test_a_body_that_cannot_be_read_is_refused(server: Server, client: OpenAI, bias: Bias) -> None:
    """A streamed or compressed JSON body would go out unbiased in silence, so it is refused."""

    def parts() -> Generator[bytes]:
        yield b'{"model":"tiny"}'

    post = apply(client, bias).post
    packed: Any = {"headers": {"content-encoding": "gzip"}}
    with raises_naming(InputError, "streamed"):
        post("/chat/completions", content=parts(), cast_to=object)
    with raises_naming(InputError, "Content-Encoding"):
        post("/chat/completions", content=b"packed", options=packed, cast_to=object)
    assert not server.seen


class Signature(httpx2.Auth):
    """Signs the body, as some gateways ask for."""

    requires_request_body = True

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response]:
        """Add the body's digest."""
        request.headers["x-signature"] = hashlib.sha256(request.content).hexdigest()
        yield request


def mocked(sent: list[httpx2.Request]) -> httpx2.MockTransport:
    """A transport that keeps what is sent, and answers it."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200, json=completion("/chat/completions", {"model": "tiny"}))

    return httpx2.MockTransport(answer)


def test_the_callers_http_client_keeps_working(bias: Bias) -> None:
    """Its hooks, auth, cookies, headers and mounts see the final body, once a request; a request's
    own timeout survives, and a GET whose path ends in completions is no sampling request.
    """
    hooked, sent = list[bytes](), list[httpx2.Request]()
    http_client = httpx2.Client(
        auth=Signature(),
        headers={"x-gateway": "g"},
        cookies={"session": "s"},
        mounts={"http://mounted": mocked(sent)},
        event_hooks={
            "request": [lambda request: hooked.append(request.content)],
            "response": [lambda response: hooked.append(response.request.content)],
        },
    )
    with OpenAI(api_key="k", base_url="http://mounted/v1", http_client=http_client) as client:
        biased = apply(client, bias, others="raise")
        ask(biased, timeout=2.5)
        biased.get("/organization/usage/completions", cast_to=object)
    request, usage = sent
    assert json.loads(request.content)["logit_bias"] == SENT
    assert request.headers["x-signature"] == hashlib.sha256(request.content).hexdigest()
    assert (request.headers["x-gateway"], request.headers["cookie"]) == ("g", "session=s")
    assert hooked == [request.content] * 2 + [b""] * 2
    assert request.extensions["timeout"] == httpx2.Timeout(2.5).as_dict()
    assert (usage.method, usage.content) == ("GET", b"")


def test_transport_alone_adds_no_auth_or_redirect(server: Server, bias: Bias) -> None:
    """Whoever borrows only the transport has its own auth and redirects; the caller's are not added
    below it.
    """
    server.redirects = {"/v1/chat/completions": "/v2/chat/completions"}
    http_client = httpx2.Client(auth=Signature(), follow_redirects=True)
    with OpenAI(api_key="k", base_url=server.url, http_client=http_client) as client:
        borrowed = apply(client, bias)._client
        url = f"{server.url}/chat/completions"
        request = borrowed.build_request("POST", url, json={"model": "tiny"})
        response = borrowed._transport_for_url(request.url).handle_request(request)
        response.read()
    assert response.status_code == 307
    assert "x-signature" not in server.last.headers


def test_closing(server: Server, client: OpenAI, bias: Bias) -> None:
    """A closed biased client refuses to send and leaves the caller's open; closing the caller's, or
    the inner one of two biased clients, closes the outer.
    """
    with apply(client, bias) as biased:
        ask(biased)
    assert biased.is_closed()
    assert not client.is_closed()
    with raises_naming(RuntimeError, "closed"):
        ask(biased)
    inner = apply(client, bias)
    both = apply(inner, make({5: 2.0}), models=["other"])
    other = apply(client, bias)
    for closed, outer in ((inner, both), (client, other)):
        closed.close()
        assert outer.is_closed()
        with raises_naming(RuntimeError, "closed"):
            ask(outer)
    assert len(server.seen) == 1


class Regional(OpenAI):
    """A caller's subclass whose constructor is not the SDK's."""

    def __init__(self, region: str) -> None:
        super().__init__(api_key="k", base_url=f"https://{region}.test/v1")


def test_wrong_arguments(client: OpenAI, bias: Bias, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wrong argument is refused at once, with the choices; so are an HTTP client of neither
    library, which would send without the bias, and a client that cannot be copied.
    """
    with raises_naming(InputError, "others='skip'", "'warn'", "'pass'", "'raise'"):
        apply(client, bias, others="skip")  # type: ignore[arg-type]
    with raises_naming(InputError, "on_conflict='merge'"):
        apply(client, bias, on_conflict="merge")  # type: ignore[arg-type]
    with raises_naming(InputError, "models='tiny'", "'tiny'"):
        apply(client, bias, models="tiny")
    for none in ([], [""]):  # "" as an unset variable gives it
        with raises_naming(InputError, f"models={none}"):
            apply(client, bias, models=none)
    with raises_naming(InputError, "str", "openai.OpenAI", "openai.AsyncOpenAI"):
        apply("client", bias)  # type: ignore[type-var]
    with Regional("eu") as regional, raises_naming(InputError, "with_options"):
        apply(regional, bias)
    with raises_naming(InputError, "builtins.object", "httpx2", "httpx"):
        apply(client, bias).with_options(http_client=object())  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(client, "_client", object())
        with raises_naming(InputError, "builtins.object", "http_client"):
            apply(client, bias)


def test_an_sdk_without_httpx2_is_refused_for_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches need openai 2.49; below, one sentence says so."""
    monkeypatch.delattr(openai, "DefaultAsyncHttpx2Client")
    with raises_naming(InputError, "httpx2", "2.49"):
        Channel(load_profile("local"), "http://127.0.0.1:9/v1").for_files(httpx2.Timeout(1.0))


def test_the_sdks_arguments_are_all_declared() -> None:
    """What a type checker lets through is exactly what the SDK's constructor takes, and nothing of
    ours hides one.
    """
    rules = ("models", "others", "on_conflict", "as_pairs", "provider")
    ours = {"bias", *(f"bias_{rule}" for rule in rules)}
    kinds: dict[type, Any] = {
        openai.OpenAI: drop_in._Sync,
        openai.AsyncOpenAI: drop_in._Async,
        openai.AzureOpenAI: drop_in._Azure,
        openai.AsyncAzureOpenAI: drop_in._AsyncAzure,
    }
    for kind, declared in kinds.items():
        taken = {name for name in inspect.signature(kind).parameters if not name.startswith("_")}
        assert declared.__annotations__.keys() >= ours
        assert taken == declared.__annotations__.keys() - ours


def test_a_drop_in_client_takes_the_options_of_apply(server: Server) -> None:
    """Each keyword does what ``apply``'s does, and a wrong one or a bad file fails at once."""
    made: dict[str, Any] = {"api_key": "k", "base_url": server.url}
    rules: dict[str, Any] = {"bias_others": "raise", "bias_on_conflict": "add"}
    bias = make({7: 1.25})
    with drop_in.OpenAI(
        bias=bias, bias_models=["mine"], bias_as_pairs=True, **rules, **made
    ) as client:
        ask(client, model="mine", logit_bias={"7": 1})
        assert server.last.json["logit_bias"] == [[7, 2.25]]
        with raises_naming(InputError, "'mine'", "'tiny'"):
            ask(client)
    with raises_naming(InputError, "others='skip'"):
        drop_in.OpenAI(bias=bias, bias_others="skip", **made)  # type: ignore[arg-type]
    with raises_naming(BiasError, "absent.json"):
        drop_in.OpenAI(bias="absent.json", **made)
    with raises_naming(TypeError, "'bias'"):
        drop_in.OpenAI(**made)


def test_copies_of_a_drop_in_client_carry_it_once(server: Server) -> None:
    """A copy is of the same class and sends the bias once, with an HTTP client of the caller's too,
    and under ``apply``.
    """
    bias = make({7: 1.25})
    own = httpx2.Client(headers={"x-gateway": "g"})
    with drop_in.OpenAI(bias=bias, api_key="k", base_url=server.url) as client:
        for copied in (client.copy(), client.with_options(timeout=60).copy(http_client=own)):
            assert type(copied) is drop_in.OpenAI
            ask(copied)
            assert_biased(server.last, {"7": 1.25})
        assert server.last.headers["x-gateway"] == "g"
        with raises_naming(InputError, "logit_bias"):
            ask(apply(client, bias))
        both = apply(client, bias, on_conflict="add")
        for sender in (both, both.with_options(http_client=own)):
            ask(sender)
            assert_biased(server.last, {"7": 2.5})
    own.close()


def test_closing_a_drop_in_client_closes_the_connections(server: Server, bias: Bias) -> None:
    """Unlike a client from ``apply`` it owns them, as the SDK's own does."""
    own = httpx2.Client()
    with drop_in.OpenAI(bias=bias, api_key="k", base_url=server.url, http_client=own) as client:
        ask(client)
    assert client.is_closed()
    assert own.is_closed
    with raises_naming(RuntimeError, "closed"):
        ask(client)

    async def talk() -> None:
        own = httpx2.AsyncClient()
        client = drop_in.AsyncOpenAI(bias=bias, api_key="k", base_url=server.url, http_client=own)
        await client.chat.completions.create(model="tiny", messages=HELLO)
        await client.close()
        assert client.is_closed()
        assert own.is_closed

    asyncio.run(talk())
    for seen in server.seen:
        assert_biased(seen)
