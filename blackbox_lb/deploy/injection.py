"""The one rule by which a bias enters the body of a request.

Bytes in, bytes out; no HTTP library and no SDK, so that a client, a batch file and a proxy share
it.
"""

from __future__ import annotations

import json
import logging
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

from blackbox_lb.bias.features import GROUP
from blackbox_lb.bias.request_bias import RequestBias, to_request_bias
from blackbox_lb.errors import InputError
from blackbox_lb.literals import OnConflict
from blackbox_lb.safety.printable import printable

if TYPE_CHECKING:
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.bias.features import PromptText

log = logging.getLogger(__name__)


DEPLOYMENT = re.compile(r"(?<=/deployments/)[^/?#]+")
"""The name in the path of Azure's endpoints:
https://learn.microsoft.com/azure/ai-services/openai/reference."""
_SLASHES = re.compile(r"[/\\]")
QUOTED = 80
"""Characters of a request's value that an error message repeats."""
NOTHING: Mapping[int, float] = MappingProxyType({})
"""No bans."""
MAX_OWN = 1e6
"""Largest absolute value, in nats, of a request's own entry under "add": keeps the sum finite."""


def route(path: str) -> Literal["completions", "responses"] | None:
    """The sampling endpoint of a URL path: /chat/completions, the legacy /completions, /responses,
    or none.

    Other spellings that some server reads as the same path count, too: capital letters, percent
    codes (also of percent codes), path parameters, blanks and slashes at the end.
    """
    readable = unquote(unquote(path)).partition("?")[0].lower()
    segments = [segment.partition(";")[0].strip() for segment in _SLASHES.split(readable)]
    last = next(filter(None, reversed(segments)), "")
    match last:
        case "completions":
            return "completions"
        case "responses":
            return "responses"
    return None


def deployment(path: str) -> str | None:
    """The deployment in a URL path, by which Azure OpenAI names the model, whatever model the body
    names; None where the path holds none.
    """
    match = DEPLOYMENT.search(path.partition("?")[0])
    if match is None:
        return None
    return unquote(match.group())


@dataclass(frozen=True, slots=True)
class Injection:
    """Puts a bias into request bodies, exactly as it is, whole values as integers.

    bias: computed of each body where features change it. on_conflict: what
    a body with a ``logit_bias`` of its own gets: "raise"; "ours" or "theirs" alone; or "add", the
    sum per id. as_pairs: write ``[[id, value], ...]`` instead of an
    object, which llama.cpp alone takes, and reads far faster. is_same_for_all: whether there is a
    bias, and every body gets the same.
    """

    bias: RequestBias
    on_conflict: OnConflict = "raise"
    as_pairs: bool = False
    is_same_for_all: bool = field(init=False, repr=False)
    _member: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        encoded = json.dumps(_wire(self.bias.common, self.as_pairs), separators=(",", ":"))
        is_same_for_all = not self.bias.features and len(self.bias) > 0
        object.__setattr__(self, "is_same_for_all", is_same_for_all)
        object.__setattr__(self, "_member", b'"logit_bias":' + encoded.encode() + b"}")

    @classmethod
    def of(cls, bias: Bias, on_conflict: OnConflict = "raise", as_pairs: bool = False) -> Injection:
        """Of a bias file."""
        return cls(to_request_bias(bias), on_conflict, as_pairs)

    @property
    def embeds(self) -> bool:
        """Whether an embedding model is asked for each body, which takes milliseconds."""
        return self.bias.vectors is not None

    def read(self, document: Mapping[str, Any]) -> PromptText | None:
        """The text of a body's prompt, as features read it; None where it holds no readable text.
        The first such prompt is logged.
        """
        text = self.bias.read(document)
        if self.bias.unread == 1 and text is None:
            log.warning(
                "a prompt without text that can be read: it gets what all prompts have in common of"
                " the bias"
            )
        return text

    def body(
        self,
        content: bytes,
        document: dict[str, Any],
        values: Mapping[int, float] | None = None,
        banned: Mapping[int, float] = NOTHING,
    ) -> bytes:
        """``content`` with the bias; ``document`` is the JSON object in it. Without entries:
        ``content`` as it is. values: what this body gets, where that is known already. banned:
        token id -> nats of tokens that this body bans whatever else there is.

        Raises InputError: the body has a ``logit_bias`` of its own under "raise", or one that
        cannot be added under "add".
        """
        if banned:
            return self._without(content, document, values, banned)
        if self.is_same_for_all and values is None and "logit_bias" not in document:
            return self.appended(content, empty=not document)
        if not self.bias and not values:
            return content
        if values is None:
            values = self.bias.of_text(self.read(document))
        if self.bias.features and GROUP in document:
            document = {key: value for key, value in document.items() if key != GROUP}
            content = to_json(document)
        if "logit_bias" not in document:
            return self._with_member(content, _member(values, self.as_pairs), empty=not document)
        own_bias = document["logit_bias"]
        if own_bias and self.on_conflict == "theirs":
            return content
        if own_bias and self.on_conflict == "raise":
            raise InputError(
                "the request has a logit_bias of its own; leave it out, or choose"
                " on_conflict='ours', 'theirs' or 'add'"
            )
        total = values
        if own_bias and self.on_conflict == "add":
            total = _sum(values, own_bias)
        return to_json({**document, "logit_bias": _wire(total, self.as_pairs)})

    def _without(
        self,
        content: bytes,
        document: dict[str, Any],
        values: Mapping[int, float] | None,
        banned: Mapping[int, float],
    ) -> bytes:
        """See ``body``."""
        biased = json.loads(self.body(content, document, values))
        total = dict(map(_id_and_value, _pairs(biased.get("logit_bias") or {})))
        return to_json({**biased, "logit_bias": _wire({**total, **banned}, self.as_pairs)})

    def appended(self, content: bytes, *, empty: bool = False) -> bytes:
        """``content``, a JSON object that holds no ``logit_bias``, with the bias as its last
        member.

        The caller's bytes all stay, and the cost is one copy, however long the prompt is.
        """
        return self._with_member(content, self._member, empty=empty)

    def _with_member(self, content: bytes, member: bytes, *, empty: bool) -> bytes:
        head = memoryview(content)[: content.rindex(b"}")]
        return b"".join((head, b"" if empty else b",", member))


def _member(values: Mapping[int, float], as_pairs: bool) -> bytes:
    """The member of one request, as ``RequestBias`` gives it, written ten times as fast as ``json``
    does.
    """
    from msgspec.json import encode

    return b'"logit_bias":' + encode([*values.items()] if as_pairs else values) + b"}"


def quoted(name: object) -> str:
    """A value from a request, fit for an error message: printable, at most 80 characters. Long
    values are cut first, because they are escaped character by character.
    """
    if name is None:
        return "no named model"
    if isinstance(name, str):
        return f"'{printable(name[:QUOTED])}'"[:QUOTED]
    return reprlib.repr(name)[:QUOTED]


def to_json(document: Mapping[str, Any]) -> bytes:
    """A request body as JSON. Raises InputError: it holds NaN or a number beyond a double, which
    Python would write as words that are no JSON.
    """
    try:
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        raise InputError(
            "the request holds NaN or a number beyond 1.8e308, which JSON cannot hold; correct it"
        ) from None


def _sum(ours: Mapping[int, float], client_bias: object) -> dict[int, float]:
    """The bias plus the caller's, which is an object or a list of pairs; ``false`` (llama.cpp:
    never sample it) stays false.
    """
    total = dict(ours)
    for key, value in _pairs(client_bias):
        token = _token_id(key)
        if isinstance(value, bool) and not value:
            total[token] = False
        elif (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not abs(value) <= MAX_OWN
        ):
            raise InputError(
                f"the request's own logit_bias gives {quoted(value)} to token {token}; give a"
                f" number of nats within +-{MAX_OWN:g}"
            )
        elif total.get(token) is not False:
            total[token] = total.get(token, 0.0) + value
    return total


def _pairs(client_bias: object) -> list[tuple[object, object]]:
    if isinstance(client_bias, dict):
        return list(client_bias.items())
    if isinstance(client_bias, list) and all(
        isinstance(pair, list) and len(pair) == 2 for pair in client_bias
    ):
        return [(key, value) for key, value in client_bias]
    raise InputError(
        "the request's own logit_bias is neither an object nor a list of [id, value] pairs;"
        " correct it"
    )


def _id_and_value(pair: tuple[object, object]) -> tuple[int, Any]:
    key, value = pair
    return _token_id(key), value


def _token_id(key: object) -> int:
    if isinstance(key, int) and not isinstance(key, bool) and key >= 0:
        return key
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10:
        return int(key)
    raise InputError(
        f"the request's own logit_bias has the key {quoted(key)}, which is no token id; give ids"
        " from 0"
    )


def _wire(values: Mapping[int, float], as_pairs: bool) -> object:
    if as_pairs:
        return [[token, _number(value)] for token, value in values.items()]
    return {str(token): _number(value) for token, value in values.items()}


def _number(value: float) -> float:
    """A whole value as an integer, the field's type in the specification; nothing is rounded."""
    if not isinstance(value, bool) and float(value).is_integer():
        return int(value)
    return value
