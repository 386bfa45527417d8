"""Compiling a bias: what was learned, within what the provider takes, and what that loses.

A provider takes so many entries, in a range, perhaps whole numbers, perhaps no special tokens; a token that is not listed has
bias 0. The support is chosen by usage x |bias|, the listed values are refitted with the rest held at 0 (see ``estimate.sparse``),
and the loss is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from blackbox_lb.bias import Bias, Compiled, Entry
from blackbox_lb.errors import BiasError
from blackbox_lb.profiles import Profile

if TYPE_CHECKING:
    from blackbox_lb.estimate.normaliser import NextToken
    from blackbox_lb.estimate.sparse import Sparse

__all__ = ["check_limits", "compile_bias", "losses", "most_entries"]


def most_entries(profile: Profile, wanted: int | None) -> int | None:
    """How many entries to compile to: ``wanted``, else the provider's limit; None for no limit.

    Raises:
        BiasError: more wanted than the provider takes.
    """
    limit = profile.bias.entries
    if wanted is not None and limit is not None and wanted > limit:
        raise BiasError(f"{wanted} entries are wanted, {profile.name} takes at most {limit}; lower --entries")
    return limit if wanted is None else wanted


def check_limits(bias: Mapping[int, float], profile: Profile, highest_id: int | None = None) -> None:
    """Raise BiasError where ``bias`` is not what the provider takes; nothing is cut, clipped or rounded behind the user's back.

    ``highest_id``: the highest token id that may be biased, None for any (``Session.highest_id``).
    """
    rules = profile.bias
    if highest_id is not None and bias and max(bias) > highest_id:
        beyond = sum(token > highest_id for token in bias)
        raise BiasError(
            f"the bias has token {max(bias)}, {profile.name} takes ids up to {highest_id} ({beyond} of {len(bias)} are above); "
            f"fit with --provider {profile.name}, which does without them"
        )
    if rules.entries is not None and len(bias) > rules.entries:
        raise BiasError(
            f"the bias has {len(bias)} entries, {profile.name} takes at most {rules.entries}; fit with fewer --entries"
        )
    for token, value in bias.items():
        if not rules.low <= value <= rules.high:
            raise BiasError(
                f"the bias of token {token} is {value:g}, {profile.name} takes {rules.low:g} to {rules.high:g}"
            )
        if not rules.fractions and value != int(value):
            raise BiasError(
                f"the bias of token {token} is {value:g}, {profile.name} takes whole numbers; fit with --integers"
            )


def losses(sparse: Sparse, entries_limit: int | None, *, integers: bool) -> Compiled:
    """What compiling to ``sparse`` kept and lost, as the bias file records it."""
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
    next_token: NextToken,
    *,
    entries: int | None = None,
    integers: bool = False,
    highest_id: int | None = None,
) -> Bias:
    """``bias`` as ``profile`` takes it, closest to the learned policy on the logged positions of ``next_token``.

    Ids above ``highest_id`` (None: no such limit) are left out and counted as dropped. The result has no verdict: it is another
    policy, and has not been judged.

    Raises:
        BiasError: more entries wanted than the provider takes.
    """
    from blackbox_lb.estimate.sparse import above, sparsify

    rules = profile.bias
    limit = most_entries(profile, entries)
    whole = integers or not rules.fractions
    learned = next_token.align(list(bias.logit_bias), list(bias.logit_bias.values()))
    forbidden = above(next_token, highest_id)
    sparse = sparsify(
        next_token, learned, entries=limit, low=rules.low, high=rules.high, integers=whole, forbidden=forbidden
    )
    old = {entry.id: entry for entry in bias.entries}
    values = zip(sparse.token_ids.tolist(), sparse.values.tolist(), strict=True)
    return Bias(
        **{
            **dict(bias),
            "provider": profile.name,
            "compiled": losses(sparse, limit, integers=whole),
            "verdict": (),
            "entries": tuple(
                old[token].model_copy(update={"bias": value}) if token in old else Entry(id=token, bias=value)
                for token, value in values
            ),
        }
    )
