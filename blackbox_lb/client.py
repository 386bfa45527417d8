"""Sending a bias: a client of the same type as the caller's, whose chat and completion requests carry ``logit_bias``.

The SDK builds every request, each retry included, with ``build_request`` of its HTTP client and sends it with ``send``.
The biased client has an HTTP client of its own that hands both calls to the caller's HTTP client and edits the body in
between. So ``.create``, ``.stream``, ``.parse``, ``with_options()``, ``with_raw_response`` and raw ``client.post`` all
carry the bias; the body is final before a provider's signature, an auth flow or an event hook sees it; and connection
pool, proxies, mounts, event hooks, auth, cookies and redirects are the caller's own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

import httpx2
import openai

from blackbox_lb.bias import Bias, printable
from blackbox_lb.errors import InputError

__all__ = ["OnConflict", "Others", "apply"]

C = TypeVar("C", bound=openai.OpenAI | openai.AsyncOpenAI)
Others: TypeAlias = Literal["pass", "raise"]
OnConflict: TypeAlias = Literal["raise", "ours", "theirs", "add"]

MAX_OWN = 1e6
"""Largest absolute value, in nats, that a request's own entry may have where it is added: keeps the sum finite."""

log = logging.getLogger(__name__)


def apply(
    client: C,
    bias: Bias | str | Path,
    *,
    models: Iterable[str] | None = None,
    others: Others = "pass",
    on_conflict: OnConflict = "raise",
    as_pairs: bool = False,
) -> C:
    """A client of the same type that sends the bias; the caller's own client stays as it was.

    bias: a Bias or the path of a bias file; values go out exactly as they are, in nats, whole ones as integers.
    models: the request's model names that get the bias, where the server knows the model by another; default: ``bias.model``.
    others: what a request for any other model does, "pass" through without the bias (logged) or "raise".
    on_conflict: what a request with a ``logit_bias`` of its own does: "raise"; send "ours" or "theirs" alone; or "add", the
    sum per id.
    as_pairs: send ``[[id, value], ...]`` instead of an object; llama.cpp reads a long list far faster, others refuse it.

    The two clients share one connection pool. Closing the biased client stops only that client; closing the caller's stops
    both. The Responses API has no ``logit_bias``, so a request to it for a biased model raises. Requests inside a batch file are
    not rewritten. A provider's limits on entries and range are not checked here: a compiled bias keeps to them, a sum
    under "add" may not.

    Raises InputError here for a wrong argument, and from the request itself for a refused model, conflict, endpoint or
    unreadable body. Raises BiasError for a bias file that cannot be read.
    """
    _check_choice("others", others, get_args(Others))
    _check_choice("on_conflict", on_conflict, get_args(OnConflict))
    loaded = bias if isinstance(bias, Bias) else Bias.load(bias)
    rewriter = _Rewriter.of(loaded.logit_bias, _names(models, loaded.model), others, on_conflict, as_pairs)
    return _with_http_client(client, rewriter)


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name}={value!r} is not a choice; give one of {', '.join(map(repr, allowed))}")


def _names(models: Iterable[str] | None, default: str) -> frozenset[str]:
    if isinstance(models, str):
        raise InputError(f"models={models!r} is one string; give a list of model names, [{models!r}]")
    names = frozenset((default,) if models is None else models)
    if not names:
        raise InputError(
            "models is empty, so no request would carry the bias; name at least one model, or leave it out"
        )
    return names


def _with_http_client(client: C, rewriter: _Rewriter) -> C:
    # The SDK offers no public way to the HTTP client that it was given or made.
    inner: object = getattr(client, "_client", None)
    if isinstance(client, openai.OpenAI) and isinstance(inner, httpx2.Client):
        return cast(C, client.with_options(http_client=_BiasedClient(inner, rewriter)))
    if isinstance(client, openai.AsyncOpenAI) and isinstance(inner, httpx2.AsyncClient):
        return cast(C, client.with_options(http_client=_BiasedAsyncClient(inner, rewriter)))
    if isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
        raise InputError(
            f"the client's HTTP client is a {type(inner).__module__}.{type(inner).__name__}, not one of httpx2; "
            "use openai 3 or newer and leave http_client out, or pass an httpx2.Client (httpx2.AsyncClient)"
        )
    raise InputError(f"cannot bias a {type(client).__name__}; give an openai.OpenAI or openai.AsyncOpenAI client")


class _Through(httpx2.BaseTransport):
    """The caller's client less its auth and redirects, for SDK code that takes an HTTP client's transport (X.509 identity)."""

    def __init__(self, inner: httpx2.Client) -> None:
        self._inner = inner

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._inner.send(request, stream=True, auth=httpx2.Auth(), follow_redirects=False)


class _AsyncThrough(httpx2.AsyncBaseTransport):
    def __init__(self, inner: httpx2.AsyncClient) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._inner.send(request, stream=True, auth=httpx2.Auth(), follow_redirects=False)


class _BiasedClient(httpx2.Client):
    """Builds and sends with ``inner``, which it does not own; only the body of a built request differs."""

    def __init__(self, inner: httpx2.Client, rewriter: _Rewriter) -> None:
        super().__init__(transport=_Through(inner), timeout=inner.timeout)
        self._inner, self._rewriter = inner, rewriter

    def build_request(self, method: str, url: httpx2.URL | str, **options: Any) -> httpx2.Request:
        return self._rewriter(self._inner.build_request(method, url, **options))

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        _check_open(self)
        return self._inner.send(request, **options)

    @property
    def is_closed(self) -> bool:
        return super().is_closed or self._inner.is_closed


class _BiasedAsyncClient(httpx2.AsyncClient):
    """Builds and sends with ``inner``, which it does not own; only the body of a built request differs."""

    def __init__(self, inner: httpx2.AsyncClient, rewriter: _Rewriter) -> None:
        super().__init__(transport=_AsyncThrough(inner), timeout=inner.timeout)
        self._inner, self._rewriter = inner, rewriter

    def build_request(self, method: str, url: httpx2.URL | str, **options: Any) -> httpx2.Request:
        return self._rewriter(self._inner.build_request(method, url, **options))

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        _check_open(self)
        return await self._inner.send(request, **options)

    @property
    def is_closed(self) -> bool:
        return super().is_closed or self._inner.is_closed


def _check_open(client: httpx2.Client | httpx2.AsyncClient) -> None:
    if client.is_closed:
        raise RuntimeError("Cannot send a request, as the client has been closed.")


@dataclass(frozen=True, slots=True)
class _Rewriter:
    """The rule from a built request to the one that is sent."""

    values: Mapping[int, float]
    encoded: bytes
    models: frozenset[str]
    others: Others
    on_conflict: OnConflict
    as_pairs: bool

    @classmethod
    def of(
        cls,
        values: Mapping[int, float],
        models: frozenset[str],
        others: Others,
        on_conflict: OnConflict,
        as_pairs: bool,
    ) -> _Rewriter:
        encoded = json.dumps(_wire(values, as_pairs), separators=(",", ":")).encode()
        return cls(values, encoded, models, others, on_conflict, as_pairs)

    def __call__(self, request: httpx2.Request) -> httpx2.Request:
        endpoint = _endpoint(request)
        if endpoint is None:
            return request
        content, body = _content(request)
        if not self._wanted(body):
            return request
        if endpoint == "responses":
            raise InputError(
                f"the Responses API takes no logit_bias, so {_quoted(body['model'])} cannot be biased there; "
                "use client.chat.completions, or the caller's own client for an unbiased response"
            )
        return _with_content(request, self._biased(content, body)) if self.values else request

    def _wanted(self, body: Mapping[str, Any]) -> bool:
        model = body.get("model")
        if isinstance(model, str) and model in self.models:
            return True
        names = ", ".join(_quoted(name) for name in sorted(self.models))
        if self.others == "raise":
            raise InputError(
                f"this client biases {names}, but the request is for {_quoted(model)}; "
                "add that name to models=[...], or send it through an unbiased client"
            )
        log.info("no logit bias sent: the request is for %s, the bias for %s", _quoted(model), names)
        return False

    def _biased(self, content: bytes, body: dict[str, Any]) -> bytes:
        own = body.get("logit_bias")
        if own and self.on_conflict == "theirs":
            return content
        if own and self.on_conflict == "raise":
            raise InputError(
                "the request has a logit_bias of its own; leave it out, or choose on_conflict='ours', 'theirs' or 'add'"
            )
        if "logit_bias" not in body:
            # Appending leaves every byte of the caller's body as it is, and costs the same for any length of prompt.
            return content.rstrip()[:-1] + b',"logit_bias":' + self.encoded + b"}"
        total = _sum(self.values, own) if own and self.on_conflict == "add" else self.values
        return json.dumps({**body, "logit_bias": _wire(total, self.as_pairs)}, separators=(",", ":")).encode()


def _endpoint(request: httpx2.Request) -> Literal["completions", "responses"] | None:
    """Which sampling endpoint a request is for: /chat/completions and the legacy /completions, /responses, or none of them."""
    if request.method != "POST":
        return None
    last = request.url.path.rstrip("/").rpartition("/")[2]
    return "completions" if last == "completions" else "responses" if last == "responses" else None


def _content(request: httpx2.Request) -> tuple[bytes, dict[str, Any]]:
    """The body as bytes and as a JSON object, which is empty where the body is none."""
    if "json" not in request.headers.get("content-type", ""):
        return b"", {}
    try:
        content = request.content
    except httpx2.RequestNotRead:
        raise InputError("cannot add a bias to a body that is streamed; pass the whole body at once") from None
    if "content-encoding" in request.headers:
        raise InputError("cannot add a bias to a compressed body; send it without Content-Encoding")
    try:
        body = json.loads(content.decode())
    except (ValueError, RecursionError):
        return content, {}
    return content, body if isinstance(body, dict) else {}


def _with_content(request: httpx2.Request, content: bytes) -> httpx2.Request:
    headers = request.headers.copy()
    headers.pop("content-length", None)  # httpx2 sets it anew
    return httpx2.Request(request.method, request.url, headers=headers, content=content, extensions=request.extensions)


def _sum(ours: Mapping[int, float], own: object) -> dict[int, float]:
    """Ours plus the caller's, which is an object or a list of pairs; ``false`` (llama.cpp: never sample it) stays false."""
    total = dict(ours)
    for key, value in _pairs(own):
        token = _token_id(key)
        if isinstance(value, bool) and not value:
            total[token] = False
        elif isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_OWN:
            raise InputError(
                f"the request's own logit_bias gives {_quoted(value)} to token {token}; give a number of nats within +-{MAX_OWN:g}"
            )
        elif total.get(token) is not False:
            total[token] = total.get(token, 0.0) + value
    return total


def _pairs(own: object) -> list[tuple[object, object]]:
    if isinstance(own, dict):
        return list(own.items())
    if isinstance(own, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in own):
        return [(key, value) for key, value in own]
    raise InputError("the request's own logit_bias is neither an object nor a list of [id, value] pairs; correct it")


def _token_id(key: object) -> int:
    if isinstance(key, int) and not isinstance(key, bool) and key >= 0:
        return key
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10:
        return int(key)
    raise InputError(f"the request's own logit_bias has the key {_quoted(key)}, which is no token id; give ids from 0")


def _wire(values: Mapping[int, float], as_pairs: bool) -> object:
    if as_pairs:
        return [[token, _number(value)] for token, value in values.items()]
    return {str(token): _number(value) for token, value in values.items()}


def _number(value: float) -> float:
    """A whole value as an integer, which is how the specification types the field; nothing is rounded."""
    return int(value) if not isinstance(value, bool) and float(value).is_integer() else value


def _quoted(name: object) -> str:
    if name is None:
        return "no named model"
    return (f"'{printable(name)}'" if isinstance(name, str) else repr(name))[:80]
