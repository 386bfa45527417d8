"""What the environment says about connections: each bad variable is one sentence that names it, and
each good one counts for every request.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blackbox_lb.api.local.engine import resolve_model
from blackbox_lb.api.transport.channel import Channel
from blackbox_lb.errors import ConnectionFailed, CorruptResponse, InputError
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.safety import network
from blackbox_lb.safety.http.retries import is_passing
from blackbox_lb.safety.network import (
    certificates,
    proxy_server,
    untrusted_certificate,
)
from blackbox_lb.vocabulary.embedding import TextVectors
from blackbox_lb.vocabulary.tokenizer_files import read_encoding
from tests.support.errors import raises_naming
from tests.support.exact.listener import Listener, Reply, Request

CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
VARIABLES = ("SSLKEYLOGFILE", *CERTIFICATES)
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, *PROXIES, *(name.upper() for name in PROXIES)):
        monkeypatch.delenv(name, raising=False)


def get(address: str) -> object:
    """The answer to one request of a channel."""

    async def go() -> object:
        channel = Channel(load_profile("llamacpp"), address)
        try:
            return await channel.get("/models")
        finally:
            await channel.close()

    return asyncio.run(go())


# --- Certificates


def models(request: Request) -> Reply:
    """Lists no models, and embeds any text alike."""
    data = [] if request.method == "GET" else [{"index": 0, "embedding": [3, 4]}]
    return Reply(200, {"data": data})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that is signed by itself, with its key beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("making a certificate needs openssl")
    folder = tmp_path_factory.mktemp("certificate")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out own.pem -days 2"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command.split(), *subject], cwd=folder, check=True, capture_output=True)
    return folder / "own.pem"


@pytest.fixture
def encrypted(certificate: Path) -> Iterator[str]:
    """The address of a server with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    with Listener(models, context) as address:
        yield address.replace("http://127.0.0.1", "https://localhost") + "/v1"


def test_a_certificate_that_is_not_trusted_is_said_as_such(
    encrypted: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the variable that would trust it, or that has to be corrected; it is not tried again."""
    for folder in (None, tmp_path):
        if folder is not None:
            monkeypatch.setenv("SSL_CERT_DIR", str(folder))
        with pytest.raises(ConnectionFailed) as caught:
            get(encrypted)
        assert untrusted_certificate(caught.value) is not None
        assert not is_passing(caught.value)
        message = str(caught.value)
        assert "self-signed" in message
        assert "running" not in message
        assert (f"SSL_CERT_DIR names the trusted ones, {folder}" in message) == bool(folder)
        assert ("SSL_CERT_FILE" in message) == (folder is None)


def test_a_certificate_in_the_variable_is_trusted_for_its_names(
    encrypted: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On names of this machine as on any; trust is not what one for another name lacks."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert get(encrypted) == {"data": []}
    with pytest.raises(ConnectionFailed) as caught:
        get(encrypted.replace("localhost", "127.0.0.1"))
    assert "SSL_CERT_FILE" not in str(caught.value)
    assert "certificate" in str(caught.value)


def test_the_embeddings_api_trusts_the_same(
    encrypted: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An untrusted certificate is said once, without tries that cannot help."""
    vectors = TextVectors(f"m@{encrypted}")
    with raises_naming(ConnectionFailed, "SSL_CERT_FILE"):
        vectors.of(["a text"])
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert vectors.of(["a text"]) == [(0.6, 0.8)]


@pytest.mark.parametrize("kind", ["missing", "a folder", "no certificate", "empty"])
@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSLKEYLOGFILE", "SSL_CERT_DIR"])
def test_a_file_that_tls_cannot_use(
    variable: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence with the variable and its value, before anything is sent."""
    paths = {
        "missing": tmp_path / "none" / "file.pem",
        "a folder": tmp_path,
        "no certificate": tmp_path / "text.pem",
        "empty": tmp_path / "empty.pem",
    }
    paths["no certificate"].write_text("a text")
    paths["empty"].write_text("")
    usable = {
        "SSL_CERT_FILE": (),
        "SSLKEYLOGFILE": ("no certificate", "empty"),
        "SSL_CERT_DIR": ("a folder",),
    }
    monkeypatch.setenv(variable, str(paths[kind]))
    if kind in usable[variable]:
        certificates()
        return
    with pytest.raises(InputError) as caught:
        certificates()
    assert variable in str(caught.value)
    assert str(paths[kind]) in str(caught.value)
    with pytest.raises(InputError):
        get("https://host.example/v1")


@pytest.mark.parametrize(
    "words",
    [
        "eval --provider llamacpp --base-url http://127.0.0.1:9/v1 --data rows.jsonl --reward length",
        "proxy --bias bias.json --upstream http://127.0.0.1:9/v1",
    ],
)
def test_a_key_log_that_cannot_be_written_is_no_traceback(words: str, tmp_path: Path) -> None:
    """A fresh process: libraries read the variable while they are imported."""
    rows = "".join(f'{{"prompt": "q{number}?", "answer": "a"}}\n' for number in range(40))
    (tmp_path / "rows.jsonl").write_text(rows)
    done = subprocess.run(
        [sys.executable, "-m", "blackbox_lb", *words.split()],
        env={**os.environ, "SSLKEYLOGFILE": "/nonexistent/log"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Error: SSLKEYLOGFILE names the file /nonexistent/log")


# --- Proxy servers


BROKEN = [
    "socks://127.0.0.1:9/",
    "socks4://127.0.0.1:9",
    "ftp://127.0.0.1:9",
    "http://:99",
    "http://[::1",
    "http://host:port",
    "http://host:99999",
    ":::",
    "two words",
]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("http_proxy", value) for value in BROKEN),
        *((variable, BROKEN[0]) for variable in ("HTTP_PROXY", "all_proxy", "ALL_PROXY")),
    ],
)
def test_a_proxy_server_that_cannot_be_used(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is named, and the host that could go into NO_PROXY; hosts that need no proxy
    server are not concerned.
    """
    if variable == "HTTP_PROXY":
        monkeypatch.delenv("REQUEST_METHOD", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(InputError) as caught:
        get("http://host.example/v1")
    assert variable in str(caught.value)
    assert "add host.example to NO_PROXY" in str(caught.value)
    assert proxy_server("http://127.0.0.1:8000/v1") is None
    monkeypatch.setenv("NO_PROXY", "host.example")
    assert proxy_server("http://host.example/v1") is None


def test_a_socks_proxy_server_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """With it, other libraries talk to one; this package to those of HTTP alone."""
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setattr(network, "find_spec", lambda name: None)
    with raises_naming(InputError, "ALL_PROXY", "socksio", "NO_PROXY"):
        proxy_server("http://host.example/v1")
    monkeypatch.setattr(network, "find_spec", lambda name: name)
    server = proxy_server("http://host.example/v1")
    assert server == ("socks5://127.0.0.1:9", "ALL_PROXY")
    with raises_naming(InputError, "socks5"):
        proxy_server("http://host.example/v1", network.HTTP)


@pytest.mark.parametrize("variable", ["https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize(
    ("exceptions", "direct"),
    [
        ("host.example", True),
        ("HOST.example", True),
        (".example", True),
        ("*.example", True),
        ("*", True),
        ("a.example, host.example", True),
        ("host.example:8443", True),
        ("https://host.example", True),
        ("all://host.example", True),
        ("host.example:443", False),
        ("http://host.example", False),
        ("ost.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_exceptions_hold_for_every_kind_of_proxy_server(
    exceptions: str, direct: bool, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", exceptions)
    assert (proxy_server("https://host.example:8443/v1") is None) == direct


def test_a_proxy_server_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its password: the address alone would be blamed for it."""
    monkeypatch.setenv("HTTP_PROXY", "http://user:sesame-open@127.0.0.1:9")
    with pytest.raises(ConnectionFailed) as caught:
        get("http://host.example/v1")
    message = str(caught.value)
    assert "HTTP_PROXY" in message
    assert "127.0.0.1:9" in message
    assert "NO_PROXY" in message
    assert "sesame" not in message


def test_requests_go_through_a_proxy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of http whole, under its password; those of https by a tunnel that it may refuse."""
    requests: list[Request] = []

    def answer(request: Request) -> Reply:
        requests.append(request)
        return Reply(200, {"data": []}) if request.method == "GET" else Reply(403)

    with Listener(answer) as address:
        monkeypatch.setenv("ALL_PROXY", address.replace("://", "://user:sesame@"))
        assert get("http://host.example/v1") == {"data": []}
        with raises_naming(ConnectionFailed, "ALL_PROXY", "403"):
            get("https://host.example/v1")
    [whole, tunnel] = requests[:2]
    assert whole.path == "http://host.example/v1/models"
    assert whole.headers["proxy-authorization"] == "Basic dXNlcjpzZXNhbWU="
    assert (tunnel.method, tunnel.path) == ("CONNECT", "host.example:443")


# --- Other libraries


def test_what_keeps_tiktoken_from_its_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cache is not to blame."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none.pem"))
    with raises_naming(InputError, "REQUESTS_CA_BUNDLE") as caught:
        read_encoding("r50k_base")
    assert "TIKTOKEN_CACHE_DIR" not in str(caught.value)


@pytest.mark.needs("huggingface_hub")
@pytest.mark.parametrize(
    ("variable", "value"), [("SSL_CERT_FILE", "/nonexistent.pem"), ("ALL_PROXY", "socks4://h:1")]
)
def test_what_keeps_the_hub_from_being_asked_is_named(
    variable: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's client cannot be made at all."""
    import huggingface_hub.constants

    huggingface_hub.close_session()
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with raises_naming(InputError, variable, value.partition(":")[0]):
        resolve_model("org/name:Q4_0")
    huggingface_hub.close_session()


# --- Encodings


@pytest.mark.parametrize("coding", ["br", "zstd", "lz4", "BR", "gzip, br", "identity", "gzip"])
def test_encodings_over_the_network(coding: str) -> None:
    """Those that were asked for are read, all others are named."""
    content = b'{"data": []}'
    if coding == "gzip":
        content = gzip.compress(content)

    with Listener(lambda _: Reply(200, content, {"Content-Encoding": coding})) as address:
        if coding in ("identity", "gzip"):
            assert get(f"{address}/v1") == {"data": []}
            return
        named = coding.lower().rpartition(" ")[2]
        with raises_naming(CorruptResponse, "200", repr(named)):
            get(f"{address}/v1")
