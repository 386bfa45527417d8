"""The lists of next tokens at the place of the answer, one a prompt, and what they tell of a bias:
greedy decisions, shares of groups of tokens, and margins between them.

Exact where the winning token is listed: ``argmax_y [log pi_0(y) + delta(y)]`` needs no normaliser.
A token outside a list is below its least listed one, so it can win only with a bias that outweighs
the difference.

Index letters: ``p`` prompts, ``k`` listed tokens, ``s`` tokens with a bias, ``g`` groups of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.types import NO_TOKEN, Completion

COMPLETE = 1e-6
"""Largest unlisted probability of a complete list: the rest is rounding of float32."""
MOST_KEPT = 50
"""Listed tokens of a prompt that may get a bias, the likeliest, beside those that are named: a less
likely one wins no greedy decision, and thousands of them would be learned and sent for nothing.
"""

PAIR = 1 << 32
"""Above every token id: ``row * PAIR + token`` is a number for each token of each row."""
NO_PAIR = np.iinfo(np.int64).max

Shifts: TypeAlias = Mapping[int, float] | tuple[Ids, Vector]
"""A bias: token id -> nats, the same for all prompts; or (s,) sorted token ids with (p, s) nats, of
each prompt its own.
"""


@dataclass(frozen=True, slots=True, eq=False)
class FirstLists:
    """The base model's lists at the first position of p prompts.

    ids: (p, k) token ids, the likeliest first, ``NO_TOKEN`` where a list is shorter; all of them
        where a prompt came without a list. logprobs: (p, k) nats, -inf there.
    """

    ids: npt.NDArray[np.integer]
    logprobs: npt.NDArray[np.floating]

    @classmethod
    def of(cls, completions: Sequence[Completion]) -> FirstLists:
        """The lists at the first position of these completions."""
        lists = [
            (completion.top_ids[0], completion.top_logprobs[0])
            for completion in completions
            if len(completion.top_ids)
        ]
        width = max((len(ids) for ids, _ in lists), default=0)
        ids = np.full((len(completions), width), NO_TOKEN, np.int32)
        logprobs = np.full((len(completions), width), -np.inf, np.float32)
        rows = [row for row, completion in enumerate(completions) if len(completion.top_ids)]
        for row, (row_ids, row_logprobs) in zip(rows, lists, strict=True):
            ids[row, : len(row_ids)] = row_ids
            logprobs[row, : len(row_ids)] = row_logprobs
        logprobs[ids == NO_TOKEN] = -np.inf
        return cls(ids, logprobs)

    @property
    def has_list(self) -> Bools:
        """(p,) whether a prompt came with a list."""
        return np.asarray((self.ids >= 0).any(axis=1))

    def only(self, prompts: Bools | Ids) -> FirstLists:
        """The lists of these prompts."""
        return FirstLists(self.ids[prompts], self.logprobs[prompts])

    def mappings(self) -> list[dict[int, float]]:
        """(p,) token id -> nats; empty where a prompt came without a list."""
        rows = zip(self.ids.tolist(), self.logprobs.tolist(), strict=True)
        return [
            {token: value for token, value in zip(*row, strict=True) if token != NO_TOKEN}
            for row in rows
        ]

    def holds(self, tokens: Sequence[Ids]) -> Bools:
        """(p, k) whether each listed token is among the prompt's own ``tokens`` (p,)."""
        rows = [np.isin(row, row_tokens) for row, row_tokens in zip(self.ids, tokens, strict=True)]
        return np.array(rows, np.bool_).reshape(self.ids.shape)

    @property
    def least(self) -> Vector:
        """(p,) the least listed logprob in nats; inf without a list."""
        listed = np.where(self.ids != NO_TOKEN, self.logprobs, np.inf)
        return np.asarray(listed.min(axis=1, initial=np.inf))

    @property
    def unlisted(self) -> Vector:
        """(p,) the probability that the lists leave out; below 0 by rounding where one is
        complete.
        """
        listed = np.where(self.ids != NO_TOKEN, self.logprobs.astype(np.float64), -np.inf)
        return np.asarray(1.0 - np.exp(listed).sum(axis=1))

    def bounds(self, missing: Ids) -> Vector:
        """(p,) nats that each of so many ``missing`` (p,) tokens outside a list gets: the least
        listed logprob, or, if that is less, its part of half of what the list leaves out.
        """
        half = np.maximum(self.unlisted, 1e-9) / 2
        return np.asarray(np.minimum(self.least, np.log(half / np.maximum(missing, 1))))

    def with_tokens(self, tokens: Ids, accepted: Sequence[Ids] | None = None) -> FirstLists:
        """The ``MOST_KEPT`` likeliest tokens of each list, with all of ``tokens`` and the prompt's
        own ``accepted`` (p,). Those that a list lacks stand at its end at their bound. A prompt
        without a list stays without one.
        """
        rows = np.arange(len(self.ids))
        own = [np.zeros(0, np.int64)] * len(rows) if accepted is None else accepted
        row_of = np.append(np.repeat(rows, len(tokens)), np.repeat(rows, [len(ids) for ids in own]))
        targets = np.concatenate([np.tile(tokens, len(rows)), *own]).astype(np.int64)
        can_stand = (targets >= 0) & self.has_list[row_of]
        wanted = np.append(np.unique(row_of[can_stand] * PAIR + targets[can_stand]), NO_PAIR)
        listed = np.where(self.ids < 0, -1, rows[:, None] * PAIR + self.ids)
        at = np.searchsorted(wanted, listed)
        is_wanted = wanted[at] == listed
        missing = np.delete(wanted[:-1], at[is_wanted])
        is_listed = self.ids != NO_TOKEN
        is_kept = is_wanted | (is_listed & (is_listed.cumsum(axis=1) <= MOST_KEPT))
        counts = np.bincount(missing // PAIR, minlength=len(rows))
        starts = np.cumsum(counts) - counts
        places = np.arange(len(missing)) - np.repeat(starts, counts)
        added = np.full((len(rows), int(counts.max(initial=0))), NO_TOKEN)
        added[missing // PAIR, places] = missing % PAIR
        ids = np.hstack([np.where(is_kept, self.ids, NO_TOKEN), added])
        bounds = np.where(added == NO_TOKEN, -np.inf, self.bounds(counts)[:, None])
        logprobs = np.hstack([self.logprobs, bounds])
        order = np.argsort(ids == NO_TOKEN, axis=1, kind="stable")
        order = order[:, : int((ids != NO_TOKEN).sum(axis=1).max(initial=0))]
        ids = np.take_along_axis(ids, order, axis=1).astype(np.int32)
        logprobs = np.take_along_axis(logprobs, order, axis=1).astype(np.float32)
        return FirstLists(ids, np.where(ids == NO_TOKEN, np.float32(-np.inf), logprobs))

    def tilted(self, bias: Shifts) -> Vector:
        """(p, k) ``log pi_0 + delta``, -inf where a list is shorter."""
        token_ids, values = self._shifts(bias)
        if not len(token_ids):
            return self.logprobs.astype(np.float64)
        where = np.minimum(np.searchsorted(token_ids, self.ids), len(token_ids) - 1)
        shifts = np.take_along_axis(values, where, axis=1)
        return self.logprobs.astype(np.float64) + np.where(
            token_ids[where] == self.ids, shifts, 0.0
        )

    def _shifts(self, bias: Shifts) -> tuple[Ids, Vector]:
        """(s,) the sorted tokens of ``bias``, and (p, s) its values at each prompt."""
        if isinstance(bias, tuple):
            return bias
        tokens = np.array(sorted(bias), np.int64)
        values = np.array([bias[token] for token in tokens.tolist()], np.float64)
        return tokens, np.broadcast_to(values, (len(self.ids), len(tokens)))

    def greedy(self, bias: Shifts) -> Ids:
        """(p,) the first token of greedy decoding under ``bias``."""
        return self.taken(self.tilted(bias))

    def taken(self, tilted: Vector) -> Ids:
        """(p,) the token with the largest of ``tilted`` (p, k)."""
        best = tilted.argmax(axis=1)
        return np.asarray(self.ids[np.arange(len(best)), best], np.int64)

    def unsure(self, bias: Shifts) -> Bools:
        """(p,) whether a token outside the list might win: it is at most as likely as the least
        listed one, and as all the rest.
        """
        token_ids, values = self._shifts(bias)
        unlisted = self.unlisted
        most = np.minimum(self.least, np.log(np.maximum(unlisted, COMPLETE)))
        outside = np.ones((len(self.ids), len(token_ids) + 1), np.bool_)
        where = np.searchsorted(token_ids, self.ids)
        rows, columns = np.nonzero(np.append(token_ids, -2)[where] == self.ids)
        outside[rows, where[rows, columns]] = False
        lift = np.where(outside, np.pad(values, ((0, 0), (0, 1))), -np.inf).max(axis=1)
        won = self.tilted(bias).max(axis=1)
        return np.asarray((most + np.maximum(lift, 0.0) > won) & (unlisted > COMPLETE))

    def shares(
        self, groups: Sequence[Ids], bias: Shifts | None = None, temperature: float = 1.0
    ) -> Vector:
        """(p, g + 1) the probability of each group of tokens under ``bias``, the last of all other
        tokens.

        Tokens outside a list keep its rest at temperature 1; at another temperature their part is
        not known, and left out.
        """
        tilted = self.tilted(bias or {}) / temperature
        rest = np.full((len(self.ids), 1), -np.inf)
        if temperature == 1:
            rest[:, 0] = np.log(np.clip(self.unlisted, 1e-12, 1.0))
        tilted = np.hstack([np.where(self.ids != NO_TOKEN, tilted, -np.inf), rest])
        probabilities = np.exp(tilted - np.logaddexp.reduce(tilted, axis=1, keepdims=True))[:, :-1]
        columns = [(probabilities * np.isin(self.ids, ids)).sum(axis=1) for ids in groups]
        inside = np.stack(columns, axis=1)
        return np.column_stack([inside, 1.0 - inside.sum(axis=1)])

    def best(self, groups: Sequence[Ids]) -> Vector:
        """(p, g) the likeliest listed token of each group, in nats: between these greedy decoding
        decides. -inf where a list holds none of them.
        """
        logprobs = self.logprobs.astype(np.float64)
        columns = [np.where(np.isin(self.ids, ids), logprobs, -np.inf) for ids in groups]
        return np.stack([column.max(axis=1, initial=-np.inf) for column in columns], axis=1)

    def margins(self, tokens: Ids, bias: Shifts | None = None) -> Vector:
        """(p,) nats by which the best of ``tokens`` is ahead of every other listed token under
        ``bias``: greedy decoding takes one of them where it is above 0.
        """
        tilted = self.tilted(bias or {})
        is_positive = np.isin(self.ids, tokens)
        positive = np.where(is_positive, tilted, -np.inf).max(axis=1)
        rival = np.where(is_positive, -np.inf, tilted).max(axis=1)
        return np.asarray(positive - rival)


def among(shares: Vector) -> Vector:
    """(p, g) shares of groups divided by their sums, NaN where that is 0."""
    totals = shares.sum(axis=1, keepdims=True)
    return np.asarray(
        np.divide(shares, totals, out=np.full(shares.shape, np.nan), where=totals > 0)
    )


def begins_right(tokens: Ids, accepted: Sequence[Ids]) -> Bools:
    """(p,) whether each token begins an accepted answer of its prompt."""
    return np.array(
        [token in ids for token, ids in zip(tokens.tolist(), accepted, strict=True)], np.bool_
    )
