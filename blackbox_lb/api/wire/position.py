"""The token positions of an answer, in every dialect.

A dialect lists the positions of a choice (``Listing``), and ``PositionReader.read`` makes the
arrays of a completion of them: the sampled tokens, and the alternatives that are surely the
likeliest. Every number is checked here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from blackbox_lb.api.wire.envelope import listed_choices
from blackbox_lb.api.wire.identity import Identity, checked_id
from blackbox_lb.errors import CorruptResponse, NoLogprobs
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.types import NO_TOKEN, POSITIVE_TOLERANCE, UNNAMED

LEAST = -1000.0
"""Least logprob of a sampled token, in nats: lower numbers stand for "not computed"."""
UNLISTED = 0.01
"""Most probability of all unlisted tokens, where the least listed one has none: those are less
likely still.
"""
LOWEST = -3e38
"""About the least number in a float32 column; an alternative below it has probability 0 anyway."""
Choice: TypeAlias = dict[str, Any]
Ints: TypeAlias = npt.NDArray[np.int32]
Floats: TypeAlias = npt.NDArray[np.float64]
Widths: TypeAlias = npt.NDArray[np.int64]


class UnsupportedLayout(Exception):
    """An answer is not of the plain kind that is read from its bytes."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The t positions of a choice as its answer lists them; logprobs in nats, unchecked.

    ids: (t,) the sampled tokens, ``UNNAMED`` for one without a name.
    logprobs: (t,) of the sampled tokens.
    widths: (t,) alternatives at each position.
    top_ids: (sum of widths,) the alternatives, position by position, in the answer's order.
    top_logprobs: (sum of widths,) their logprobs.
    propensities: (t,) the sampled tokens' logprobs under the policy that sampled them, where the
        provider gives both.
    token_bytes: id -> bytes of the alternatives, as far as the answer shows them.
    """

    ids: Ints
    logprobs: Floats
    widths: Widths
    top_ids: Ints
    top_logprobs: Floats
    propensities: Floats | None = None
    token_bytes: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnswerDialect:
    """The reading of answers of one shape.

    listing: the positions of a choice. spelled: the bytes that the listed tokens of a choice spell;
    None where the list does not show them. choices: the choices of an answer, each like one of a
    chat completion. several: whether a request may ask for several completions. in_order: whether
    alternatives stand in the order of the answer's list; a mapping has none. scanned: whether
    ``AnswerReader`` can read the lists from bytes.
    """

    listing: Callable[[PositionReader, Choice], Listing]
    spelled: Callable[[Profile, Choice], bytes | None]
    choices: Callable[[Profile, Any], list[Choice]] = listed_choices
    several: bool = True
    in_order: bool = True
    scanned: bool = False


@dataclass(frozen=True, slots=True)
class PositionReader:
    """The data for reading positions.

    dialect: the answer's.
    identity: names tokens.
    asked: alternatives in the request, 0 for no logprobs, -1 for the whole vocabulary.
    """

    profile: Profile
    rules: EndpointRules
    dialect: AnswerDialect
    identity: Identity
    asked: int

    def listing(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[Any],
        alternatives: Sequence[Sequence[tuple[int, Any]]],
        propensities: Sequence[Any] | None = None,
        token_bytes: Mapping[int, bytes] | None = None,
    ) -> Listing:
        """The listing of t positions, each with its alternatives (id, logprob).

        Raises CorruptResponse: a logprob is no number. ValueError: there are not t of each.
        """
        values = None
        if propensities is not None:
            values = self._numbers(propensities)
        if not len(tokens) == len(logprobs) == len(alternatives) == len(propensities or tokens):
            raise ValueError("lists of different lengths for the tokens of one completion")
        pairs = [pair for row in alternatives for pair in row]
        return Listing(
            np.array(tokens, np.int32),
            self._numbers(logprobs),
            np.array([len(row) for row in alternatives], np.int64),
            np.array([token for token, _ in pairs], np.int32),
            self._numbers([value for _, value in pairs]),
            values,
            token_bytes or {},
        )

    def _numbers(self, values: Sequence[Any]) -> Floats:
        numbers = []
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._no_logprob(value)
            try:
                numbers.append(float(value))
            except OverflowError:
                numbers.append(math.copysign(math.inf, value))
        return np.array(numbers, np.float64)

    def read(self, listing: Listing) -> dict[str, Any]:
        """The fields of a ``Completion`` from the positions of a choice.

        Where the provider put the number for "not given" (the row ``logprobs.censored``), the token
        is not among the alternatives, so the least of them bounds its logprob; without any, only 0
        does. Alternatives with that number are not listed at all, nor are any that might be less
        likely. Alternatives are cut to those that are surely more likely than every unlisted token.

        Raises CorruptResponse: a number that cannot be a logprob, or a token twice in a list.
        """
        ids, logprobs, widths = self._alternatives(listing)
        self._check_mass(listing, ids, logprobs, widths)
        ids, logprobs = _from_likeliest(ids, logprobs)
        sure = self._sure(widths)
        sampled, bounded = self._sampled(listing, ids, logprobs, sure)
        propensities = None
        if listing.propensities is not None and len(listing.propensities):
            propensities = self._checked_sampled(listing.propensities).astype(np.float32)
        width = int(sure.max(initial=0))
        ids = ids[:, :width]
        logprobs = logprobs[:, :width]
        if len(sure) and sure.min() < width:
            beyond = np.arange(width) >= sure[:, None]
            ids = np.where(beyond, np.int32(NO_TOKEN), ids)
            logprobs = np.where(beyond, -np.inf, logprobs)
        return {
            "token_ids": listing.ids,
            "logprobs": sampled.astype(np.float32),
            "top_ids": ids.copy(),
            "top_logprobs": logprobs.astype(np.float32),
            "whole": not (listing.ids == UNNAMED).any(),
            "token_bytes": listing.token_bytes,
            "propensities": propensities,
            "bounded": bounded if bounded.any() else None,
        }

    def _alternatives(self, listing: Listing) -> tuple[Ints, Floats, Widths]:
        """The checked alternatives in the answer's order, (t, k) ids and logprobs, padded with -1
        and -inf, and their number at each position (t,).

        A list ends before its first alternative without a logprob: that one may be likelier than
        those behind it, and than those before it where they are not in order.
        """
        censored = self.profile.logprobs.censored
        widths = listing.widths
        values = listing.top_logprobs
        if censored is None or not (values == censored).any():
            ids, logprobs = _table(widths, listing.top_ids, self._checked(values))
            return ids, logprobs, widths
        is_given = values != censored
        values = values.copy()
        values[is_given] = self._checked(values[is_given])
        ids, logprobs = _table(widths, listing.top_ids, values)
        ids = ids.copy()
        widths = widths.copy()
        for position in np.flatnonzero((logprobs == censored).any(axis=1)):
            row = logprobs[position, : widths[position]]
            given = row[row != censored]
            width = 0
            if self.dialect.in_order and (given[1:] <= given[:-1]).all():
                width = int(np.argmax(row == censored))
            widths[position] = width
            ids[position, width:] = NO_TOKEN
            logprobs[position, width:] = -np.inf
        return ids, logprobs, widths

    def _check_mass(self, listing: Listing, ids: Ints, logprobs: Floats, widths: Widths) -> None:
        """Raise CorruptResponse where an alternative has no probability although unlisted tokens
        must have some.
        """
        if listing.top_logprobs.min(initial=0.0) > LEAST:
            return
        is_listed = np.arange(ids.shape[1]) < widths[:, None]
        is_least = is_listed & (logprobs <= LEAST)
        for position in np.flatnonzero(is_least.any(axis=1)):
            listed = logprobs[position, : widths[position]]
            mass = float(np.exp(listed).sum())
            if listing.ids[position] not in ids[position, : widths[position]]:
                mass += math.exp(min(float(listing.logprobs[position]), 0.0))
            if mass < 1 - UNLISTED:
                raise CorruptResponse(
                    f"{self.profile.name} lists an alternative with the logprob {listed.min():g}"
                    f" beside others that have a probability of {mass:.3f} together; unlisted"
                    " tokens must be less likely than it and cannot have the rest"
                )

    def _sure(self, widths: Widths) -> Widths:
        """The number of a position's likeliest alternatives that are surely more likely than every
        unlisted token (t,).

        Where the sampled token replaces the last of the alternatives that were asked for, only
        those before the last are sure; the same where fewer are listed, because a server's own
        limit cuts a list there just as well. All of the whole vocabulary are sure.
        """
        if self.asked < 0:
            return widths
        sure = np.minimum(widths, self.asked)
        if self.rules.sampled_in_list == "replaces the last":
            sure = np.maximum(sure - 1, 0)
        return sure

    def _sampled(
        self, listing: Listing, ids: Ints, logprobs: Floats, sure: Widths
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """The sampled tokens' logprobs (t,), and whether they are only upper bounds (t,).

        ids, logprobs: the alternatives, from most likely.
        """
        values = listing.logprobs
        bounded = np.zeros(len(values), np.bool_)
        censored = self.profile.logprobs.censored
        if censored is not None and (values == censored).any():
            values = values.copy()
            for position in np.flatnonzero(values == censored):
                token = listing.ids[position]
                places = np.flatnonzero(ids[position] == token)
                values[position] = 0.0
                bounded[position] = True
                if len(places) and token != UNNAMED:
                    values[position] = logprobs[position, places[0]]
                    bounded[position] = False
                elif sure[position]:
                    values[position] = logprobs[position, sure[position] - 1]
        return self._checked_sampled(values), bounded

    def _checked_sampled(self, values: Floats) -> Floats:
        checked = self._checked(values)
        if (checked < LEAST).any():
            raise CorruptResponse(
                f"{self.profile.name} returned the logprob {float(values.min())!r} for a token that"
                " it sampled; that is a placeholder, not a logprob, and its profile does not list"
                " it under logprobs.censored"
            )
        return checked

    def _checked(self, values: Floats) -> Floats:
        """The logprobs in nats, at most 0. Raises CorruptResponse: NaN, or a positive number."""
        if not len(values):
            return values
        highest = values.max()
        if not highest <= POSITIVE_TOLERANCE:
            raise self._no_logprob(float(highest))
        if highest < 0 and values.min() > LOWEST:
            return values
        # Adding 0 turns -0.0, which some write as -0, into 0.0.
        return np.where(values > LOWEST, np.minimum(values, 0.0) + 0.0, -np.inf)

    def _no_logprob(self, value: Any) -> CorruptResponse:
        return CorruptResponse(
            f"{self.profile.name} returned the logprob {value!r:.40}; a logprob is a number at most"
            " 0"
        )

    def propensity_of(self, where: Mapping[str, Any]) -> Any:
        """The field of ``where`` that the row ``logprobs.propensity`` names; None where that is the
        logprob itself.

        Raises NoLogprobs: the field is missing, so the sampling policy's logprob is not known.
        """
        name = self.profile.logprobs.propensity
        if name == "logprob":
            return None
        if where.get(name) is None:
            raise NoLogprobs(
                f"{self.profile.name} returned no `{name}`, the logprob that its tokens are sampled"
                " from; choose a model or an endpoint that returns it"
            )
        return where[name]

    def sampled_ids(
        self, choice: Mapping[str, Any], n: int, *, required: bool = True
    ) -> list[int] | None:
        """The ``n`` sampled ids, where the row ``sampled_ids`` names a field of the choice that
        lists them; None for no such row, and for no such field where it is not ``required``.
        """
        if self.rules.sampled_ids is None:
            return None
        value: Any = choice
        for key in self.rules.sampled_ids.split("."):
            if not isinstance(value, Mapping):
                value = None
                break
            value = value.get(key)
        if value is None and not required:
            return None
        if not isinstance(value, list) or len(value) != n:
            size = "none"
            if isinstance(value, list):
                size = str(len(value))
            raise CorruptResponse(
                f"{self.profile.name} listed {n} tokens and, in `{self.rules.sampled_ids}`, the ids"
                f" of {size}; the field must list the completion's tokens, all of them"
            )
        return [checked_id(self.profile.name, token) for token in value]


def _table(widths: Widths, ids: Ints, logprobs: Floats) -> tuple[Ints, Floats]:
    """Alternatives that stand end to end as rows (t, k), padded with -1 and -inf."""
    size = len(widths)
    width = int(widths.max(initial=0))
    if len(ids) == size * width:
        return ids.reshape(size, width), logprobs.reshape(size, width)
    table = np.full((size, width), NO_TOKEN, np.int32)
    values = np.full((size, width), -np.inf)
    is_listed = np.arange(width) < widths[:, None]
    table[is_listed] = ids
    values[is_listed] = logprobs
    return table, values


def _from_likeliest(ids: Ints, logprobs: Floats) -> tuple[Ints, Floats]:
    """The rows from the most likely alternative; equal ones by id, as the order of a mapping has no
    meaning. Raises CorruptResponse: a row has a token twice; tokens without an id may be several.
    """
    current = logprobs[:, :-1]
    after = logprobs[:, 1:]
    in_order = current > after
    if not in_order.all():
        in_order |= (current == after) & (ids[:, :-1] <= ids[:, 1:])
        rows = np.flatnonzero(~in_order.all(axis=1))
        ids = ids.copy()
        logprobs = logprobs.copy()
        # Padding is last among equal ones: an id may have the logprob -inf, too.
        is_padding = ids[rows] == NO_TOKEN
        order = np.lexsort((ids[rows], is_padding, -logprobs[rows]), axis=-1)
        ids[rows] = np.take_along_axis(ids[rows], order, axis=1)
        logprobs[rows] = np.take_along_axis(logprobs[rows], order, axis=1)
    by_id = np.sort(ids, axis=1)
    is_twice = by_id[:, 1:] == by_id[:, :-1]
    if is_twice.any() and (by_id[:, 1:][is_twice] >= 0).any():
        raise CorruptResponse("one token is listed twice among the alternatives of a position")
    return ids, logprobs
