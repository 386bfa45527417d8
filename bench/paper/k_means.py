"""Texts in clusters, by the vectors of a sentence-embedding model."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.types import FloatArray
from blackbox_lb.vocabulary.embedding import EXTRA, Encoder

RESTARTS = 10
"""Runs of k-means; the one with the least squared distance counts."""


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
