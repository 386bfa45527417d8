"""From the client's request to the upstream's: the address, and the body with the bias; no
network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

from blackbox_lb.deploy.injection import DEPLOYMENT, deployment, quoted, route, to_json
from blackbox_lb.deploy.phase_requests import PhasedRequest, PhasedRequests
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.deploy.proxy.names import ServedBias, ServedNames
from blackbox_lb.errors import InputError
from blackbox_lb.safety.network import PORTS, read_address
from blackbox_lb.safety.printable import printable
from blackbox_lb.safety.untrusted import finite_float, no_constant, parse_json

PREFIX = "/v1"
"""The path of this proxy that corresponds to the upstream's base URL."""
LARGE = 2**17
"""Bytes of a body up to which reading it takes a few milliseconds, whatever it holds."""
MOST = {"values": (b",[{", 1_000_000), "keys": (b":", 250_000)}
"""The signs that stand before each value, or behind each key, and the most of them in a body.

They bound the time and the memory of reading one: Python holds everybody else up while it reads
numbers or keys in a row, 0.1 s at these limits. A prompt of a million token ids is within them, and
so is a text of a million tokens."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Addresses of the upstream. ``base``: its API, without a slash at the end; ``root``: the same
    without a last ``/v1``.

    An address of a host alone is taken as a root.
    """

    base: str
    root: str
    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, address: str) -> Upstream:
        """Parse an address with its ``/v1``. Raises InputError: not http(s), or with a key, a query
        or a fragment in it.
        """
        base = read_address(
            address,
            "``upstream``",
            "give one as http://127.0.0.1:8000/v1",
            "leave it out, clients send their own key and query",
        )
        parts = urlsplit(base)
        if not re.fullmatch(r"[!-~]+", base):
            raise InputError(
                "``upstream`` has a blank or a letter beyond ASCII in it; percent-encode its path,"
                " and write its host in punycode (xn--...)"
            )
        port = parts.port or PORTS[parts.scheme]
        if not parts.path:
            base += PREFIX
        return cls(base, base.removesuffix(PREFIX), parts.scheme, parts.hostname or "", port)

    def url(self, target: str) -> str:
        """The address for a request target (path and query as they came).

        ``/v1`` and all below is the base URL; any other path lies beside it, under ``root``.

        Raises ErrorAnswer (400): an absolute address, ``..`` in the path, or characters that no
        target may hold.
        """
        path, mark, query = target.partition("?")
        if not path.startswith("/") or not re.fullmatch(r"[!-~]+", target) or "#" in target:
            raise ErrorAnswer(
                400,
                "the request target is not a path of printable ASCII; percent-encode it, and send a"
                " path, not an address",
                code="bad_path",
            )
        # Decoded twice: some servers do.
        if {".", ".."} & set(re.split(r"[/\\]", unquote(unquote(path)))):
            raise ErrorAnswer(
                400,
                "the path has a '.' or '..' segment; send the path that is meant",
                code="bad_path",
            )
        if path == PREFIX or path.startswith(f"{PREFIX}/"):
            return self.base + path.removeprefix(PREFIX) + mark + query
        return self.root + target


@dataclass(frozen=True, slots=True)
class Edit:
    """The request to the upstream: the target, the body, and the bias in it, None where none was
    added.

    parts: the same request in parts, where the bias has phases; ``content`` is then empty.
    """

    target: str
    content: bytes
    served: ServedBias | None
    parts: PhasedRequest | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule from a request to the one that is sent. ``others``: requests for a model without a
    bias "pass" or "raise".
    """

    names: ServedNames
    others: Literal["pass", "raise"] = "pass"

    def applies(self, method: str, path: str) -> bool:
        """Whether the body must be read: it is a POST to an endpoint that samples."""
        return method == "POST" and route(path) is not None

    def edit(self, target: str, content: bytes) -> Edit:
        """Return the request with the bias of its model.

        Raises ErrorAnswer: 404 for an unknown alias; 400 for a body that is no JSON object, a
        refused model, an endpoint that takes no bias, or a body's own ``logit_bias`` where the rule
        for conflicts refuses it.
        """
        document = _document(content)
        path, mark, query = target.partition("?")
        name = deployment(path)
        if name is None:
            name = document.get("model")
        served = self.names.choose(name)
        if served is None:
            return self._unbiased(target, content, name)
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
        biased = _injected(served, content, document)
        if served.phased is not None:
            return Edit(target, b"", served, _in_parts(served.phased, document))
        return Edit(target, biased, None if biased is content else served)

    def _unbiased(self, target: str, content: bytes, name: object) -> Edit:
        if self.others == "raise":
            raise ErrorAnswer(
                400,
                f"this proxy biases {self.names.known}, but the request is for {quoted(name)}; ask"
                " for one of those, or start blb proxy with --others pass",
                code="model_not_biased",
                param="model",
            )
        return Edit(target, content, None)


def _document(content: bytes) -> dict[str, Any]:
    """The parsed body. Refuses repeated keys, which the upstream may resolve differently, NaN,
    numbers beyond a double, depths that it cannot read, and more values than ``MOST``.
    """
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
    try:
        document = parse_json(content.decode(), constant=no_constant, parse_float=finite_float)
    except ValueError as error:
        raise ErrorAnswer(
            400,
            "the request body is no JSON object in UTF-8 that every upstream reads alike, so no"
            f" bias can be added ({printable(str(error)[:200])[:200]}); correct it",
            code="bad_body",
        ) from None
    if not isinstance(document, dict):
        raise ErrorAnswer(
            400,
            "the request body is no JSON object in UTF-8, so no bias can be added; correct it",
            code="bad_body",
        )
    return document


def _in_parts(phased: PhasedRequests, document: dict[str, Any]) -> PhasedRequest:
    try:
        return PhasedRequest(phased, document)
    except InputError as error:
        raise ErrorAnswer(400, str(error), code="not_in_parts") from error


def _injected(served: ServedBias, content: bytes, document: dict[str, Any]) -> bytes:
    try:
        return served.injection.body(content, document)
    except InputError as error:
        message = str(error)
        if served.injection.on_conflict == "raise":
            message = (
                "the request has a logit_bias of its own, and blb proxy adds the one of"
                f" {quoted(served.name)}; leave it out, or have the proxy started with"
                " --on-conflict ours, theirs or add"
            )
        raise ErrorAnswer(400, message, code="logit_bias_conflict", param="logit_bias") from error
