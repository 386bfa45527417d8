"""Compiling a bias: the learned values within the provider's limits, and the loss.

A provider takes so many entries, in a range, perhaps whole numbers, perhaps no special tokens; a
token that is not listed has bias 0. ``estimate.sparse`` chooses the listed tokens and their values;
the loss is reported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from typing import TYPE_CHECKING, TypeVar

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.limits import most_entries
from blackbox_lb.bias.records import Compiled, Entry
from blackbox_lb.bias.request_bias import SentRange
from blackbox_lb.errors import BiasError
from blackbox_lb.providers.profile import Profile

if TYPE_CHECKING:
    from blackbox_lb.estimate.next_token.next_token import NextToken
    from blackbox_lb.estimate.sparse.sparsify import Sparse

T = TypeVar("T")


def compile_report(sparse: Sparse, entries_limit: int | None, *, integers: bool) -> Compiled:
    """The loss of compiling to ``sparse``, as the bias file records it."""
    return Compiled(
        entries_limit=entries_limit,
        integers=integers,
        kl_lost_nats_per_token=sparse.kl_lost,
        kept_share=max(sparse.kept, 0.0),
        clipped=sparse.clipped,
        rounded=sparse.rounded_to_zero,
        dropped=sparse.entries_dropped,
    )


def compile_bias(
    bias: Bias,
    profile: Profile,
    next_token: NextToken | None,
    *,
    entries: int | None = None,
    integers: bool = False,
    highest_id: int | None = None,
) -> Bias:
    """Compile ``bias`` for ``profile``, closest to the learned policy on the logged positions of
    ``next_token``. One with features keeps the tokens that it moves most, and needs no positions.

    Ids above ``highest_id`` (None: no such limit) are left out and counted as dropped. The result
    has no verdict: it is another policy, and has not been judged. An entry whose value changed has
    no standard error, and where any did, the operating points are those of another bias and are
    left out.

    Raises BiasError: more entries wanted than the provider takes, or no positions for a bias
    without features.
    """
    if bias.features:
        return _with_fewer_tokens(bias, profile, entries, integers, highest_id)
    if next_token is None:
        raise BiasError("a bias without features is compiled on logged positions; give them")
    from blackbox_lb.estimate.choice.candidates import CompileLimits

    limit = most_entries(profile, entries)
    is_integer = integers or not profile.bias.fractions
    learned = bias.logit_bias
    # Ids never listed change nothing at the logged positions: they are sent where there is room,
    # else counted as dropped.
    table = next_token.with_tokens(list(learned))
    limits = CompileLimits(limit, profile.bias.low, profile.bias.high, is_integer, highest_id)
    sparse = limits.compiled(table, table.align(list(learned), list(learned.values())))
    old = {entry.id: entry for entry in bias.entries}
    values = zip(sparse.token_ids.tolist(), sparse.values.tolist(), strict=True)
    sent_entries = tuple(_entry(old.get(token), token, value) for token, value in values)
    sent = {entry.id: entry.bias for entry in sent_entries if entry.bias}
    is_same = sent == {token: value for token, value in bias.logit_bias.items() if value}
    operating = None
    if is_same:
        operating = bias.operating
    return bias.verified(()).replacing(
        provider=profile.name,
        compiled=compile_report(sparse, limit, integers=is_integer),
        operating=operating,
        entries=sent_entries,
    )


def _with_fewer_tokens(
    bias: Bias, profile: Profile, entries: int | None, integers: bool, highest_id: int | None
) -> Bias:
    """A bias with features: the tokens that it moves most, by the root of the sum of squares over
    the entries and the vectors of all features, in the range and kind of numbers that the provider
    takes of each request.
    """
    limit = most_entries(profile, entries)
    size = [hypot(*column) for column in zip(*bias.values, strict=True)]
    allowed = [
        place
        for place, entry in enumerate(bias.entries)
        if highest_id is None or entry.id <= highest_id
    ]
    places = sorted(sorted(allowed, key=lambda place: -size[place])[:limit])
    features = tuple(
        feature.with_values(
            [_picked(vector.values, places) for vector in feature.vectors],
            [_picked(vector.errors, places) for vector in feature.vectors],
        )
        for feature in bias.features
    )
    is_integer = integers or not profile.bias.fractions
    return bias.verified(()).replacing(
        provider=profile.name,
        compiled=Compiled(
            entries_limit=limit, integers=is_integer, dropped=len(bias.entries) - len(places)
        ),
        entries=tuple(bias.entries[place] for place in places),
        features=features,
        sent=SentRange.within(profile.bias.low, profile.bias.high, integers=is_integer),
    )


def _picked(values: Sequence[T], places: Sequence[int]) -> tuple[T, ...]:
    """The values at these places; none where there are none."""
    if values:
        return tuple(values[place] for place in places)
    return ()


def _entry(old: Entry | None, token: int, value: float) -> Entry:
    if old is None:
        return Entry(id=token, bias=value)
    if old.bias == value:
        return old
    return old.replacing(bias=value, error=None)
