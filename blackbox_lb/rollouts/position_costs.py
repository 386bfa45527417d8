"""What each token of a completion adds to its reward: the spans of the text, mapped to tokens by
their bytes.

A span's amount falls on the token that holds the first byte of its first character, also where that
character, or the span, goes over several tokens.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.rewards.spans import LocatedReward
from blackbox_lb.types import Completion, Span

WITH_SPANS = "with spans"
WITHOUT_SPANS = "without spans"
"""The tallies of completions by the answers of a reward that may give spans."""
UNLOCATED = "unlocated"
"""The tally of completions with an amount that has no token."""

Costs = npt.NDArray[np.float64]


def costs_of(
    completions: Sequence[Completion],
    rewards: Sequence[LocatedReward],
    reward: Reward,
    token_bytes: Callable[[], Mapping[int, bytes]],
    count: Counter[str],
) -> Costs | None:
    """What each position of these completions adds to their rewards.

    Args:
        completions: as they are laid end to end.
        rewards: the reward of each.
        reward: what gave them.
        token_bytes: gives the bytes of tokens; it is called once, and only where they are needed.
        count: receives the completions with and without spans, where the reward may give some,
            and those with an amount that is on the last position for want of a better one.

    Returns:
        (m,) nats; None where a reward is no sum over places.
    """
    if reward.token_cost is not None:
        return _joined(
            [
                _of_every_token(completion, measured.reward, reward.token_cost)
                for completion, measured in zip(completions, rewards, strict=True)
            ]
        )
    if reward.is_sum is False:
        return None
    spans = [measured.spans for measured in rewards if measured.spans is not None]
    count[WITH_SPANS] += len(spans)
    count[WITHOUT_SPANS] += len(rewards) - len(spans)
    if len(spans) < len(rewards):
        return None
    spellings: Mapping[int, bytes] = {}
    if any(spans):
        spellings = token_bytes()
    costs = []
    for completion, places in zip(completions, spans, strict=True):
        values, are_located = position_costs(completion, places, spellings)
        costs.append(values)
        if not are_located:
            count[UNLOCATED] += 1
    return _joined(costs)


def position_costs(
    completion: Completion, spans: Sequence[Span], token_bytes: Mapping[int, bytes]
) -> tuple[Costs, bool]:
    """What each position of one completion adds to its reward.

    Args:
        completion: t listed tokens.
        spans: the places of its text and their amounts.
        token_bytes: id -> bytes of its tokens, as far as they are known.

    Returns:
        (t,) nats, whose sum is that of the amounts; and whether there is a token for every span.
        What has none falls on the last position, as does a span where the text ends.
    """
    ids = completion.token_ids.tolist()
    costs = np.zeros(len(ids))
    if not spans:
        return costs, True
    if not ids:
        return costs, False
    are_located = True
    begins, ends = token_places(
        completion.text,
        [token_bytes.get(token) for token in ids],
        has_ended=completion.finish_reason != "length",
    )
    holding = [position for position, begin in enumerate(begins) if begin < ends[position]]
    first_bytes = [begins[position] for position in holding]
    for span in spans:
        byte = len(completion.text[: span.start].encode("utf-8", "surrogatepass"))
        before = bisect.bisect_right(first_bytes, byte) - 1
        position = len(ids) - 1
        if before >= 0 and byte < ends[holding[before]]:
            position = holding[before]
        elif span.start < len(completion.text):
            are_located = False
        costs[position] += span.amount
    return costs, are_located


def token_places(
    text: str, spelled: Sequence[bytes | None], *, has_ended: bool
) -> tuple[list[int], list[int]]:
    """The bytes of ``text`` that each token holds: where they begin, and where they end.

    Tokens are laid along the text from its beginning. Behind one that is not known (None) or does
    not fit they go on where the known ones that follow stand, if that is a single place; else they
    are laid from the end of the text, too. A single token between two parts holds what is between
    them, and several in a row that cannot be told apart hold nothing. Nor do tokens behind the
    text, such as those of a stop text. A server may leave out the first space of a text, or that of
    a single token.

    Args:
        text: of a completion.
        spelled: (t,) the bytes of its tokens.
        has_ended: the last token may be an end token, which is not in the text.

    Returns:
        (t,) the first byte of each token, and (t,) the byte behind its last; equal for a token that
        holds nothing.
    """
    raw = text.encode("utf-8", "surrogatepass")
    begins = [0] * len(spelled)
    ends = [0] * len(spelled)
    place = 0
    first = 0
    while first < len(spelled):
        size = _size_at(raw, place, spelled[first])
        if size is None:
            after, place_after = _next_known(raw, place, spelled, first)
            if after is None:
                break
            size = 0
            if after == first + 1:
                size = place_after - place
            begins[first] = place
            ends[first] = place + size
            first = after
            place = place_after
            continue
        begins[first] = place
        place += size
        ends[first] = place
        first += 1
    last = len(spelled) - 1
    place_behind = len(raw)
    if has_ended and last > first and _size_before(raw, place, len(raw), spelled[last]) is None:
        begins[last] = len(raw)
        ends[last] = len(raw)
        last -= 1
    while last > first:
        size = _size_before(raw, place, place_behind, spelled[last])
        if size is None:
            break
        ends[last] = place_behind
        place_behind -= size
        begins[last] = place_behind
        last -= 1
    if last == first:
        begins[first] = place
        ends[first] = place_behind
    return begins, ends


def _next_known(
    raw: bytes, place: int, spelled: Sequence[bytes | None], stuck: int
) -> tuple[int | None, int]:
    """The first known token behind ``stuck``, and the byte where it and those after it stand; None
    where they stand nowhere behind ``place``, or at several places.
    """
    after = stuck + 1
    while after < len(spelled) and not spelled[after]:
        after += 1
    run = itertools.takewhile(bool, spelled[after:])
    joined = b"".join(token for token in run if token)
    begin = raw.find(joined, place) if joined else -1
    if begin < 0 or raw.find(joined, begin + 1) >= 0:
        return None, place
    return after, begin


def _size_at(raw: bytes, place: int, token: bytes | None) -> int | None:
    """The bytes of ``raw`` that ``token`` holds from ``place`` on; None where it does not fit."""
    if place == len(raw):
        return 0
    if not token:
        return None
    if raw.startswith(token, place):
        return len(token)
    if raw.startswith(b" " + token, place):
        return len(token) + 1
    if place == 0 and token.startswith(b" ") and raw.startswith(token[1:]):
        return len(token) - 1
    if token.startswith(raw[place:]):  # a stop text begins inside of it
        return len(raw) - place
    return None


def _size_before(raw: bytes, place: int, place_behind: int, token: bytes | None) -> int | None:
    """The bytes of ``raw`` that ``token`` holds before ``place_behind`` and from ``place`` on; None
    where it does not fit.
    """
    if not token or not raw.endswith(token, place, place_behind):
        return None
    return len(token)


def _of_every_token(completion: Completion, reward: float, cost: float) -> Costs:
    """``cost`` at each position; the tokens that are counted and not listed cost at the last."""
    costs = np.full(len(completion.token_ids), cost)
    if len(costs):
        costs[-1] += reward - cost * len(costs)
    return costs


def _joined(costs: Sequence[Costs]) -> Costs:
    return np.concatenate([np.zeros(0), *costs])
