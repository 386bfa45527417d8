"""One token position of an answer, in every dialect.

A position is the sampled token and the alternatives that are surely the likeliest.
``AnswerDialect`` has what differs between the shapes of answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from blackbox_lb.api.wire.envelope import listed_choices
from blackbox_lb.errors import CorruptResponse, NoLogprobs, ProfileError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.types import POSITIVE_TOLERANCE, UNNAMED

if TYPE_CHECKING:
    from blackbox_lb.vocabulary import Vocabulary

REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


class Identity:
    """Reads ids by the row ``tokens.id``, or the endpoint's own row ``id``.

    ``field NAME``: a field of each entry. ``string PREFIX``: the number behind the prefix in the
    token string. ``bytes``: the entry's bytes under ``vocabulary``; where they are null or no
    ordinary token's, the special token printed so. ``text``: the printed text under ``vocabulary``.
    ``latin-1``: the printed text, in which a token that is no valid UTF-8 is printed as one Latin-1
    letter a byte (SGLang's legacy completions, ``to_openai_style_logprobs`` in its source). A token
    without a certain identity is ``UNNAMED``.
    """

    def __init__(
        self, profile: Profile, rules: EndpointRules, vocabulary: Vocabulary | None
    ) -> None:
        kind, _, name = (rules.id or profile.tokens.id).partition(" ")
        self._provider = profile.name
        self._kind = kind
        self._name = name
        self._vocabulary = vocabulary
        self._exact = profile.tokens.bytes_exact

    def of_entry(self, entry: Mapping[str, Any]) -> int:
        """The id of an entry of the chat dialect, ``UNNAMED`` where it has none.

        Raises CorruptResponse: the entry lacks the field that the profile names. ProfileError: the
        profile's row needs a vocabulary and there is none.
        """
        if self._kind == "field":
            return checked_id(self._provider, entry[self._name])
        if self._kind == "bytes":
            return self._of_bytes(self._required_vocabulary(), entry["bytes"], entry["token"])
        return self.of_text(entry["token"])

    def of_text(self, text: str) -> int:
        """The id of a token given by a string alone, ``UNNAMED`` where that is not enough.

        Raises ProfileError: the profile looks for the id where there is only a string, or needs a
        vocabulary and there is none.
        """
        if self._kind == "string":
            return self._behind_prefix(text)
        if self._kind not in ("text", "latin-1"):
            raise ProfileError(
                f"{self._provider} gives only the text of its tokens here, its profile looks for"
                f' their {self._kind}; set id = "text" for this endpoint'
            )
        vocabulary = self._required_vocabulary()
        token = vocabulary.id_of_text(text)
        if self._kind == "latin-1":
            fragment = self._of_fragment(vocabulary, text)
            if fragment is not None:
                if token is not None or text.encode() in vocabulary.shared:
                    return UNNAMED
                return fragment
        if token is None:
            return UNNAMED
        return token

    def check(self, named: int, sampled: int) -> None:
        """Raise ProfileError where the vocabulary names a token other than the server's sampled
        one.
        """
        if UNNAMED not in (named, sampled) and named != sampled:
            raise ProfileError(
                f"{self._provider} sampled token {sampled}, which under this vocabulary is token"
                f" {named}: the vocabulary is not the model's; give the right one with"
                " ``tokenizer``"
            )

    def _required_vocabulary(self) -> Vocabulary:
        if self._vocabulary is None:
            raise ProfileError(
                f"{self._provider} tells tokens by their {self._kind}, so their ids need a"
                " vocabulary, and none is known for this model; give one with ``tokenizer``"
            )
        return self._vocabulary

    def _of_bytes(self, vocabulary: Vocabulary, listed_bytes: Any, text: str) -> int:
        raw = None
        if listed_bytes is not None:
            raw = checked_bytes(self._provider, listed_bytes)
        name = text.encode("utf-8", "surrogatepass")
        if raw is not None and not self._exact and REPLACEMENT in raw:
            return UNNAMED  # any fragment of a character prints with these bytes
        ordinary = None
        if raw is not None:
            ordinary = vocabulary.id_of(raw)
        special = None
        if raw in (None, name):
            special = vocabulary.id_of_special(text)
        ids = {token for token in (ordinary, special) if token is not None}
        if len(ids) != 1:
            return UNNAMED
        return ids.pop()

    @staticmethod
    def _of_fragment(vocabulary: Vocabulary, text: str) -> int | None:
        """The id of the token that is no valid UTF-8 and prints as ``text``, one Latin-1 letter a
        byte.
        """
        try:
            raw = text.encode("latin-1")
            raw.decode()
        except UnicodeDecodeError:
            return vocabulary.id_of(raw)
        except UnicodeEncodeError:
            return None
        return None

    def _behind_prefix(self, text: str) -> int:
        """The number behind the profile's prefix, as in ``token_id:271``."""
        digits = text.removeprefix(self._name)
        if digits == text or not digits.isdecimal():
            raise CorruptResponse(
                f"{self._provider} returned the token {text[:40]!r} where {self._name}N was"
                " asked for"
            )
        return int(digits)


def checked_bytes(provider: str, value: Any) -> bytes:
    """``value``, a list of numbers from 0 to 255, as bytes. Raises CorruptResponse where it is no
    list: from a number Python would make that many zero bytes.
    """
    if not isinstance(value, list):
        raise CorruptResponse(
            f"{provider} returned the token bytes {str(value)[:40]!r}; they are a list of numbers"
        )
    return bytes(value)


def checked_id(provider: str, value: Any) -> int:
    """``value`` as a token id. Raises CorruptResponse where it is none."""
    if type(value) is int and value >= 0:  # nearly all, and there are thousands in an answer
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CorruptResponse(
            f"{provider} returned the token id {value!r:.40}; an id is a whole number from 0"
        )
    return value


LEAST = -1000.0
"""Least logprob of a sampled token, in nats: lower numbers stand for "not computed"."""
UNLISTED = 0.01
"""Most probability of all unlisted tokens, where the least listed one has none: those are less
likely still.
"""
LOWEST = -3e38
"""About the least number in a float32 column; an alternative below it has probability 0 anyway."""
Choice: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class Position:
    """One position.

    id: the sampled token.
    logprob: its logprob in nats.
    top: (id, logprob) of the alternatives, from most likely.
    bounded: ``logprob`` is only an upper bound.
    propensity: the sampled token's logprob under the policy that sampled it, where the provider
        gives both.
    bytes: the bytes of tokens at this position, as far as the answer shows them.
    """

    id: int
    logprob: float
    top: list[tuple[int, float]]
    bounded: bool = False
    propensity: float | None = None
    bytes: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnswerDialect:
    """The reading of answers of one shape.

    positions: every token position of a choice. spelled: the bytes that the listed tokens of a
    choice spell; None where the list does not show them. choices: the choices of an answer, each
    like one of a chat completion. several: whether a request may ask for several completions.
    in_order: whether alternatives stand in the order of the answer's list; a mapping has none.
    columns: whether ``AnswerReader`` can read long lists from bytes to columns.
    """

    positions: Callable[[PositionReader, Choice], list[Position]]
    spelled: Callable[[Profile, Choice], bytes | None]
    choices: Callable[[Profile, Any], list[Choice]] = listed_choices
    several: bool = True
    in_order: bool = True
    columns: bool = False


@dataclass(frozen=True, slots=True)
class PositionReader:
    """The data for reading one position.

    dialect: the answer's.
    identity: names tokens.
    asked: alternatives in the request, 0 for no logprobs, -1 for the whole vocabulary.
    """

    profile: Profile
    rules: EndpointRules
    dialect: AnswerDialect
    identity: Identity
    asked: int

    def position(
        self, token: int, logprob: Any, listed: Iterable[tuple[int, Any]], propensity: Any = None
    ) -> Position:
        """Return the position of a sampled token (``UNNAMED`` for one without a name) with its
        alternatives (id, logprob).

        Where the provider put the number for "not given" (the row ``logprobs.censored``), the token
        is not among the alternatives, so the least of them bounds its logprob; without any, only 0
        does. Alternatives with that number are not listed at all, nor are any that might be less
        likely.
        """
        censored = self.profile.logprobs.censored
        alternatives = [
            (candidate, checked_logprob(self.profile, value))
            for candidate, value in self._before_censored(list(listed))
        ]
        self._check_mass(alternatives, token, logprob)
        top = likeliest(self.rules, alternatives, self.asked)
        bounded = False
        if censored is not None and logprob == censored:
            matches = [
                value
                for candidate, value in alternatives
                if candidate == token and token != UNNAMED
            ]
            bounded = not matches
            logprob = 0.0
            if matches:
                logprob = matches[0]
            elif top:
                logprob = top[-1][1]
        value = checked_logprob(self.profile, logprob, sampled=True)
        checked_propensity = None
        if propensity is not None:
            checked_propensity = checked_logprob(self.profile, propensity, sampled=True)
        return Position(token, value, top, bounded, checked_propensity)

    def _before_censored(self, listed: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """The alternatives before the first without a logprob: it may be likelier than those behind
        it, and than those before it where they are not in order.
        """
        censored = self.profile.logprobs.censored
        values = [value for _, value in listed]
        if censored is None or censored not in values:
            return listed
        present = [checked_logprob(self.profile, value) for value in values if value != censored]
        if not self.dialect.in_order or present != sorted(present, reverse=True):
            return []
        return listed[: values.index(censored)]

    def _check_mass(self, listed_pairs: list[tuple[int, float]], token: int, logprob: Any) -> None:
        """Raise CorruptResponse where an alternative has no probability although unlisted tokens
        must have some.
        """
        if not listed_pairs or min(value for _, value in listed_pairs) > LEAST:
            return
        listed = dict(listed_pairs)
        mass = sum(math.exp(value) for _, value in listed_pairs)
        if token not in listed and isinstance(logprob, int | float):
            mass += math.exp(min(float(logprob), 0.0))
        if mass < 1 - UNLISTED:
            raise CorruptResponse(
                f"{self.profile.name} lists an alternative with the logprob"
                f" {min(listed.values()):g} beside others that have a probability of {mass:.3f}"
                " together; unlisted tokens must be less likely than it and cannot have the rest"
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


def checked_logprob(profile: Profile, value: Any, *, sampled: bool = False) -> float:
    """``value`` in nats, at most 0. Raises CorruptResponse on NaN, a positive number or one that
    cannot be a logprob.
    """
    if type(value) is float and LEAST <= value <= 0.0:  # nearly all
        return value
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value != value
        or value > POSITIVE_TOLERANCE
    ):
        raise CorruptResponse(
            f"{profile.name} returned the logprob {value!r:.40}; a logprob is a number at most 0"
        )
    if sampled and value < LEAST:
        raise CorruptResponse(
            f"{profile.name} returned the logprob {value!r} for a token that it sampled; that is a"
            " placeholder, not a logprob, and its profile does not list it under logprobs.censored"
        )
    if value > LOWEST:
        return min(float(value), 0.0)
    return -math.inf


def likeliest(
    rules: EndpointRules, listed: Iterable[tuple[int, float]], width: int
) -> list[tuple[int, float]]:
    """The alternatives, most likely first, that are surely more likely than every unlisted token.

    Where the sampled token replaces the last of the ``width`` alternatives, only those before the
    last are sure; the same where fewer are listed, because a server's own limit cuts a list there
    just as well. ``width`` of -1 means the whole vocabulary, and then all are sure. Tokens without
    an id may be several.
    """
    # Equal ones by id: the order of a mapping has no meaning.
    top = sorted(listed, key=lambda pair: (-pair[1], pair[0]))
    named = [token for token, _ in top if token != UNNAMED]
    if len(set(named)) != len(named):
        raise CorruptResponse("one token is listed twice among the alternatives of a position")
    if width < 0:
        return top
    sure = width
    if rules.sampled_in_list == "replaces the last":
        sure = min(width, len(top)) - 1
    return top[: max(sure, 0)]
