"""The one module with HTTP: requests, rate-limit budgets, retries, errors mapped to the tree in
``errors``.

Completions are asked for by ``httpx2`` over aiohttp: with httpx2's own connections a bare short
request takes three times as long, with the openai SDK, which takes a second to load, six times
(``bench.collector``). The SDK's client is used for files and batches alone, which are few.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx2
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from blackbox_lb._version import __version__
from blackbox_lb.api.transport.aiohttp_client import AiohttpClient
from blackbox_lb.api.transport.bounded_client import BoundedClient, at_most, ceiling
from blackbox_lb.api.transport.error_answers import Fault, classify, masked
from blackbox_lb.api.transport.rate_limits import RateLimiter
from blackbox_lb.api.transport.retries import (
    ATTEMPTS,
    SLOW_ATTEMPTS,
    MalformedResponseTolerance,
    asked_pause,
    is_passing,
    retry_pause,
)
from blackbox_lb.api.wire import loads
from blackbox_lb.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ContentFiltered,
    CorruptResponse,
    InputError,
    ModelUnsuitable,
    ProviderError,
    QuotaExhausted,
    RateLimited,
    RequestRejected,
    ServerFailed,
)
from blackbox_lb.providers.credentials import Credentials, TokenProvider, environment
from blackbox_lb.providers.profile import Profile
from blackbox_lb.safety.hosts import path_of_request
from blackbox_lb.safety.network import (
    check_key_log,
    explain_certificate,
    proxy_server,
    untrusted_certificate,
    verification,
)
from blackbox_lb.safety.open_files import (
    has_too_many,
    most_open_files,
    remedy_for_too_many,
)
from blackbox_lb.safety.printable import with_remedy
from blackbox_lb.safety.secrets import Redactor

if TYPE_CHECKING:
    import openai

RATE_LIMIT_ATTEMPTS = 20
"""Tries of a request refused for its rate alone: each waits as long as the provider asks, and one
of them will pass.
"""
NEEDED = frozenset(
    {
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
    }
)
"""Request fields that adapting a model needs: the returned logprobs, the bias, and neutral
sampling.
"""
REQUEST_TIMEOUT = 600.0
"""Seconds for one completion: a full queue in front of a slow server is normal, silence for ten
minutes is not.
"""

TIMEOUT = httpx2.Timeout(REQUEST_TIMEOUT).as_dict()

OF_LOAD = frozenset({"rate limit", "overloaded", "timeout", "context full"})
"""Refusals that fewer requests at a time would have avoided."""
MOST_CONNECTIONS = 1_000
"""The SDK client's own limit."""
OTHER_FILES = 48
"""Files that a command has open beside its connections: libraries, the store, logs."""
HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "Content-Type": "application/json",
    "User-Agent": f"blackbox_lb/{__version__}",
}
API_PATH = "/v1"
"""The end of the address of most APIs."""
MOST_QUOTED = 10_000
"""Characters of an answer that are masked before it is cut for a quote: cut first, a part of a
secret would be left.
"""

Parse: TypeAlias = Callable[[bytes], Awaitable[Any]]

log = logging.getLogger(__name__)


class Channel:
    """Requests to one API, for as long as it is open. ``attempts``: tries of a request, rate limits
    aside.

    ``transport`` stands in for the network. ``refusals`` counts the answers that blame the server's
    load, and those that came too late; ``served`` is how long the server had requests, in seconds,
    those at the same time added up.

    Raises InputError: no usable address. AuthenticationFailed: no key where one is needed.
    """

    def __init__(
        self,
        profile: Profile,
        base_url: str | None = None,
        *,
        attempts: int = ATTEMPTS,
        token_provider: TokenProvider | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.profile = profile
        self.base_url = address_of(profile, base_url)
        self._attempts = attempts
        self._budgets = RateLimiter(profile.connection.rate_limit_headers)
        self.malformed, self.refusals, self.served = MalformedResponseTolerance(), 0, 0.0
        self._turn = asyncio.Lock()
        self._waiting: set[asyncio.Task[Any]] = set()
        self._credentials = Credentials(profile, token_provider)
        self._redactor, self._repeated = Redactor(lambda: self._credentials.secrets), False
        check_key_log()  # before aiohttp is imported, which reads it then
        self._proxy_server = proxy_server(self.base_url) if transport is None else None
        self._verify = verification(self.base_url)
        if transport is None and self._proxy_server is None:
            self._client: AiohttpClient | httpx2.AsyncClient = AiohttpClient(
                self._verify, REQUEST_TIMEOUT, connection_limits()
            )
        else:  # httpx2 knows all kinds of proxy servers
            self._client = self._http(BoundedClient, httpx2.Timeout(REQUEST_TIMEOUT), transport)

    def _http(
        self,
        kind: type[httpx2.AsyncClient],
        timeout: httpx2.Timeout,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> httpx2.AsyncClient:
        return kind(
            timeout=timeout,
            limits=connection_limits(),
            # The key would be added again for any host that a redirect names.
            follow_redirects=False,
            trust_env=False,
            proxy=self._proxy_server and self._proxy_server.address,
            verify=self._verify,
            transport=transport,
        )

    def for_files(self, timeout: httpx2.Timeout) -> openai.AsyncOpenAI:
        """The SDK's client of the same API under the same key, for answers of any size; the caller
        closes it.

        Raises InputError: the SDK is too old for it.
        """
        import openai

        if not hasattr(openai, "DefaultAsyncHttpx2Client"):
            raise InputError(
                f"openai {openai.__version__} cannot talk through httpx2, which batches need;"
                " install openai 2.49 or newer"
            )
        client = self._http(httpx2.AsyncClient, timeout)
        client.event_hooks = {"request": [self._credentials]}
        return openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key="the credentials hook knows",
            max_retries=0,
            timeout=timeout,
            default_query=self.profile.connection.query,
            http_client=client,
        )

    async def close(self) -> None:
        await self._client.aclose()

    def root(self, path: str) -> str:
        """The address of a path that lies beside the API's ``/v1``."""
        return self.base_url.removesuffix(API_PATH) + path

    def masked(self, text: str) -> str:
        """``text`` with everything that looks like a secret masked; all quotes of the provider go
        through here.
        """
        return masked(text, self._credentials.secrets)

    def parsed(self, content: bytes, parse: Callable[[bytes], Any] = loads) -> Any:
        """``parse`` an answer from a file like a live one. Raises CorruptResponse: it is no
        JSON.
        """
        return self._json(
            httpx2.Response(200, content=content, request=httpx2.Request("GET", self.base_url)),
            parse,
        )

    def drop_waiting(self) -> None:
        """Cancel the requests that wait for their turn or for another try: none of them has been
        sent.
        """
        for task in self._waiting:
            task.cancel()

    async def get(self, path: str) -> Any:
        """The JSON at ``path``. A missing server is not waited for, one that is loading its model
        is.
        """

        async def once() -> Any:
            return self._json(await self._sent("GET", path))

        return await self._tried(
            once, lambda error: is_passing(error) and not isinstance(error, ConnectionFailed)
        )

    async def post(
        self,
        path: str,
        body: dict[str, Any],
        *,
        prompt_tokens: int = 0,
        generated: int = 0,
        around: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]] = lambda once: once(),
        read: Callable[[Any], Any] = lambda answer: answer,
        parse: Parse | None = None,
    ) -> Any:
        """Return ``read`` of the JSON answer to ``body``, after the retries that fit the fault.

        prompt_tokens: approximate. generated: most tokens to generate. The request waits until the
        provider's budgets allow both. around: called with every try. parse: reads the JSON, where
        not ``loads``. An unreadable answer is asked for again as long as it is one slip among many
        (``MalformedResponseTolerance``).

        Raises ProviderError: one of its subclasses, each with the provider's own words.
        """

        async def once() -> Any:
            found = read(
                await around(
                    lambda: self._once(path, body, prompt_tokens + generated, generated, parse)
                )
            )
            self.malformed.good += generated > 0
            return found

        with at_most(ceiling(body, generated)):
            return await self._tried(
                once, lambda error: is_passing(error) or self.malformed.passing(error)
            )

    async def _tried(
        self, once: Callable[[], Awaitable[Any]], passing: Callable[[BaseException], bool]
    ) -> Any:
        try:
            return await once()
        except ProviderError as error:
            failed = [error]

        async def again() -> Any:  # the first try has been made: most requests need no other
            if failed:
                raise failed.pop()
            return await once()

        retry = retry_if_exception(passing)
        return await AsyncRetrying(
            retry=retry, wait=retry_pause, stop=self._enough, sleep=self._sleep, reraise=True
        )(again)

    async def _sleep(self, seconds: float) -> None:
        with self._waits():
            await asyncio.sleep(seconds)

    @contextmanager
    def _waits(self) -> Iterator[None]:
        """Inside, the task may be dropped without loss."""
        task = asyncio.current_task()
        if task is not None:
            self._waiting.add(task)
        try:
            yield
        finally:
            self._waiting.discard(task)

    async def _once(
        self, path: str, body: dict[str, Any], tokens: int, generated: int, parse: Parse | None
    ) -> Any:
        # First come, first served: else small requests would overtake a large one for ever.
        if (
            self._turn.locked()
            or self._budgets.wait(tokens, started := time.monotonic(), generated=generated) > 0
        ):
            with self._waits():
                async with self._turn:
                    while (
                        delay := self._budgets.wait(
                            tokens, started := time.monotonic(), generated=generated
                        )
                    ) > 0:
                        await asyncio.sleep(delay)

        def learn(response: httpx2.Response) -> None:
            self._budgets.update(
                response.headers,
                time.monotonic(),
                started=started,
                tokens=tokens,
                generated=generated,
            )

        content = json.dumps(
            body, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
        try:
            response = await self._sent("POST", path, content, body.get("model"))
        except ProviderError as error:
            if isinstance(error.__cause__, httpx2.HTTPStatusError):
                learn(error.__cause__.response)
                if isinstance(error, RateLimited):
                    self._budgets.refused(
                        asked_pause(error.__cause__.response.headers), time.monotonic()
                    )
            raise
        learn(response)
        with self._read(response) as content:
            answer = loads(content) if parse is None else await parse(content)
        if isinstance(answer, dict) and answer.get("error") and not answer.get("choices"):
            # Gateways answer 200 with another server's refusal inside, and so does Azure for some
            # filtered prompts.
            raise self.refusal(None, answer, body.get("model"))
        return answer

    async def _sent(
        self, method: str, path: str, content: bytes | None = None, model: str | None = None
    ) -> httpx2.Response:
        """The answer. path: below the API's address, or a whole one. Raises ProviderError: no
        answer, or a refusal.
        """
        url, query = (
            path if path.startswith("http") else self.base_url + path,
            self.profile.connection.query,
        )
        request = httpx2.Request(
            method,
            _url(url),
            content=content,
            params=query or None,
            headers=HEADERS,
            extensions={"timeout": TIMEOUT},
        )
        await self._credentials(request)
        begin = time.monotonic()
        try:
            response = await self._client.send(request)
        except httpx2.HTTPError as error:
            raise self.unanswered(error) from error
        finally:
            self.served += time.monotonic() - begin
        if not response.is_success:
            refused = httpx2.HTTPStatusError(
                f"HTTP {response.status_code}", request=response.request, response=response
            )
            raise self.refused(response, model) from refused
        return response

    def _json(self, response: httpx2.Response, parse: Callable[[bytes], Any] = loads) -> Any:
        with self._read(response) as content:
            return parse(content)

    @contextmanager
    def _read(self, response: httpx2.Response) -> Iterator[bytes]:
        """The body without the key. Raises CorruptResponse where the block raises the errors of
        ``loads``.
        """
        content = self._redactor.answer(response.content)
        if content != response.content and not self._repeated:
            self._repeated = True
            log.warning(
                "%s repeats a key in its answers; [masked] stands for it in what is kept",
                self.base_url,
            )
        try:
            yield content
        except (ValueError, RecursionError) as error:
            text = self.masked(response.text[:MOST_QUOTED])[:100]
            raise CorruptResponse(
                f"{self.base_url} answered {response.request.url.path} with something that is not"
                f" JSON: {text!r}"
            ) from error

    def _enough(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome else None
        most = (
            RATE_LIMIT_ATTEMPTS
            if isinstance(error, RateLimited) and self._attempts > 1
            else self._attempts
        )
        if error is not None and isinstance(
            error.__cause__, httpx2.TimeoutException | TimeoutError
        ):
            most = min(most, SLOW_ATTEMPTS)
        return state.attempt_number >= most

    def unanswered(self, error: BaseException) -> ProviderError:
        """The error where no answer came."""
        self._redactor.clean(error)
        self.refusals += isinstance(error, httpx2.TimeoutException)
        if untrusted := untrusted_certificate(error):
            reason, remedy = explain_certificate(untrusted)
            return ConnectionFailed(
                f"the certificate of {self.base_url} is not accepted ({reason}); {remedy}"
            )
        what = "connection error"
        if isinstance(error, httpx2.TimeoutException):
            what = "the request timed out"
        reason = self.masked(f"{what} ({error})" if str(error) else what)
        if has_too_many(error):
            return ConnectionFailed(f"no connection to {self.base_url}: {remedy_for_too_many()}")
        where, remedy = self.base_url, "is the server running? Another address goes in ``base_url``"
        if self._proxy_server is not None:
            where = f"{self.base_url} through {self._proxy_server}"
            remedy = "do both run? Hosts to be reached without a proxy server go in NO_PROXY"
        return ConnectionFailed(with_remedy(f"no answer from {where}: {reason}", remedy))

    def refused(self, response: httpx2.Response, model: str | None = None) -> ProviderError:
        """The error for an answer that is no success, in the provider's own words."""
        if response.status_code < 400:
            to = self.masked(response.headers.get("location", "no address"))
            return RequestRejected(
                f"{self.profile.name} answered {response.status_code}: {self.base_url} has moved to"
                f" {to}; keys are not sent along: give the new address with ``base_url``"
            )
        url = response.request.url.copy_with(query=None)
        return self.refusal(response.status_code, response.text, model, self.masked(str(url)))

    def refusal(
        self, status: int | None, body: Any, model: str | None = None, url: str | None = None
    ) -> ProviderError:
        """The error for an error answer: its status, if it has one, and its body. ``url``: the
        address that was asked, None for one that is not known.
        """
        fault = classify(status, body, self.profile.name, secrets=self._credentials.secrets)
        self.refusals += fault.kind in OF_LOAD
        return self._error(fault, model, url)

    def _error(self, fault: Fault, model: str | None, url: str | None = None) -> ProviderError:
        refusal = self.profile.bias.refusal_of(fault.message)
        if refusal is not None:
            return ModelUnsuitable(with_remedy(f"{fault}: {refusal.why}", refusal.remedy))
        if (
            fault.kind == "unsupported"
            and fault.limit is None
            and model is not None
            and fault.parameter in NEEDED
        ):
            return self.profile.unsuitable(model, fault.message)
        kind, remedy = self._remedy(fault, model, url)
        return kind(with_remedy(fault, remedy) if remedy else str(fault))

    def _remedy(
        self, fault: Fault, model: str | None, url: str | None
    ) -> tuple[type[ProviderError], str | None]:
        """The kind of error, and the advice behind the provider's words, if there is any."""
        rules = self.profile.connection
        match fault.kind:
            case "authentication":
                where = f"; keys are made at {rules.api_key_url}" if rules.api_key_url else ""
                return (
                    AuthenticationFailed,
                    f"check the key in {rules.api_key_env or 'your profile'}{where}",
                )
            case "quota":
                return (
                    QuotaExhausted,
                    "what was received is kept, the same command goes on once there is credit",
                )
            case "rate limit":
                return RateLimited, "lower ``concurrency`` or wait, what was received is kept"
            case "content filter":
                return ContentFiltered, None
            case "context full":
                return (
                    ServerFailed,
                    (
                        "lower ``concurrency``, or give the server a longer context; what was"
                        " received is kept"
                    ),
                )
            case "context length":
                return (
                    RequestRejected,
                    (
                        "shorten the prompt, lower ``max_tokens``, or give a server of your own a"
                        " longer context"
                    ),
                )
            case "overloaded" | "server" | "timeout" | "conflict":
                return (
                    ServerFailed,
                    "what was received is kept, the same command goes on from there",
                )
            case "unsupported" if fault.limit is not None:
                return RequestRejected, f"ask for at most {fault.limit} with ``top_logprobs``"
            case "other endpoint" if fault.parameter in self.profile.endpoints:
                return RequestRejected, f"use ``endpoint={fault.parameter}``"
            case "unknown model" if model is not None:
                where = (
                    f", or see which there are at {self.base_url}/models"
                    if rules.lists_models
                    else ""
                )
                return (
                    RequestRejected,
                    f"is {model!r} the model's name? Give another with ``model``{where}",
                )
            case "not found" if url is not None:
                return RequestRejected, self._missing(url, model)
            case "not found" if model is not None:
                return RequestRejected, f"is {model!r} the model's name?"
            case _:
                return RequestRejected, None

    def _missing(self, url: str, model: str | None) -> str:
        """The advice where ``url``, which was asked, does not exist."""
        rules = self.profile.connection
        usual = (rules.base_path or rules.base_url or API_PATH).rstrip("/")
        if usual.endswith(API_PATH) and not self.base_url.endswith(API_PATH):
            return (
                f"{url} was asked for; the address of such an API ends in {API_PATH}: try"
                f" ``base_url={self.base_url}{API_PATH}``"
            )
        named = "" if model is None else f", and {model!r} the model's name"
        return f"{url} was asked for; is {self.base_url} the API's address{named}?"


_url = lru_cache(httpx2.URL)


def connection_limits() -> httpx2.Limits:
    """Most connections at once, all kept open: as many as the process may have files open, less
    ``OTHER_FILES``. Further requests wait for one.
    """
    files = most_open_files()
    most = MOST_CONNECTIONS
    if files is not None:
        most = max(1, min(most, files - OTHER_FILES))
    return httpx2.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=5.0)


def address_of(profile: Profile, base_url: str | None) -> str:
    """The API's address, the profile's own by default. Raises InputError: there is none, or it is
    no plain URL.
    """
    rules = profile.connection
    address = (base_url or environment(rules.base_url_env) or rules.base_url or "").rstrip("/")
    remedy = (
        f"give one with ``base_url``{f' or in {rules.base_url_env}' if rules.base_url_env else ''}"
    )
    if not address:
        raise InputError(
            f"{profile.name} has no address of its own; {remedy}, as in"
            f" https://HOST{rules.base_path or '/v1'}"
        )
    try:
        url = httpx2.URL(address)
        usable = url.scheme in ("http", "https") and url.host and 0 <= (url.port or 0) < 65_536
    except (httpx2.InvalidURL, ValueError):
        usable = False
    if not usable:
        raise InputError(
            f"the address {address.rpartition('@')[2]!r} is not a http(s) URL; {remedy}"
        )
    if url.userinfo or url.query:
        raise InputError(
            "the address holds a password or a query; keys belong in the environment, a query in"
            " connection.query of a profile"
        )
    if path := path_of_request(url.path):
        raise InputError(
            f"the address {address} ends in {path}, which is the path of a request; {remedy}"
            f" without it: {address.removesuffix(path)}"
        )
    return address if address.endswith(rules.base_path) else address + rules.base_path
