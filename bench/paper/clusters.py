"""The paper's baseline with few parameters: one inverse-propensity estimate for each cluster of
tokens instead of each token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from bench.arrays import Ids, Vector
from bench.paper.clustering import cluster_vocabulary
from blackbox_lb import Sweep, Task, Trials

# An estimator of its own, beside those of the package.
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.estimator import (
    EstimatorFacts,
    Logged,
    Proposal,
    Smoothed,
)
from blackbox_lb.estimate.choice.table import ROWS
from blackbox_lb.estimate.counting.statistics import Statistics, TokenIPS
from blackbox_lb.estimate.projection.projection import Prior
from blackbox_lb.rollouts.judging.verdict import SAMPLED

NAME = "clusters"


def fits(statistics: Statistics, vocab_size: int) -> None:
    """Raise InputError if a sampled token id is not below ``vocab_size``."""
    if len(statistics.counts) > vocab_size:
        raise InputError(
            f"token id {len(statistics.counts) - 1} was sampled, but the vocabulary has"
            f" {vocab_size} entries; give the size of the model's output layer"
        )


class TiedIPS(TokenIPS):
    """Zhat with every token at the mean of its cluster's observed tokens (the paper, appendix
    "Cluster-tied bias").

        Zbar(k) = mean of Zhat(y) over the sampled tokens y of cluster k,
        Z_tied(y) = Zbar(c(y)) for every token.

    All methods of ``TokenIPS`` are there, over the whole vocabulary: ``token_ids`` is (v,) 0 .. v -
    1, ``counts`` (v,) times sampled, and ``delta`` (v,) ``log(alpha + Z_tied) - log(alpha)`` in
    nats, 0 for what has no estimate. Tying is a change of policy only between clusters: with one
    cluster the bias is a constant.

    A cluster of which no token was sampled has Z_tied = 0, as an unsampled token has in
    ``TokenIPS``. A token without a cluster is tied to nothing: it keeps its own Zhat. Because only
    sampled tokens enter the mean, as in the paper, Zbar is the cluster's mean Z divided by the
    chance to be sampled, roughly: a cluster of rare tokens comes out too high, the more so the
    fewer the rollouts.

    n_clusters: clusters with at least one token. n_unobserved: those of which none was sampled.
    n_untied: sampled tokens without a cluster. observed_share: the share of the tokens in clusters
    that was sampled.
    """

    def __init__(self, statistics: Statistics, labels: npt.ArrayLike) -> None:
        """``labels``: (v,) whole numbers, the cluster of each token id, -1 for an id without one.

        InputError: labels of another form or none, a token was sampled beyond them, or what
        ``TokenIPS`` refuses.
        """
        super().__init__(statistics)
        cluster_of = _checked(labels)
        fits(statistics, len(cluster_of))
        sampled, counts = self.token_ids, self.counts
        tied = cluster_of >= 0
        clusters, cluster_of[tied] = np.unique(cluster_of[tied], return_inverse=True)
        alone = sampled[~tied[sampled]]
        cluster_of[alone] = len(clusters) + np.arange(len(alone))
        self._cluster_of, self._sampled_cluster = cluster_of, cluster_of[sampled]
        # One cell more, which stays 0, is what a token in no cluster finds at index -1.
        self._observed: Ids = np.bincount(
            self._sampled_cluster, minlength=len(clusters) + len(alone) + 1
        )
        self.n_clusters, self.n_untied = len(clusters), len(alone)
        self.n_unobserved = int((self._observed[: len(clusters)] == 0).sum())
        self.observed_share = (len(sampled) - len(alone)) / max(int(tied.sum()), 1)
        self.token_ids = np.arange(len(cluster_of))
        self.counts = np.zeros(len(cluster_of), np.int64)
        self.counts[sampled] = counts

    def scaled(self, tau: float) -> tuple[Vector, float]:
        """(v,) ``Z_tied / exp(log_scale)`` and log_scale in nats; see ``TokenIPS.scaled``."""
        values, log_scale = super().scaled(tau)
        sums = np.bincount(self._sampled_cluster, weights=values, minlength=len(self._observed))
        means: Vector = sums / np.maximum(self._observed, 1)
        return means[self._cluster_of], log_scale


def _checked(labels: npt.ArrayLike) -> Ids:
    """A copy of ``labels`` as (v,) integers."""
    given = np.asarray(labels)
    if given.ndim != 1 or not given.size or given.dtype.kind not in "iu":
        raise InputError(
            f"labels have shape {given.shape} and type {given.dtype}; give one whole number for"
            " each token of the vocabulary"
        )
    if int(given.min()) < -1:
        raise InputError(
            f"token {int(given.argmin())} has the label {int(given.min())}; clusters count from 0,"
            " -1 is none"
        )
    return given.astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class IPSOfClusters:
    """The baseline as an estimator of the package's table. labels: (v,) the cluster of each token
    id, -1 for an id without one.
    """

    labels: Ids
    facts: ClassVar[EstimatorFacts] = EstimatorFacts(("alpha",), reads_propensities=True)

    def learn(self, data: Logged, sweep: Sweep, priors: Sequence[Prior] = ()) -> Iterator[Proposal]:
        """At each tau and alpha, with a value for every token of the vocabulary."""
        tied = Smoothed(self.facts, lambda statistics: TiedIPS(statistics, self.labels))
        for proposal in tied.learn(data, sweep, priors):
            yield replace(proposal, values=_fewest(proposal.values))


def _fewest(values: Vector) -> Vector:
    """The same policy with the largest cluster at 0, which has the fewest entries."""
    levels, counts = np.unique(values, return_counts=True)
    moved: Vector = values - levels[counts.argmax()]
    return moved


class _Row:
    """Where the table finds the baseline while it has its row."""

    current: ClassVar[IPSOfClusters]


@contextmanager
def clusters_in_table(labels: Ids) -> Iterator[None]:
    """Inside, the table of estimators has the row ``clusters``, with these labels."""
    _Row.current = IPSOfClusters(labels)
    ROWS[NAME] = f"{__name__}:_Row.current"
    try:
        yield
    finally:
        del ROWS[NAME], _Row.current


async def clusters_of(trials: Trials, task: Task, k: int, embedding: str | None) -> tuple[Ids, str]:
    """(v,) the cluster of each token id: ``k`` of them, of the words of a completion of each
    validation prompt; and a sentence about them.

    Raises:
        InputError: see ``cluster_vocabulary``.
        ConnectionFailed: the embedding model is not on this machine and the hub cannot be reached.
    """
    session = trials.session
    draw = trials.draw(SAMPLED, None, session.biased_endpoint)
    keys = await trials.collect("validation, base", task.validation, draw, 1, scored=False)
    texts = [completion.text for row in keys for completion in trials.store.completions(row)]
    cache = trials.store.path.with_name("clusters.npz")
    made = await asyncio.to_thread(
        cluster_vocabulary, session.vocabulary, texts, k=k, encoder=embedding, cache=cache
    )
    sizes = sorted(made.sizes.tolist())
    return made.labels, (
        f"{made.k} clusters of {made.corpus:,} words and special strings by {made.encoder},"
        f" {sizes[0]:,} to {sizes[-1]:,} tokens"
    )
