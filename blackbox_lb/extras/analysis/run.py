"""From the shift of each generated token to all tables and sentences of an analysis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blackbox_lb.bias.document import Bias
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.reweighting import (
    InterventionScores,
    intervention_scores,
    learned_record,
)
from blackbox_lb.extras.analysis.biased_completions import Biased, Shifts
from blackbox_lb.extras.analysis.document import Analysis, DeltaRow, PolicyEffect, TokenScore
from blackbox_lb.extras.analysis.interpret import (
    Texts,
    bands,
    families,
    minimal_pairs,
    token_scores,
)
from blackbox_lb.rollouts.progress import short
from blackbox_lb.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class TokenNames:
    """What is known of the texts of tokens.

    token_bytes: by id, as the store has them.
    vocabulary: that of the model; None where there is none.
    names: texts of tokens without bytes, by id.
    """

    token_bytes: Mapping[int, bytes]
    vocabulary: Vocabulary | None
    names: Mapping[int, str] = field(default_factory=dict)


def analyze(
    bias: Bias, biased: Biased, shifts: Shifts, names: TokenNames, provenance: dict[str, Any]
) -> Analysis:
    """Build the analysis from the shifts."""
    rollouts = biased.rollouts
    values = shifts.values
    owner = rollouts.rollout_of
    scores = intervention_scores(rollouts.token_ids, owner, values)
    texts = _texts(bias, scores, rollouts, names)
    tokens = token_scores(scores, bias.logit_bias, texts, rollouts, values)
    is_scored = np.isfinite(values)
    usage = _usage(rollouts, owner, values, scores)
    outside = ~(rollouts.top_ids == rollouts.token_ids[:, None]).any(axis=1)
    pairs = minimal_pairs(tokens, texts)
    visited = len(np.unique(rollouts.token_ids[rollouts.token_ids >= 0]))
    unvisited = None
    if bias.vocab_size is not None:
        unvisited = max(bias.vocab_size - visited, 0)
    return Analysis(
        provider=bias.provider,
        model=bias.model,
        source=shifts.source,
        rollouts=biased.words,
        completions=len(rollouts.keys),
        left_out=biased.left_out,
        positions=int(is_scored.sum()),
        unscored=int((~is_scored).sum()),
        outside=int((outside & is_scored).sum()),
        unvisited=unvisited,
        usage=usage,
        delta=_delta(bias),
        bands=bands(scores.scores),
        grouping="surface",
        families=families(tokens),
        pairs=pairs,
        tokens=tokens,
        summary=_summary(tokens, visited, usage, len(pairs)),
        provenance=provenance,
    )


def _texts(
    bias: Bias, scores: InterventionScores, rollouts: Rollouts, token_names: TokenNames
) -> Texts:
    """Bytes from the vocabulary where there is one, else from the store.

    Special tokens are named by the vocabulary, else by the texts in the bias file.
    """
    names = {entry.id: entry.text for entry in bias.entries if entry.text} | dict(token_names.names)
    vocabulary = token_names.vocabulary
    if vocabulary is None:
        raw = {token: spelled for token, spelled in token_names.token_bytes.items() if spelled}
        return Texts(raw, names, _ends(rollouts) - raw.keys() - names.keys())
    tokens = np.union1d(scores.token_ids, rollouts.token_ids).tolist()
    raw = {token: vocabulary.ordinary[token] for token in tokens if token in vocabulary.ordinary}
    special = {token: name for name, token in vocabulary.special.items()}
    return Texts({**token_names.token_bytes, **raw}, {**names, **special}, frozenset(special))


def _ends(rollouts: Rollouts) -> frozenset[int]:
    """Tokens at the end of several completions and nowhere else; without a text they end a turn."""
    last = np.cumsum(rollouts.lengths)[rollouts.lengths > 0] - 1
    ids, counts = np.unique(rollouts.token_ids[last], return_counts=True)
    inside = np.delete(rollouts.token_ids, last)
    return frozenset(ids[(counts > 1) & ~np.isin(ids, inside)].tolist())


def _usage(
    rollouts: Rollouts, owner: Ids, values: Vector, by_token: InterventionScores
) -> PolicyEffect:
    policy = intervention_scores(np.zeros_like(rollouts.token_ids), owner, values)
    error: float | None = float(policy.errors[0])
    if np.isnan(policy.errors[0]):
        error = None
    promoted = float(by_token.counts[by_token.scores > 0].sum() / by_token.counts.sum())
    return PolicyEffect(kl_per_token=policy.mean, se=error, promoted_share=promoted)


def _delta(bias: Bias) -> tuple[DeltaRow, ...]:
    """Statistics of the learned vector, from the bias file, and of the sent bias."""
    if bias.vocab_size is None:
        return ()
    rows = []
    learned = bias.learned
    if learned is not None:
        rows.append(
            DeltaRow(
                of="learned",
                vocabulary=bias.vocab_size,
                entries=None,
                sampled_fraction=learned.sampled_fraction,
                sigma=learned.sigma,
                min=learned.low,
                max=learned.high,
                selected_fraction=learned.selected_fraction,
            )
        )
    sent = learned_record(np.array(list(bias.logit_bias.values())), bias.vocab_size)
    if sent is not None:
        rows.append(
            DeltaRow(
                of="sent",
                vocabulary=bias.vocab_size,
                entries=len(bias.entries),
                sampled_fraction=None,
                sigma=sent.sigma,
                min=sent.low,
                max=sent.high,
                selected_fraction=sent.selected_fraction,
            )
        )
    return tuple(rows)


def _summary(
    tokens: Sequence[TokenScore], visited: int, usage: PolicyEffect, pairs: int
) -> tuple[str, ...]:
    """Sentences for the reader, the most important first."""
    promoted = [token for token in tokens if token.score > 0]
    suppressed = [token for token in tokens if token.score < 0]
    error = ""
    if usage.se is not None:
        error = f" ± {short(usage.se)}"
    scored = ""
    if len(tokens) != visited:
        scored = f", {len(tokens):,} of them scored"
    sentences = [
        (
            f"{visited:,} different tokens were generated with the bias{scored}:"
            f" {len(promoted):,} promoted, {len(suppressed):,} suppressed"
        ),
        (
            f"the policy is {short(usage.kl_per_token)}{error} nats a token away from the base;"
            f" {usage.promoted_share:.0%} of all generated tokens are promoted ones"
        ),
    ]
    for word, side in (("promoted", promoted), ("suppressed", suppressed)):
        if side:
            most = sorted(side, key=lambda token: -abs(token.score) * token.count)[:5]
            listed = ", ".join(
                f"'{token.text}' ({token.score:+.2f}, {token.count} times)" for token in most
            )
            sentences.append(f"most {word}, by score times use: {listed}")
    if pairs:
        sentences.append(
            f"{pairs:,} pairs of nearly equal tokens are pushed in opposite directions"
        )
    return tuple(sentences)
