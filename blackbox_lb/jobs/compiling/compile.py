"""Compiling a bias: the learned values within the provider's limits, and the loss.

A provider takes so many entries, in a range, perhaps whole numbers, perhaps no special tokens; a
token that is not listed has bias 0. ``estimate.sparse`` chooses the listed tokens and their values;
the loss is reported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
STEPS = (10, 30, 100, 300, 1_024)
"""Numbers of entries for the table of the kept gain: steps of about 3, and the limits of providers.
"""


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
    limit = most_entries(profile, entries)
    is_integer = integers or not profile.bias.fractions
    sparse = _sparse(bias, profile, _known(bias, next_token), highest_id, limit, is_integer)
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


@dataclass(frozen=True, slots=True)
class Kept:
    """The gain with at most ``entries`` tokens, ``listed`` of them used: ``kept`` is a share of the
    estimated gain (1 less the KL lost as a share of the KL between the learned policy and the
    base), ``kl_lost`` is in nats per token. chosen: it is the compiled one.
    """

    entries: int
    integers: bool
    listed: int
    kept: float
    kl_lost: float
    chosen: bool = False


def gain_by_entries(
    bias: Bias,
    profile: Profile,
    next_token: NextToken,
    compiled: Bias,
    *,
    highest_id: int | None = None,
) -> list[Kept]:
    """The gain kept at 10, 30, 100, 300 and 1,024 entries, at all of ``bias``'s own, and at the
    limit of ``compiled``.

    Fractions first, then whole numbers, whether or not the provider takes fractions. ``compiled``,
    from ``compile_bias`` with the same arguments, has its own row; the others are from a quick
    search (see ``sparsify``), and may keep a little less than a compile would: on 45,000 logged
    positions .0002 of the gain at most.
    """
    table = _known(bias, next_token)
    done = compiled.compiled or Compiled()
    tokens = len(table.token_ids)
    most = min(len(bias.entries), most_entries(profile, None) or tokens)
    allowed = tokens if done.entries_limit is None else min(done.entries_limit, tokens)
    chosen = (
        most if len(compiled.entries) <= most <= allowed else allowed
    )  # a range may spread few values over more tokens
    steps = sorted({step for step in STEPS if step < most} | {most, chosen})
    rows: list[Kept] = []
    for is_integer in (True, False):
        row: Kept | None = None
        for step in reversed(steps):
            if (step, is_integer) == (chosen, done.integers):
                kept_share = done.kept_share or 0.0
                lost = done.kl_lost_nats_per_token or 0.0
                row = Kept(step, is_integer, len(compiled.entries), kept_share, lost, chosen=True)
            elif row is not None and row.listed <= step:  # so many more could not improve on it
                row = replace(row, entries=step, chosen=False)
            else:
                sparse_bias = _sparse(
                    bias, profile, table, highest_id, step, is_integer, patience=0
                )
                row = Kept(
                    step, is_integer, sparse_bias.entries, sparse_bias.kept, sparse_bias.kl_lost
                )
            rows.append(row)
    return rows[::-1]


def _known(bias: Bias, next_token: NextToken) -> NextToken:
    """Ids never listed change nothing at the logged positions: they are sent where there is room,
    else counted as dropped.
    """
    return next_token.with_tokens(list(bias.logit_bias))


def _sparse(
    bias: Bias,
    profile: Profile,
    table: NextToken,
    highest_id: int | None,
    entries: int | None,
    integers: bool,
    **search: int,
) -> Sparse:
    from blackbox_lb.estimate.choice.candidates import CompileLimits

    values = bias.logit_bias
    rules = profile.bias
    limits = CompileLimits(entries, rules.low, rules.high, integers, highest_id)
    return limits.compiled(table, table.align(list(values), list(values.values())), **search)
