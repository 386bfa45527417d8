"""From the body of a request to the one that is sent, with the bias of the model that it names; no
network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from blackbox_lb.deploy.injection import DEPLOYMENT, deployment, quoted, route, to_json
from blackbox_lb.deploy.part_requests import PartRequest
from blackbox_lb.deploy.part_sender import PhraseCounts
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.deploy.proxy.served import ServedBias
from blackbox_lb.deploy.request_policy import Others
from blackbox_lb.errors import ConnectionFailed, InputError, ProviderError
from blackbox_lb.safety.printable import printable
from blackbox_lb.safety.untrusted import strict_json

LARGE = 2**17
"""Bytes of a body up to which reading it takes a few milliseconds, whatever it holds."""
MOST = {"values": (b",[{", 1_000_000), "keys": (b":", 250_000)}
"""The signs that stand before each value, or behind each key, and the most of them in a body.

They bound the time and the memory of reading one: Python holds everybody else up while it reads
numbers or keys in a row, 0.1 s at these limits. A prompt of a million token ids is within them, and
so is a text of a million tokens."""

Result = TypeVar("Result")


class LargeBodies:
    """Reads large bodies beside the event loop, one at a time: each thread that computes makes
    everybody else wait its turn.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore()

    async def read(self, size: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """The result of a function that reads a body of so many bytes."""
        if size <= LARGE:
            return function(*arguments)
        async with self._turn:
            return await asyncio.to_thread(function, *arguments)


class Edit(NamedTuple):
    """The request to the upstream: the target, the body, and the bias in it, None where none was
    added.

    parts: the same request, where its answer is drawn in parts; ``content`` is then empty. other:
    the model that it names, where no bias is for that.
    """

    target: str
    content: bytes
    served: ServedBias | None
    parts: PartRequest | None = None
    other: str | None = None


class ServedBiases:
    """The biases by the model names that get them.

    others: requests for a model without a bias "warn" once a model, "pass" or "raise".
    embeds: whether an embedding model is asked for a body.

    Raises InputError: two biases have one name.
    """

    others: Others

    def __init__(self, served: Iterable[ServedBias], others: Others = "warn") -> None:
        self.others = others
        self._by_name: dict[str, ServedBias] = {}
        for row in served:
            if row.name in self._by_name:
                raise InputError(
                    f"two biases for {quoted(row.name)}; give one an alias, as in --bias"
                    " short=bias.json"
                )
            self._by_name[row.name] = row
        self._models = {row.model for row in self}
        self._aliases = {row.alias for row in self.aliased}
        self.embeds = any(row.injection.embeds for row in self)

    def __iter__(self) -> Iterator[ServedBias]:
        return iter(self._by_name.values())

    @property
    def aliased(self) -> list[ServedBias]:
        """The biases that only a request with an alias gets."""
        return [row for row in self if row.alias is not None]

    @property
    def phrase_counts(self) -> dict[str, PhraseCounts]:
        """What keeping phrases out took so far, by the name of each bias that does."""
        return {
            row.name: row.parts.counts
            for row in self
            if row.parts is not None and row.parts.phrases is not None
        }

    @property
    def known(self) -> str:
        return ", ".join(f"'{printable(name)}'" for name in sorted(self._by_name)) or "no model"

    def choose(self, name: object) -> ServedBias | None:
        """The bias for the model name, None for a model without one.

        Raises ErrorAnswer (404): ``MODEL@ALIAS`` with a model or an alias known here, but not this
        pair.
        """
        if not isinstance(name, str):
            return None
        if name in self._by_name:
            return self._by_name[name]
        model, at, alias = name.rpartition("@")
        if at and (model in self._models or alias in self._aliases):
            raise ErrorAnswer(
                404,
                f"the model {quoted(name)} does not exist here; blb proxy has a bias for"
                f" {self.known}",
                code="model_not_found",
                param="model",
            )
        return None

    def edit(self, target: str, content: bytes) -> Edit:
        """Return a request to an endpoint that samples, with the bias of its model.

        Raises ErrorAnswer: 404 for an unknown alias; 400 for a body that is no JSON object, a
        refused model, an endpoint that takes no bias, or a body's own ``logit_bias`` where the rule
        for conflicts refuses it; 413 for a body of too many values; 502 where the embedding that a
        bias depends on cannot be computed.
        """
        document = _document(content)
        path, mark, query = target.partition("?")
        name = deployment(path)
        if name is None:
            name = document.get("model")
        served = self.choose(name)
        if served is None and self.others == "raise":
            raise ErrorAnswer(
                400,
                f"this proxy biases {self.known}, but the request is for {quoted(name)}; ask"
                " for one of those, or start blb proxy with --others pass",
                code="model_not_biased",
                param="model",
            )
        if served is None:
            # The plain name beside its aliases, which are biased, is meant.
            is_plain = isinstance(name, str) and name in self._models
            return Edit(target, content, None, other=None if is_plain else quoted(name))
        if route(path) == "responses":
            raise ErrorAnswer(
                400,
                f"the Responses API takes no logit_bias, so {quoted(served.name)} cannot be biased"
                " there; use /chat/completions, or a model without a bias",
                code="unsupported_endpoint",
                param="model",
            )
        if served.alias is not None:
            model = quote(served.model, safe="")
            path = DEPLOYMENT.sub(lambda match: model, path, count=1)
            target = path + mark + query
            if document.get("model") == served.name:
                document["model"] = served.model
                content = to_json(document)
        try:
            biased = served.injection.body(content, document)
        except (InputError, ProviderError) as error:
            is_conflict = type(error) is InputError and bool(document.get("logit_bias"))
            if not is_conflict:
                raise _no_embedding(served, error) from error
            message = str(error)
            if served.injection.on_conflict == "raise":
                message = (
                    "the request has a logit_bias of its own, and blb proxy adds the one of"
                    f" {quoted(served.name)}; leave it out, or have the proxy started with"
                    " --on-conflict ours, theirs or add"
                )
            raise ErrorAnswer(
                400, message, code="logit_bias_conflict", param="logit_bias"
            ) from error
        if served.parts is not None:
            try:
                parts = served.parts.request(document)
            except InputError as error:
                raise ErrorAnswer(400, str(error), code="not_in_parts") from error
            if parts is not None:
                return Edit(target, b"", served, parts)
        if biased is content:
            return Edit(target, content, None)
        return Edit(target, biased, served)


def _no_embedding(served: ServedBias, error: Exception) -> ErrorAnswer:
    """The answer where a bias that depends on embeddings cannot be computed. The words of an API
    may repeat the prompt, which no log may hold.
    """
    reason = type(error).__name__
    if isinstance(error, InputError | ConnectionFailed):
        reason = str(error)
    return ErrorAnswer(
        502,
        f"the bias of {quoted(served.name)} depends on an embedding of the prompt, and there is"
        f" none: {reason}",
        code="embedding_failed",
    )


def check_values(content: bytes) -> None:
    """Raise ErrorAnswer (413) where a body has more values or keys than ``MOST``."""
    for kind, (signs, most) in MOST.items():
        # Signs in texts count, too: to tell them apart takes as long as to read the body.
        if len(content) > LARGE and sum(map(content.count, signs)) > most:
            raise ErrorAnswer(
                413,
                f"the request body has more {kind} than are read, by its {most:,} signs"
                f" {' '.join(signs.decode())}; send its prompts in several requests, or token ids"
                " as text",
                code="request_too_large",
            )


def _document(content: bytes) -> dict[str, Any]:
    """The parsed body. Refuses repeated keys, which the upstream may resolve differently, NaN,
    numbers beyond a double, depths that it cannot read, and more values than ``MOST``.
    """
    check_values(content)
    reason = ""
    document: Any = None
    try:
        document = strict_json(content.decode())
    except ValueError as error:
        reason = f" ({printable(str(error)[:200])[:200]})"
    if not isinstance(document, dict):
        raise ErrorAnswer(
            400,
            "the request body is no JSON object in UTF-8 that every upstream reads alike, so no"
            f" bias can be added{reason}; correct it",
            code="bad_body",
        )
    return document
