"""The file of ``blb analyze``: the shift of each token that was generated under a bias.

The intervention score S(y) is the mean of ``log pi_delta(y) - log pi_0(y)`` in nats over the places
where completions drawn with the bias continue with y (the paper, appendix "Intervention score as
realized log-probability shift").
"""

from __future__ import annotations

from typing import Any, Literal

from blackbox_lb.jobs.evaluation.document import Number, ResultPart

Source = Literal["exact", "tail model", "logprobs after the bias"]
"""Source of the log ratio: distributions of the base model over the whole vocabulary, its lists at
the biased positions, or lists of the biased policy.
"""
Side = Literal["promoted", "suppressed", "unmoved"]
"""By the sign of S: R+ and R- of the paper, and exactly 0."""


class TokenScore(ResultPart):
    """One token that was generated under the bias.

    bytes: in hexadecimal; "" where not known.
    bias: nats as sent.
    score: S in nats.
    se: the standard error of the score, completions being independent; None for a token in a single
        completion.
    count: positions with the token.
    surface: the surface class.
    family: the name of the family.
    contexts: short pieces of completions with the token marked, as in
        "The capital of France is «Paris».", safe to print.
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
    """A row of the paper's table of score bands: tokens with ``low <= S < high``.

    None is unlimited. The band from 0 on leaves out 0 itself.
    """

    low: Number | None
    high: Number | None
    label: str
    count: int
    meaning: str


class MinimalPair(ResultPart):
    """Two tokens of nearly equal spelling, of which the bias promotes one and suppresses one.

    relation: what the spellings share, see ``token_classes.nearly_equal``.
    weight: positions with either token times the difference of the scores.
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
    """Tokens of one kind on one side.

    size: tokens.
    count: positions.
    mean_score: mean of S over tokens, in nats.
    examples: texts of the most moved tokens.
    """

    name: str
    side: Side
    size: int
    count: int
    mean_score: Number
    examples: tuple[str, ...]


class DeltaRow(ResultPart):
    """Statistics of a bias with mean 0 over the vocabulary (the paper, "Logit-bias statistics").

    of: "learned" is the vector over the whole vocabulary before the compile, of which the file has
        these numbers only. "sent" is the bias in use, or the common part of one that depends on the
        prompt.
    sampled_fraction: the share of the vocabulary that was sampled.
    sigma, min, max: nats.
    selected_fraction: the share of the vocabulary with ``|delta| >= 5 median |delta|``.
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
    """The effect on the policy as a whole.

    kl_per_token: mean over positions of the log ratio, an estimate of KL(pi_delta || pi_0) in nats.
    se: its standard error, completions being independent.
    promoted_share: share of positions with a promoted token.
    """

    kl_per_token: Number
    se: Number | None
    promoted_share: Number


class Analysis(ResultPart):
    """The result of ``blb analyze``.

    rollouts: the source of the completions, in words.
    completions: number read.
    left_out: number not read (cut by a filter, unreadable).
    positions: places with a score.
    unscored: places without a score (not asked about, or without a list).
    outside: scored places whose token is missing from the list there.
    unvisited: tokens of the vocabulary never generated under the bias; None where the size of the
        vocabulary is not known.
    grouping: the method for families.
    tokens: from the most promoted to the most suppressed.
    summary: sentences for the reader, the most important first.
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
