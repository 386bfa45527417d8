"""From a bias and the store of its completions to all tables and sentences of an analysis."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blackbox_lb.bias.document import Bias
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.reweighting import InterventionScores, intervention_scores
from blackbox_lb.extras.analysis.biased_completions import biased_completions, shifts
from blackbox_lb.extras.analysis.document import Analysis, TokenScore
from blackbox_lb.extras.analysis.interpret import Texts, bands, families, token_scores
from blackbox_lb.providers.profile import Profile
from blackbox_lb.rollouts.progress import short
from blackbox_lb.store import RolloutStore
from blackbox_lb.vocabulary import Vocabulary


def analyze(
    bias: Bias,
    store_path: Path,
    profile: Profile,
    vocabulary: Vocabulary | None,
    provenance: dict[str, Any],
) -> Analysis:
    """Score the tokens of the completions that were drawn with ``bias``, without any request.

    Args:
        bias: the bias.
        store_path: the rollout store of blb fit or blb eval, which has its completions and base
            ones.
        profile: of the provider that they were drawn through.
        vocabulary: of the model, for the texts of tokens; None for those that the store has.
        provenance: the origin that the file records.

    Raises:
        see ``biased_completions`` and ``logged_prefixes``.
    """
    biased = biased_completions(store_path, bias, profile, vocabulary)
    rollouts = biased.rollouts
    values = shifts(store_path, biased, bias, profile, vocabulary)
    # The file was checked when its completions were read.
    with RolloutStore(store_path, read_only=True, check_file=False) as store:
        token_bytes = store.token_bytes(bias.tokenizer)
    owner = rollouts.rollout_of
    scores = intervention_scores(rollouts.token_ids, owner, values)
    texts = _texts(bias, scores, rollouts, token_bytes, vocabulary)
    tokens = token_scores(scores, bias.logit_bias, texts)
    policy = intervention_scores(np.zeros_like(rollouts.token_ids), owner, values)
    kl_se: float | None = float(policy.errors[0])
    if np.isnan(policy.errors[0]):
        kl_se = None
    listed = np.exp(rollouts.top_logprobs.astype(np.float64)).sum(axis=1)
    unvisited = None
    if bias.vocab_size is not None:
        visited = np.count_nonzero(scores.token_ids >= 0)
        unvisited = max(bias.vocab_size - visited, 0)
    promoted_share = float(scores.counts[scores.scores > 0].sum() / scores.counts.sum())
    return Analysis(
        provider=bias.provider,
        model=bias.model,
        completions=len(rollouts.keys),
        left_out=biased.left_out,
        positions=len(rollouts.token_ids),
        unlisted=float(np.clip(1.0 - listed, 0.0, 1.0).mean()),
        unvisited=unvisited,
        kl_per_token=policy.mean,
        kl_se=kl_se,
        promoted_share=promoted_share,
        bands=bands(scores.scores),
        families=families(tokens),
        tokens=tokens,
        summary=_summary(tokens, policy.mean, kl_se, promoted_share),
        provenance=provenance,
    )


def _texts(
    bias: Bias,
    scores: InterventionScores,
    rollouts: Rollouts,
    token_bytes: Mapping[int, bytes],
    vocabulary: Vocabulary | None,
) -> Texts:
    """Bytes from the vocabulary where there is one, else from the store.

    Special tokens are named by the vocabulary, else by the texts in the bias file.
    """
    names = {entry.id: entry.text for entry in bias.entries if entry.text}
    if vocabulary is None:
        raw = {token: spelled for token, spelled in token_bytes.items() if spelled}
        return Texts(raw, names, _ends(rollouts) - raw.keys() - names.keys())
    tokens = scores.token_ids.tolist()
    raw = {token: vocabulary.ordinary[token] for token in tokens if token in vocabulary.ordinary}
    special = {token: name for name, token in vocabulary.special.items()}
    return Texts({**token_bytes, **raw}, {**names, **special}, frozenset(special))


def _ends(rollouts: Rollouts) -> frozenset[int]:
    """Tokens at the end of several completions and nowhere else; without a text they end a turn."""
    last = np.cumsum(rollouts.lengths)[rollouts.lengths > 0] - 1
    ids, counts = np.unique(rollouts.token_ids[last], return_counts=True)
    inside = np.delete(rollouts.token_ids, last)
    return frozenset(ids[(counts > 1) & ~np.isin(ids, inside)].tolist())


def _summary(
    tokens: Sequence[TokenScore], kl: float, kl_se: float | None, promoted_share: float
) -> tuple[str, ...]:
    """Sentences for the reader, the most important first."""
    promoted = [token for token in tokens if token.score > 0]
    suppressed = [token for token in tokens if token.score < 0]
    error = ""
    if kl_se is not None:
        error = f" ± {short(kl_se)}"
    sentences = [
        (
            f"{len(tokens):,} different tokens were generated with the bias:"
            f" {len(promoted):,} promoted, {len(suppressed):,} suppressed"
        ),
        (
            f"the policy is {short(kl)}{error} nats a token away from the base;"
            f" {promoted_share:.0%} of all generated tokens are promoted ones"
        ),
    ]
    for word, side in (("promoted", promoted), ("suppressed", suppressed)):
        if side:
            most = sorted(side, key=lambda token: -abs(token.score) * token.count)[:5]
            listed = ", ".join(
                f"'{token.text}' ({token.score:+.2f}, {token.count} times)" for token in most
            )
            sentences.append(f"most {word}, by score times use: {listed}")
    return tuple(sentences)
