"""The file of ``blb analyze``: the shift of each token that was generated under a bias.

The intervention score S(y) is the mean of ``log pi_delta(y) - log pi_0(y)`` in nats over the places
where completions drawn with the bias continue with y (the paper, appendix "Intervention score as
realized log-probability shift").
"""

from __future__ import annotations

from typing import Any, Literal

from blackbox_lb.records import Finite, Row

Side = Literal["promoted", "suppressed", "unmoved"]
"""By the sign of S: R+ and R- of the paper, and exactly 0."""


class TokenScore(Row):
    """One token that was generated under the bias.

    bytes: in hexadecimal; "" where not known.
    bias: nats as sent.
    score: S in nats.
    se: the standard error of the score, completions being independent; None for a token in a single
        completion.
    count: positions with the token.
    family: the name of the family, a class of what tokens look like.
    """

    id: int
    text: str
    bytes: str
    bias: Finite
    score: Finite
    se: Finite | None
    count: int
    family: str


class Band(Row):
    """A row of the paper's table of score bands: tokens with ``low <= S < high``.

    None is unlimited. The band from 0 on leaves out 0 itself.
    """

    low: Finite | None
    high: Finite | None
    label: str
    count: int
    meaning: str


class Family(Row):
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
    mean_score: Finite
    examples: tuple[str, ...]


class Analysis(Row):
    """The result of ``blb analyze``.

    completions: number read.
    left_out: number not read (cut by a filter, unreadable).
    positions: their tokens.
    unlisted: mean probability under the base model of what its lists leave out, which the tail
        model spreads; about 0 where a server lists the whole vocabulary, and the scores are exact.
    unvisited: tokens of the vocabulary never generated under the bias; None where the size of the
        vocabulary is not known.
    kl_per_token: mean over positions of the log ratio, an estimate of KL(pi_delta || pi_0) in nats.
    kl_se: its standard error, completions being independent; None for a single completion.
    promoted_share: share of positions with a promoted token.
    tokens: from the most promoted to the most suppressed.
    summary: sentences for the reader, the most important first.
    """

    format: Literal["blackbox-lb/analysis"] = "blackbox-lb/analysis"
    version: Literal[3] = 3
    provider: str
    model: str
    completions: int
    left_out: int = 0
    positions: int
    unlisted: Finite
    unvisited: int | None
    kl_per_token: Finite
    kl_se: Finite | None
    promoted_share: Finite
    bands: tuple[Band, ...]
    families: tuple[Family, ...]
    tokens: tuple[TokenScore, ...]
    summary: tuple[str, ...]
    provenance: dict[str, Any]
