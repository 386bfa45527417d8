"""The file of ``blb analyze``: the shift of each token that was generated under a bias, and the
kinds of these tokens.

The intervention score S(y) is the mean of ``log pi_delta(y) - log pi_0(y)`` in nats over the places
where completions drawn with the bias continue with y (the paper, appendix "Intervention score as
realized log-probability shift").
"""

from __future__ import annotations

from typing import Any, Literal

from blackbox_lb.jobs.evaluation.document import Number, ResultPart

Source = Literal["exact", "tail model", "logprobs after the bias"]
"""Source of the ratio: whole distributions of the base; its lists at the biased positions; lists of
the biased policy.
"""
Side = Literal["promoted", "suppressed", "unmoved"]
"""By the sign of S: R+ and R- of the paper, and exactly 0."""


class TokenScore(ResultPart):
    """One token that was generated under the bias.

    ``bytes``: in hexadecimal, "" where not known. ``bias``: nats as sent. ``score``: S in nats;
    ``se``: its standard error, completions being independent, None for a token in a single
    completion. ``count``: positions with it.
    ``surface``: its surface class; ``family``: the name of its family. ``contexts``: short pieces
    of completions with the token marked, "The capital of France is «Paris».", safe to print.
    """

    id: int
    text: str
    bytes: str
    bias: Number
    score: Number
    se: Number | None
    count: int
    surface: str
    family: str
    contexts: tuple[str, ...] = ()


class Band(ResultPart):
    """A row of the paper's table of score bands: tokens with ``low <= S < high`` (above 0: ``0 <
    S``); None is unlimited.
    """

    low: Number | None
    high: Number | None
    label: str
    count: int
    meaning: str


class MinimalPair(ResultPart):
    """Two spellings of nearly the same thing: the bias promotes one and suppresses the other.

    ``relation``: their common part, such as "leading space". ``weight``: positions with either
    token times the score difference.
    """

    promoted: int
    suppressed: int
    promoted_text: str
    suppressed_text: str
    relation: str
    promoted_score: Number
    suppressed_score: Number
    promoted_count: int
    suppressed_count: int
    weight: Number


class Family(ResultPart):
    """Tokens of one kind on one side. ``size``: tokens; ``count``: positions; ``mean_score``: mean
    of S over tokens, in nats.

    ``examples``: texts of the most moved ones.
    """

    name: str
    side: Side
    size: int
    count: int
    mean_score: Number
    examples: tuple[str, ...]


class DeltaRow(ResultPart):
    """Statistics of a bias after centring to mean 0 over the vocabulary (the paper, "Logit-bias
    statistics").

    ``sampled_fraction`` and ``selected_fraction``, the tokens with ``|delta| >= 5 median |delta|``,
    are shares of the vocabulary; ``sigma``, ``min`` and ``max`` are nats. ``of``: "learned" is the
    vector over the whole vocabulary before the compile, present in the file by these numbers only;
    "sent" the bias in use, or what all prompts have in common of one that depends on the prompt.
    """

    of: Literal["learned", "sent"]
    vocabulary: int
    entries: int | None
    sampled_fraction: Number | None
    sigma: Number
    min: Number
    max: Number
    selected_fraction: Number


class PolicyEffect(ResultPart):
    """Whole policy at once. ``kl_per_token``: mean over positions of the log ratio, an estimate of
    KL(pi_delta || pi_0) in nats;
    ``se``: its standard error, completions being independent. ``promoted_share``: share of
    positions with a promoted token.
    """

    kl_per_token: Number
    se: Number | None
    promoted_share: Number


class Analysis(ResultPart):
    """The result of ``blb analyze``; ``tokens`` from the most promoted to the most suppressed.

    ``rollouts``: the source of the completions, in words. ``completions``: number read,
    ``left_out``: number not read (cut by a filter, unreadable). ``positions``: places with a score,
    ``unscored``: places without one (not asked about, or without a list); ``outside``: scored
    places whose token is missing from the list there. ``unvisited``: tokens of the vocabulary never
    generated under the bias, None where its size is not known. ``grouping``: the method for
    families. ``summary``: sentences for the reader, the most important first.
    """

    format: Literal["blackbox-lb/analysis"] = "blackbox-lb/analysis"
    version: Literal[1] = 1
    provider: str
    model: str
    source: Source
    rollouts: str
    completions: int
    left_out: int = 0
    positions: int
    unscored: int = 0
    outside: int = 0
    unvisited: int | None
    usage: PolicyEffect
    delta: tuple[DeltaRow, ...]
    bands: tuple[Band, ...]
    grouping: Literal["surface", "embedding"]
    families: tuple[Family, ...]
    pairs: tuple[MinimalPair, ...]
    tokens: tuple[TokenScore, ...]
    summary: tuple[str, ...]
    provenance: dict[str, Any]
