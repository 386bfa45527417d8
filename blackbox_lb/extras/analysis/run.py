"""Analyzing: from the shift of each generated token to all tables and sentences."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blackbox_lb.bias.document import Bias
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.reweighting.intervention import InterventionScores, intervention_scores
from blackbox_lb.estimate.reweighting.weight_diagnostics import delta_statistics
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


def analyze(
    bias: Bias,
    biased: Biased,
    shifts: Shifts,
    known: Mapping[int, bytes],
    vocabulary: Vocabulary | None,
    provenance: dict[str, Any],
    names: Mapping[int, str] | None = None,
) -> Analysis:
    """Build the analysis from the shifts.

    known: the bytes of tokens, as the store has them; names: texts of others.
    """
    rollouts = biased.rollouts
    values = shifts.values
    owner = rollouts.rollout_of
    scores = intervention_scores(rollouts.token_ids, owner, values)
    texts = _texts(bias, scores, rollouts, known, vocabulary, names or {})
    tokens = token_scores(scores, bias.logit_bias, texts, rollouts, values)
    scored_here = np.isfinite(values)
    usage = _usage(rollouts, owner, values, scores)
    outside = ~(rollouts.top_ids == rollouts.token_ids[:, None]).any(axis=1)
    pairs = minimal_pairs(tokens, texts)
    visited = len(np.unique(rollouts.token_ids[rollouts.token_ids >= 0]))
    return Analysis(
        provider=bias.provider,
        model=bias.model,
        source=shifts.source,
        rollouts=biased.words,
        completions=len(rollouts.keys),
        left_out=biased.left_out,
        positions=int(scored_here.sum()),
        unscored=int((~scored_here).sum()),
        outside=int((outside & scored_here).sum()),
        unvisited=None if bias.vocab_size is None else max(bias.vocab_size - visited, 0),
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
    bias: Bias,
    scores: InterventionScores,
    rollouts: Rollouts,
    known: Mapping[int, bytes],
    vocabulary: Vocabulary | None,
    told: Mapping[int, str],
) -> Texts:
    """Bytes from the vocabulary where it is known, else from the answers; special tokens by name,
    else by the bias's own texts.
    """
    names = {entry.id: entry.text for entry in bias.entries if entry.text} | dict(told)
    if vocabulary is None:
        raw = {token: each for token, each in known.items() if each}
        return Texts(raw, names, _ends(rollouts) - raw.keys() - names.keys())
    seen = np.union1d(scores.token_ids, rollouts.token_ids).tolist()
    raw = {token: vocabulary.ordinary[token] for token in seen if token in vocabulary.ordinary}
    special = {token: name for name, token in vocabulary.special.items()}
    return Texts({**known, **raw}, {**names, **special}, frozenset(special))


def _ends(rollouts: Rollouts) -> frozenset[int]:
    """Tokens at the end of several completions and nowhere else: they end a turn, if they have no
    text.
    """
    last = np.cumsum(rollouts.lengths)[rollouts.lengths > 0] - 1
    ids, counts = np.unique(rollouts.token_ids[last], return_counts=True)
    inside = np.delete(rollouts.token_ids, last)
    return frozenset(ids[(counts > 1) & ~np.isin(ids, inside)].tolist())


def _usage(
    rollouts: Rollouts, owner: Ids, values: Vector, by_token: InterventionScores
) -> PolicyEffect:
    whole = intervention_scores(np.zeros_like(rollouts.token_ids), owner, values)
    error = float(whole.errors[0])
    promoted = float(by_token.counts[by_token.scores > 0].sum() / by_token.counts.sum())
    return PolicyEffect(
        kl_per_token=whole.mean, se=None if np.isnan(error) else error, promoted_share=promoted
    )


def _delta(bias: Bias) -> tuple[DeltaRow, ...]:
    """Statistics of the learned vector, from the bias file, and of the sent bias; what prompts have
    in common, where it depends on them."""
    if bias.vocab_size is None:
        return ()
    sent = delta_statistics(np.array(list(bias.logit_bias.values())), bias.vocab_size)
    return tuple(
        DeltaRow(
            of=of,
            vocabulary=bias.vocab_size,
            entries=len(bias.entries) if of == "sent" else None,
            sampled_fraction=None if of == "sent" else found.sampled_fraction,
            sigma=found.sigma,
            min=found.low,
            max=found.high,
            selected_fraction=found.selected_fraction,
        )
        for of, found in (("learned", bias.learned), ("sent", sent))
        if found is not None
    )


def _summary(
    tokens: Sequence[TokenScore], visited: int, usage: PolicyEffect, pairs: int
) -> tuple[str, ...]:
    """Sentences for the reader, the most important first."""
    up, down = ([token for token in tokens if sign * token.score > 0] for sign in (1, -1))
    error = "" if usage.se is None else f" ± {short(usage.se)}"
    scored = "" if len(tokens) == visited else f", {len(tokens):,} of them scored"
    sentences = [
        (
            f"{visited:,} different tokens were generated with the bias{scored}: {len(up):,}"
            f" promoted, {len(down):,} suppressed"
        ),
        (
            f"the policy is {short(usage.kl_per_token)}{error} nats a token away from the base;"
            f" {usage.promoted_share:.0%} of all generated tokens are promoted ones"
        ),
    ]
    for word, side in (("promoted", up), ("suppressed", down)):
        if side:
            most = sorted(side, key=lambda each: -abs(each.score) * each.count)[:5]
            listed = ", ".join(
                f"'{each.text}' ({each.score:+.2f}, {each.count} times)" for each in most
            )
            sentences.append(f"most {word}, by score times use: {listed}")
    if pairs:
        sentences.append(
            f"{pairs:,} pairs of nearly equal tokens are pushed in opposite directions"
        )
    return tuple(sentences)
