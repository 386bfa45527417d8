"""A provider's limits on a bias: number of entries, range, highest id; checked before anything is
sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.errors import BiasError, InputError, ProfileError, TokenizerMismatch
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.safety.printable import printable

if TYPE_CHECKING:
    from blackbox_lb.vocabulary import Vocabulary


def most_entries(profile: Profile, requested: int | None) -> int | None:
    """Return how many entries to compile to: ``requested``, else the provider's limit; None for no
    limit.

    Raises BiasError: more wanted than the provider takes.
    """
    limit = profile.bias.entries
    if requested is not None and limit is not None and requested > limit:
        raise BiasError(
            f"{requested} entries are wanted, {profile.name} takes at most {limit}; lower"
            " ``entries``"
        )
    if requested is None:
        return limit
    return requested


def check_bias(bias: Bias, profile: Profile, highest_id: int | None = None) -> None:
    """``check_limits`` of every map that a request may get of a bias file; where the prompt changes
    it, of the range and the tokens of all maps.
    """
    sent = to_request_bias(bias)
    if "prompt" not in sent.scopes:
        for phase in range(sent.phases.count):
            check_limits(sent.of_text(None, phase), profile, highest_id)
        return
    check_limits(dict.fromkeys(bias.logit_bias, 0.0), profile, highest_id)
    rules = profile.bias
    assert sent.sent is not None  # given with features
    low = sent.sent.low
    high = sent.sent.high
    if low < rules.low or high > rules.high or not (rules.fractions or sent.sent.integers):
        kind = "" if rules.fractions else ", whole numbers only"
        raise BiasError(
            f"the bias of a prompt may be from {low:g} to {high:g}, {profile.name} takes"
            f" {rules.low:g} to {rules.high:g}{kind}; {_remedy(profile)}"
        )


def check_limits(
    bias: Mapping[int, float], profile: Profile, highest_id: int | None = None
) -> None:
    """Raise BiasError where the provider does not take ``bias``; nothing is cut, clipped or rounded
    silently.

    ``highest_id``: the highest token id that may be biased, None for any (``Session.highest_id``).
    """
    rules = profile.bias
    if highest_id is not None and bias and max(bias) > highest_id:
        beyond = sum(token > highest_id for token in bias)
        raise BiasError(
            f"the bias has token {max(bias)}, {profile.name} takes ids up to {highest_id} ({beyond}"
            f" of {len(bias)} are above); {_remedy(profile)}, which does without them"
        )
    if rules.entries is not None and len(bias) > rules.entries:
        raise BiasError(
            f"the bias has {len(bias)} entries, {profile.name} takes at most {rules.entries};"
            f" {_remedy(profile)}"
        )
    for token, value in bias.items():
        if not rules.low <= value <= rules.high:
            raise BiasError(
                f"the bias of token {token} is {value:g}, {profile.name} takes {rules.low:g} to"
                f" {rules.high:g}; {_remedy(profile)}"
            )
        if not rules.fractions and value != int(value):
            raise BiasError(
                f"the bias of token {token} is {value:g}, {profile.name} takes whole numbers;"
                f" {_remedy(profile)}"
            )


def _remedy(profile: Profile) -> str:
    return f"make one that fits with blb compile ``provider={profile.name}``"


def profile_of(bias: Bias, provider: str | None) -> Profile:
    """Return the profile called ``provider``, else that of the bias. Raises ProfileError: that one
    is not in the package.
    """
    if provider is None and bias.provider not in profile_names():
        raise ProfileError(
            f"the bias is for {printable(bias.provider)}, which is no provider that comes with the"
            " package; give ``provider``, a name or the path of its TOML"
        )
    return load_profile(provider or bias.provider)


def vocabulary_of(
    bias: Bias, profiles: Iterable[Profile], tokenizer: str | None = None
) -> Vocabulary | None:
    """Return the vocabulary of the bias's model: the one called ``tokenizer`` (see
    ``load_vocabulary``), else OpenAI's encoding of that model name where one of ``profiles`` uses
    OpenAI's names, else None.

    Raises InputError: the name has no known encoding, or the vocabulary cannot be read.
    TokenizerMismatch: the bias was learned under another.
    """
    from blackbox_lb.vocabulary import load_vocabulary, vocabulary_of_model

    name = tokenizer
    by_name = [profile.name for profile in profiles if profile.tokenizer.source == "openai names"]
    if name is None and by_name:
        name = vocabulary_of_model(bias.model)
        if name is None:
            raise InputError(
                f"the tokenizer of {bias.model!r} on {by_name[0]} cannot be told from its name;"
                " give ``tokenizer=o200k_base`` (the gpt-4o and gpt-4.1 families) or cl100k_base"
                " (gpt-4, gpt-3.5-turbo), or another ``provider``"
            )
    if name is None:
        return None
    vocabulary = load_vocabulary(name)
    if not bias.tokenizer.startswith("model:") and vocabulary.fingerprint != bias.tokenizer:
        raise TokenizerMismatch(
            f"the bias was learned under tokenizer {printable(bias.tokenizer)} (model"
            f" {printable(bias.model)}), and {vocabulary.name} is {vocabulary.fingerprint}: its"
            " token ids mean other tokens there; give the vocabulary of the bias's own model"
        )
    return vocabulary


def highest_id(profile: Profile, vocabulary: Vocabulary | None) -> int | None:
    """The highest token id that ``profile`` takes for a model with ``vocabulary``; None for no
    limit, or an unknown one.
    """
    highest = profile.bias.highest_id
    if highest == "end of text":
        if vocabulary is None:
            return None
        return vocabulary.end_of_text
    return highest
