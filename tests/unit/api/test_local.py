"""Where the embedded engine's model comes from: paths, the data package, and a small fake hub on
loopback.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import huggingface_hub.constants
import pytest

from blackbox_lb.api.local import engine
from blackbox_lb.api.local.engine import LocalEngine, resolve_model
from blackbox_lb.errors import (
    AuthenticationFailed,
    BlbError,
    ConnectionFailed,
    InputError,
)
from tests.support.errors import raises_naming
from tests.support.exact.listener import Listener, Reply, Request

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = b"GGUF" + bytes(range(256)) * 400


class FakeHub:
    """The routes of a hub that huggingface_hub uses: listing a repository, and describing and
    sending a file of it.
    """

    repos: ClassVar[dict[str, dict[str, bytes]]] = {}
    gated: ClassVar[set[str]] = set()
    token = "hf_right"
    log: ClassVar[list[str]] = []

    def answer(self, request: Request) -> Reply:
        """Describe or send a file, or send a listing."""
        FakeHub.log.append(f"{request.method} {request.path}")
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/main/?(\?.*)?", request.path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/(main|[0-9a-f]{40})/(.+)", request.path)
        match = listing or file
        repo = match[1] if match else ""
        if repo not in self.repos:
            return Reply(404, {"error": "not found"}, {"X-Error-Code": "RepoNotFound"})
        if repo in self.gated and request.headers.get("authorization") != f"Bearer {self.token}":
            codes = {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"}
            return Reply(401, {"error": "gated"}, codes)
        if listing:
            return Reply(
                200,
                [
                    {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
                    for name, data in self.repos[repo].items()
                ],
            )
        if not file or file[3] not in self.repos[repo]:
            return Reply(404, b"", {"X-Error-Code": "EntryNotFound"})
        data = self.repos[repo][file[3]]
        headers = {
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(data)),
        }
        return Reply(200, data, headers)


@pytest.fixture(autouse=True)
def unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens at the hub's address, and nothing is cached."""
    reach("http://127.0.0.1:9", monkeypatch)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))


def reach(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the hub's address, as HF_ENDPOINT does for a fresh process."""
    path = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + path)


@pytest.fixture
def endpoint(unreachable: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fake hub holding one repository of each kind."""
    del unreachable
    monkeypatch.setattr(
        FakeHub,
        "repos",
        {
            "org/quants": {
                "README.md": b"read me",
                "m-F16.gguf": MODEL,
                "m-Q4_K_M.gguf": MODEL + b"km",
                "m-Q8_0.gguf": MODEL + b"80",
            },
            "org/plain": {"README.md": b"read me", "model.safetensors": b"x"},
            "org/notes": {"fake.gguf": b"<html>not a model</html>"},
            "org/gated": {"m-Q4_K_M.gguf": MODEL},
            "org/sharded": {
                "m-Q4_K_M-00001-of-00002.gguf": MODEL,
                "m-Q4_K_M-00002-of-00002.gguf": MODEL,
            },
            engine.DEFAULT_REPO: {engine.DEFAULT_FILE: MODEL},
        },
    )
    monkeypatch.setattr(FakeHub, "gated", {"org/gated"})
    monkeypatch.setattr(FakeHub, "log", [])
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with Listener(FakeHub().answer) as address:
        reach(address, monkeypatch)
        yield address


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("m.gguf", b"PK\x03\x04zip", (r"b'PK\x03\x04'", "b'GGUF'")),
        ("m.gguf", b"", ("b''", "b'GGUF'")),
        ("d", None, ("folder", ".gguf")),
    ],
)
def test_what_is_no_gguf_is_refused(
    tmp_path: Path, name: str, content: bytes | None, facts: tuple[str, ...]
) -> None:
    """The first four bytes are looked at before an engine is started."""
    good = tmp_path / "good.gguf"
    good.write_bytes(MODEL)
    assert resolve_model(good) == resolve_model(str(good)) == good, "it needs no hub"
    path = tmp_path / name
    path.mkdir() if content is None else path.write_bytes(content)
    with raises_naming(InputError, path, *facts):
        resolve_model(path)


@pytest.mark.parametrize("name", ["missing", "/no/such/m.gguf", "dir/m.gguf", "a/b:", "a b/c", ""])
def test_what_is_neither_path_nor_hub_name_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message lists the four forms that a model name can have."""
    monkeypatch.chdir(tmp_path)
    with raises_naming(InputError, name or ".", ".gguf"):
        resolve_model(name)


def test_the_default_is_found_in_the_data_package_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's own code, which needs another inference stack, never runs."""
    package = tmp_path / engine.DATA_PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / engine.DEFAULT_FILE).write_bytes(MODEL)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert resolve_model() == package / engine.DEFAULT_FILE


@pytest.mark.usefixtures("endpoint")
def test_the_default_comes_from_the_hub_where_the_data_package_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked for at the revision that the data package was made from."""
    monkeypatch.setattr(engine, "DATA_PACKAGE", "no_such_package")
    assert resolve_model().read_bytes() == MODEL
    assert any(engine.DEFAULT_REVISION in line for line in FakeHub.log)


@pytest.mark.usefixtures("endpoint")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("org/quants/m-F16.gguf", MODEL),
        ("org/quants:f16", MODEL),
        ("org/quants:Q8_0", MODEL + b"80"),
        ("org/quants", MODEL + b"km"),
    ],
)
def test_a_hub_name_chooses_the_file(name: str, content: bytes) -> None:
    """An exact file, a quantisation in any case, or Q4_K_M where none is named."""
    assert resolve_model(name).read_bytes() == content


@pytest.mark.usefixtures("endpoint")
@pytest.mark.parametrize(
    ("name", "error", "facts"),
    [
        ("org/plain", InputError, ("org/plain", "-GGUF")),
        ("org/plain:Q4_K_M", InputError, ("org/plain", "-GGUF")),
        ("org/quants:Q2_K", InputError, ("Q2_K", "m-F16.gguf", "m-Q4_K_M.gguf")),
        ("org/quants/other.gguf", InputError, ("org/quants/other.gguf", "org/name:QUANT")),
        ("org/missing", InputError, ("org/missing", "HF_TOKEN")),
        ("org/missing/m.gguf", InputError, ("org/missing/m.gguf", "HF_TOKEN")),
        ("org/sharded", InputError, ("m-Q4_K_M-00001-of-00002.gguf", "org/sharded:Q4_K_M")),
        ("org/sharded/m-Q4_K_M-00001-of-00002.gguf", InputError, ("m-Q4_K_M-00001-of-00002.gguf", "org/sharded:Q4_K_M")),
        ("org/notes/fake.gguf", InputError, ("fake.gguf", "b'<htm'", "b'GGUF'")),
        ("org/gated", AuthenticationFailed, ("org/gated", "HF_TOKEN")),
        ("org/gated/m-Q4_K_M.gguf", AuthenticationFailed, ("org/gated/m-Q4_K_M.gguf", "HF_TOKEN")),
        ("org--x/name", InputError, ("org--x/name", "--")),
    ],
)  # fmt: skip
def test_what_the_hub_refuses_is_said_in_one_sentence(
    name: str, error: type[BlbError], facts: tuple[str, ...]
) -> None:
    """Each refusal has its error class and its remedy."""
    with raises_naming(error, *facts) as caught:
        resolve_model(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["org/quants", "org/quants/m-F16.gguf", None])
def test_an_unreachable_hub_is_a_failed_connection(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the way without a hub."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(engine, "DATA_PACKAGE", "no_such_package")
    with raises_naming(ConnectionFailed, ".gguf"):
        resolve_model(name)


@pytest.mark.usefixtures("endpoint")
def test_offline_uses_what_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE serves the cached file by repository name and refuses what was never
    fetched.
    """
    resolve_model("org/quants")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert resolve_model("org/quants").read_bytes() == MODEL + b"km"
    with raises_naming(ConnectionFailed, "HF_HUB_OFFLINE"):
        resolve_model("org/gated")


def test_the_environment_is_honoured(endpoint: str, tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_HOME and HF_TOKEN, read when huggingface_hub is imported, reach a fresh
    process; the bar is shown there.
    """
    script = (
        "from blackbox_lb.api.local.engine import resolve_model; print(resolve_model('org/gated'))"
    )
    hub = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_TOKEN": FakeHub.token}
    shows_the_bar = {"TQDM_POSITION": "-1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **hub, **shows_the_bar},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    path = Path(done.stdout.strip())
    assert path.is_relative_to(tmp_path)
    assert path.read_bytes() == MODEL
    assert "100%" in done.stderr


def test_a_missing_extra_names_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without huggingface_hub, xllamacpp or tokenizers the message says what to install, before the
    engine is started.
    """
    path = tmp_path / "m.gguf"
    path.write_bytes(MODEL)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with raises_naming(InputError, "huggingface_hub", "'.[local]'"):
        resolve_model("org/quants")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with (
        raises_naming(InputError, "xllamacpp and tokenizers", "'.[local]'"),
        LocalEngine(path),
    ):
        pass


@pytest.mark.parametrize("size", [{"parallel": 0}, {"context": 0}, {"threads": -1}])
def test_an_engine_of_no_size_is_refused(size: dict[str, int], tmp_path: Path) -> None:
    """The sizes are checked before anything is started, and the value is in the message."""
    path = tmp_path / "m.gguf"
    path.write_bytes(MODEL)
    with raises_naming(InputError, *size, *size.values(), "1"):
        LocalEngine(path, **size)


def test_a_file_that_only_looks_like_a_model_fails_with_the_engines_reason(tmp_path: Path) -> None:
    """llama.cpp's own complaint is in the message, nothing is left running, and the engine has no
    address.
    """
    pytest.importorskip("xllamacpp")
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00rubbish")
    engine = LocalEngine(path)
    with (
        raises_naming(InputError, "llama.cpp", "m.gguf"),
        engine,
    ):
        pass
    with raises_naming(InputError, "not running"):
        _ = engine.base_url
