"""Which tokens are tied: the vocabulary in clusters, by what a sentence-embedding model makes of
each token's text.

The paper's construction (appendix "Cluster-tied bias"): k-means over the words of auxiliary
completions and the tokenizer's special strings; every token of the vocabulary then goes to the
centroid nearest to the embedding of its own text.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.arrays import Ids

# Texts are embedded as features of prompts are.
from blackbox_lb.errors import InputError
from blackbox_lb.safety.files import replacing
from blackbox_lb.types import FloatArray
from blackbox_lb.vocabulary import Vocabulary
from blackbox_lb.vocabulary.embedding import EXTRA, Encoder, load_encoder, resolve_encoder

RESTARTS = 10
"""Runs of k-means; the one with the least squared distance counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Clustering:
    """labels: (v,) the cluster of each token id, -1 for an id that is no token. k: clusters.
    encoder: the model's name or folder. corpus: how many different words and special strings the
    clusters were made of.
    """

    labels: Ids
    k: int
    encoder: str
    corpus: int

    @property
    def sizes(self) -> Ids:
        """(k,) how many tokens of the vocabulary each cluster has."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.k).astype(np.int64)


def cluster_vocabulary(
    vocabulary: Vocabulary | None,
    completions: Iterable[str],
    *,
    k: int = 32,
    encoder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    cache: Path | None = None,
) -> Clustering:
    """The paper's clusters: ``k`` of them, from the words of ``completions``, for every token of
    ``vocabulary``.

    ``completions``: texts that the base model wrote to prompts other than those of the rollouts.
    ``encoder``: a folder or hub name, see ``resolve_encoder``. ``cache``: a file that keeps the
    labels; with the same vocabulary, words, encoder, k and seed they are read from it, otherwise it
    is written anew. Embedding takes some minutes on a CPU.

    Raises:
        InputError: no vocabulary, fewer different words than clusters, an encoder that is not there
        or makes no vectors, a
            ``cache`` that is another kind of file, or the extra ``clusters`` is not installed.
        ConnectionFailed: the encoder is not on this machine and the hub cannot be reached.
    """
    if vocabulary is None:
        raise InputError(
            "clusters need the text of every token, and this tokenizer is known only to the server:"
            " give --tokenizer FILE, the model's tokenizer.json or .gguf file"
        )
    texts, name = token_texts(vocabulary), resolve_encoder(encoder)
    corpus = sorted({*words(completions), *special_texts(vocabulary)})
    key = _key(texts, corpus, name, k, seed)
    labels = None if cache is None else _read(cache, key)
    if labels is None:
        labels = cluster_labels(texts, corpus, encoder=load_encoder(name), k=k, seed=seed)
        if cache is not None:
            _write(cache, key, labels)
    return Clustering(labels, k, name, len(corpus))


def token_texts(vocabulary: Vocabulary) -> list[str | None]:
    """v texts, what each token id reads as on its own, None for an id that is no token.

    Bytes that are no whole character read as U+FFFD, special tokens as their names.
    """
    table = map(vocabulary.bytes_of, range(vocabulary.size))
    return [None if raw is None else raw.decode(errors="replace") for raw in table]


def special_texts(vocabulary: Vocabulary) -> list[str]:
    """The texts that no words contain, sorted: names of special tokens, whitespace, and fragments
    of characters.
    """
    table = {token: raw.decode(errors="replace") for token, raw in vocabulary.ordinary.items()}
    fragments = {
        text for token, text in table.items() if text.encode() != vocabulary.ordinary[token]
    }
    blank = {text for text in table.values() if not text.strip()}
    return sorted(fragments | blank | {_name(name) for name in vocabulary.special})


def words(completions: Iterable[str]) -> list[str]:
    """The different whitespace-delimited words of some texts, sorted."""
    return sorted({_name(word) for text in completions for word in text.split()})


def _name(text: str) -> str:
    """``text`` without half surrogate pairs, which no encoder takes."""
    return text.encode(errors="replace").decode()


def _key(
    texts: Sequence[str | None], corpus: Sequence[str], encoder: str, k: int, seed: int
) -> str:
    """What labels depend on, in one hash."""
    document = json.dumps([texts, corpus, encoder, k, seed, RESTARTS])
    return f"clusters-sha256:{hashlib.sha256(document.encode()).hexdigest()}"


def _read(path: Path, key: str) -> Ids | None:
    """The labels in ``path`` if they are those of ``key``."""
    if not path.exists():
        return None
    try:
        with np.load(
            io.BytesIO(path.read_bytes()), allow_pickle=False
        ) as file:  # given a path it leaks a damaged file
            return file["labels"].astype(np.int64) if str(file["key"]) == key else None
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise InputError(
            f"{path} is no file of cluster labels, or a damaged one ({error}): remove it"
        ) from error


def _write(path: Path, key: str, labels: Ids) -> None:
    """Whole or not at all."""
    try:
        with replacing(path) as draft, draft.open("xb") as file:
            np.savez_compressed(file, key=np.array(key), labels=labels)
    except OSError as error:
        raise InputError(
            f"cannot write the cluster labels to {path}: {error.strerror or error}"
        ) from error


def cluster_labels(
    texts: Sequence[str | None],
    corpus: Iterable[str],
    *,
    encoder: Encoder,
    k: int = 32,
    seed: int = 0,
) -> Ids:
    """(v,) the nearest of ``k`` centroids of the embedded ``corpus``, a set of words, for each of
    ``texts``; -1 for None.

    Raises InputError: k below 1, fewer than k different words, vectors that are not finite, or
    scikit-learn is not installed.
    """
    different = sorted(set(corpus))
    if not 1 <= k <= len(different):
        raise InputError(_too_few(k, len(different)))
    known = sorted({text for text in texts if text is not None})
    means = _k_means(_embedded(encoder, different), k, seed)
    nearest = means.predict(_embedded(encoder, known)) if known else []
    label_of: dict[str | None, int] = dict(zip(known, map(int, nearest), strict=True))
    return np.array([label_of.get(text, -1) for text in texts], dtype=np.int64)


def _embedded(encoder: Encoder, texts: Sequence[str]) -> FloatArray:
    vectors = np.asarray(encoder(texts), dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise InputError(
            f"the encoder made an array of shape {vectors.shape} of {len(texts)} texts; it must"
            " make one vector of each"
        )
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise InputError(
            f"the encoder's vector of {texts[int(finite.argmin())]!r} is not finite; use another"
            " embedding model"
        )
    return vectors


def _k_means(vectors: FloatArray, k: int, seed: int) -> Any:
    try:
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
    except ModuleNotFoundError as error:
        raise InputError(f"clusters need scikit-learn: {EXTRA}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # reported below, with its remedy
        means = KMeans(k, n_init=RESTARTS, random_state=seed).fit(vectors)
    found = len(np.unique(means.labels_))
    if found < k:
        raise InputError(_too_few(k, found, " vectors, as the encoder sees the words"))
    return means


def _too_few(k: int, found: int, what: str = " words and special strings") -> str:
    return (
        f"{k} clusters cannot be made of {found} different{what}; k must be at least 1 and at most"
        " that: collect more completions, or make fewer clusters"
    )
