"""The identity of a token in an answer: its id, by the profile's row ``tokens.id``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blackbox_lb.errors import CorruptResponse, ProfileError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.types import UNNAMED

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
        self._provider = profile.name
        self._kind, self._name = profile.token_ids(rules)
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
    if type(value) is not int or value < 0:
        raise CorruptResponse(
            f"{provider} returned the token id {value!r:.40}; an id is a whole number from 0"
        )
    return value
