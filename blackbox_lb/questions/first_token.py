"""Options read from the list of first tokens of an answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from blackbox_lb.questions.answers import OptionScores


def option_scores(
    listed: Sequence[tuple[bytes, float]], spellings: Sequence[Sequence[str]]
) -> OptionScores | None:
    """The log-probability of each option: of the likeliest listed token that begins one of its
    spellings and no other option's, as vLLM takes the larger of an option's tokens.

    listed: bytes of a token and its logprob in nats. spellings: of each option. An option that the
    list misses stands at the least listed logprob, which bounds it. None where the list holds no
    option at all.
    """
    encoded = [[spelling.encode() for spelling in option] for option in spellings]
    best = [-math.inf] * len(encoded)
    mass = 0.0
    for token, logprob in listed:
        begun = [
            place
            for place, option in enumerate(encoded)
            if token.strip() and any(spelling.startswith(token) for spelling in option)
        ]
        if len(begun) == 1:
            best[begun[0]] = max(best[begun[0]], logprob)
            mass += math.exp(logprob)
    if not any(math.isfinite(logprob) for logprob in best):
        return None
    least = min(logprob for _, logprob in listed)
    floored = tuple(not math.isfinite(logprob) for logprob in best)
    logprobs = tuple(max(logprob, least) for logprob in best)
    return OptionScores(logprobs, floored, min(mass, 1.0), refused=False)
