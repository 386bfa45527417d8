"""The one place that talks HTTP: the openai SDK's client, retries, and errors mapped to the tree in ``errors``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx2
import openai
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from blackbox_lb.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    CorruptResponse,
    InputError,
    ProviderError,
    RateLimited,
    RequestRejected,
    ServerFailed,
)
from blackbox_lb.profiles import Profile
from blackbox_lb.tokens import PROBE_TEXT, Tokenizer, fingerprint
from blackbox_lb.types import Completion, Endpoint, Prompt, Sampling
from blackbox_lb.wire import build_request, parse_response
from blackbox_lb.wire.request import endpoint_rules

__all__ = ["Session"]

ATTEMPTS = 6
"""Tries of one request: with exponential waits these span about half a minute, the time a server takes to restart."""
LONGEST_WAIT = 20.0
"""Seconds; a provider's own retry-after may ask for more and gets it, up to ``LONGEST_RETRY_AFTER``."""
LONGEST_RETRY_AFTER = 120.0
REQUEST_TIMEOUT = 600.0
"""Seconds for one completion: a full queue in front of a slow server is normal, silence for ten minutes is not."""


class Session:
    """One model behind one inference API, for as many requests as are wanted. Use as an asynchronous context manager.

    ``base_url`` and the API key default to the environment variables that the profile names. Without ``model`` the server's only
    model is taken.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        model: str | None = None,
        base_url: str | None = None,
        endpoint: Endpoint = "chat",
        attempts: int = ATTEMPTS,
    ) -> None:
        endpoint_rules(profile, endpoint)
        self.profile = profile
        self.endpoint = endpoint
        self.base_url = base_url or _environment(profile.connection.base_url_env) or profile.connection.base_url or ""
        if not self.base_url.startswith(("http://", "https://")):
            raise InputError(f"the address {self.base_url!r} is not a http(s) URL; give one with --base-url")
        self._model = model
        self._attempts = attempts
        self._client = openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=_api_key(profile),
            max_retries=0,
            timeout=REQUEST_TIMEOUT,
            # A proxy for the outside world cannot reach this machine's own servers.
            http_client=openai.DefaultAsyncHttpx2Client(trust_env=not _is_loopback(self.base_url)),
        )

    @property
    def model(self) -> str:
        """The model's name as the provider knows it; known after entering the context."""
        if self._model is None:
            raise InputError("the session has not been entered: its model is not known yet")
        return self._model

    async def __aenter__(self) -> Self:
        try:
            served = await self._served()
            if self._model is None:
                if len(served) != 1:
                    raise InputError(
                        f"{self.base_url} serves {len(served)} models; choose one with --model: {', '.join(served)}"
                    )
                self._model = served[0]
        except BaseException:
            await self._client.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def complete(self, prompt: Prompt, sampling: Sampling, bias: Mapping[int, float] | None = None) -> Completion:
        """One completion, after as many retries as the fault deserves.

        Raises:
            ProviderError: one of its subclasses, each with the provider's own words.
        """
        body = build_request(self.profile, self.endpoint, model=self.model, prompt=prompt, sampling=sampling, bias=bias)
        answer = await self._post(endpoint_rules(self.profile, self.endpoint).path, body)
        return parse_response(self.profile, self.endpoint, answer, sampling)[0]

    async def tokenizer(self) -> Tokenizer:
        """The fingerprint of the model's tokenizer, and its size where the server tells."""
        route = self.profile.tokenizer.tokenize
        answer = await self._post(self._root(route.path), {"model": self.model, route.text: PROBE_TEXT, **route.fields})
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids) or not ids:
            raise CorruptResponse(
                f"{self.profile.name} answered {route.path} without a list of token ids: {str(answer)[:200]}"
            )
        return Tokenizer(fingerprint(ids), await self._vocabulary_size())

    async def text_of(self, token: int) -> str:
        """What the server prints for one token id; fragments of a character print as U+FFFD."""
        route = self.profile.tokenizer.detokenize
        answer = await self._post(self._root(route.path), {"model": self.model, "tokens": [token]})
        if not isinstance(answer, dict) or not isinstance(answer.get(route.answer), str):
            raise CorruptResponse(f"{self.profile.name} answered {route.path} without a text: {str(answer)[:200]}")
        return str(answer[route.answer])

    async def texts_of(self, tokens: Sequence[int]) -> list[str]:
        """``text_of`` each of ``tokens``, a few requests at a time."""
        gate = asyncio.Semaphore(self.profile.connection.concurrency)

        async def one(token: int) -> str:
            async with gate:
                return await self.text_of(token)

        return list(await asyncio.gather(*(one(token) for token in tokens)))

    async def _vocabulary_size(self) -> int | None:
        row = self.profile.tokenizer.vocabulary_size
        if row is None:
            return None
        value: Any = (await self._get("/models"))["data"][0]
        for key in row.removeprefix("models ").split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, int) else None

    async def _served(self) -> Sequence[str]:
        """Names of the models that the server offers; also the proof that something answers."""
        answer = await self._get("/models")
        try:
            return [str(model["id"]) for model in answer["data"]]
        except (KeyError, TypeError) as error:
            raise CorruptResponse(
                f"{self.base_url}/models does not list models ({str(answer)[:100]}); is this an OpenAI-compatible API?"
            ) from error

    def _root(self, path: str) -> str:
        return self.base_url.rstrip("/").removesuffix("/v1") + path

    async def _get(self, path: str) -> Any:
        try:
            return _json(await self._client.get(path, cast_to=httpx2.Response))
        except openai.OpenAIError as error:
            raise self._mapped(error) from error

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(_passing), wait=_wait, stop=stop_after_attempt(self._attempts), reraise=True
        ):
            with attempt:
                try:
                    return _json(await self._client.post(path, body=body, cast_to=httpx2.Response))
                except openai.OpenAIError as error:
                    raise self._mapped(error) from error
        raise AssertionError("tenacity ends by returning or raising")  # pragma: no cover

    def _mapped(self, error: openai.OpenAIError) -> ProviderError:
        """The provider's error as one of ours, in the provider's own words."""
        if not isinstance(error, openai.APIStatusError):
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            return ConnectionFailed(
                f"no answer from {self.base_url}: {error}{cause}; is the server running? Another address goes in --base-url"
            )
        status = error.status_code
        said = f"{self.profile.name} answered {status}: {_words(error)}"
        if status in (401, 403):
            return AuthenticationFailed(f"{said}; check the key in {self.profile.connection.api_key_env}")
        if status == 429:
            return RateLimited(f"{said}; lower --concurrency or wait, what was received is kept")
        if status >= 500 or status in (408, 409):
            return ServerFailed(f"{said}; what was received is kept, the same command goes on from there")
        if status == 404 and self._model is not None:
            return RequestRejected(f"{said}; is {self._model!r} the model's name and {self.base_url} its address?")
        return RequestRejected(said)


def _environment(name: str | None) -> str | None:
    return os.environ.get(name) if name else None


def _is_loopback(url: str) -> bool:
    host = httpx2.URL(url).host
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _api_key(profile: Profile) -> str:
    """The key from the environment; a server that needs none gets a placeholder, because the SDK insists on one."""
    rules = profile.connection
    key = _environment(rules.api_key_env)
    if key is None and rules.api_key_required:
        raise AuthenticationFailed(f"{profile.name} needs an API key: set the environment variable {rules.api_key_env}")
    return key or "none"


def _json(response: httpx2.Response) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise CorruptResponse(f"{response.url} answered something that is not JSON: {response.text[:100]!r}") from error


def _words(error: openai.APIStatusError) -> str:
    """The message inside an error body, whichever of the usual shapes it has."""
    body = error.body
    inner = body.get("error", body) if isinstance(body, dict) else body
    message = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(message or error.message).split())[:500]


def _passing(error: BaseException) -> bool:
    """Whether the same request may succeed later. A spent quota answers 429 too, and never does."""
    if isinstance(error, RateLimited):
        return getattr(error.__cause__, "code", None) != "insufficient_quota"
    return isinstance(error, ConnectionFailed | ServerFailed)


_backoff = wait_exponential_jitter(multiplier=0.5, max=LONGEST_WAIT, jitter=1.0)


def _wait(state: RetryCallState) -> float:
    """Seconds until the next try: exponential with jitter, or longer where the provider says so."""
    error = state.outcome.exception() if state.outcome else None
    response = getattr(error.__cause__ if error else None, "response", None)
    asked = 0.0
    if response is not None:
        try:
            asked = float(response.headers.get("retry-after-ms", 0)) / 1000 or float(
                response.headers.get("retry-after", 0)
            )
        except ValueError:
            asked = 0.0
    return max(_backoff(state), min(asked, LONGEST_RETRY_AFTER))
