"""Made-up biases, to measure what it costs to send one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from blackbox_lb import Bias

# A bias is made here, and not learned.
from blackbox_lb.bias.features import FeatureVector, Words, bucket_of, grams
from blackbox_lb.bias.records import Entry
from blackbox_lb.bias.request_bias import SentRange

__all__ = ["by_words", "fixed", "text_of"]


def fixed(entries: int, vocabulary: int = 200_000, **fields: str) -> Bias:
    """A bias of so many different tokens, with nats of a normal distribution.

    fields: provider, model and tokenizer, where they matter.
    """
    rng = np.random.default_rng(0)
    tokens = rng.choice(vocabulary, entries, replace=False)
    known = {"provider": "vllm", "model": "m", "tokenizer": "t", **fields}
    rows = tuple(Entry(id=int(token), bias=float(rng.normal())) for token in tokens)
    return Bias(**known, reward="length", estimator="projection", entries=rows)


def by_words(bias: Bias, texts: Iterable[str], words: int = 50) -> Bias:
    """The same entries with vectors of small nats for the commonest words of texts."""
    rng = np.random.default_rng(3)
    counts = Counter(gram for text in texts for gram in dict.fromkeys(grams(text)))
    vectors = {}
    for gram, _ in counts.most_common(words):
        values = tuple(rng.normal(0, 0.1, len(bias.entries)).round(4).tolist())
        bucket = bucket_of(gram)
        vectors[bucket] = FeatureVector(name=str(bucket), bucket=bucket, values=values)
    features = (Words(vectors=tuple(vectors.values())),)
    return bias.replacing(features=features, sent=SentRange(low=-100.0, high=100.0))


def text_of(size: int) -> str:
    """A text of ``size`` bytes whose words differ."""
    return " ".join(f"{word} of times" for word in range(size // 12 + 1))[:size]
