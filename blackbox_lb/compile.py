"""Compiling a bias: what was learned, within what the provider takes, and what that loses.

A provider takes so many entries, in a range, perhaps whole numbers, perhaps no special tokens; a token that is not listed has
bias 0. Which tokens are listed and with which values is the business of ``estimate.sparse``; the loss is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from blackbox_lb.bias import Bias, Compiled, Entry, printable
from blackbox_lb.errors import BiasError, InputError, TokenizerMismatch
from blackbox_lb.profiles import Profile

if TYPE_CHECKING:
    from blackbox_lb.estimate.normaliser import NextToken
    from blackbox_lb.estimate.sparse import Sparse
    from blackbox_lb.vocabulary import Vocabulary

__all__ = [
    "STEPS",
    "Kept",
    "check_limits",
    "compile_bias",
    "gain_by_entries",
    "highest_id",
    "losses",
    "most_entries",
    "vocabulary_of",
]

STEPS = (10, 30, 100, 300, 1_024)
"""Entries at which the gain that is kept is looked at: a factor of about 3, and the limits that providers have."""


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
            f"{_remedy(profile)}, which does without them"
        )
    if rules.entries is not None and len(bias) > rules.entries:
        raise BiasError(
            f"the bias has {len(bias)} entries, {profile.name} takes at most {rules.entries}; {_remedy(profile)}"
        )
    for token, value in bias.items():
        if not rules.low <= value <= rules.high:
            raise BiasError(
                f"the bias of token {token} is {value:g}, {profile.name} takes {rules.low:g} to {rules.high:g}; {_remedy(profile)}"
            )
        if not rules.fractions and value != int(value):
            raise BiasError(
                f"the bias of token {token} is {value:g}, {profile.name} takes whole numbers; {_remedy(profile)}"
            )


def _remedy(profile: Profile) -> str:
    return f"make one that fits with blb compile --provider {profile.name}"


def vocabulary_of(bias: Bias, profiles: Iterable[Profile], tokenizer: str | None = None) -> Vocabulary | None:
    """The vocabulary of the bias's model: the one called ``tokenizer`` (see ``load_vocabulary``), else the encoding that OpenAI's
    name of the model tells where one of ``profiles`` goes by such names; None where neither is so.

    Raises:
        InputError: the name tells no encoding, or the vocabulary cannot be read.
        TokenizerMismatch: it is not the one that the bias was learned under.
    """
    from blackbox_lb.vocabulary import load_vocabulary, vocabulary_of_model

    name, by_name = tokenizer, [each.name for each in profiles if each.tokenizer.source == "openai names"]
    if name is None and by_name:
        name = vocabulary_of_model(bias.model)
        if name is None:
            raise InputError(
                f"the tokenizer of {bias.model!r} on {by_name[0]} cannot be told from its name; give --tokenizer o200k_base (the "
                "gpt-4o and gpt-4.1 families) or cl100k_base (gpt-4, gpt-3.5-turbo), or another --provider"
            )
    if name is None:
        return None
    found = load_vocabulary(name)
    if not bias.tokenizer.startswith("model:") and found.fingerprint != bias.tokenizer:
        raise TokenizerMismatch(
            f"the bias was learned under tokenizer {printable(bias.tokenizer)} (model {printable(bias.model)}), and {found.name} "
            f"is {found.fingerprint}: its token ids mean other tokens there; give the vocabulary of the bias's own model"
        )
    return found


def highest_id(profile: Profile, vocabulary: Vocabulary | None) -> int | None:
    """The highest token id that ``profile`` takes of a model with ``vocabulary``; None where it takes all, or it is not known."""
    highest = profile.bias.highest_id
    if highest == "end of text":
        return None if vocabulary is None else vocabulary.end_of_text
    return highest


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
    policy, and has not been judged. An entry whose value changed has no standard error.

    Raises:
        BiasError: more entries wanted than the provider takes.
    """
    limit = most_entries(profile, entries)
    whole = integers or not profile.bias.fractions
    sparse = _Compiler.of(bias, profile, next_token, highest_id).sparse(limit, whole)
    old = {entry.id: entry for entry in bias.entries}
    values = zip(sparse.token_ids.tolist(), sparse.values.tolist(), strict=True)
    return Bias(
        **{
            **dict(bias.verified(())),
            "provider": profile.name,
            "compiled": losses(sparse, limit, integers=whole),
            "entries": tuple(_entry(old.get(token), token, value) for token, value in values),
        }
    )


def _entry(old: Entry | None, token: int, value: float) -> Entry:
    if old is None:
        return Entry(id=token, bias=value)
    return old if old.bias == value else old.model_copy(update={"bias": value, "error": None})


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept with at most ``entries`` tokens, of which ``listed`` are used: ``kept`` is a share of the estimated gain (1 less
    the KL lost as a share of the KL between the learned policy and the base), ``kl_lost`` in nats per token. chosen: it is what
    was compiled.
    """

    entries: int
    integers: bool
    listed: int
    kept: float
    kl_lost: float
    chosen: bool = False


def gain_by_entries(
    bias: Bias, profile: Profile, next_token: NextToken, made: Bias, *, highest_id: int | None = None
) -> list[Kept]:
    """The gain kept at 10, 30, 100, 300 and 1,024 entries, at all that ``bias`` has, and at those that ``made`` was compiled to.

    Fractions first, then whole numbers, whether or not the provider takes fractions. The row of ``made``, which ``compile_bias``
    gave for the same arguments, tells of it; the others are from a quick search (see ``sparsify``), and may keep a little less than
    a compile would: on 45,000 logged positions .0002 of the gain at most.
    """
    compiler, done = _Compiler.of(bias, profile, next_token, highest_id), made.compiled or Compiled()
    tokens = len(compiler.next_token.token_ids)
    most = min(len(bias.entries), most_entries(profile, None) or tokens)
    allowed = tokens if done.entries_limit is None else min(done.entries_limit, tokens)
    chosen = most if len(made.entries) <= most <= allowed else allowed  # a range may spread few values over more tokens
    steps = sorted({step for step in STEPS if step < most} | {most, chosen})
    rows: list[Kept] = []
    for whole in (True, False):
        row: Kept | None = None
        for step in reversed(steps):
            if (step, whole) == (chosen, done.integers):
                row = _row_of(made, done, step)
            elif row is not None and row.listed <= step:  # what so many more could not better
                row = replace(row, entries=step, chosen=False)
            else:
                row = _kept(compiler.sparse(step, whole, patience=0), step, whole)
            rows.append(row)
    return rows[::-1]


def _row_of(made: Bias, done: Compiled, entries: int) -> Kept:
    return Kept(
        entries,
        done.integers,
        len(made.entries),
        done.kept_share or 0.0,
        done.kl_lost_nats_per_token or 0.0,
        chosen=True,
    )


def _kept(sparse: Sparse, entries: int, integers: bool) -> Kept:
    return Kept(entries, integers, sparse.entries, sparse.kept, sparse.kl_lost)


@dataclass(frozen=True, slots=True, eq=False)
class _Compiler:
    """One bias on one table of next tokens, for any number of entries."""

    bias: Bias
    profile: Profile
    next_token: NextToken
    highest_id: int | None

    @classmethod
    def of(cls, bias: Bias, profile: Profile, next_token: NextToken, highest_id: int | None) -> _Compiler:
        # Ids that were never listed change nothing at the logged positions: sent where there is room, else counted as dropped.
        return cls(bias, profile, next_token.with_tokens(list(bias.logit_bias)), highest_id)

    def sparse(self, entries: int | None, integers: bool, **search: int) -> Sparse:
        from blackbox_lb.estimate.candidates import Limits

        values, rules = self.bias.logit_bias, self.profile.bias
        limits = Limits(entries, rules.low, rules.high, integers, self.highest_id)
        return limits.compiled(self.next_token, self.next_token.align(list(values), list(values.values())), **search)
